"""A real Prometheus scrapes a real Tailrace: what it says is what the clients' own clocks saw."""

import json
import re
import shutil
import statistics
import subprocess
import time
from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from httpx_sse import connect_sse

from metrics.instruments import TPOT_BUCKETS_S, TTFT_BUCKETS_S
from tests.process.program import free_port
from tests.real.conftest import MAX_NUM_SEQS
from tests.real.test_leaving import num_running, num_waiting, reading
from tests.server import RunningServer, wait_until

DEPLOY = Path(__file__).parents[2] / "deploy"
NUM_GOOD = 40

pytestmark = pytest.mark.skipif(shutil.which("prometheus") is None, reason="needs Debian's package prometheus")


class Prometheus:
    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The series that `expression` has now; fails when it does not parse."""
        answer = httpx.get(f"{self.url}/api/v1/query", params={"query": expression}).json()
        assert answer["status"] == "success", f"{expression}: {answer}"
        result: list[dict[str, Any]] = answer["data"]["result"]
        return result

    def value(self, expression: str) -> float:
        [series] = self.query(expression)
        return float(series["value"][1])


@pytest.fixture(scope="module")
def prometheus(server: RunningServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    folder, port = tmp_path_factory.mktemp("prometheus"), free_port()
    for name in ("rules.yml", "alerts.yml"):
        shutil.copy(DEPLOY / "prometheus" / name, folder)
    config = (DEPLOY / "prometheus" / "prometheus.yml").read_text()
    config = config.replace("localhost:8000", f"127.0.0.1:{server.port}").replace("15s", "1s")
    (folder / "prometheus.yml").write_text(config)
    process = subprocess.Popen(
        ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
         f"--web.listen-address=127.0.0.1:{port}"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    found = Prometheus(port)

    def is_scraping() -> bool:
        try:
            return found.query("up") != [] and found.value("up") == 1
        except (httpx.TransportError, json.JSONDecodeError):  # not there yet, or not ready
            return False

    try:
        wait_until(is_scraping, 30, "the first scrape")
        yield found
    finally:
        process.terminate()
        process.wait(10)


def by_the_client_s_clock(server: RunningServer) -> tuple[float, float]:
    """One good stream: its TTFT and TPOT in seconds."""
    fields = {"prompt": "Once upon a time", "max_tokens": 30, "ignore_eos": True}
    with server.client() as client:
        client.get("/healthz")  # the connection is there before the clock starts
        started_s = time.perf_counter()
        writes = []
        with connect_sse(client, "POST", "/v1/stream", json=fields) as source:
            for event in source.iter_sse():
                if event.event == "message" and event.data != "[DONE]":
                    writes.append((time.perf_counter(), int(event.id.rpartition(":")[2])))
    (first_s, _), (last_s, num_tokens) = writes[0], writes[-1]
    return first_s - started_s, (last_s - first_s) / (num_tokens - 1)


def leave_in_each_phase(server: RunningServer) -> None:
    """Ten streams that their clients abort: four in decode, three in prefill, three in the queue."""
    for _ in range(4):
        with reading(server, 3):
            pass
    for number in range(3):
        with reading(server, 1, prompt=[1000 + number, *range(2000, 3500)], max_tokens=10):
            time.sleep(0.3)
    held = [reading(server, 2) for _ in range(MAX_NUM_SEQS)]
    for stream in held:
        stream.__enter__()
    for _ in range(3):
        with reading(server, 1):
            wait_until(lambda: num_waiting(server) == 1)
        wait_until(lambda: num_waiting(server) == 0)
    for stream in held:
        stream.__exit__(None, None, None)
    wait_until(lambda: num_running(server) == 0)


def quantile(values: list[float], bounds: tuple[float, ...]) -> float:
    """The median as Prometheus estimates it from a histogram with these bounds."""
    counts = [0] * (len(bounds) + 1)
    for value in values:
        counts[bisect_left(bounds, value)] += 1
    rank, seen = len(values) / 2, 0
    for index, count in enumerate(counts):
        if seen + count >= rank:
            low = bounds[index - 1] if index else 0.0
            return low + (bounds[index] - low) * (rank - seen) / count
        seen += count
    raise AssertionError("no values")


def tolerance_s(value_s: float) -> float:
    return max(0.005, 0.1 * value_s)


def test_what_prometheus_says_is_what_clients_saw(server: RunningServer, prometheus: Prometheus) -> None:
    names = ("tailrace_time_to_first_token_seconds", "tailrace_time_per_output_token_seconds")
    counted = [sum(float(series["value"][1]) for series in prometheus.query(f"{name}_count")) for name in names]
    started_s = time.time()
    seen = [by_the_client_s_clock(server) for _ in range(NUM_GOOD)]
    wait_until(
        lambda: prometheus.value(f"sum({names[0]}_count)") == counted[0] + NUM_GOOD, 10, "the scrape of all streams"
    )
    window = f"{int(time.time() - started_s) + 3}s"
    for name, column, bounds in zip(names, (0, 1), (TTFT_BUCKETS_S, TPOT_BUCKETS_S), strict=True):
        clients = [pair[column] for pair in seen]
        by_server = prometheus.value(f"histogram_quantile(0.5, sum by (le) (increase({name}_bucket[{window}])))")
        # Not the one estimate beside the other: a value that is a little larger may be in a bucket twice as wide.
        lowest = quantile([value - tolerance_s(value) for value in clients], bounds)
        highest = quantile([value + tolerance_s(value) for value in clients], bounds)
        assert lowest <= by_server <= highest
        mean = prometheus.value(f"sum(increase({name}_sum[{window}])) / sum(increase({name}_count[{window}]))")
        assert mean == pytest.approx(statistics.mean(clients), abs=tolerance_s(statistics.mean(clients)))

    before = {
        phase: server.metric("tailrace_disconnects_total", phase=phase) for phase in ("queued", "prefill", "decode")
    }
    leave_in_each_phase(server)
    left = {phase: server.metric("tailrace_disconnects_total", phase=phase) - n for phase, n in before.items()}
    assert left == {"queued": 3, "prefill": 3, "decode": 4 + MAX_NUM_SEQS}


def expressions() -> list[str]:
    """Every PromQL expression of the dashboard and the rules."""
    dashboard = json.loads((DEPLOY / "grafana" / "tailrace.json").read_text())
    found = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    for name in ("rules.yml", "alerts.yml"):
        text = (DEPLOY / "prometheus" / name).read_text()
        found += [re.sub(r"\s+", " ", block) for block in re.findall(r"expr: (?:>-\s+)?((?:.|\n {10})+)", text)]
    return [expression.replace("$__rate_interval", "1m").replace("$job", ".*") for expression in found]


@pytest.mark.parametrize("expression", expressions())
def test_every_expression_parses_and_returns_a_series(prometheus: Prometheus, expression: str) -> None:
    if "> " in expression or "== 1" in expression:  # an alert: what it compares must be there
        expression = re.split(r" (?:>|==) ", expression)[0]
    wait_until(lambda: prometheus.query(expression) != [], 15, f"a series of {expression}")
