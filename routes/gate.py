"""What every request passes on its way in: the API key, and one line in the access log on its way out."""

import hashlib
import hmac
import logging
import time
from collections.abc import Sequence

from starlette._utils import get_route_path
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from engine.errors import Unauthorized
from routes.errors import OUTCOME, error_response

logger = logging.getLogger("tailrace.access")

# Open to everyone: what the platform and a monitoring system ask.
OPEN_PATHS = frozenset({"/", "/healthz", "/health", "/readyz", "/metrics"})


class ApiKeyGate:
    """Lets a request through that carries one of `keys` as its bearer token; asks none of `OPEN_PATHS` and OPTIONS.

    Keys are compared by their digests in constant time and never logged.
    """

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self._app = app
        self._digests = [hashlib.sha256(key.encode()).digest() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not self._may_pass(scope):
            response = error_response(scope, Unauthorized("this server asks for an API key"))
            await response(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _may_pass(self, scope: Scope) -> bool:
        if scope["method"] == "OPTIONS" or get_route_path(scope) in OPEN_PATHS:
            return True
        scheme, _, token = Headers(scope=scope).get("authorization", "").partition(" ")
        given = hashlib.sha256(token.strip().encode()).digest()
        matches = [hmac.compare_digest(given, digest) for digest in self._digests]
        return scheme.lower() == "bearer" and any(matches)


class AccessLog:
    """One line a request: method, path without the query (prompts are there), status, how it ended, duration.

    uvicorn's own access log writes the query, through a handler of its own; it is off.
    """

    def __init__(self, app: ASGIApp, unlogged_paths: frozenset[str]) -> None:
        self._app = app
        self._unlogged_paths = unlogged_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in self._unlogged_paths:
            await self._app(scope, receive, send)
            return
        started_s, status = time.perf_counter(), 0

        async def note_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, note_status)
        finally:
            duration_ms = (time.perf_counter() - started_s) * 1000
            # The path may hold anything that a client cares to send; only what prints on one line is written.
            path = scope["path"].encode("unicode_escape").decode()[:256]
            outcome = scope.get("state", {}).get(OUTCOME, "completed")
            logger.info("%s %s %d %s %.1f ms", scope["method"], path, status, outcome, duration_ms)
