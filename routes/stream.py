"""`/v1/stream`: start a stream and read it; or come back to one, which never starts a second generation."""

import hmac
import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from sse_starlette import EventSourceResponse
from starlette.requests import Request
from starlette.responses import Response

from engine.errors import StreamGone
from engine.generation import Generation
from engine.interface import GenerationRequest
from engine.journal import Ending, Entry, Journal, Opening, StreamRecord
from engine.ownership import Ownership, taken_over
from engine.supervisor import Supervisor
from routes import sse
from routes.body import read_body
from routes.delivery import Delivery
from routes.errors import SSE_HEADERS
from routes.gate import holder_of
from routes.parameters import parse_body, parse_query, request_from_body, request_from_query
from routes.token_stream import TokenStream, farewell

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
            return await self._come_back(request, last_event_id)
        return await self._start(request, request_from_query(fields))

    async def _post(self, request: Request) -> Response:
        if last_event_id := request.headers.get("last-event-id"):
            return await self._come_back(request, last_event_id)
        body = await read_body(request, self.delivery.max_body_bytes, self.delivery.stall_timeout_s)
        return await self._start(request, request_from_body(parse_body(body), len(body)))

    async def _start(self, request: Request, wanted: GenerationRequest) -> Response:
        id = new_id()
        return await self.start(wanted, trace_of(request), id, holder_of(request.scope, id))

    async def start(self, wanted: GenerationRequest, trace: Mapping[str, str], id: str, holder: str = "") -> Response:
        """The stream of a new generation. Only `holder` may come back to it.

        Raises:
            TailraceError: refused; nothing was started.
        """
        generation = await self.supervisor.admit(replace(wanted, trace_headers=trace), id)
        ownership = Ownership()
        entry = self.journal.open(id, _opening(wanted, generation, holder), ownership.lose)
        return self._stream(generation, ownership, entry, sse.start_event(id, generation.model, int(time.time())))

    def _stream(self, generation: Generation, ownership: Ownership, entry: Entry, opening: bytes) -> Response:
        ownership.bind(generation)
        generation.is_movable = self.journal.is_shared and generation.can_continue
        return TokenStream(generation, self.delivery, entry, opening)

    async def _come_back(self, request: Request, last_event_id: str) -> Response:
        id, num_tokens = parse_event_id(last_event_id)
        return await self.come_back(id, num_tokens, trace_of(request), holder_of(request.scope, id))

    async def come_back(self, id: str, num_tokens: int | None, trace: Mapping[str, str], holder: str = "") -> Response:
        """Answer a reader whose last event had `num_tokens`: with what it is missing, and what is made from there on.

        None is a reader that has nothing, not even the stream's start.

        Raises:
            StreamGone: there is nothing that could be gone on with exactly.
            TailraceError: the stream cannot go on here and now, but it can.
        """
        record = await self.journal.find(id) if id else None
        if record is None or not hmac.compare_digest(record.opening.holder, holder):
            raise self._gone()
        if record.ending is not None:
            return self._replay(record, record.ending, num_tokens)
        if record.after(num_tokens or 0) is None or not record.opening.can_continue:
            raise self._gone()
        return await self._go_on(id, num_tokens, trace)

    async def _go_on(self, id: str, num_tokens: int | None, trace: Mapping[str, str]) -> Response:
        """Take the stream over from whoever has it, and go on with it."""
        ownership = Ownership()
        claimed = await self.journal.claim(id, ownership.lose)
        if claimed is None:
            raise self._gone()
        record, entry = claimed
        await self.supervisor.end(id, taken_over())
        if ownership.is_lost:  # another reader came later still
            entry.leave()
            raise self._gone()
        if record.ending is not None:  # it came to its end meanwhile
            return self._replay(record, record.ending, num_tokens)
        try:
            opening = self._caught_up(record, num_tokens)
            generation = await self.supervisor.admit(replace(_rest_of(record), trace_headers=trace), id)
        except BaseException as error:  # a cancellation, too
            entry.leave()
            if isinstance(error, StreamGone):
                raise self._gone() from error
            raise
        self.delivery.instruments.resumes.labels("continued").inc()
        return self._stream(generation, ownership, entry, opening)

    def _replay(self, record: StreamRecord, ending: Ending, num_tokens: int | None) -> Response:
        """The rest of a stream that has ended: 204, which stops a browser, when there is none."""
        body = self._caught_up(record, num_tokens)
        self.delivery.instruments.resumes.labels("replayed").inc()
        if num_tokens == ending.num_tokens:
            return Response(status_code=204)
        last = farewell(record.id, len(record.opening.prompt_token_ids), ending)
        return Response(body + last, headers=SSE_HEADERS, media_type="text/event-stream")

    def _caught_up(self, record: StreamRecord, num_tokens: int | None) -> bytes:
        """The events that bring a reader, who has `num_tokens`, to the end of `record`.

        Raises:
            StreamGone: no event had that number.
        """
        missed = record.after(num_tokens or 0)
        if missed is None:
            raise self._gone()
        blocks = b""
        if num_tokens is None:
            blocks = sse.start_event(record.id, self.supervisor.model, record.opening.created_s)
        if missed.text or missed.reasoning:
            blocks += sse.token_event(record.id, missed.num_tokens, missed.text, missed.reasoning)
        return blocks

    def _gone(self) -> StreamGone:
        self.delivery.instruments.resumes.labels("gone").inc()
        return StreamGone("there is no such stream to come back to")


def parse_event_id(text: str) -> tuple[str, int]:
    """The stream, and how many tokens its reader has; an empty id, which no stream has, for anything else."""
    match = EVENT_ID.fullmatch(text)
    return (match[1], int(match[2])) if match else ("", 0)


def new_id() -> str:
    """128 random bits: the id is also the capability to read and stop the stream (docs/protocol.md)."""
    return secrets.token_urlsafe(16)


def _opening(wanted: GenerationRequest, generation: Generation, holder: str) -> Opening:
    """What it takes to go on with the stream elsewhere. The prompt as text is not: its ids are."""
    return Opening(
        model=wanted.model,
        prompt_token_ids=generation.prompt_token_ids,
        is_chat=wanted.messages is not None,
        sampling=replace(wanted.sampling, max_tokens=generation.max_tokens),
        priority=wanted.priority,
        created_s=int(time.time()),
        holder=holder,
        can_continue=generation.can_continue,
    )


def _rest_of(record: StreamRecord) -> GenerationRequest:
    """The request for what comes after `record`."""
    opening = record.opening
    return GenerationRequest(
        prompt=opening.prompt_token_ids,
        model=opening.model,
        priority=opening.priority,
        sampling=opening.sampling,
        made_before=[passage.token_ids for passage in record.passages],
        is_chat=opening.is_chat,
    )


def trace_of(request: Request) -> Mapping[str, str]:
    return {name: request.headers[name] for name in TRACE_HEADERS if name in request.headers}
