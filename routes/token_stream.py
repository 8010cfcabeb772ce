"""The response under every native stream: deltas of one generation in, events out.

Invariant: the response owns its generation. However the response ends — finished, failed, left by its reader, cancelled
— the engine has forgotten the request when the call returns, and the request's record says how it ended.
"""

import time
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, nullcontext

import anyio
from sse_starlette import EventSourceResponse
from starlette.types import Message, Receive, Scope, Send

from engine.errors import TailraceError
from engine.generation import Generation
from engine.journal import Journal, Passage, StreamRecord
from metrics.instruments import Instruments
from metrics.timing import StreamTiming, milliseconds
from routes import sse
from routes.connection import Connection, connection_of
from routes.errors import SSE_HEADERS
from routes.request_record import record_of, route_of
from routes.stream_meter import StreamMeter


class TokenStream(EventSourceResponse):
    """Streams `generation`."""

    def __init__(
        self,
        generation: Generation,
        *,
        keep_alive_s: float,
        stall_timeout_s: float,
        journal: Journal,
        instruments: Instruments,
    ) -> None:
        super().__init__(
            self._events(),
            headers=SSE_HEADERS,
            sep="\n",
            ping=keep_alive_s,
            client_close_handler_callable=self._on_reader_gone,
        )
        self.generation = generation
        self.outcome = "disconnected"
        self._stall_timeout_s = stall_timeout_s
        self._connection: Connection | None = None
        self._journal = journal
        self._instruments = instruments
        self._passages: list[Passage] = []
        self._last_write_s = time.perf_counter()
        self._timing = StreamTiming(0.0)
        self._meter: StreamMeter

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        record = record_of(scope)
        self._connection = connection_of(scope)
        self._timing = StreamTiming(record.started_s)
        self._meter = StreamMeter(self._instruments, route_of(scope), self.generation, self._timing)
        try:
            with self._meter.open(), self._watch_for_stall():
                # Entered here and not in `_events`: that generator never starts when the reader leaves before its turn.
                async with self.generation:
                    await super().__call__(scope, receive, send)
        finally:
            record.outcome = self.outcome
            self._meter.close(record)

    def _watch_for_stall(self) -> AbstractContextManager[None]:
        if self._connection is None:
            return nullcontext()
        return self._connection.watched(self._stall_timeout_s, self._on_stalled)

    def _on_stalled(self) -> None:
        """The reader takes nothing; cutting its connection is what ends a write that waits for it."""
        self.outcome = "stalled"
        assert self._connection is not None
        self._connection.cut()

    @property
    def _is_reader_gone(self) -> bool:
        """Two flags that other parties set as soon as they know; costs nothing to look at on every token."""
        return not self.active or (self._connection is not None and self._connection.lost_s is not None)

    async def _events(self) -> AsyncIterator[bytes]:
        """The blocks to write, in order. Resumed when a block was handed to the socket, so a slow reader waits here,
        while the engine's output gathers into one delta."""
        generation = self.generation
        yield sse.start_event(generation.id, generation.model, int(time.time()))
        self._last_write_s = time.perf_counter()
        try:
            async for delta in generation:
                if self._is_reader_gone:
                    return
                if delta.text:
                    yield sse.token_event(generation.id, generation.num_output_tokens, delta.text)
                    self._on_token_written(delta.text)
        except TailraceError as error:
            self.outcome = error.code
            yield sse.error_event(error)
            return
        if generation.finish_reason is not None and not self._is_reader_gone:
            farewell = self._farewell()
            yield farewell
            self._on_finished(farewell)

    def _on_token_written(self, text: str) -> None:
        now_s = self._last_write_s = time.perf_counter()
        num_tokens = self.generation.num_output_tokens
        self._meter.on_token_written(now_s, num_tokens)
        self._passages.append(Passage(num_tokens, text))

    def _farewell(self) -> bytes:
        generation, timing = self.generation, self._timing
        assert generation.finish_reason is not None
        return sse.done_event(
            generation.id,
            generation.num_output_tokens,
            generation.num_prompt_tokens,
            generation.finish_reason,
            {"ttft_ms": milliseconds(timing.ttft_s), "tpot_ms": milliseconds(timing.tpot_s)},
        )

    def _on_finished(self, farewell: bytes) -> None:
        self.outcome = "completed"
        generation = self.generation
        self._meter.on_all_delivered()
        self._journal.keep(StreamRecord(generation.id, self._passages, generation.num_output_tokens, farewell))

    async def _on_reader_gone(self, message: Message) -> None:
        """Abort at once, in the listener's own task: the tasks of the response are cancelled only after this."""
        phase = self.generation.phase
        visible_s = time.perf_counter()
        if self._connection is not None and self._connection.lost_s is not None:
            visible_s = self._connection.lost_s
        await self.generation.abort()
        self._instruments.abort.observe(time.perf_counter() - visible_s)
        if self.outcome == "disconnected":
            self._instruments.disconnects.labels(phase).inc()

    async def _ping(self, send: Send) -> None:
        """Replaces sse-starlette's, which sends a comment every interval, however busy the stream is."""
        interval_s = self.ping_interval
        while self.active:
            idle_s = time.perf_counter() - self._last_write_s
            if idle_s < interval_s:
                await anyio.sleep(interval_s - idle_s)
                continue
            async with self._send_lock:
                if self.active:
                    await send({"type": "http.response.body", "body": sse.KEEP_ALIVE, "more_body": True})
            self._last_write_s = time.perf_counter()
