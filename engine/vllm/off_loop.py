"""Work on large requests, beside the event loop: one giant must not silence every other stream."""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

# A request larger than this is prepared in a thread. vLLM validates and renders chats in Python, at up to 0.6 s a MB of
# them: this much is 20 ms at worst.
OFF_LOOP_BYTES = 32 << 10


class OffLoop:
    """Two threads, so that one giant does not make the next wait, and many do not fight with the event loop."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(max_workers=2, thread_name_prefix="tailrace-prepare")

    async def run(self, num_bytes: int, work: Callable[[], Awaitable[T]]) -> T:
        """What `work` returns or raises. Work on a request of `num_bytes` is done here when that is few, else in a
        thread with an event loop of its own: it must not touch what belongs to this one."""
        if num_bytes <= OFF_LOOP_BYTES:
            return await work()

        async def main() -> T:
            return await work()

        return await asyncio.get_running_loop().run_in_executor(self._threads, lambda: asyncio.run(main()))

    def stop(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
