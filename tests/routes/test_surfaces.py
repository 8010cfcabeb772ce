"""The surfaces over the scripted engine: what the real one cannot be made to do on demand."""

import json
from collections.abc import Iterator

import httpx
import ollama
import openai
import pytest

from engine.scripted import Script, ScriptedEngine
from engine.serving import ChoiceDelta
from routes.application import HttpSettings
from routes.chunks import has_text
from tests.server import RunningServer, running, wait_until
from tests.ways import SCRIPTED_WAYS, Way, answer, asked, way

WORDS = [" a", " b", "안녕", "🙂", "\n\n", '"']


@pytest.fixture(scope="module")
def slow() -> Iterator[RunningServer]:
    """Pauses longer than the keep-alive's interval before every token."""
    settings = HttpSettings(access_log=False, keep_alive_s=0.1)
    with running(ScriptedEngine(Script(WORDS, 0.3, 0.25)), settings) as server:
        yield server


@pytest.mark.parametrize("one", [one for one in SCRIPTED_WAYS if one.streams], ids=str)
def test_keep_alives_between_tokens_are_no_part_of_the_text(slow: RunningServer, one: Way) -> None:
    with asked(slow.port, one.request(model="scripted")) as sock:
        got = answer(sock)
    sign = b" {" if one.path.startswith("/api/") else b": keep-alive\n\n"
    assert got.body.count(sign) >= 6
    assert one.text(got.body) == "".join(WORDS)
    assert one.is_whole(got.body)


def test_the_openai_client_does_not_mind_keep_alives(slow: RunningServer) -> None:
    with openai.OpenAI(base_url=slow.url + "/v1", api_key="none", max_retries=0) as client:
        stream = client.chat.completions.create(
            model="scripted", messages=[{"role": "user", "content": "x"}], stream=True
        )
        assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == "".join(WORDS)


def test_the_ollama_client_does_not_mind_keep_alives(slow: RunningServer) -> None:
    with ollama.Client(host=slow.url) as client:
        parts = client.chat("scripted", [{"role": "user", "content": "x"}], stream=True)
        assert "".join(part.message.content or "" for part in parts) == "".join(WORDS)


def test_the_openai_client_hears_of_an_error_in_mid_stream() -> None:
    script = Script(WORDS, 0, 0.01, die_after=3)
    with (
        running(ScriptedEngine(script)) as server,
        openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client,
    ):
        stream = client.chat.completions.create(
            model="scripted", messages=[{"role": "user", "content": "x"}], stream=True
        )
        with pytest.raises(openai.APIError, match="the engine has died"):
            list(stream)


def test_the_ollama_client_hears_of_an_error_in_mid_stream() -> None:
    script = Script(WORDS, 0, 0.01, die_after=3)
    with running(ScriptedEngine(script)) as server, ollama.Client(host=server.url) as client:
        parts = client.chat("scripted", [{"role": "user", "content": "x"}], stream=True)
        with pytest.raises(ollama.ResponseError, match="the engine has died"):
            list(parts)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/chat/completions", {"messages": []}, "messages"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "stream": "no"}, "stream"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "tools": [{}]}, "tools"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "n": 2}, "n"),
        ("/v1/completions", {"prompt": ""}, "prompt"),
        ("/v1/completions", {"prompt": "x", "max_tokens": 0}, "max_tokens"),
        ("/v1/chat/completions", {"model": "gpt-9", "messages": []}, "model"),
    ],
)
def test_the_scripted_engine_refuses_by_name(path: str, body: object, param: str) -> None:
    with running(ScriptedEngine(Script(WORDS, 0, 0))) as server, server.client() as client:
        assert client.post(path, json=body).json()["error"]["param"] == param
        assert client.post("/v1/responses", json={}).status_code == 404


def test_models_and_tags_of_the_scripted_engine() -> None:
    with running(ScriptedEngine(Script(WORDS, 0, 0))) as server, server.client() as client:
        assert [model["id"] for model in client.get("/v1/models").json()["data"]] == ["scripted"]
        assert [model["name"] for model in client.get("/api/tags").json()["models"]] == ["scripted"]


def test_a_whole_answer_that_nobody_waits_for_is_not_made() -> None:
    engine = ScriptedEngine(Script(WORDS * 100, 0, 0.05))
    with running(engine) as server:
        with asked(server.port, way("chat, whole").request(model="scripted")):
            wait_until(lambda: len(engine.running) == 1)
        wait_until(lambda: server.num_in_flight == 0, 1)
        assert not engine.running


def test_a_body_is_read_whatever_its_type_on_ollama_s_routes_only() -> None:
    with running(ScriptedEngine(Script(WORDS, 0, 0))) as server:
        body = json.dumps({"model": "scripted", "prompt": "x", "stream": False}).encode()
        assert httpx.post(server.url + "/api/generate", content=body).status_code == 200
        refused = httpx.post(server.url + "/v1/completions", content=body)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "content-type")


def test_what_counts_as_a_token() -> None:
    assert has_text(ChoiceDelta(0, {"content": "a"}))
    assert has_text(ChoiceDelta(0, {"content": None, "tool_calls": [{"index": 0}]}))
    assert not has_text(ChoiceDelta(0, {"content": ""}))
    assert not has_text(ChoiceDelta(0, {}, "stop"))
