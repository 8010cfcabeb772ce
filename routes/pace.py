"""The least time between two events with text, and streams that wait for it woken together."""

import asyncio
import math
import time
from collections.abc import Callable

# Streams whose next events are due within this part of the interval get them in one turn of the event loop, and so in
# one system call: a timer, a wake-up and a write for each of them cost more than fewer events save.
SLOTS_PER_INTERVAL = 4


class Pace:
    """One for all streams. Times are on the clock of `time.perf_counter`; an interval of 0 holds nothing back."""

    def __init__(self, interval_s: float) -> None:
        self.interval_s = interval_s
        self._slot_s = interval_s / SLOTS_PER_INTERVAL
        self._waiting: dict[int, list[Callable[[], None]]] = {}

    def call_when_due(self, last_s: float, callback: Callable[[], None]) -> None:
        """Call back when the next event is due after one at `last_s`, and a quarter of the interval later at most."""
        slot = math.ceil((last_s + self.interval_s) / self._slot_s)
        if slot in self._waiting:
            self._waiting[slot].append(callback)
        else:
            self._waiting[slot] = [callback]
            self._call_back(slot)

    def _call_back(self, slot: int) -> None:
        """When it is time; the event loop's own clock is coarser, and may be early."""
        loop, wait_s = asyncio.get_running_loop(), slot * self._slot_s - time.perf_counter()
        if wait_s > 0:
            loop.call_later(max(wait_s, 0.001), self._call_back, slot)
            return
        for callback in self._waiting.pop(slot):
            loop.call_soon(callback)
