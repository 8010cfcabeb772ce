"""What streaming moves, and what it does not: the first token, and not the last.

    python -m bench.latency [MODEL] [flags of vllm serve]      (make bench-latency MODEL=…)

Starts Tailrace with MODEL (else the embedded one) and asks the same question in two ways: for the whole answer at once,
and for a stream of it. Temperature 0, a fixed number of tokens, the median of 5 after a warm-up; beside it what the
server's own histograms say.
"""

import http.client
import json
import re
import statistics
import sys
import time
import urllib.request
from collections.abc import Sequence

from bench import table
from bench.server import running, tailrace
from bench.table import Figure

NUM_TOKENS = 100
NUM_RUNS = 5

QUESTION = {
    "messages": [{"role": "user", "content": "Tell me about rivers."}],
    "max_tokens": NUM_TOKENS,
    "temperature": 0,
    "ignore_eos": True,
    "stream": False,
}


def ask(port: int, streamed: bool) -> tuple[float, float]:
    """Ask once: when the reader sees the first text, and when it has all of it; in ms."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    started_s = time.perf_counter()
    body = json.dumps(QUESTION | {"stream": streamed})
    connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    first_s = None
    while line := response.readline():
        if streamed and first_s is None and b'"content":"' in line and b'"role"' not in line:
            first_s = time.perf_counter()
    ended_s = time.perf_counter()
    connection.close()
    return ((first_s or ended_s) - started_s) * 1e3, (ended_s - started_s) * 1e3


def mean_ms(port: int, name: str) -> float:
    """The mean of one of the server's histograms."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as response:
        text = response.read().decode()
    total, count = (
        sum(
            float(value)
            for value in re.findall(rf"^{name}_{part}{{[^}}]*/v1/chat/completions[^}}]*}} (\S+)$", text, re.MULTILINE)
        )
        for part in ("sum", "count")
    )
    return total / count * 1e3


def run(flags: Sequence[str] = ()) -> list[Figure]:
    """Measure, and print the table."""
    with running(tailrace("latency", *flags)) as server:
        ask(server.port, True)
        rows = {}
        for name, streamed in (("one answer at once", False), ("streamed", True)):
            times = [ask(server.port, streamed) for _ in range(NUM_RUNS)]
            rows[name] = [statistics.median(values) for values in zip(*times, strict=True)]
        names = ("time_to_first_token", "request_duration")
        rows["server, mean of all"] = [mean_ms(server.port, f"tailrace_{name}_seconds") for name in names]
    print(f"{NUM_TOKENS} tokens, median of {NUM_RUNS}, as the reader sees it")
    print(table.render(["", "TTFT ms", "E2E ms"], [[name, *values] for name, values in rows.items()]))
    return [
        Figure(f"first token of {NUM_TOKENS}, {name}", "ms", {"chat": rows[name][0]})
        for name in ("one answer at once", "streamed")
    ]


if __name__ == "__main__":
    run(sys.argv[1:])
