"""The engine as vLLM's serving classes see it: what they would generate is left with the `Call` that it belongs to.

So it is admitted, drained and aborted like every other generation.
"""

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, Self

from vllm.outputs import RequestOutput
from vllm.v1.engine.async_llm import AsyncLLM

from engine.call import Call
from engine.errors import TailraceError
from engine.generation import DROPPED, Generation
from engine.interface import PreparedRequest
from engine.serving import CommonStream


@dataclass(slots=True)
class Opening:
    """A call while vLLM's layer works on it, with the outputs that the layer has asked for."""

    call: Call
    outputs: list["Outputs"] = field(default_factory=list)


# vLLM's layer calls `generate` on an engine that all requests share, and passes nothing by which to know the request.
OPENING: ContextVar[Opening] = ContextVar("opening")


class Outputs:
    """What `AsyncLLM.generate` would return: iterate for the outputs. Submits when asked to, at the latest then."""

    def __init__(self, call: Call, request: PreparedRequest) -> None:
        self._call = call
        self._request = request
        self._generation: Generation | None = None

    async def submit(self, needs_raw: bool = True) -> Generation:
        if self._generation is None:
            self._generation = await self._call.admit(replace(self._request, needs_raw=needs_raw))
        return self._generation

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RequestOutput:
        try:
            delta = await anext(await self.submit())
        except TailraceError as error:
            self._call.failure = error
            raise
        if delta.finish_reason is None:  # of one that was dropped, vLLM says so in its output, and ours is the word
            for choice in delta.raw.outputs:
                if choice.finish_reason in DROPPED:
                    choice.finish_reason = None
        output: RequestOutput = delta.raw
        return output

    async def aclose(self) -> None:
        if self._generation is not None:
            await self._generation.abort()


class CallingLLM:
    """The `EngineClient` that vLLM's serving classes see: `llm`, with `generate` taken over."""

    def __init__(self, llm: AsyncLLM) -> None:
        self._llm = llm

    def __getattr__(self, name: str) -> Any:
        return getattr(self._llm, name)

    def generate(self, prompt: Any, sampling_params: Any, request_id: str, **options: Any) -> Outputs:
        opening = OPENING.get()
        outputs = Outputs(opening.call, PreparedRequest(prompt, sampling_params, options))
        opening.outputs.append(outputs)
        return outputs


@dataclass(frozen=True, slots=True)
class Draft:
    """A `CommonStream` but for its generation, which is not in the engine yet."""

    outputs: Outputs
    build: Callable[[Generation], CommonStream]
