"""The response under every native stream: deltas of one generation in, events out."""

import time

from engine.generation import CANCELLED, Generation
from engine.interface import Delta
from engine.journal import Journal, Passage, StreamRecord
from metrics.timing import milliseconds
from routes import sse
from routes.delivery import Delivery
from routes.event_stream import DeltaStream


class TokenStream(DeltaStream):
    """Streams `generation`."""

    def __init__(self, generation: Generation, delivery: Delivery, journal: Journal) -> None:
        super().__init__(generation, delivery)
        self._journal = journal
        self._passages: list[Passage] = []

    def _opening(self) -> bytes:
        return sse.start_event(self.generation.id, self.generation.model, int(time.time()))

    def _encode(self, delta: Delta) -> tuple[bytes, bool]:
        if not (delta.text or delta.reasoning):
            return b"", False
        generation = self.generation
        num_tokens = generation.num_output_tokens
        self._passages.append(Passage(num_tokens, delta.text, delta.reasoning))
        return sse.token_event(generation.id, num_tokens, delta.text, delta.reasoning), True

    def _finish(self, finish_reason: str) -> None:
        generation, timing = self.generation, self._timing
        farewell = sse.done_event(
            generation.id,
            generation.num_output_tokens,
            generation.num_prompt_tokens,
            finish_reason,
            {"ttft_ms": milliseconds(timing.ttft_s), "tpot_ms": milliseconds(timing.tpot_s)},
        )
        self._journal.keep(StreamRecord(generation.id, self._passages, generation.num_output_tokens, farewell))
        self._write(farewell)
        self._on_finished(CANCELLED if finish_reason == CANCELLED else "completed")
