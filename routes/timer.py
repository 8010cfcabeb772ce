"""Something looked at from time to time while an answer is under way: one timer, and nothing per token."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def repeated(check: Callable[[], float | None]) -> Iterator[None]:
    """Call `check` now, and again after as many seconds as it returned; None ends it."""
    loop = asyncio.get_running_loop()
    handle: asyncio.TimerHandle | None = None

    def run() -> None:
        nonlocal handle
        delay_s = check()
        handle = loop.call_later(delay_s, run) if delay_s is not None else None

    run()
    try:
        yield
    finally:
        if handle is not None:
            handle.cancel()
