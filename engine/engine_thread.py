"""The thread that starts and stops the engine's processes, beside the event loop that serves."""

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class EngineThread:
    """Runs blocking work, one piece after the other, in one thread that never ends by itself.

    It has to live on after the engine's start: its processes are killed when the thread that started them ends (see
    `child_processes.die_with_parent`). It does not keep this process alive.
    """

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="tailrace-engine", daemon=True).start()

    def _run(self) -> None:
        while True:
            self._work.get()()

    def run(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """A future of what `work` returns or raises. Cancelling it does not interrupt the work; its outcome is lost."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def settle(set_outcome: Callable[[Any], None], outcome: object) -> None:
            if not future.done():
                set_outcome(outcome)

        def run() -> None:
            try:
                outcome = work()
            except Exception as error:
                loop.call_soon_threadsafe(settle, future.set_exception, error)
            else:
                loop.call_soon_threadsafe(settle, future.set_result, outcome)

        self._work.put(run)
        return future
