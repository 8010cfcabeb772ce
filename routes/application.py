"""The ASGI application: every address, the handler that answers it, and what stands before them."""

from collections.abc import Sequence
from dataclasses import dataclass

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from engine.errors import TailraceError
from engine.journal import Journal
from engine.supervisor import Supervisor
from metrics.instruments import Instruments
from routes import openapi
from routes.delivery import Delivery
from routes.errors import UnexpectedFailures, on_client_disconnect, on_http_exception, on_tailrace_error
from routes.gate import ApiKeyGate
from routes.health import HealthRoutes
from routes.observer import Observer
from routes.ollama import OllamaRoutes
from routes.pace import Pace
from routes.page import page
from routes.stream import ROUTE as STREAM_ROUTE
from routes.stream import StreamRoutes
from routes.streams import COLLECTION as STREAMS_ROUTE
from routes.streams import ITEM as KEPT_STREAM_ROUTE
from routes.streams import KeptStreamRoutes
from routes.surfaces import PATHS as SURFACE_PATHS
from routes.surfaces import SurfaceRoutes


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """What the application needs to know of the command line."""

    keep_alive_s: float = 15.0
    stall_timeout_s: float = 30.0
    max_body_bytes: int = 8 << 20
    min_event_interval_s: float = 0.0
    api_keys: Sequence[str] = ()
    access_log: bool = True
    unlogged_paths: frozenset[str] = frozenset()
    allowed_origins: Sequence[str] = ()
    allowed_methods: Sequence[str] = ("*",)
    allowed_headers: Sequence[str] = ("*",)
    allow_credentials: bool = False


def build_application(
    supervisor: Supervisor, journal: Journal, instruments: Instruments, settings: HttpSettings
) -> Starlette:
    delivery = Delivery(
        instruments,
        settings.keep_alive_s,
        settings.stall_timeout_s,
        settings.max_body_bytes,
        Pace(settings.min_event_interval_s),
    )
    streams = StreamRoutes(supervisor, journal, delivery)
    ollama = OllamaRoutes(supervisor, delivery)
    kept = KeptStreamRoutes(streams)
    surfaces = SurfaceRoutes(supervisor, delivery)
    health = HealthRoutes(supervisor, instruments.registry)
    return Starlette(
        routes=[
            Route("/", page),
            Route(STREAM_ROUTE, streams.answer, methods=["GET", "POST"]),
            Route(STREAMS_ROUTE, kept.keep, methods=["POST"]),
            Route(KEPT_STREAM_ROUTE, kept.answer, methods=["GET", "DELETE"]),
            *(Route(path, surfaces.handler(surface), methods=["POST"]) for path, surface in SURFACE_PATHS.items()),
            Route("/v1/models", surfaces.models),
            Route("/api/chat", ollama.chat, methods=["POST"]),
            Route("/api/generate", ollama.generate, methods=["POST"]),
            Route("/api/tags", ollama.tags),
            Route("/api/ps", ollama.ps),
            Route("/api/show", ollama.show, methods=["POST"]),
            Route("/api/version", ollama.version),
            Route("/healthz", health.live),
            Route("/health", health.live),
            Route("/readyz", health.ready),
            Route("/metrics", health.metrics),
            Route("/openapi.json", openapi_document),
        ],
        middleware=_middleware(supervisor.model, instruments, settings),
        exception_handlers={
            TailraceError: on_tailrace_error,
            HTTPException: on_http_exception,
            ClientDisconnect: on_client_disconnect,
        },
    )


async def openapi_document(request: Request) -> Response:
    return Response(orjson.dumps(openapi.document()), media_type="application/json")


def _middleware(model: str, instruments: Instruments, settings: HttpSettings) -> list[Middleware]:
    """Outermost first: the observer sees every answer, and CORS is on refusals too."""
    stack = [
        Middleware(
            Observer,
            model=model,
            instruments=instruments,
            log=settings.access_log,
            unlogged_paths=settings.unlogged_paths,
        )
    ]
    if settings.allowed_origins:
        stack.append(
            Middleware(
                CORSMiddleware,
                allow_origins=settings.allowed_origins,
                allow_methods=settings.allowed_methods,
                allow_headers=settings.allowed_headers,
                allow_credentials=settings.allow_credentials,
            )
        )
    if settings.api_keys:
        stack.append(Middleware(ApiKeyGate, keys=settings.api_keys))
    stack.append(Middleware(UnexpectedFailures))
    return stack
