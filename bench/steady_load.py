"""TTFT at a steady load by the server's own clock, and how far its p99 is from its p50, beside how even the machine is.

    python -m bench.steady_load [--models tiny,embedded] [--shares 0.25,0.5,0.75]

Requests come at even distances, at a share of the rate that a closed loop of all streams reached. With a real model,
TTFT is what a reader waits; with the tiny one, it is a few milliseconds of everything but the model.

Beside each p99/p50 is that of mere additions, a fraction of a millisecond of them fifty times a second during the load.
They are measured in CPU time, so that they wait for nobody: when the same additions cost more, the core itself was
slower, as a virtual machine's is while others have a share of it, and so was every step of the engine in that moment.
"""

import argparse
import re
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from bench import table
from bench.client import MODEL, percentile
from bench.server import Server, Target, running, tailrace, targets
from bench.table import Figure

NUM_TOKENS = 32
NUM_STREAMS = 64
SHARES = (0.25, 0.5, 0.75)

# Of each share: enough for a p99, within two minutes at the least of the rates.
NUM_REQUESTS = {"tiny": 1000, "embedded": 150}

# Before the load there is too much of it for a while, so that batches of most sizes have been there. With the tiny
# model the first of a size takes several times as long as the next: code is made for it, and memory is touched.
OVERLOAD = 1.25

NUM_ADDITIONS = 10_000
ADDITIONS_EVERY_S = 0.02


@dataclass(frozen=True, slots=True)
class Row:
    """What was seen at one rate; times in seconds."""

    per_second: float
    ttft_p50_s: float
    ttft_p99_s: float
    additions_ratio: float

    @property
    def ratio(self) -> float:
        return self.ttft_p99_s / self.ttft_p50_s


def served(model: str) -> Target:
    return targets()["chat"] if model == "tiny" else tailrace("embedded", "--served-model-name", MODEL)


def measure(target: Target, shares: Sequence[float], num_requests: int) -> list[Row]:
    with running(target) as server:
        server.drive(8, 16, NUM_TOKENS)
        most, _ = server.drive(NUM_STREAMS, 2 * NUM_STREAMS, NUM_TOKENS, seed=1)
        most_per_second = most.num_requests / most.seconds
        server.drive(NUM_STREAMS, num_requests // 2, NUM_TOKENS, 2, OVERLOAD * most_per_second)
        return [measure_at(server, share * most_per_second, num_requests, seed) for seed, share in enumerate(shares, 3)]


def measure_at(server: Server, per_second: float, num_requests: int, seed: int) -> Row:
    num_before = len(own_ttft_s(server))
    with Additions() as additions:
        server.drive(NUM_STREAMS, num_requests, NUM_TOKENS, seed, per_second)
    seen_s = own_ttft_s(server)[num_before:]
    return Row(per_second, percentile(seen_s, 50), percentile(seen_s, 99), additions.ratio)


def own_ttft_s(server: Server) -> list[float]:
    """Of every request so far, as the server's log has it, in seconds."""
    return [float(found) / 1e3 for found in re.findall(r" ttft_ms=([\d.]+)", server.log.read_text())]


class Additions:
    """The same additions, again and again while this context is entered; their CPU times in seconds."""

    def __init__(self) -> None:
        self.cpu_s: list[float] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._measure)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    @property
    def ratio(self) -> float:
        """p99/p50."""
        return percentile(self.cpu_s, 99) / percentile(self.cpu_s, 50)

    def _measure(self) -> None:
        add_up(NUM_ADDITIONS)  # the first time costs more than the next
        while not self._ended.wait(ADDITIONS_EVERY_S):
            self.cpu_s.append(add_up(NUM_ADDITIONS))


def add_up(number: int) -> float:
    """The CPU time that so many additions take, in seconds."""
    started_s, total = time.thread_time(), 0
    for value in range(number):
        total += value
    return time.thread_time() - started_s


def run(
    models: Sequence[str] = tuple(NUM_REQUESTS), shares: Sequence[float] = SHARES, requests_share: float = 1.0
) -> list[Figure]:
    """Measure, and print the table."""
    rows, figures = [], []
    for model in models:
        found = measure(served(model), shares, round(NUM_REQUESTS[model] * requests_share))
        for share, row in zip(shares, found, strict=True):
            times_ms = (row.ttft_p50_s * 1e3, row.ttft_p99_s * 1e3)
            rows.append([f"{model}, {share:.0%}", row.per_second, *times_ms, row.ratio, row.additions_ratio])
            figures.append(Figure(f"TTFT p99/p50, {model} model, {share:.0%} of its rate", "", {"chat": row.ratio}))
    names = ["model, share of its rate", "requests/s", "TTFT p50 ms", "TTFT p99 ms", "p99/p50", "of additions"]
    print(f"{NUM_TOKENS} tokens each, by the server's own clock\n{table.render(names, rows)}")
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.steady_load")
    parser.add_argument("--models", default=tuple(NUM_REQUESTS), type=lambda text: text.split(","))
    parser.add_argument("--shares", default=SHARES, type=lambda text: [float(part) for part in text.split(",")])
    args = parser.parse_args()
    if unknown := set(args.models) - set(NUM_REQUESTS):
        parser.error(f"there is no model {', '.join(sorted(unknown))}; there are {', '.join(NUM_REQUESTS)}")
    run(args.models, args.shares)


if __name__ == "__main__":
    main()
