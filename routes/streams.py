"""`/v1/streams`: keep a request, run it for whoever has its id, stop it."""

from dataclasses import dataclass

import orjson
from sse_starlette import EventSourceResponse
from starlette.requests import Request
from starlette.responses import Response

from engine.errors import StreamGone, TailraceError
from engine.kept_requests import EXPIRES_IN_S, KeptRequests
from routes.errors import SSE_HEADERS
from routes.parameters import request_from_body
from routes.stream import StreamRoutes, trace_of
from routes.surfaces import read_json

COLLECTION = "/v1/streams"
ITEM = "/v1/streams/{id}"


@dataclass(frozen=True, slots=True)
class KeptStreamRoutes:
    """The id is the capability: who has it may read and stop the stream, without a key."""

    streams: StreamRoutes
    kept: KeptRequests

    async def keep(self, request: Request) -> Response:
        """201, once the request is known to be one that can run."""
        fields, num_bytes = await read_json(request, self.streams.delivery)
        wanted = request_from_body(fields, num_bytes)
        await self.streams.supervisor.check(wanted)
        id = self.kept.keep(wanted)
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
        if last_event_id := request.headers.get("last-event-id"):
            return self.streams.come_back(last_event_id)
        # Taken out before anything is awaited: of two readers at once, one gets it.
        wanted = self.kept.claim(id)
        if wanted is None:
            return self.streams.come_back(f"{id}:0")
        try:
            return await self.streams.start(wanted, trace_of(request), id)
        except TailraceError as error:
            if error.retryable:
                self.kept.give_back(id, wanted)
            raise

    async def _stop(self, id: str) -> Response:
        """204, also when it had ended by itself: it is what was asked for."""
        was_known = self.kept.claim(id) is not None
        was_known |= await self.streams.supervisor.cancel(id)
        was_known |= self.streams.journal.find(id) is not None
        if not was_known:
            raise StreamGone("there is no such stream to stop")
        return Response(status_code=204)
