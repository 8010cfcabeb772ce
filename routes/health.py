"""Liveness, readiness and metrics: what the platform asks, whatever state the process is in."""

from dataclasses import dataclass

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.openmetrics import exposition as openmetrics
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
        """Prometheus text, or OpenMetrics where `Accept` asks for it, as Prometheus does.

        The library's own choice would rename `vllm:…` to `vllm_…` in OpenMetrics. Every name here is valid as it is, so
        nothing needs escaping.
        """
        if "application/openmetrics-text" in request.headers.get("accept", ""):
            body = openmetrics.generate_latest(self.registry, escaping=openmetrics.ALLOWUTF8)  # type: ignore[no-untyped-call]
            return Response(body, headers={"Content-Type": openmetrics.CONTENT_TYPE_LATEST})
        return Response(generate_latest(self.registry), headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})
