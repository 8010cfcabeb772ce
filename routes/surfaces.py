"""The surfaces of OpenAI and Anthropic: bodies to the engine's own serving layer, its answers to readers."""

import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from engine.call import Call
from engine.errors import InvalidRequest
from engine.serving import Answer, CommonStream, Plain, Surface
from engine.supervisor import Supervisor
from routes.body import read_body
from routes.delivery import Delivery
from routes.parameters import parse_body
from routes.plain_answer import PlainAnswer, outcome_of
from routes.request_record import REQUEST_ID, record_of
from routes.surface_streams import ChunkStream, RawStream

PATHS = {
    "/v1/chat/completions": Surface.CHAT,
    "/v1/completions": Surface.COMPLETIONS,
    "/v1/responses": Surface.RESPONSES,
    "/v1/messages": Surface.MESSAGES,
    "/v1/messages/count_tokens": Surface.COUNT_TOKENS,
    "/tokenize": Surface.TOKENIZE,
    "/detokenize": Surface.DETOKENIZE,
}

# What makes no token. Clients ask it of a server that they take for ready because it answers.
COUNTING = (Surface.COUNT_TOKENS, Surface.TOKENIZE, Surface.DETOKENIZE)

# What vLLM's serving layer reads of a request's head, beside its id.
HEADERS = ("traceparent", "tracestate", "x-session-id", "x-vllm-priority", "x-data-parallel-rank")

Handler = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class SurfaceRoutes:
    supervisor: Supervisor
    delivery: Delivery

    def handler(self, surface: Surface) -> Handler:
        """The handler of one surface: validate, admit, and stream where that was asked for."""

        async def answer(request: Request) -> Response:
            _require_json(request)
            body, num_bytes = await read_json(request, self.delivery)
            call = self.supervisor.call(head_of(request), num_bytes)
            streams = body.get("stream")
            if not isinstance(streams, bool | None):
                # vLLM would take "no" for false; here it decides who watches the reader, before vLLM has looked.
                raise InvalidRequest("stream must be true or false", param="stream")
            if streams:
                return await self._stream(request, surface, body, call)

            async def whole() -> Response:
                supervisor = self.supervisor
                serving = await supervisor.serving_when_started() if surface in COUNTING else supervisor.serving
                return _plain(await serving.open(surface, body, call))

            return PlainAnswer(call, whole, self.delivery)

        return answer

    async def _stream(self, request: Request, surface: Surface, body: dict[str, Any], call: Call) -> Response:
        async with contextlib.AsyncExitStack() as leaving:
            await leaving.enter_async_context(call)
            answer = await self.supervisor.serving.open(surface, body, call)
            if isinstance(answer, Plain):
                record_of(request.scope).outcome = outcome_of(answer.status)
                return _plain(answer)
            leaving.pop_all()
            if isinstance(answer, CommonStream):
                return ChunkStream(answer, self.delivery)
            return RawStream(surface, answer, call, self.delivery)

    async def models(self, request: Request) -> Response:
        return _json(await self.supervisor.serving.list_models())


def _plain(answer: Answer) -> Response:
    assert isinstance(answer, Plain)
    return _json(answer.content, answer.status)


def _json(content: object, status: int = 200) -> Response:
    return Response(orjson.dumps(content), status, media_type="application/json")


def _require_json(request: Request) -> None:
    """As `vllm serve`: a page of another origin may send a form or a text without asking, but not JSON."""
    if request.headers.get("content-type", "").lower().partition(";")[0] != "application/json":
        raise InvalidRequest("the content type must be application/json", param="content-type")


async def read_json(request: Request, delivery: Delivery) -> tuple[dict[str, Any], int]:
    """The body's fields, and how many bytes they were.

    Raises:
        BodyTooLarge, InvalidRequest, ClientDisconnect
    """
    body = await read_body(request, delivery.max_body_bytes, delivery.stall_timeout_s)
    return parse_body(body), len(body)


def head_of(request: Request) -> dict[str, str]:
    """The headers that the engine's serving layer may read. An id of the client's becomes part of the answer's."""
    head = {name: request.headers[name] for name in HEADERS if name in request.headers}
    given = request.headers.get("x-request-id", "")
    return head | ({"x-request-id": given} if REQUEST_ID.fullmatch(given) else {})
