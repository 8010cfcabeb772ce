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


# Where the digest of the key lies in a request's scope that it came with.
KEY_DIGEST = "tailrace.key"


def holder_of(scope: Scope, stream_id: str) -> str:
    """Who may come back to a stream: whoever has the key with which it was started. Empty where no key was asked for.

    Differs from stream to stream, so that it says nothing of the key to whoever can read it.
    """
    digest = scope.get("state", {}).get(KEY_DIGEST)
    return hmac.new(digest, stream_id.encode(), hashlib.sha256).hexdigest()[:32] if digest else ""


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
        known = [one for digest in self._digests for one in given if hmac.compare_digest(one, digest)]
        if known:
            scope.setdefault("state", {})[KEY_DIGEST] = known[0]
        return bool(known)
