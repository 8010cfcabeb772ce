"""The measurement at a steady load takes the server's own times, of the requests of one rate alone."""

import time
from pathlib import Path

from bench.server import running, tailrace
from bench.steady_load import ADDITIONS_EVERY_S, NUM_TOKENS, Additions, measure_at, own_ttft_s
from tests.server import wait_until

TTFT_S = 0.1


def test_a_row_is_of_the_requests_of_its_rate(tmp_path: Path) -> None:
    script = tmp_path / "script.txt"
    script.write_text(" word" * NUM_TOKENS)
    flags = ("--engine", "scripted", "--scripted-text", str(script), "--scripted-ttft-ms", f"{TTFT_S * 1e3:g}")
    with running(tailrace("steady", *flags, "--served-model-name", "tiny"), tmp_path / "log") as server:
        rows = [measure_at(server, 20.0, num_requests, seed=num_requests) for num_requests in (6, 10)]
        assert len(own_ttft_s(server)) == 16
    for row in rows:
        assert TTFT_S <= row.ttft_p50_s <= row.ttft_p99_s < 5
        assert row.ratio == row.ttft_p99_s / row.ttft_p50_s
        assert row.additions_ratio >= 1


def test_additions_are_measured_while_the_load_lasts() -> None:
    with Additions() as additions:
        wait_until(lambda: len(additions.cpu_s) >= 3, 10, "additions")
    num_measured = len(additions.cpu_s)
    assert min(additions.cpu_s) > 0
    assert additions.ratio >= 1
    time.sleep(2 * ADDITIONS_EVERY_S)
    assert len(additions.cpu_s) == num_measured
