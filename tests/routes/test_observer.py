"""Each request is counted once, under labels that no client chooses, and leaves one line without secrets."""

import asyncio
import json
import logging
import random
import string
import threading

import httpx
import pytest
from prometheus_client import CollectorRegistry
from starlette.types import Message, Receive, Scope, Send

from engine.interface import AnyRequest
from engine.scripted import Script, ScriptedEngine, ScriptedSource
from metrics.instruments import Instruments
from routes.application import HttpSettings
from routes.observer import Observer
from tests.server import RunningServer, running, wait_until
from tests.ways import SCRIPTED_WAYS, Way, answer, asked

CANARY = "canary-7f3a"


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    monkeypatch.setattr(logging.getLogger("tailrace"), "propagate", True)
    caplog.set_level(logging.INFO, logger="tailrace")
    return caplog


def counted(server: RunningServer, **labels: str) -> float:
    return server.metric("tailrace_requests_total", **labels)


@pytest.mark.parametrize(
    ("method", "url", "labels"),
    [
        ("GET", "/v1/stream?prompt=x", {"route": "/v1/stream", "outcome": "completed"}),
        ("GET", "/v1/stream?prompt=x&n=1", {"route": "/v1/stream", "outcome": "invalid_request"}),
        ("GET", "/v1/stream?prompt=x&n=1&errors=event", {"route": "/v1/stream", "outcome": "invalid_request"}),
        ("GET", "/v1/stream?prompt=x&model=y", {"route": "/v1/stream", "outcome": "model_not_found"}),
        ("POST", "/v1/stream", {"route": "/v1/stream", "outcome": "invalid_request"}),
        ("PUT", "/v1/stream", {"route": "/v1/stream", "outcome": "method_not_allowed"}),
        ("GET", "/nowhere", {"route": "unmatched", "outcome": "not_found"}),
        ("GET", "/openapi.json", {"route": "/openapi.json", "outcome": "completed"}),
    ],
)
def test_each_request_is_counted_once_with_its_outcome(
    method: str, url: str, labels: dict[str, str], lines: pytest.LogCaptureFixture
) -> None:
    with running(ScriptedEngine(Script(["a", "b"], 0, 0))) as server, server.client() as client:
        client.request(method, url)
        wait_until(lambda: counted(server) == 1)
        assert counted(server, model="scripted", **labels) == 1
        assert server.metric("tailrace_request_duration_seconds_count", route=labels["route"]) == 1


@pytest.mark.parametrize("way", SCRIPTED_WAYS, ids=str)
def test_every_way_to_ask_is_counted_once_with_its_tokens(way: Way) -> None:
    instruments = Instruments(CollectorRegistry())
    with running(ScriptedEngine(Script(["a", "b", "c"], 0, 0)), instruments=instruments) as server:
        with asked(server.port, way.request("one two", model="scripted")) as sock:
            assert way.text(answer(sock).body) == "abc"
        wait_until(lambda: counted(server) == 1)
        labels = {"route": way.path, "model": "scripted"}
        assert counted(server, outcome="completed", **labels) == 1
        assert server.metric("tailrace_output_tokens_total", **labels) == 3
        assert server.metric("tailrace_prompt_tokens_total", **labels) == 2
        assert server.metric("tailrace_time_to_first_token_seconds_count", **labels) == way.streams
        assert server.metric("tailrace_inter_token_latency_seconds_count", **labels) == 2 * way.streams
        assert server.metric("tailrace_request_duration_seconds_count", **labels) == 1
        assert server.metric("tailrace_discarded_tokens_total") == 0
        assert server.metric("tailrace_streams_in_flight") == 0


@pytest.mark.parametrize("way", SCRIPTED_WAYS, ids=str)
def test_the_engine_s_death_is_told_in_every_way(way: Way) -> None:
    with running(ScriptedEngine(Script(["a", "b"], 0, 0, die_after=1))) as server:
        with asked(server.port, way.request(model="scripted")) as sock:
            got = answer(sock)
        assert got.status == (200 if way.streams else 503)
        assert way.error(got.body) == "the engine has died"
        assert b"[DONE]" not in got.body
        wait_until(lambda: counted(server, route=way.path, outcome="engine_dead") == 1)


@pytest.mark.parametrize("way", SCRIPTED_WAYS, ids=str)
def test_a_reader_that_leaves_is_counted_with_what_it_cost(way: Way) -> None:
    engine = ScriptedEngine(Script(["a"] * 1000, 0, 0.02))
    with running(engine) as server:
        with asked(server.port, way.request(model="scripted")):
            wait_until(lambda: any(source.phase == "decode" for source in list(engine.running)))
        wait_until(lambda: counted(server, route=way.path, outcome="disconnected") == 1)
        assert not engine.running
        assert server.metric("tailrace_disconnects_total", phase="decode") == 1
        assert server.metric("tailrace_abort_seconds_count") == 1


def test_death_in_mid_stream_and_stalls_are_counted_by_their_names() -> None:
    with running(ScriptedEngine(Script(["a", "b"], 0, 0, die_after=1))) as server, server.client() as client:
        client.get("/v1/stream?prompt=x")
        wait_until(lambda: counted(server, outcome="engine_dead") == 1)
        client.get("/v1/stream?prompt=x")
        wait_until(lambda: counted(server) == 2)


def test_labels_never_come_from_clients() -> None:
    def num_series() -> int:
        return sum(not line.startswith("#") for line in client.get("/metrics").text.splitlines())

    chance = random.Random(1)

    def word() -> str:
        return "".join(chance.choices(string.ascii_letters, k=12))

    with running(ScriptedEngine(Script(["a"], 0, 0))) as server, server.client() as client:
        for url in ("/v1/stream?prompt=x", f"/{word()}", f"/v1/stream?prompt=x&model={word()}"):
            client.get(url)
        wait_until(lambda: counted(server) == 3)
        before = num_series()
        for _ in range(2000):
            client.get(f"/{word()}/{word()}", headers={"X-Request-Id": word()})
        for _ in range(500):
            client.get("/v1/stream", params={"prompt": "x", "model": word()})
        assert num_series() == before


@pytest.mark.parametrize("given", ["abc", "A.b_c-9", "x" * 128])
def test_a_good_request_id_is_taken_over(given: str, lines: pytest.LogCaptureFixture) -> None:
    settings = HttpSettings(access_log=True)
    with running(ScriptedEngine(Script(["a"], 0, 0)), settings) as server, server.client() as client:
        response = client.get("/v1/stream?prompt=x", headers={"X-Request-Id": given})
        assert response.headers["x-request-id"] == given
        wait_until(lambda: f"id={given} " in lines.text)
        assert client.get("/nowhere", headers={"X-Request-Id": given}).headers["x-request-id"] == given


@pytest.mark.parametrize("given", ["", "x" * 129, "a b", "a\tb", 'a"b', "a;b", "a/b"])
def test_any_other_request_id_is_replaced(given: str) -> None:
    with running(ScriptedEngine(Script(["a"], 0, 0))) as server, server.client() as client:
        replaced = [client.get("/healthz", headers={"X-Request-Id": given}).headers["x-request-id"] for _ in range(2)]
        assert replaced[0] != replaced[1]
        assert given not in replaced


def test_two_requests_with_one_id_both_work() -> None:
    with running(ScriptedEngine(Script(["a"] * 20, 0, 0.005))) as server:
        answers: list[str] = []

        def ask() -> None:
            answers.append(httpx.get(f"{server.url}/v1/stream?prompt=x", headers={"X-Request-Id": "same"}).text)

        threads = [threading.Thread(target=ask) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        assert all("event: done" in answer for answer in answers)
        assert answers[0].split("\n")[1] != answers[1].split("\n")[1]  # two streams, two ids


def test_open_metrics_carry_the_request_id_as_an_exemplar() -> None:
    accept = {"Accept": "application/openmetrics-text; version=1.0.0"}
    with running(ScriptedEngine(Script(["a", "b"], 0, 0.001))) as server, server.client() as client:
        for request_id in ("trace-me", "x" * 128):
            client.get("/v1/stream?prompt=x", headers={"X-Request-Id": request_id})
        wait_until(lambda: counted(server) == 2)
        text = client.get("/metrics", headers=accept).text
        for name in ("tailrace_time_to_first_token_seconds_bucket", "tailrace_request_duration_seconds_bucket"):
            assert any(line.startswith(name) and '# {request_id="' in line for line in text.splitlines())


def test_the_trace_of_a_caller_reaches_the_engine() -> None:
    seen: list[AnyRequest] = []

    class Listening(ScriptedEngine):
        async def submit(self, request: AnyRequest, request_id: str) -> ScriptedSource:
            seen.append(request)
            return await super().submit(request, request_id)

    trace = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": "a=b"}
    with running(Listening(Script(["a"], 0, 0))) as server, server.client() as client:
        client.get("/v1/stream?prompt=x", headers=trace)
        client.get("/v1/stream?prompt=x")
        assert [dict(request.trace_headers) for request in seen] == [trace, {}]  # type: ignore[union-attr]


def test_prompts_completions_and_keys_appear_nowhere(lines: pytest.LogCaptureFixture) -> None:
    class Broken(ScriptedEngine):
        async def submit(self, request: AnyRequest, request_id: str) -> ScriptedSource:
            if request.prompt == CANARY + "500":
                raise RuntimeError("broken")
            return await super().submit(request, request_id)

    settings = HttpSettings(access_log=True, api_keys=(CANARY + "key",))
    key = {"Authorization": f"Bearer {CANARY}key"}
    engine = Broken(Script([CANARY, " said"] * 100, 0, 0.002))
    with running(engine, settings) as server, server.client(headers=key) as client:
        answers = [
            client.get("/v1/stream", params={"prompt": CANARY + "400", "temperature": CANARY}),
            client.post("/v1/stream", content=b'{"prompt":"' + CANARY.encode() + b'","n":1}'),
            client.post("/v1/stream", content=b'{"prompt":"' + CANARY.encode()),
            client.get("/v1/stream", params={"prompt": CANARY + "500"}),
            client.get("/v1/stream", params={"prompt": CANARY}, headers={"Authorization": "Bearer " + CANARY}),
        ]
        assert [answer.status_code for answer in answers] == [400, 400, 400, 500, 401]
        assert client.get("/v1/stream", params={"prompt": CANARY, "max_tokens": "4"}).status_code == 200
        with client.stream("GET", "/v1/stream", params={"prompt": CANARY}) as response:
            next(response.iter_bytes())
        wait_until(lambda: counted(server, outcome="disconnected") == 1)
        told = [lines.text, client.get("/metrics").text, *[answer.text for answer in answers]]
        told += [json.dumps(record.__dict__, default=str) for record in lines.records if "tailrace" in record.name]
    assert "outcome" in json.dumps([record.__dict__ for record in lines.records], default=str)
    assert not any(CANARY in text for text in told)


def test_probes_are_not_counted_with_a_path_prefix_either() -> None:
    scope = {"type": "http", "method": "GET", "path": "/prefix/healthz", "root_path": "/prefix", "headers": []}
    registry = CollectorRegistry()

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        return None

    async def nothing() -> Message:
        return {"type": "http.disconnect"}

    async def drop(message: Message) -> None:
        return None

    observer = Observer(application, "m", Instruments(registry), log=False, unlogged_paths=frozenset())
    asyncio.run(observer(scope, nothing, drop))
    labels = {"route": "unmatched", "model": "m", "outcome": "completed"}
    assert registry.get_sample_value("tailrace_requests_total", labels) is None
    asyncio.run(observer({**scope, "path": "/prefix/other", "state": {}}, nothing, drop))
    assert registry.get_sample_value("tailrace_requests_total", labels) == 1
