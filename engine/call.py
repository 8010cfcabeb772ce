"""What one HTTP request has running in the engine, when that is not known to be one generation.

A completion may have several prompts, a response may call tools between two generations, and an answer that is not
streamed has none before its prompt was looked at. To the one who answers, a call looks like a `Generation`.
"""

from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Self

from engine.errors import TailraceError
from engine.generation import Generation
from engine.interface import AnyRequest

Admit = Callable[[AnyRequest], Awaitable[Generation]]


class Call:
    """Leave the `async with`, and the engine has forgotten all of it.

    `headers` are those that the engine's serving layer may read; `num_bytes` is how large the request was. With
    `wants_deltas` a stream is a `CommonStream`, whatever the server was told to add to its chunks. `failure` is what a
    generation of this call ended with, when it did not end well.
    """

    def __init__(
        self, model: str, admit: Admit, headers: Mapping[str, str], num_bytes: int, wants_deltas: bool = False
    ) -> None:
        self.model = model
        self.headers = headers
        self.num_bytes = num_bytes
        self.wants_deltas = wants_deltas
        self.failure: TailraceError | None = None
        self._admit = admit
        self._generations: list[Generation] = []
        self._aborted = False

    async def admit(self, request: AnyRequest) -> Generation:
        """Hand one generation of this call to the engine.

        Raises:
            TailraceError: refused; nothing was started.
        """
        generation = await self._admit(request)
        self._generations.append(generation)
        if self._aborted:
            await generation.abort()
        return generation

    @property
    def phase(self) -> str:
        """How far the furthest of its generations is."""
        phases = {generation.phase for generation in self._generations}
        return next((phase for phase in ("decode", "prefill") if phase in phases), "queued")

    @property
    def num_prompt_tokens(self) -> int:
        return sum(generation.num_prompt_tokens for generation in self._generations)

    @property
    def num_tokens_before(self) -> int:
        return 0  # only native streams go on after earlier output

    @property
    def num_output_tokens(self) -> int:
        return sum(generation.num_output_tokens for generation in self._generations)

    @property
    def num_untaken_tokens(self) -> int:
        return sum(generation.num_untaken_tokens for generation in self._generations)

    async def abort(self) -> None:
        """Stop the engine's work on all of it at once; what comes later is stopped as it comes."""
        self._aborted = True
        for generation in self._generations:
            await generation.abort()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._aborted = True
        for generation in self._generations:
            await generation.__aexit__(exc_type, exc, traceback)
