"""The responses under every stream: what an engine works on, in blocks that its reader can parse.

The path of one token: the engine's step ends in `DeltaStream._on_output`, which looks whether the reader is there,
takes what was made, encodes it, and puts it into the outbox. All streams of a step are served in that one turn of the
event loop; nothing is awaited on the way, and no task is woken. As the turn ends, the kernel gets all of them at once.

Invariant: the response owns its work. However the response ends — finished, failed, left by its reader, cancelled — the
engine has forgotten the work when the call returns, and the request's record says how it ended.
"""

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import ClassVar, TypeAlias

from sse_starlette import EventSourceResponse
from starlette.types import Receive, Scope, Send

from engine.errors import Internal, TailraceError
from engine.generation import Generation
from engine.interface import Delta, Work
from metrics.timing import StreamTiming
from routes import sse
from routes.connection import Connection, connection_of, unless_gone
from routes.delivery import Delivery
from routes.errors import SSE_HEADERS
from routes.meter import Meter
from routes.request_record import RequestRecord, record_of, route_of
from routes.timer import Repeated

logger = logging.getLogger("tailrace")


RawHeaders: TypeAlias = Sequence[tuple[bytes, bytes]]


def stream_head(headers: Mapping[str, str]) -> RawHeaders:
    """The headers of a stream that has `headers`, as sse-starlette writes them."""
    return tuple(EventSourceResponse(iter(()), headers=headers).raw_headers)


class EventStream(EventSourceResponse):
    """Sends what `_produce` writes.

    `_produce` writes blocks with text by `_write_token` and calls `_on_finished` after the last of all; when there is
    an error to tell of, it writes `_failed(error)` last instead.
    """

    # What sse-starlette makes of a stream's headers: once, and not for each stream.
    head: ClassVar[RawHeaders] = stream_head(SSE_HEADERS)

    # What is written when nothing else was for a while. It must mean nothing where a block could begin.
    keep_alive: ClassVar[bytes] = sse.KEEP_ALIVE

    _connection: Connection
    _record: RequestRecord
    _timing: StreamTiming
    _meter: Meter

    def __init__(self, work: Work, delivery: Delivery) -> None:
        # Not sse-starlette's own: there is nothing to iterate over, whoever makes the blocks writes them.
        self.status_code = 200
        self.raw_headers = list(self.head)
        self.background = None
        self._work = work
        self._delivery = delivery
        self._pace = delivery.pace if delivery.pace.interval_s else None
        self._last_write_s = 0.0
        self._num_tokens = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Replaces sse-starlette's, which has a group of four tasks for each stream, and a look, a time limit and a log
        record for each block."""
        record = self._record = record_of(scope)
        record.outcome = "disconnected"
        connection = self._connection = connection_of(scope)
        self._timing = StreamTiming(record.started_s)
        meter = self._meter = Meter(self._delivery.instruments, route_of(scope), self._work, self._timing)
        try:
            with meter.open(), connection.watched(self._delivery.stall_timeout_s, self._on_stalled):
                # Entered here and not in `_respond`: that never starts when the reader leaves before its turn.
                async with self._work:
                    await unless_gone(self._respond(send), receive, lambda: meter.on_reader_gone(connection, record))
        finally:
            meter.close(record)

    async def _respond(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        with self._kept_alive():
            await self._produce()
        self._connection.flush()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _produce(self) -> None:
        """Write the blocks, in order, and return after the last."""
        raise NotImplementedError

    def _kept_alive(self) -> AbstractContextManager[None]:
        """Write something now and then while nothing else is written, for proxies that would give up."""
        interval_s = self._delivery.keep_alive_s
        self._last_write_s = time.perf_counter()

        def check() -> float:
            idle_s = time.perf_counter() - self._last_write_s
            if idle_s < interval_s:
                return interval_s - idle_s
            if self._connection.can_take:
                self._write(self.keep_alive)
            return interval_s

        return Repeated(check, interval_s) if interval_s > 0 else nullcontext()

    def _write(self, block: bytes) -> None:
        """Past ASGI and its middleware, which have had what they wait for: the head."""
        self._connection.write(block, self._on_written)

    def _write_token(self, block: bytes, num_tokens: int) -> None:
        """`block` has text: the stream's tokens up to `num_tokens`."""
        self._num_tokens = num_tokens
        self._connection.write(block, self._on_token_written)

    def _on_stalled(self) -> None:
        """The reader takes nothing; cutting its connection is what ends a write that waits for it."""
        self._record.outcome = "stalled"
        self._connection.cut()

    def _on_written(self, now_s: float) -> None:
        self._last_write_s = now_s

    def _on_token_written(self, now_s: float) -> None:
        self._last_write_s = now_s
        self._meter.on_token_written(now_s, self._num_tokens)
        if self._pace is not None:
            self._pace.call_when_due(now_s, self._on_due)

    def _on_due(self) -> None:
        """It is time for another event with text, where they keep a distance."""

    def _on_finished(self, outcome: str = "completed") -> None:
        self._record.outcome = outcome
        self._meter.on_all_delivered()

    def _failed(self, error: Exception) -> bytes:
        """The last block of a stream that `error` ends."""
        if not isinstance(error, TailraceError):
            logger.error("a stream failed", exc_info=error)
            error = Internal("the server failed on this stream")
        self._record.outcome = error.code
        return self._error_block(error)

    def _error_block(self, error: TailraceError) -> bytes:
        return sse.error_event(error)


def _nobody() -> None:
    """Who listens to a generation of which nothing more is wanted."""


class DeltaStream(EventStream):
    """A stream of one generation's deltas; its kinds say what a delta is in bytes."""

    def __init__(self, generation: Generation, delivery: Delivery) -> None:
        super().__init__(generation, delivery)
        self.generation = generation
        self._over: asyncio.Future[None] | None = None
        self._is_held_back = False  # until it is time for another event

    def _begin(self) -> None:
        """Write what goes out before there is a token."""

    def _encode(self, delta: Delta) -> tuple[bytes, bool]:
        """The blocks that tell of `delta`, if it needs any, and whether there is text in them."""
        raise NotImplementedError

    def _finish(self, finish_reason: str) -> None:
        """Write the blocks after the last delta, and tell `_on_finished`."""
        raise NotImplementedError

    async def _produce(self) -> None:
        self._over = asyncio.get_running_loop().create_future()
        self._begin()
        self.generation.listen(self._on_output)
        try:
            with self._connection.listened(self._on_output):
                self._on_output()
                await self._over
        finally:
            self.generation.listen(_nobody)  # or stream and engine would hold on to each other until a collection

    def _on_output(self) -> None:
        """The engine has made something, or the reader has caught up; what is not taken now gathers in the engine."""
        assert self._over is not None
        if self._is_held_back or not self._connection.can_take or self._over.done():
            return
        generation = self.generation
        try:
            delta = generation.take()
            if delta is not None:
                self._tell(delta)
            if generation.has_ended:
                generation.raise_failure()
                if generation.finish_reason is not None:
                    self._finish(generation.finish_reason)
                else:
                    self._end()
        except Exception as error:
            self._write(self._failed(error))
            self._end()

    def _tell(self, delta: Delta) -> None:
        block, has_text = self._encode(delta)
        if has_text:
            self._is_held_back = self._pace is not None
            self._write_token(block, self.generation.num_output_tokens)
        elif block:
            self._write(block)

    def _on_finished(self, outcome: str = "completed") -> None:
        super()._on_finished(outcome)
        self._end()

    def _end(self) -> None:
        """Let the response end."""
        assert self._over is not None
        if not self._over.done():
            self._over.set_result(None)

    @property
    def is_over(self) -> bool:
        """Nothing may be written any more: all was, or the reader has left."""
        return self._over is None or self._over.done() or self._connection.lost_s is not None

    def _on_due(self) -> None:
        self._is_held_back = False
        self._on_output()
