"""Work on large requests, beside the event loop: one giant must not silence every other stream."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

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

    vLLM does both in a thread, one request after the other, and makes tasks for the parts: a dozen turns of the event
    loop, which cost more than the work and let engine steps go first, and a burst of prompts waits in line. What is
    prepared in a thread of `OffLoop` goes vLLM's way there. Without `with_templates`, so do chats: a template that
    comes with a request may never end. So does what may have to be fetched first.
    """
    loop = asyncio.get_running_loop()

    def at_once(
        work: Callable[..., T], beside: Callable[..., Awaitable[T]], may_wait: Callable[[Any], bool]
    ) -> Callable[..., Awaitable[T]]:
        async def render(inputs: Any, *args: Any, **kwargs: Any) -> T:
            if asyncio.get_running_loop() is loop and not may_wait(inputs):
                return work(inputs, *args, **kwargs)
            return await beside(inputs, *args, **kwargs)

        return render

    renderer.render_cmpl_async = at_once(renderer.render_cmpl, renderer.render_cmpl_async, lambda prompts: False)
    if with_templates:
        renderer.render_chat_async = at_once(renderer.render_chat, renderer.render_chat_async, _has_media)


def _has_media(conversations: Iterable[Iterable[Mapping[str, Any]]]) -> bool:
    """Whether a message may have a part that is not text."""
    return not all(_is_text(message.get("content")) for messages in conversations for message in messages)


def _is_text(content: object) -> bool:
    if isinstance(content, list):
        return all(isinstance(part, dict) and part.get("type") == "text" for part in content)
    return content is None or isinstance(content, str)
