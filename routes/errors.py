"""The error table before the first byte: an honest status and one JSON shape. After it, see `sse.error_event`."""

import logging
import secrets
from collections.abc import Callable, Mapping
from typing import Any

import orjson
from starlette._utils import get_route_path
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from engine.errors import Internal, InvalidRequest, MethodNotAllowed, NotFound, StreamGone, TailraceError
from routes import sse
from routes.chunks import openai_error
from routes.request_record import record_of

logger = logging.getLogger("tailrace")

Json = Mapping[str, Any]

# nginx's word for a client that left before its answer. Nobody receives it; it is for the log.
CLIENT_CLOSED_REQUEST = 499

SSE_HEADERS = {"Cache-Control": "no-store, no-transform", "X-Accel-Buffering": "no"}


def error_response(scope: Scope, error: TailraceError) -> Response:
    """What the caller gets when nothing was sent yet."""
    record_of(scope).outcome = error.code
    if _wants_event(scope) and not isinstance(error, StreamGone):
        return Response(_single_error_event(error), 200, SSE_HEADERS, media_type="text/event-stream")
    headers = {"Cache-Control": "no-store"}
    if error.retry_after_s is not None:
        headers["Retry-After"] = str(error.retry_after_s)
    if error.code == "draining":
        headers["Connection"] = "close"
    if error.code == "unauthorized":
        headers["WWW-Authenticate"] = "Bearer"
    body = error_body(get_route_path(scope), error)
    return Response(body, error.status, headers, media_type="application/json")


def error_body(path: str, error: TailraceError) -> bytes:
    """In the words of the API that `path` belongs to."""
    return orjson.dumps(_shape_for(path)(error))


def _native_error(error: TailraceError) -> Json:
    return {"error": {"code": error.code, "message": error.message, "param": error.param}}


def _openai_error(error: TailraceError) -> Json:
    return {"error": openai_error(error)}


def anthropic_error(error: TailraceError) -> Json:
    """Anthropic's clients know their own words for what a status says."""
    word = ANTHROPIC_TYPES.get(error.status, "api_error" if error.status >= 500 else "invalid_request_error")
    return {"type": "error", "error": {"type": word, "message": error.message}}


def _ollama_error(error: TailraceError) -> Json:
    return {"error": error.message}


ANTHROPIC_TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    503: "overloaded_error",
}

# By the beginning of the path, the first that fits: a refusal may come before any route was found.
SHAPES: tuple[tuple[str, Callable[[TailraceError], Json]], ...] = (
    ("/v1/stream", _native_error),
    ("/v1/messages", anthropic_error),
    ("/v1/", _openai_error),
    ("/tokenize", _openai_error),
    ("/detokenize", _openai_error),
    ("/api/", _ollama_error),
    ("", _native_error),
)


def _shape_for(path: str) -> Callable[[TailraceError], Json]:
    return next(shape for prefix, shape in SHAPES if path.startswith(prefix))


def _wants_event(scope: Scope) -> bool:
    """An `EventSource` cannot read the body of an error, so it may ask for one event instead.

    `stream_gone` stays a 410 for it too: that is what makes a browser stop reconnecting.
    """
    is_native = _shape_for(get_route_path(scope)) is _native_error
    return is_native and scope["method"] == "GET" and b"errors=event" in scope["query_string"].split(b"&")


def _single_error_event(error: TailraceError) -> bytes:
    """The browser reconnects when this body ends; what may succeed later is asked for again after its time."""
    if error.retryable:
        return b"retry: %d\n" % ((error.retry_after_s or 1) * 1000) + sse.error_event(error)
    return final_error_event(error)


def final_error_event(error: TailraceError) -> bytes:
    """The event of an error that stays: with an id that names no stream. The reconnect brings it along, and is answered
    by 410, which ends it."""
    return b"id: %b:0\n" % secrets.token_urlsafe(16).encode() + sse.error_event(error)


async def on_tailrace_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, TailraceError)
    return error_response(request.scope, error)


async def on_http_exception(request: Request, error: Exception) -> Response:
    """Starlette's own refusals, in the table's words."""
    assert isinstance(error, HTTPException)
    allow = {"Allow": error.headers["Allow"]} if error.headers and "Allow" in error.headers else {}
    if request.method == "OPTIONS" and error.status_code == 405:
        return Response(status_code=204, headers=allow)
    row: TailraceError
    if error.status_code == 404:
        row = NotFound("there is nothing at this address")
    elif error.status_code == 405:
        row = MethodNotAllowed("this address does not take that method")
    else:
        row = InvalidRequest("the request could not be read")
    response = error_response(request.scope, row)
    response.headers.update(allow)
    return response


async def on_client_disconnect(request: Request, error: Exception) -> Response:
    assert isinstance(error, ClientDisconnect)
    record_of(request.scope).outcome = "disconnected"
    return Response(status_code=CLIENT_CLOSED_REQUEST)


class UnexpectedFailures:
    """Turns what no handler foresaw into `internal`.

    Starlette would answer it too, but outside of every other middleware: without the CORS headers that a page needs to
    read the answer.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def note_start(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._app(scope, receive, note_start)
        except Exception:
            if started or scope["type"] != "http":
                raise
            logger.exception("unexpected failure on %s", scope["method"])
            await error_response(scope, Internal("the server failed on this request"))(scope, receive, send)
