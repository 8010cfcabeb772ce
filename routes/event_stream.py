"""The response under every stream: what an engine works on, in blocks that its reader can parse.

Invariant: the response owns its work. However the response ends — finished, failed, left by its reader, cancelled — the
engine has forgotten the work when the call returns, and the request's record says how it ended.
"""

import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import ClassVar

import anyio
from sse_starlette import EventSourceResponse
from starlette.types import Message, Receive, Scope, Send

from engine.errors import Internal, TailraceError
from engine.interface import Work
from metrics.timing import StreamTiming
from routes import sse
from routes.connection import Connection, connection_of
from routes.delivery import Delivery
from routes.errors import SSE_HEADERS
from routes.meter import Meter
from routes.request_record import RequestRecord, record_of, route_of

logger = logging.getLogger("tailrace")


Write = Callable[[bytes], Awaitable[None]]


class EventStream(EventSourceResponse):
    """Sends what `_produce` writes.

    `_produce` calls `_on_token_written` after each block with text and `_on_finished` after the last of all; when there
    is an error to tell of, it writes `_failed(error)` last instead.
    """

    # What is written when nothing else was for a while. It must mean nothing where a block could begin.
    keep_alive: ClassVar[bytes] = sse.KEEP_ALIVE

    def __init__(self, work: Work, delivery: Delivery, headers: Mapping[str, str] = SSE_HEADERS) -> None:
        super().__init__(
            iter(()),  # what it would iterate over; here whoever makes the blocks writes them, which is a hop less
            headers=headers,
            sep="\n",
            ping=delivery.keep_alive_s,
            client_close_handler_callable=self._on_reader_gone,
        )
        self._work = work
        self._delivery = delivery
        self._connection: Connection | None = None
        self._record = RequestRecord("", 0.0)
        self._last_write_s = time.perf_counter()
        self._timing = StreamTiming(0.0)
        self._meter: Meter

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        record = self._record = record_of(scope)
        record.outcome = "disconnected"
        self._connection = connection_of(scope)
        self._timing = StreamTiming(record.started_s)
        self._meter = Meter(self._delivery.instruments, route_of(scope), self._work, self._timing)
        try:
            with self._meter.open(), self._watch_for_stall():
                # Entered here and not in `_produce`: that never starts when the reader leaves before its turn.
                async with self._work:
                    await super().__call__(scope, receive, send)
        finally:
            self._meter.close(record)

    async def _produce(self, write: Write) -> None:
        """Write the blocks, in order. `write` returns when a block was handed to the socket, so a slow reader is waited
        for here, while the engine's output gathers into one delta."""
        raise NotImplementedError

    async def _stream_response(self, send: Send) -> None:
        """Replaces sse-starlette's, which puts a look, a time limit and a log record around each block."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})

        # Middleware has had what it waits for. A token need not pass through all of it.
        wire = self._record.wire or send

        async def write(block: bytes) -> None:
            await wire({"type": "http.response.body", "body": block, "more_body": True})

        await self._produce(write)
        async with self._send_lock:
            self.active = False
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _watch_for_stall(self) -> AbstractContextManager[None]:
        if self._connection is None:
            return nullcontext()
        return self._connection.watched(self._delivery.stall_timeout_s, self._on_stalled)

    def _on_stalled(self) -> None:
        """The reader takes nothing; cutting its connection is what ends a write that waits for it."""
        self._record.outcome = "stalled"
        assert self._connection is not None
        self._connection.cut()

    @property
    def _is_reader_gone(self) -> bool:
        """Two flags that other parties set as soon as they know; costs nothing to look at on every token."""
        return not self.active or (self._connection is not None and self._connection.lost_s is not None)

    def _on_token_written(self) -> None:
        now_s = self._last_write_s = time.perf_counter()
        self._meter.on_token_written(now_s, self._work.num_output_tokens)

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

    async def _on_reader_gone(self, message: Message) -> None:
        """In the listener's own task: the tasks of the response are cancelled only after this."""
        await self._meter.on_reader_gone(self._connection, self._record)

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
                    await send({"type": "http.response.body", "body": self.keep_alive, "more_body": True})
            self._last_write_s = time.perf_counter()
