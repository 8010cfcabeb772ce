"""The measurement at a steady load takes the server's own times, of the requests of one rate alone."""

from pathlib import Path

from bench.server import running, tailrace
from bench.steady_load import NUM_TOKENS, additions_ratio, measure_at, own_ttft_s

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


def test_additions_can_take_less_than_a_millisecond_too() -> None:
    assert additions_ratio(1e-5, 20) >= 1
