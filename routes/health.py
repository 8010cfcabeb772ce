"""Liveness, readiness and metrics: what the platform asks, whatever state the process is in."""

from dataclasses import dataclass

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from engine.lifecycle import State
from engine.supervisor import Supervisor


@dataclass(frozen=True, slots=True)
class HealthRoutes:
    supervisor: Supervisor
    registry: CollectorRegistry

    async def live(self, request: Request) -> Response:
        """200 unless a restart is what would help."""
        return self._answer(200 if self.supervisor.is_alive else 503)

    async def ready(self, request: Request) -> Response:
        """200 only while new requests are served."""
        return self._answer(200 if self.supervisor.state is State.READY else 503)

    def _answer(self, status: int) -> Response:
        return PlainTextResponse(f"{self.supervisor.state}\n", status, {"Cache-Control": "no-store"})

    async def metrics(self, request: Request) -> Response:
        """Prometheus text, or OpenMetrics where `Accept` asks for it."""
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(self.registry), headers={"Content-Type": content_type})
