"""A limit on waiting that does not count against the other side the time in which this process did not look."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

# How much of the limit is left for what is there already.
LAST_LOOK_SHARE = 0.1


@contextlib.asynccontextmanager
async def time_limit(seconds: float | None) -> AsyncIterator[None]:
    """As `asyncio.timeout`; but what came while this process was kept from its core, or suspended, still counts.

    When the event loop runs again after that, what is due goes before what is there to be read. So the last tenth of
    the limit begins only once the loop has run after the other nine. (A pause that begins within it still counts.)

    Raises:
        TimeoutError
    """
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(None) as limit:
        if seconds is None:
            yield
            return
        last_look_s = seconds * LAST_LOOK_SHARE
        timer = loop.call_later(seconds - last_look_s, lambda: limit.reschedule(loop.time() + last_look_s))
        try:
            yield
        finally:
            timer.cancel()
