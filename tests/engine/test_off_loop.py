"""Where vLLM's renderer prepares a prompt: here at once, or its own way."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from engine.vllm.off_loop import render_small_at_once


class Renderer:
    """As vLLM's, and says which of its two ways was taken."""

    def render_cmpl(self, prompts: Sequence[Any], *args: Any) -> str:
        return "at once"

    def render_chat(self, conversations: Sequence[Any], *args: Any) -> str:
        return "at once"

    async def render_cmpl_async(self, prompts: Sequence[Any], *args: Any) -> str:
        return "vLLM's way"

    async def render_chat_async(self, conversations: Sequence[Any], *args: Any) -> str:
        return "vLLM's way"


IMAGE = {"type": "image_url", "image_url": {"url": "http://example.com/x.png"}}


@pytest.mark.parametrize(
    ("content", "way"),
    [
        ("text", "at once"),
        (None, "at once"),  # an assistant's, that called a tool
        ([{"type": "text", "text": "text"}], "at once"),
        ([{"type": "text", "text": "what is this?"}, IMAGE], "vLLM's way"),
        ([{"image_url": "http://example.com/x.png"}], "vLLM's way"),
        (({"type": "text", "text": "text"} for _ in range(1)), "vLLM's way"),  # which a look would use up
    ],
)
def test_a_chat_of_text_is_prepared_at_once(content: object, way: str) -> None:
    async def main() -> None:
        renderer = Renderer()
        render_small_at_once(renderer, with_templates=True)
        system = {"role": "system", "content": "be short"}
        assert await renderer.render_chat_async([[system, {"role": "user", "content": content}]], "params") == way

    asyncio.run(main())


def test_templates_that_come_with_requests_are_left_to_vllm() -> None:
    async def main() -> None:
        renderer = Renderer()
        render_small_at_once(renderer, with_templates=False)
        assert await renderer.render_chat_async([[{"role": "user", "content": "text"}]]) == "vLLM's way"
        assert await renderer.render_cmpl_async(["text"]) == "at once"

    asyncio.run(main())


def test_what_is_prepared_in_a_thread_stays_there() -> None:
    async def main() -> None:
        renderer = Renderer()
        render_small_at_once(renderer, with_templates=True)
        for render in (renderer.render_cmpl_async, renderer.render_chat_async):
            assert await asyncio.to_thread(lambda render=render: asyncio.run(render([]))) == "vLLM's way"  # type: ignore[misc]

    asyncio.run(main())
