"""What recording one token costs: the clock, TTFT and ITL arithmetic, the histogram and the counter. Budget: 2 us.

python -m bench.token_recording
"""

import time
import timeit

from prometheus_client import CollectorRegistry

from bench.table import Figure
from bench.token_path import Source
from engine.generation import Generation
from metrics.instruments import Instruments
from metrics.timing import StreamTiming
from routes.meter import Meter

NUM_TOKENS = 100_000
REPEATS = 7


def cost_us() -> float:
    """Microseconds a token, the least of several runs: noise only adds."""
    work = Generation("id", "model", Source(), on_close=lambda generation: None)
    meter = Meter(
        Instruments(CollectorRegistry()),
        "/v1/stream",
        work,
        StreamTiming(time.perf_counter()),
    )
    count = iter(range(1, NUM_TOKENS * REPEATS + 2))

    def record() -> None:
        meter.on_token_written(time.perf_counter(), next(count))

    return min(timeit.repeat(record, number=NUM_TOKENS, repeat=REPEATS)) / NUM_TOKENS * 1e6


def run() -> list[Figure]:
    """Measure, and print the cost."""
    recorded_us = cost_us()
    print(f"recording a token costs {recorded_us:.2f} us")
    return [Figure("recording a token", "us", {"chat": recorded_us})]


if __name__ == "__main__":
    run()
