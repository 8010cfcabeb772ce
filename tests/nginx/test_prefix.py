"""A path prefix, cut off by nginx or not: every address of the application is found under it."""

from pathlib import Path

import httpx
import pytest
from prometheus_client import CollectorRegistry
from starlette.routing import Route

from engine.journal import MemoryJournal
from engine.lifecycle import Lifecycle
from engine.scripted import Script, ScriptedEngine
from engine.supervisor import Supervisor
from metrics.instruments import Instruments
from routes.application import HttpSettings, build_application
from tests.event_source import done, parse
from tests.nginx.proxy import Nginx, needs_nginx, nginx, shipped
from tests.process.program import free_port, serving

pytestmark = needs_nginx

ROOT_PATH = ("--root-path", "/llm")

WAYS = pytest.mark.parametrize(
    ("location", "flags"), [("is cut off", ()), ("is cut off", ROOT_PATH), ("stays", ROOT_PATH)]
)


def addresses() -> list[str]:
    """Every path of the application, its parameters filled in."""
    supervisor = Supervisor(ScriptedEngine(Script(["x"])), Lifecycle(on_change=lambda state: None))
    application = build_application(
        supervisor, MemoryJournal(lambda: 0.0), Instruments(CollectorRegistry()), HttpSettings()
    )
    return [route.path.replace("{", "").replace("}", "") for route in application.routes if isinstance(route, Route)]


def is_found(proxy: Nginx, path: str) -> bool:
    """HEAD starts no generation; where an address takes POST only, that is said, which is an answer of the address."""
    answer = httpx.head(proxy.url + "/llm" + path, timeout=20)
    return answer.status_code in (200, 405)


@WAYS
def test_every_address_is_found_under_the_prefix(tmp_path: Path, location: str, flags: tuple[str, ...]) -> None:
    paths = addresses()
    assert {"/healthz", "/readyz", "/metrics", "/openapi.json", "/v1/models", "/v1/stream", "/api/tags"} <= set(paths)
    with serving("--engine", "scripted", "--scripted-itl-ms", "1", *flags) as program:
        program.wait_ready()
        with nginx(tmp_path / "nginx", shipped(location), program.port) as proxy:
            assert [path for path in paths if not is_found(proxy, path)] == []
            assert httpx.head(proxy.url + "/llm/nothing").status_code == 404
            events = parse(httpx.get(proxy.url + "/llm/v1/stream?prompt=a%20b&max_tokens=3").content)
            assert done(events)["usage"] == {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5}
            chat = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 3}
            assert httpx.post(proxy.url + "/llm/v1/chat/completions", json=chat).json()["choices"]
            assert httpx.get(proxy.url + "/healthz").status_code == 404


@WAYS
def test_the_next_pod_is_asked_under_the_prefix_too(tmp_path: Path, location: str, flags: tuple[str, ...]) -> None:
    with serving("--engine", "scripted", *flags) as program:
        program.wait_ready()
        with nginx(tmp_path / "nginx", shipped(location), free_port(), program.port) as proxy:
            for _ in range(3):
                assert httpx.get(proxy.url + "/llm/v1/models").status_code == 200
