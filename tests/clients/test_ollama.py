"""The official `ollama` client, and the lines that it reads."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import ollama
import pytest

from tests.parrot_model import ANSWER, REASONING, WEATHER
from tests.process.program import Program

MESSAGES: Any = [{"role": "user", "content": "Hi"}]
TOOLS: Any = [WEATHER]
GREEDY = {"temperature": 0, "num_ctx": 4096}
SCHEMA: Any = {"enum": ["yes", "no"]}


@pytest.fixture
def client(busy: str) -> Iterator[ollama.Client]:
    with ollama.Client(host=busy, timeout=30) as client:
        yield client


def test_a_chat(client: ollama.Client) -> None:
    answer = client.chat("parrot", MESSAGES, options=GREEDY, keep_alive="5m")
    assert (answer.message.content, answer.message.thinking) == (ANSWER, REASONING)
    assert (answer.done, answer.done_reason, answer.eval_count) == (True, "stop", 19)
    assert answer.total_duration
    assert answer.total_duration > 0


def test_a_streamed_chat(client: ollama.Client) -> None:
    parts = list(client.chat("parrot:latest", MESSAGES, options=GREEDY, stream=True))
    assert "".join(part.message.content or "" for part in parts) == ANSWER
    assert "".join(part.message.thinking or "" for part in parts) == REASONING
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    assert parts[-1].prompt_eval_count == 31


def test_options(client: ollama.Client) -> None:
    options = {"num_predict": 4, "top_p": 0.9, "top_k": 5, "seed": 3, "temperature": 1.0, "stop": [" plus"]}
    texts = {client.generate("parrot", "Let me", raw=True, options=options).response for _ in range(2)}
    assert len(texts) == 1
    assert client.generate("parrot", "Hi", options=GREEDY | {"num_predict": 2}).done_reason == "length"


def test_generate_streamed_and_not(client: ollama.Client) -> None:
    whole = client.generate("parrot", "Hi", system="Be brief.", options=GREEDY)
    parts = list(client.generate("parrot", "Hi", system="Be brief.", options=GREEDY, stream=True))
    assert whole.response == "".join(part.response or "" for part in parts) == ANSWER
    raw = client.generate("parrot", "Let me see:", raw=True, options=GREEDY | {"num_predict": 3})
    assert raw.response == " two plus three"


def test_formats(client: ollama.Client) -> None:
    answer = client.chat("parrot", MESSAGES, format=SCHEMA, options=GREEDY | {"num_predict": 80})
    assert json.loads(answer.message.content or "") in ("yes", "no")
    answer = client.chat("parrot", MESSAGES, format="json", options=GREEDY | {"num_predict": 20})
    assert (answer.message.content or "").lstrip().startswith("{")


def test_tools(client: ollama.Client) -> None:
    """What is said to a tool's answer; that a tool is called needs a grammar, which this client cannot ask for."""
    said: Any = [
        *MESSAGES,
        {"role": "assistant", "tool_calls": [{"function": {"name": "weather", "arguments": {"city": "Oslo"}}}]},
        {"role": "tool", "tool_name": "weather", "content": "rain"},
    ]
    assert client.chat("parrot", said, tools=TOOLS, options=GREEDY).message.content == ANSWER


def test_the_async_client(busy: str) -> None:
    async def ask() -> str:
        async with ollama.AsyncClient(host=busy) as client:
            stream = await client.chat("adapted", MESSAGES, options=GREEDY, stream=True)
            return "".join([part.message.content or "" async for part in stream])

    assert asyncio.run(ask()) == ANSWER


def test_what_is_served(program: Program) -> None:
    with ollama.Client(host=program.url) as client:
        assert [model.model for model in client.list().models] == ["parrot", "adapted"]
        assert [model.model for model in client.ps().models] == ["parrot", "adapted"]
        shown = client.show("parrot")
    assert shown.capabilities == ["completion", "tools", "thinking"]
    assert shown.modelinfo is not None
    assert shown.modelinfo["llama.context_length"] == 2048
    assert httpx.get(program.url + "/api/version").json()["version"]


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({}, 400, "model is required"),
        ({"model": "llama3"}, 404, "model 'llama3' not found"),
        ({"model": "parrot", "messages": 5}, 400, "messages"),
        ({"model": "parrot", "messages": MESSAGES, "format": "xml"}, 400, "format"),
        ({"model": "parrot", "messages": MESSAGES, "options": {"temperature": 9}}, 400, "temperature"),
        ({"model": "parrot", "messages": MESSAGES, "options": {"num_predict": "x"}}, 400, "options.num_predict"),
        ({"model": "parrot", "messages": MESSAGES, "options": {"warmth": 1}}, 400, "options.warmth"),
        ({"model": "parrot", "messages": MESSAGES, "options": 5}, 400, "options"),
        ({"model": "parrot", "messages": [{"role": "user", "content": "word " * 3000}]}, 400, "context"),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
def test_errors(program: Program, body: dict[str, Any], status: int, said: str, stream: bool) -> None:
    response = httpx.post(program.url + "/api/chat", json=body | {"stream": stream})
    assert response.status_code == status
    assert list(response.json()) == ["error"]
    assert said in response.json()["error"]


def test_a_model_is_loaded_and_unloaded_by_saying_nothing(program: Program) -> None:
    with ollama.Client(host=program.url) as client:
        assert client.generate("parrot", "").done_reason == "load"
        assert client.chat("parrot", [], keep_alive=0).done_reason == "unload"


def test_lines_are_whole_objects_whatever_the_content_type(busy: str) -> None:
    body = json.dumps({"model": "parrot", "messages": MESSAGES, "options": GREEDY}).encode()
    with httpx.stream("POST", busy + "/api/chat", content=body, timeout=30) as response:
        assert response.headers["content-type"] == "application/x-ndjson"
        text = response.read().decode()
    assert text.startswith(" "), "no keep-alive was needed"
    assert all(json.loads(line)["model"] == "parrot" for line in text.removesuffix("\n").split("\n"))
