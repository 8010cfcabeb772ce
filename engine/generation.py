"""One request in flight, from its admission to its last delta.

Invariant: a generation that is left, in whatever way, is no longer in the engine.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Self

from engine.errors import Internal, TailraceError
from engine.interface import Delta, TokenSource

# What an engine gives as the finish reason of a request that it dropped of its own accord.
DROPPED = frozenset({"abort", "error"})

# And what a generation says that was stopped by who may.
CANCELLED = "cancelled"


class Generation:
    """`listen` and `take`, or iterate for the deltas; leave the `async with` and the engine has forgotten the request.

    Cancelling the iteration loses no token, but does not abort: leaving the `async with` does.
    """

    def __init__(self, id: str, model: str, source: TokenSource, on_close: Callable[["Generation"], None]) -> None:
        self.id = id
        self.model = model
        self.num_output_tokens = source.terms.num_tokens_before
        self.num_untaken_tokens = 0
        self.finish_reason: str | None = None
        # Another process can go on with it: what it takes for that is where that process finds it.
        self.is_movable = False
        # Nothing more comes: it has finished, was aborted, or has failed.
        self.has_ended = False
        self._source = source
        self._on_close = on_close
        self._aborted = False
        self._abort_error: TailraceError | None = None
        self._cancelled = False
        self._failure: TailraceError | None = None

    def __repr__(self) -> str:
        state = self.finish_reason or ("aborted" if self._aborted else "running")
        return f"<Generation {self.id} {state} {self.num_prompt_tokens}+{self.num_output_tokens} tokens>"

    @property
    def phase(self) -> str:
        """What the engine does for this request: `queued`, `prefill` or `decode`."""
        return "decode" if self.num_output_tokens > self.num_tokens_before else self._source.phase

    @property
    def num_prompt_tokens(self) -> int:
        return self._source.terms.num_prompt_tokens

    @property
    def num_tokens_before(self) -> int:
        """How many of the output tokens an earlier generation made, after which this one goes on."""
        return self._source.terms.num_tokens_before

    @property
    def prompt_token_ids(self) -> Sequence[int]:
        return self._source.terms.prompt_token_ids

    @property
    def max_tokens(self) -> int:
        """Of the whole answer: what was asked for, or what the context leaves."""
        return self._source.terms.max_tokens

    @property
    def can_continue(self) -> bool:
        """Whether another generation can go on after this one, should it be cut."""
        return self._source.terms.can_continue

    @property
    def num_cached_tokens(self) -> int | None:
        """How much of the prompt the engine still had; None until its first output."""
        return self._source.num_cached_tokens

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            await self.abort()
        finally:
            self.num_untaken_tokens += self._source.take_rest()
            self._on_close(self)

    def listen(self, on_output: Callable[[], None]) -> None:
        """Call `on_output` whenever there may be something to `take`; see `TokenSource.listen`."""
        self._source.listen(on_output)

    def take(self) -> Delta | None:
        """Everything made since the last call, in one delta; None when there is nothing yet, or nothing more.

        Raises:
            TailraceError: the engine failed, or `abort(error)` gave this error; every further call raises it, too.
        """
        if self.has_ended:
            self.raise_failure()
            return None
        try:
            delta = self._source.take()
        except TailraceError as error:
            self._end(error)
            raise
        if delta is None:
            return None
        if delta.finish_reason is not None:
            if delta.finish_reason in DROPPED:
                return self._dropped(delta)
            self.finish_reason = delta.finish_reason
            self._end()
        self.num_output_tokens += len(delta.token_ids)
        return delta

    def raise_failure(self) -> None:
        """Raise what this generation has failed with, if it has."""
        if self._failure is not None:
            raise self._failure

    def _dropped(self, delta: Delta) -> Delta | None:
        """The request has left the engine unfinished. Text that was made before is still its reader's."""
        if self._cancelled:
            self._end()
            self.finish_reason = CANCELLED
            self.num_output_tokens += len(delta.token_ids)
            return replace(delta, finish_reason=CANCELLED)
        if self._aborted and self._abort_error is None:
            self._end()
            self.num_untaken_tokens += len(delta.token_ids)
            return None
        self._end(self._abort_error or Internal("the engine dropped this request"))
        if not delta.text:
            self.num_untaken_tokens += len(delta.token_ids)
            self.raise_failure()
        self.num_output_tokens += len(delta.token_ids)
        return replace(delta, finish_reason=None)

    def _end(self, failure: TailraceError | None = None) -> None:
        self.has_ended, self._failure = True, failure

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delta:
        """The next delta, waited for: for those who have no more to do with it than the next line.

        Raises:
            StopAsyncIteration: after the delta with the finish reason, or after `abort()`.
            TailraceError: as `take`.
        """
        woken = asyncio.Event()
        self.listen(woken.set)
        while (delta := self.take()) is None:
            if self.has_ended:
                raise StopAsyncIteration
            await woken.wait()
            woken.clear()
        return delta

    async def cancel(self) -> None:
        """Stop the engine's work at once: whoever iterates gets the text that was there already, and a good end."""
        if not self._aborted and not self.has_ended:
            self._cancelled = True
            await self.abort()

    async def abort(self, error: TailraceError | None = None) -> None:
        """Stop the engine's work on this request at once.

        Whoever iterates gets the text that was there already and then `error`; without an error, the end.

        Does nothing when the generation has finished or was aborted before.
        """
        if self._aborted or self.has_ended:
            return
        self._aborted, self._abort_error = True, error
        await self._source.abort()
