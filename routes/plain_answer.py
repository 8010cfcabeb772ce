"""The response under every answer that is not streamed: worked out while its reader is watched, then sent whole.

Invariant: as of `EventStream`, the response owns its work.
"""

from collections.abc import Awaitable, Callable

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from engine.errors import TailraceError
from engine.interface import Work
from metrics.timing import StreamTiming
from routes.connection import Connection, connection_of, unless_gone
from routes.delivery import Delivery
from routes.meter import Meter
from routes.request_record import RequestRecord, record_of, route_of

# As much as uvicorn's buffer holds before it makes the writer wait.
PIECE_BYTES = 64 << 10


class PlainAnswer(Response):
    """Sends what `answer` returns; stops the work when the reader leaves before that, or takes no byte of it.

    Raises:
        TailraceError: the work failed, and nothing was sent.
    """

    def __init__(self, work: Work, answer: Callable[[], Awaitable[Response]], delivery: Delivery) -> None:
        super().__init__()
        self._work = work
        self._answer = answer
        self._delivery = delivery

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        record, connection = record_of(scope), connection_of(scope)
        meter = Meter(self._delivery.instruments, route_of(scope), self._work, StreamTiming(record.started_s))
        record.outcome = "disconnected"
        try:
            with meter.open():
                async with self._work:
                    await self._race(meter, record, connection, receive, send)
        except TailraceError as error:
            record.outcome = error.code
            raise
        finally:
            meter.close(record)

    async def _race(
        self,
        meter: Meter,
        record: RequestRecord,
        connection: Connection,
        receive: Receive,
        send: Send,
    ) -> None:
        response = await unless_gone(self._answer(), receive, lambda: meter.on_reader_gone(connection, record))
        if response is None:
            return

        def on_stalled() -> None:
            record.outcome = "stalled"
            connection.cut()

        with connection.watched(self._delivery.stall_timeout_s, on_stalled):
            await _send_in_pieces(response, send)
        if record.outcome == "disconnected" and connection.lost_s is None:
            record.outcome = outcome_of(response.status_code)
            meter.on_all_delivered()


async def _send_in_pieces(response: Response, send: Send) -> None:
    """uvicorn waits for room before it takes a piece, and not after: a large one it would keep for ever."""
    await send({"type": "http.response.start", "status": response.status_code, "headers": response.raw_headers})
    body = bytes(response.body)
    for start in range(0, max(len(body), 1), PIECE_BYTES):
        end = start + PIECE_BYTES
        await send({"type": "http.response.body", "body": body[start:end], "more_body": end < len(body)})


# What a refusal counts as that came in another API's words.
OUTCOMES = {404: "model_not_found", 413: "body_too_large", 503: "overloaded"}


def outcome_of(status: int) -> str:
    """A word of the error table for an answer with `status`."""
    return "completed" if status < 400 else OUTCOMES.get(status, "invalid_request" if status < 500 else "internal")
