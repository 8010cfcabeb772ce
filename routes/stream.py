"""`/v1/stream`: start a stream and read it; or come back to one, which never starts a second generation."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from sse_starlette import EventSourceResponse
from starlette.requests import Request
from starlette.responses import Response

from engine.errors import StreamGone
from engine.interface import GenerationRequest
from engine.journal import Journal
from engine.supervisor import Supervisor
from routes import sse
from routes.body import read_body
from routes.delivery import Delivery
from routes.errors import SSE_HEADERS
from routes.parameters import parse_body, parse_query, request_from_body, request_from_query
from routes.token_stream import TokenStream

ROUTE = "/v1/stream"

# W3C Trace Context: what a caller's trace goes on by.
TRACE_HEADERS = ("traceparent", "tracestate")

# An event id as `sse` writes it: the stream's id, and how many tokens its reader has.
EVENT_ID = re.compile(r"([A-Za-z0-9_-]{22}):([0-9]{1,9})")


@dataclass(frozen=True, slots=True)
class StreamRoutes:
    """The handlers of `/v1/stream`, with what they need."""

    supervisor: Supervisor
    journal: Journal
    delivery: Delivery

    async def answer(self, request: Request) -> Response:
        if request.method == "HEAD":
            return EventSourceResponse(iter(()), headers=SSE_HEADERS)  # which starts nothing on HEAD
        if request.method == "POST":
            return await self._post(request)
        return await self._get(request)

    async def _get(self, request: Request) -> Response:
        fields = parse_query(request.scope["query_string"])
        if last_event_id := request.headers.get("last-event-id") or fields.get("lastEventId"):
            return self.come_back(last_event_id)
        return await self.start(request_from_query(fields), trace_of(request))

    async def _post(self, request: Request) -> Response:
        if last_event_id := request.headers.get("last-event-id"):
            return self.come_back(last_event_id)
        body = await read_body(request, self.delivery.max_body_bytes, self.delivery.stall_timeout_s)
        return await self.start(request_from_body(parse_body(body), len(body)), trace_of(request))

    async def start(self, wanted: GenerationRequest, trace: Mapping[str, str], id: str | None = None) -> Response:
        """The stream of a new generation, whose id is `id` where it had one already.

        Raises:
            TailraceError: refused; nothing was started.
        """
        generation = await self.supervisor.admit(replace(wanted, trace_headers=trace), id)
        return TokenStream(generation, self.delivery, self.journal)

    def come_back(self, last_event_id: str) -> Response:
        """Answer a reader that has seen part of a stream; the seam where a cut stream will be continued."""
        match = EVENT_ID.fullmatch(last_event_id)
        num_tokens = int(match[2]) if match else 0
        record = self.journal.find(match[1]) if match else None
        missing = record.after(num_tokens) if record else None
        if record is None or missing is None:
            self.delivery.instruments.resumes.labels("gone").inc()
            raise StreamGone("there is no such stream to come back to")
        self.delivery.instruments.resumes.labels("replayed").inc()
        if num_tokens == record.num_tokens:
            return Response(status_code=204)
        body = b""
        if missing.text or missing.reasoning:
            body = sse.token_event(record.id, missing.num_tokens, missing.text, missing.reasoning)
        return Response(body + record.farewell, headers=SSE_HEADERS, media_type="text/event-stream")


def trace_of(request: Request) -> Mapping[str, str]:
    return {name: request.headers[name] for name in TRACE_HEADERS if name in request.headers}
