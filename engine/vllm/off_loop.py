"""Work on large requests, beside the event loop: one giant must not silence every other stream."""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from vllm.renderers.hf import HfRenderer, safe_apply_chat_template

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


def render_small_at_once(renderer: Any, with_templates: bool) -> None:
    """Template and tokenise on the event loop what comes to vLLM's `renderer` there, which is what is small.

    vLLM does both in a thread, one request after the other: two ways there and back, which cost more than the work, and
    a burst of prompts waits in line. What is prepared in a thread of `OffLoop` goes on to that thread. Without
    `with_templates`, so do templates, which may come with a request and never end.
    """
    loop = asyncio.get_running_loop()
    renderer._tokenize_prompt_async = _at_once(loop, renderer._tokenize_prompt, renderer._tokenize_prompt_async)
    if with_templates and isinstance(renderer, HfRenderer):
        beside = renderer._apply_chat_template_async
        renderer._apply_chat_template_async = _at_once(loop, safe_apply_chat_template, beside)


def _at_once(
    loop: asyncio.AbstractEventLoop, work: Callable[..., T], beside: Callable[..., Awaitable[T]]
) -> Callable[..., Awaitable[T]]:
    async def run(*args: Any, **kwargs: Any) -> T:
        if asyncio.get_running_loop() is loop:
            return work(*args, **kwargs)
        return await beside(*args, **kwargs)

    return run
