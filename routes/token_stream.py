"""The response under every native stream: deltas of one generation in, events out, and into the journal before that."""

from collections.abc import Sequence
from functools import partial

from starlette.types import Receive, Scope, Send

from engine.errors import TailraceError
from engine.generation import CANCELLED, Generation
from engine.interface import Delta
from engine.journal import Ending, Entry, Passage
from metrics.timing import milliseconds
from routes import sse
from routes.delivery import Delivery
from routes.errors import final_error_event
from routes.event_stream import DeltaStream


class TokenStream(DeltaStream):
    """Streams `generation`, whose place in the journal is `entry`, after `opening`, which waits for no token."""

    def __init__(self, generation: Generation, delivery: Delivery, entry: Entry, opening: bytes) -> None:
        super().__init__(generation, delivery)
        self._entry = entry
        self._opening = opening
        # Of tokens whose text comes with a later one.
        self._waiting_ids: list[int] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._entry.leave()

    def _begin(self) -> None:
        self._entry.when_open(self._show_opening)

    def _show_opening(self) -> None:
        if self._opening and not self.is_over:
            self._write(self._opening)

    def _tell(self, delta: Delta) -> None:
        if not (delta.text or delta.reasoning):
            self._waiting_ids += delta.token_ids
            return
        token_ids: Sequence[int] = delta.token_ids
        if self._waiting_ids:
            token_ids, self._waiting_ids = [*self._waiting_ids, *token_ids], []
        generation = self.generation
        num_tokens = generation.num_output_tokens
        block = sse.token_event(generation.id, num_tokens, delta.text, delta.reasoning)
        passage = Passage(num_tokens, delta.text, delta.reasoning, token_ids)
        self._is_held_back = self._pace is not None
        self._entry.write(passage, partial(self._show, block, num_tokens))

    def _show(self, block: bytes, num_tokens: int) -> None:
        """The journal has it; now its reader may. For one who has left, the connection drops it."""
        assert self._over is not None
        if not self._over.done():
            self._write_token(block, num_tokens)

    def _finish(self, finish_reason: str) -> None:
        self._connection.flush()  # the last token's time is told
        generation, timing = self.generation, self._timing
        ending = Ending(
            finish_reason, generation.num_output_tokens, milliseconds(timing.ttft_s), milliseconds(timing.tpot_s)
        )
        self._entry.end(ending, partial(self._show_end, ending))

    def _show_end(self, ending: Ending) -> None:
        if not self.is_over:
            self._write(farewell(self.generation.id, self.generation.num_prompt_tokens, ending))
            self._on_finished(CANCELLED if ending.finish_reason == CANCELLED else "completed")

    def _error_block(self, error: TailraceError) -> bytes:
        return sse.error_event(error) if error.retryable else final_error_event(error)


def farewell(stream_id: str, num_prompt_tokens: int, ending: Ending) -> bytes:
    """The last events of a stream that has ended."""
    timing_ms = {"ttft_ms": ending.ttft_ms, "tpot_ms": ending.tpot_ms}
    return sse.done_event(stream_id, ending.num_tokens, num_prompt_tokens, ending.finish_reason, timing_ms)
