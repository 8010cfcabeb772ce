"""Something looked at from time to time while an answer is under way: one timer, and nothing per token."""

import asyncio
from collections.abc import Callable


class Repeated:
    """Within its `with`, calls `check` after `first_s`, and again after what it returned, in seconds; None ends it."""

    __slots__ = ("_check", "_first_s", "_handle", "_loop")

    def __init__(self, check: Callable[[], float | None], first_s: float) -> None:
        self._check = check
        self._first_s = first_s
        self._loop = asyncio.get_running_loop()
        self._handle: asyncio.TimerHandle | None = None

    def _run(self) -> None:
        delay_s = self._check()
        self._handle = self._loop.call_later(delay_s, self._run) if delay_s is not None else None

    def __enter__(self) -> None:
        self._handle = self._loop.call_later(self._first_s, self._run)

    def __exit__(self, *_: object) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
