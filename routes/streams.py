"""`/v1/streams`: keep a request, run it for whoever has its id, stop it."""

from dataclasses import dataclass

import orjson
from sse_starlette import EventSourceResponse
from starlette.requests import Request
from starlette.responses import Response

from engine.errors import StreamGone, TailraceError
from engine.journal import EXPIRES_IN_S
from routes.errors import SSE_HEADERS
from routes.parameters import request_from_body
from routes.stream import StreamRoutes, new_id, parse_event_id, trace_of
from routes.surfaces import read_json

COLLECTION = "/v1/streams"
ITEM = "/v1/streams/{id}"


@dataclass(frozen=True, slots=True)
class KeptStreamRoutes:
    """The id is the capability: who has it may read and stop the stream, without a key."""

    streams: StreamRoutes

    async def keep(self, request: Request) -> Response:
        """201, once the request is known to be one that can run."""
        fields, num_bytes = await read_json(request, self.streams.delivery)
        wanted = request_from_body(fields, num_bytes)
        await self.streams.supervisor.check(wanted)
        id = new_id()
        await self.streams.journal.keep(id, wanted)
        url = f"{request.scope.get('root_path', '')}{COLLECTION}/{id}"
        answer = {"id": id, "url": url, "expires_in": EXPIRES_IN_S}
        headers = {"Location": url, "Cache-Control": "no-store"}
        return Response(orjson.dumps(answer), 201, headers, media_type="application/json")

    async def answer(self, request: Request) -> Response:
        if request.method == "HEAD":
            return EventSourceResponse(iter(()), headers=SSE_HEADERS)
        if request.method == "DELETE":
            return await self._stop(request.path_params["id"])
        return await self._run(request, request.path_params["id"])

    async def _run(self, request: Request, id: str) -> Response:
        streams = self.streams
        if last_event_id := request.headers.get("last-event-id"):
            known_id, num_tokens = parse_event_id(last_event_id)
            # The id in the address is what opens a stream without a key; it opens no other one.
            return await streams.come_back(id if known_id == id else "", num_tokens, trace_of(request))
        # Of two readers at once, one gets it.
        wanted = await streams.journal.take(id)
        if wanted is None:
            return await streams.come_back(id, None, trace_of(request))
        try:
            return await streams.start(wanted, trace_of(request), id)
        except TailraceError as error:
            if error.retryable:
                await streams.journal.keep(id, wanted)
            raise

    async def _stop(self, id: str) -> Response:
        """204, also when it had ended by itself: it is what was asked for."""
        if not (await self.streams.supervisor.cancel(id) or await self.streams.journal.cancel(id)):
            raise StreamGone("there is no such stream to stop")
        return Response(status_code=204)
