"""`/v1/stream` and its neighbours through real uvicorn and real sockets, over the scripted engine."""

import asyncio
import http.client
import json
import socket
import threading
from collections.abc import Iterator

import httpx
import pytest
from httpx_sse import connect_sse

from engine.interface import AnyRequest
from engine.scripted import Script, ScriptedEngine, ScriptedSource
from routes.application import HttpSettings
from tests.event_source import done, joined_text, parse, token_events
from tests.server import RunningServer, running, wait_until

HOSTILE_TOKENS = ["\n", "\n\n", "\r", "\r\n", " lead", "data: x", ": x", "[DONE]", "\u2028", "\ufeff", "\0"]


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    engine = ScriptedEngine(Script([*HOSTILE_TOKENS, "", "end"], 0.005, 0))
    settings = HttpSettings(access_log=False, max_body_bytes=100_000)
    with running(engine, settings) as server:
        yield server


@pytest.fixture
def client(server: RunningServer) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


def num_started(server: RunningServer) -> float:
    """Generations so far, if each prompt had one token."""
    return server.metric("tailrace_prompt_tokens_total")


def test_every_token_is_one_event_and_byte_identical_for_a_conforming_parser(client: httpx.Client) -> None:
    body = client.get("/v1/stream", params={"prompt": "x"}).content
    events = parse(body)
    assert [event.json["token"] for event in token_events(events)] == [*HOSTILE_TOKENS, "end"]
    assert token_events(events)[-1].id.endswith(":13")  # the empty token made no event, but counts
    assert done(events)["finish_reason"] == "stop"
    for block in body.split(b"\n\n"):
        block.decode("utf-8")


def test_every_token_is_one_event_and_byte_identical_for_httpx_sse(client: httpx.Client) -> None:
    with connect_sse(client, "GET", "/v1/stream", params={"prompt": "x"}) as source:
        events = list(source.iter_sse())
    tokens = [
        json.loads(event.data)["token"] for event in events if event.event == "message" and event.data != "[DONE]"
    ]
    assert tokens == [*HOSTILE_TOKENS, "end"]
    assert [event.event for event in events[-2:]] == ["done", "message"]


def test_post_streams_the_same(client: httpx.Client) -> None:
    by_get = client.get("/v1/stream", params={"message": "a b c"})
    by_post = client.post("/v1/stream", json={"messages": [{"role": "user", "content": "a b c"}]})
    assert joined_text(parse(by_get.content)) == joined_text(parse(by_post.content))
    assert done(parse(by_post.content))["usage"]["prompt_tokens"] == 3
    assert by_post.headers["content-type"] == by_get.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert by_post.headers["cache-control"] == "no-store, no-transform"
    assert "content-encoding" not in by_post.headers


def test_head_answers_with_the_headers_and_starts_nothing(server: RunningServer, client: httpx.Client) -> None:
    before = num_started(server)
    head = client.head("/v1/stream", params={"prompt": "x"})
    get = client.get("/v1/stream", params={"prompt": "x"})
    kept = ("content-type", "cache-control", "x-accel-buffering", "connection")
    assert (head.status_code, head.content) == (200, b"")
    assert [head.headers[name] for name in kept] == [get.headers[name] for name in kept]
    assert num_started(server) == before + 1


def test_options_says_what_is_allowed(client: httpx.Client) -> None:
    response = client.options("/v1/stream")
    assert response.status_code == 204
    assert set(response.headers["allow"].split(", ")) == {"GET", "HEAD", "POST"}


@pytest.mark.parametrize(
    ("method", "url", "status", "code"),
    [
        ("GET", "/v1/stream?prompt=a&prompt=b", 400, "invalid_request"),
        ("GET", "/v1/stream?prompt=a&model=other", 404, "model_not_found"),
        ("GET", "/nowhere", 404, "not_found"),
        ("PUT", "/v1/stream", 405, "method_not_allowed"),
        ("POST", "/healthz", 405, "method_not_allowed"),
        ("GET", "/v1/stream?prompt=" + "a+" * 9000, 400, "context_length"),
    ],
)
def test_errors_before_the_first_byte_have_a_status_and_one_shape(
    client: httpx.Client, method: str, url: str, status: int, code: str
) -> None:
    response = client.request(method, url)
    assert response.status_code == status
    error = response.json()["error"]
    assert set(error) == {"code", "message", "param"}
    assert error["code"] == code
    assert response.headers["content-type"] == "application/json"


@pytest.mark.parametrize("num_bytes", [33_000, 65_500, 70_000, 1_000_000])
def test_a_query_that_does_not_fit_is_told_to_post(server: RunningServer, num_bytes: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port)  # httpx refuses to send such an address
    connection.request("GET", "/v1/stream?prompt=" + "a" * num_bytes)
    response = connection.getresponse()
    error = json.loads(response.read())["error"]
    assert (response.status, error["code"]) == (414, "uri_too_long")
    assert "POST" in error["message"]
    connection.close()


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_over_the_cap_is_refused(client: httpx.Client, chunked: bool) -> None:
    body = b'{"prompt":"' + b"a" * 200_000 + b'"}'
    content = (body[i : i + 10_000] for i in range(0, len(body), 10_000)) if chunked else body
    response = client.post("/v1/stream", content=content)
    assert (response.status_code, response.json()["error"]["code"]) == (413, "body_too_large")


def test_an_event_source_can_ask_for_errors_as_an_event(client: httpx.Client) -> None:
    response = client.get("/v1/stream", params={"prompt": "x", "n": "2", "errors": "event"})
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    [event] = parse(response.content)
    assert (event.type, event.json["code"], event.json["param"]) == ("error", "invalid_request", "n")
    # What a browser does when that body ends: it comes back with the id, and must be made to stop.
    again = client.get(
        "/v1/stream", params={"prompt": "x", "n": "2", "errors": "event"}, headers={"Last-Event-ID": event.id}
    )
    assert again.status_code == 410


def test_a_reader_that_comes_back_to_an_ended_stream_is_told_to_stop(
    server: RunningServer, client: httpx.Client
) -> None:
    events = parse(client.get("/v1/stream", params={"prompt": "x"}).content)
    before = num_started(server)
    for response in (
        client.get("/v1/stream", params={"prompt": "x"}, headers={"Last-Event-ID": events[-1].id}),
        client.get("/v1/stream", params={"prompt": "x", "lastEventId": events[-1].id}),
        client.post("/v1/stream", json={"prompt": "x"}, headers={"Last-Event-ID": events[-1].id}),
    ):
        assert (response.status_code, response.content) == (204, b"")
    assert num_started(server) == before


def test_a_reader_that_missed_the_end_gets_exactly_the_rest(client: httpx.Client) -> None:
    events = parse(client.get("/v1/stream", params={"prompt": "x"}).content)
    seen = 1 + 4  # start and four tokens
    again = client.get("/v1/stream", params={"prompt": "x"}, headers={"Last-Event-ID": events[seen - 1].id})
    assert again.status_code == 200
    rest = parse(again.content)
    assert joined_text(events[:seen]) + joined_text(rest) == joined_text(events)
    assert done(rest) == done(events)
    assert rest[0].id == events[-1].id


@pytest.mark.parametrize(
    "last_event_id",
    ["x", "unknown-stream-id-22-ch:3", "A" * 22 + ":1", ":1", "A" * 22 + ":-1", "A" * 5000, "A" * 22 + ":" + "9" * 30],
)
def test_an_id_that_names_no_stream_is_gone_and_starts_nothing(
    server: RunningServer, client: httpx.Client, last_event_id: str
) -> None:
    before = num_started(server)
    for params in ({"prompt": "x"}, {"prompt": "x", "errors": "event"}):
        response = client.get("/v1/stream", params=params, headers={"Last-Event-ID": last_event_id})
        assert (response.status_code, response.json()["error"]["code"]) == (410, "stream_gone")
    assert num_started(server) == before


def test_a_number_that_no_event_of_the_stream_had_is_gone(client: httpx.Client) -> None:
    stream_id = parse(client.get("/v1/stream", params={"prompt": "x"}).content)[0].json["id"]
    response = client.get("/v1/stream", headers={"Last-Event-ID": f"{stream_id}:99"})
    assert response.status_code == 410


def test_an_empty_last_event_id_is_none(client: httpx.Client) -> None:
    assert client.get("/v1/stream", params={"prompt": "x", "lastEventId": ""}).status_code == 200


def test_half_closing_the_connection_counts_as_leaving() -> None:
    engine = ScriptedEngine(Script(["a "] * 1000, 0, 0.005))
    with running(engine) as server, socket.create_connection(("127.0.0.1", server.port)) as sock:
        sock.sendall(b"GET /v1/stream?prompt=x HTTP/1.1\r\nHost: x\r\n\r\n")
        wait_until(lambda: len(engine.running) == 1)
        sock.shutdown(socket.SHUT_WR)
        wait_until(lambda: not engine.running)


def test_metrics_need_no_redirect_and_follow_accept(client: httpx.Client) -> None:
    text = client.get("/metrics")
    assert (text.status_code, text.headers["content-type"].partition(";")[0]) == (200, "text/plain")
    assert "tailrace_time_to_first_token_seconds_bucket" in text.text
    open_metrics = client.get("/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    assert open_metrics.headers["content-type"].startswith("application/openmetrics-text")
    assert open_metrics.text.endswith("# EOF\n")


def test_health_follows_the_state() -> None:
    engine = ScriptedEngine(Script(["a"] * 100, 0, 0.02))
    with running(engine) as server, server.client() as client:
        probes = ("/healthz", "/health", "/readyz")
        assert [client.get(path).status_code for path in probes] == [200, 200, 200]
        answers: list[bytes] = []
        reading = threading.Thread(
            target=lambda: answers.append(httpx.get(f"{server.url}/v1/stream?prompt=x&max_tokens=20").content)
        )
        reading.start()
        wait_until(lambda: server.num_in_flight == 1)
        draining = asyncio.run_coroutine_threadsafe(server.supervisor.drain(5, asyncio.Event()), server.loop)
        wait_until(lambda: client.get("/readyz").status_code == 503)
        assert [client.get(path).status_code for path in probes] == [200, 200, 503]
        refused = client.get("/v1/stream", params={"prompt": "x"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
        assert refused.headers["retry-after"]
        assert refused.headers["connection"] == "close"
        as_event = client.get("/v1/stream", params={"prompt": "x", "errors": "event"})
        [event] = parse(as_event.content)
        assert (event.json["code"], event.json["retryable"], event.id) == ("draining", True, "")
        draining.result(10)
        reading.join(10)
        assert done(parse(answers[0]))["usage"]["completion_tokens"] == 20


def test_death_is_told_to_streams_probes_and_new_requests() -> None:
    engine = ScriptedEngine(Script(["a"] * 100, 0, 0.01, die_after=5))
    with running(engine) as server, server.client() as client:
        events = parse(client.get("/v1/stream", params={"prompt": "x"}).content)
        assert (events[-1].type, events[-1].json["code"]) == ("error", "engine_dead")
        server.run(server.supervisor.watch())
        assert [client.get(path).status_code for path in ("/healthz", "/health", "/readyz")] == [503, 503, 503]
        assert client.get("/v1/stream", params={"prompt": "x"}).json()["error"]["code"] == "engine_dead"


def test_a_key_is_asked_for_where_it_must_be() -> None:
    settings = HttpSettings(access_log=False, api_keys=("first", "second"), allowed_origins=("https://page",))
    with running(ScriptedEngine(Script(["a"], 0, 0)), settings) as server, server.client() as client:
        origin = {"Origin": "https://page"}
        refused = client.get("/v1/stream", params={"prompt": "x"}, headers=origin)
        assert (refused.status_code, refused.json()["error"]["code"]) == (401, "unauthorized")
        assert refused.headers["access-control-allow-origin"] == "https://page"
        for key, status in (("first", 200), ("second", 200), ("third", 401), ("x", 401)):
            headers = {"Authorization": f"Bearer {key}"}
            assert client.get("/v1/stream", params={"prompt": "x"}, headers=headers).status_code == status
            headers = {"X-Api-Key": key}
            assert client.get("/v1/stream", params={"prompt": "x"}, headers=headers).status_code == status
        assert client.get("/v1/stream", headers={"Authorization": "Basic first"}).status_code == 401
        assert client.post("/v1/chat/completions").json()["error"]["code"] == 401
        assert client.post("/v1/messages").json()["error"]["type"] == "authentication_error"
        assert client.post("/api/chat").json() == {"error": "this server asks for an API key"}
        for path in ("/healthz", "/health", "/readyz", "/metrics"):
            assert client.get(path).status_code == 200
        assert client.options("/v1/stream").status_code == 204


def test_what_no_handler_foresaw_is_internal_says_nothing_and_carries_cors() -> None:
    class Broken(ScriptedEngine):
        async def submit(self, request: AnyRequest, request_id: str) -> ScriptedSource:
            raise RuntimeError("secret in /home/user/file.py")

    settings = HttpSettings(access_log=False, allowed_origins=("https://page",))
    with running(Broken(Script(["a"])), settings) as server, server.client() as client:
        response = client.get("/v1/stream", params={"prompt": "x"}, headers={"Origin": "https://page"})
        assert (response.status_code, response.json()["error"]["code"]) == (500, "internal")
        assert "secret" not in response.text
        assert response.headers["access-control-allow-origin"] == "https://page"
        assert client.get("/healthz").status_code == 200
