"""What a request passes on its way in: the API key."""

import hashlib
import hmac
import re
from collections.abc import Sequence

from starlette._utils import get_route_path
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from engine.errors import Unauthorized
from routes.errors import error_response

# What the platform and a monitoring system ask, every few seconds.
PROBE_PATHS = frozenset({"/healthz", "/health", "/readyz", "/metrics"})

# A stream's own address: who knows its id may read and stop it.
CAPABILITY = re.compile(r"/v1/streams/[^/]+")

# Open to everyone.
OPEN_PATHS = PROBE_PATHS | {"/"}


class ApiKeyGate:
    """Lets a request through that carries one of `keys`; asks none of `OPEN_PATHS`, of a stream's own
    address, and of OPTIONS.

    A key is the bearer token, or the `x-api-key` of Anthropic's clients.

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
        path = get_route_path(scope)
        if scope["method"] == "OPTIONS" or path in OPEN_PATHS or CAPABILITY.fullmatch(path):
            return True
        headers = Headers(scope=scope)
        scheme, _, token = headers.get("authorization", "").partition(" ")
        tokens = [token if scheme.lower() == "bearer" else "", headers.get("x-api-key", "")]
        given = [hashlib.sha256(token.strip().encode()).digest() for token in tokens]
        return any([hmac.compare_digest(one, digest) for digest in self._digests for one in given])
