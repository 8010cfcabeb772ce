"""The response under every native stream: deltas of one generation in, events out."""

import time

from engine.generation import CANCELLED, Generation
from engine.journal import Journal, Passage, StreamRecord
from metrics.timing import milliseconds
from routes import sse
from routes.delivery import Delivery
from routes.event_stream import EventStream, Write


class TokenStream(EventStream):
    """Streams `generation`."""

    def __init__(self, generation: Generation, delivery: Delivery, journal: Journal) -> None:
        super().__init__(generation, delivery)
        self.generation = generation
        self._journal = journal
        self._passages: list[Passage] = []

    async def _produce(self, write: Write) -> None:
        generation = self.generation
        await write(sse.start_event(generation.id, generation.model, int(time.time())))
        self._last_write_s = time.perf_counter()
        try:
            async for delta in generation:
                if self._is_reader_gone:
                    return
                if delta.text or delta.reasoning:
                    num_tokens = generation.num_output_tokens
                    await write(sse.token_event(generation.id, num_tokens, delta.text, delta.reasoning))
                    self._on_token_written()
                    self._passages.append(Passage(num_tokens, delta.text, delta.reasoning))
        except Exception as error:
            await write(self._failed(error))
            return
        if generation.finish_reason is not None and not self._is_reader_gone:
            farewell = self._farewell(generation.finish_reason)
            await write(farewell)
            self._on_finished(CANCELLED if generation.finish_reason == CANCELLED else "completed")
            self._journal.keep(StreamRecord(generation.id, self._passages, generation.num_output_tokens, farewell))

    def _farewell(self, finish_reason: str) -> bytes:
        generation, timing = self.generation, self._timing
        return sse.done_event(
            generation.id,
            generation.num_output_tokens,
            generation.num_prompt_tokens,
            finish_reason,
            {"ttft_ms": milliseconds(timing.ttft_s), "tpot_ms": milliseconds(timing.tpot_s)},
        )
