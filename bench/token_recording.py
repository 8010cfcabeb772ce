"""What recording one token costs: the clock, TTFT and ITL arithmetic, the histogram and the counter. Budget: 2 us.

python -m bench.token_recording
"""

import time
import timeit
from types import SimpleNamespace

from prometheus_client import CollectorRegistry

from metrics.instruments import Instruments
from metrics.timing import StreamTiming
from routes.meter import Meter

NUM_TOKENS = 100_000
REPEATS = 7


def cost_us() -> float:
    """Microseconds a token, the least of several runs: noise only adds."""
    work = SimpleNamespace(model="model", num_prompt_tokens=1, num_output_tokens=0, num_untaken_tokens=0)
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


if __name__ == "__main__":
    print(f"recording a token costs {cost_us():.2f} us")
