"""Stands before everything else: gives each request its id, and when it has ended counts it, once, and logs a line.

The clock of every time at the wire starts here, when the request's head has been read.
"""

import logging
import secrets
import time

from starlette._utils import get_route_path
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from metrics.instruments import Instruments
from metrics.timing import milliseconds
from routes.gate import CAPABILITY, PROBE_PATHS
from routes.request_record import KEY, REQUEST_ID, RequestRecord, route_of

logger = logging.getLogger("tailrace.access")

# OpenMetrics allows an exemplar 128 characters, its label's name included.
EXEMPLAR_ID_CHARS = 100


class Observer:
    """`unlogged_paths` leave no line; probes are not counted, or they would drown the rest."""

    def __init__(
        self, app: ASGIApp, model: str, instruments: Instruments, log: bool, unlogged_paths: frozenset[str]
    ) -> None:
        self._app = app
        self._model = model
        self._instruments = instruments
        self._log = log
        self._unlogged_paths = unlogged_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = RequestRecord(_request_id(scope), time.perf_counter())
        scope.setdefault("state", {})[KEY] = record

        async def observed(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                MutableHeaders(scope=message)["X-Request-Id"] = record.id
            await send(message)

        try:
            await self._app(scope, receive, observed)
        finally:
            duration_s = time.perf_counter() - record.started_s
            path = get_route_path(scope)  # without the prefix that --root-path adds
            if CAPABILITY.fullmatch(path):
                path = route_of(scope)  # a log must not hold what opens a stream
            if path not in PROBE_PATHS:
                self._count(scope, record, duration_s)
            if self._log and path not in self._unlogged_paths:
                _log(scope, path, record, duration_s)

    def _count(self, scope: Scope, record: RequestRecord, duration_s: float) -> None:
        labels = (route_of(scope), self._model)
        exemplar = {"request_id": record.id[:EXEMPLAR_ID_CHARS]}
        instruments = self._instruments
        instruments.requests.labels(*labels, record.outcome).inc(exemplar=exemplar)
        instruments.duration.labels(*labels).observe(duration_s, exemplar)
        if record.ttft_s is not None:
            instruments.ttft.labels(*labels).observe(record.ttft_s, exemplar)
        if record.tpot_s is not None:
            instruments.tpot.labels(*labels).observe(record.tpot_s, exemplar)


def _request_id(scope: Scope) -> str:
    given = Headers(scope=scope).get("x-request-id", "")
    return given if REQUEST_ID.fullmatch(given) else secrets.token_urlsafe(16)


def _log(scope: Scope, path: str, record: RequestRecord, duration_s: float) -> None:
    """A line for people, whose parts a JSON log has as fields. The path is without its query, where prompts are."""
    # A path may hold anything that a client cares to send; only what prints on one line is written.
    path = path.encode("unicode_escape").decode()[:256]
    fields = {
        "id": record.id,
        "method": scope["method"],
        "path": path,
        "route": route_of(scope),
        "status": record.status,
        "outcome": record.outcome,
        "prompt_tokens": record.num_prompt_tokens,
        "output_tokens": record.num_output_tokens,
        "ttft_ms": milliseconds(record.ttft_s),
        "tpot_ms": milliseconds(record.tpot_s),
        "duration_ms": milliseconds(duration_s),
    }
    told = (f"{name}={fields[name]}" for name in list(fields)[6:] if fields[name] is not None)
    line = f"{scope['method']} {path} {record.status} {record.outcome} id={record.id} {' '.join(told)}"
    logger.info(line, extra={"request": fields})
