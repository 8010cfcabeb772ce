"""`/v1/streams`: a request is kept with a key, run without one, and stopped by whoever has its id."""

import logging
import threading
from collections.abc import Iterator

import httpx
import pytest

from engine.errors import Overloaded
from engine.interface import AnyRequest
from engine.scripted import Script, ScriptedEngine, ScriptedSource
from routes.application import HttpSettings
from tests.event_source import done, joined_text, parse
from tests.server import RunningServer, running, wait_until

WORDS = [f" {number}" for number in range(8)]
KEY = {"Authorization": "Bearer secret"}
PAGE = {"Origin": "https://page"}


@pytest.fixture
def server() -> Iterator[RunningServer]:
    settings = HttpSettings(api_keys=("secret",), allowed_origins=("https://page",))
    with running(ScriptedEngine(Script(WORDS, 0, 0.01)), settings) as server:
        yield server


def keep(client: httpx.Client, **fields: object) -> str:
    answer = client.post("/v1/streams", json={"prompt": "x"} | fields, headers=KEY | PAGE)
    assert answer.status_code == 201
    assert answer.headers["access-control-allow-origin"] == "https://page"
    assert answer.json()["expires_in"] == 120
    assert answer.headers["location"] == answer.json()["url"] == f"/v1/streams/{answer.json()['id']}"
    return str(answer.json()["url"])


def test_a_kept_request_is_run_by_its_id_alone(server: RunningServer) -> None:
    with server.client() as client:
        url = keep(client, max_tokens=5)
        answer = client.get(url, headers=PAGE)
        assert answer.headers["access-control-allow-origin"] == "https://page"
        events = parse(answer.content)
        assert joined_text(events) == "".join(WORDS[:5])
        assert events[0].json["id"] == url.rpartition("/")[2]


def test_keeping_needs_a_key_and_runs_nothing(server: RunningServer) -> None:
    assert isinstance(server.engine, ScriptedEngine)
    with server.client() as client:
        refused = client.post("/v1/streams", json={"prompt": "x"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (401, "unauthorized")
        keep(client)
        assert not server.engine.running


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"n": 1}, "invalid_request"),
        ({"max_tokens": 0}, "invalid_request"),
        ({"model": "gpt-9"}, "model_not_found"),
        ({"prompt": "x " * 9000}, "context_length"),
    ],
)
def test_what_could_not_run_is_not_kept(server: RunningServer, fields: dict[str, object], code: str) -> None:
    with server.client() as client:
        answer = client.post("/v1/streams", json={"prompt": "x"} | fields, headers=KEY)
        assert answer.json()["error"]["code"] == code


def test_one_generation_whoever_asks_how_often(server: RunningServer) -> None:
    """A second reader takes a running stream over, from its beginning; one of an ended stream gets it all."""
    with server.client() as client, server.client() as other:
        url = keep(client)
        with client.stream("GET", url) as response:
            chunks = response.iter_bytes()
            body = next(chunks)
            second = parse(other.get(url).content)
            body += b"".join(chunks)
        first = parse(body)
        assert first[-1].json["code"] == "stream_gone"
        again = parse(other.get(url).content)
        assert [event.type for event in again] == ["start", "message", "done", "message"]
        assert second[0].type == "start"
        assert joined_text(again) == joined_text(second) == "".join(WORDS)
        assert other.get(url, headers={"Last-Event-ID": first[1].id}).status_code == 200
        assert other.get(url, headers={"Last-Event-ID": again[-1].id}).status_code == 204
        assert server.metric("tailrace_requests_total", route="/v1/streams/{id}", outcome="completed") >= 4
        assert server.metric("tailrace_requests_total", route="/v1/streams/{id}", outcome="stream_gone") == 1


def test_head_starts_nothing(server: RunningServer) -> None:
    with server.client() as client:
        url = keep(client)
        assert client.head(url).headers["content-type"].startswith("text/event-stream")
        assert joined_text(parse(client.get(url).content)) == "".join(WORDS)


@pytest.mark.parametrize("id", ["x", "A" * 22, "../stream", "%00", "A" * 5000])
def test_unknown_ids_are_gone(server: RunningServer, id: str) -> None:
    with server.client() as client:
        for method in ("GET", "DELETE"):
            assert client.request(method, f"/v1/streams/{id}").status_code in (401, 404, 410)


def test_a_stream_that_is_stopped_says_so_to_its_reader() -> None:
    engine = ScriptedEngine(Script(["a"] * 1000, 0, 0.02))
    with running(engine) as server, server.client() as client, server.client() as other:
        url = other.post("/v1/streams", json={"prompt": "x"}).json()["url"]
        with client.stream("GET", url) as response:
            chunks = response.iter_bytes()
            body = next(chunks)
            wait_until(lambda: any(source.phase == "decode" for source in list(engine.running)))
            assert other.delete(url).status_code == 204
            body += b"".join(chunks)
        last = done(parse(body))
        assert last["finish_reason"] == "cancelled"
        assert last["usage"]["completion_tokens"] >= 1
        assert not engine.running
        wait_until(lambda: server.metric("tailrace_requests_total", outcome="cancelled") == 1)
        assert other.delete(url).status_code == 204


def test_a_request_that_is_stopped_before_it_ran_never_runs(server: RunningServer) -> None:
    with server.client() as client:
        url = keep(client)
        assert client.delete(url).status_code == 204
        assert client.get(url).status_code == 410


def test_a_stream_of_its_own_accord_can_be_stopped_by_its_id() -> None:
    engine = ScriptedEngine(Script(["a"] * 1000, 0, 0.02))
    with running(engine) as server, server.client() as client, server.client() as other:
        with client.stream("GET", "/v1/stream?prompt=x") as response:
            chunks = response.iter_bytes()
            start = parse(next(chunks))[0]
            assert other.delete(f"/v1/streams/{start.json['id']}").status_code == 204
            assert b'"cancelled"' in b"".join(chunks)


def test_a_request_that_cannot_run_now_can_be_asked_for_again() -> None:
    class Busy(ScriptedEngine):
        free = threading.Event()

        async def submit(self, request: AnyRequest, request_id: str) -> ScriptedSource:
            if not self.free.is_set():
                raise Overloaded("the engine is busy")
            return await super().submit(request, request_id)

    engine = Busy(Script(WORDS, 0, 0))
    with running(engine) as server, server.client() as client:
        url = client.post("/v1/streams", json={"prompt": "x"}).json()["url"]
        assert client.get(url).status_code == 503
        assert b"retry:" in client.get(url + "?errors=event").content
        engine.free.set()
        assert joined_text(parse(client.get(url).content)) == "".join(WORDS)


def test_neither_key_nor_id_reaches_a_log(
    server: RunningServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("tailrace"), "propagate", True)
    caplog.set_level(logging.INFO, logger="tailrace")
    with server.client() as client:
        url = keep(client)
        client.get(url)
        client.delete(url)
    wait_until(lambda: caplog.text.count("/v1/streams") >= 3)
    assert "/v1/streams/{id}" in caplog.text
    assert url.rpartition("/")[2] not in caplog.text
    assert "secret" not in caplog.text
