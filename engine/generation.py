"""One request in flight, from its admission to its last delta.

Invariant: a generation that is left, in whatever way, is no longer in the engine.
"""

from collections.abc import Callable
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
    """Iterate for the deltas; leave the `async with` and the engine has forgotten the request.

    Cancelling the iteration loses no token, but does not abort: leaving the `async with` does.
    """

    def __init__(self, id: str, model: str, source: TokenSource, on_close: Callable[["Generation"], None]) -> None:
        self.id = id
        self.model = model
        self.num_output_tokens = 0
        self.num_untaken_tokens = 0
        self.finish_reason: str | None = None
        self._source = source
        self._on_close = on_close
        self._aborted = False
        self._abort_error: TailraceError | None = None
        self._cancelled = False
        # What every further step of the iteration raises, once there is nothing more to come.
        self._end: StopAsyncIteration | TailraceError | None = None

    def __repr__(self) -> str:
        state = self.finish_reason or ("aborted" if self._aborted else "running")
        return f"<Generation {self.id} {state} {self.num_prompt_tokens}+{self.num_output_tokens} tokens>"

    @property
    def phase(self) -> str:
        """What the engine does for this request: `queued`, `prefill` or `decode`."""
        return "decode" if self.num_output_tokens else self._source.phase

    @property
    def num_prompt_tokens(self) -> int:
        return self._source.num_prompt_tokens

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

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delta:
        """The next delta.

        Raises:
            StopAsyncIteration: after the delta with the finish reason, or after `abort()`.
            TailraceError: the engine failed, or `abort(error)` gave this error.
        """
        if self._end is not None:
            raise self._end
        delta = await self._source.next()
        if delta.finish_reason in DROPPED:
            delta = self._dropped(delta)
        elif delta.finish_reason is not None:
            self.finish_reason = delta.finish_reason
            self._end = StopAsyncIteration()
        self.num_output_tokens += len(delta.token_ids)
        return delta

    def _dropped(self, delta: Delta) -> Delta:
        """The request has left the engine unfinished. Text that was made before is still its reader's."""
        if self._cancelled:
            self._end, self.finish_reason = StopAsyncIteration(), CANCELLED
            return replace(delta, finish_reason=CANCELLED)
        if self._aborted and self._abort_error is None:
            self._end = StopAsyncIteration()
            self.num_untaken_tokens += len(delta.token_ids)
            raise self._end
        self._end = self._abort_error or Internal("the engine dropped this request")
        if not delta.text:
            self.num_untaken_tokens += len(delta.token_ids)
            raise self._end
        return replace(delta, finish_reason=None)

    async def cancel(self) -> None:
        """Stop the engine's work at once: whoever iterates gets the text that was there already, and a good end."""
        if not self._aborted and self._end is None:
            self._cancelled = True
            await self.abort()

    async def abort(self, error: TailraceError | None = None) -> None:
        """Stop the engine's work on this request at once.

        Whoever iterates gets the text that was there already and then `error`; without an error, the end.

        Does nothing when the generation has finished or was aborted before.
        """
        if self._aborted or self._end is not None:
            return
        self._aborted, self._abort_error = True, error
        await self._source.abort()
