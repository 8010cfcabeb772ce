"""How late the event loop is: what every stream of the process waits for, whatever the engine does."""

import asyncio

from prometheus_client import Histogram

INTERVAL_S = 0.1


async def measure_loop_lag(histogram: Histogram) -> None:
    """Observe, ten times a second, how late a timer of that interval fires. Runs until it is cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        due_s = loop.time() + INTERVAL_S
        await asyncio.sleep(INTERVAL_S)
        histogram.observe(max(0.0, loop.time() - due_s))
