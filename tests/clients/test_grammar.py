"""The grammar of streams, read by `httpx-sse`: what is sent how often, and in which order."""

from typing import Any

import httpx
import pytest
from httpx_sse import ServerSentEvent, connect_sse

from tests.process.program import Program

CHAT = {"model": "parrot", "messages": [{"role": "user", "content": "Hi"}], "temperature": 0, "stream": True}
COMPLETION = {"model": "parrot", "prompt": "Hello", "temperature": 0, "max_tokens": 5, "stream": True}

# Such that the chunks are encoded here, and such that vLLM encodes them.
WAYS = [
    ("/v1/chat/completions", CHAT),
    ("/v1/chat/completions", CHAT | {"n": 3, "temperature": 0.01}),
    ("/v1/chat/completions", CHAT | {"logprobs": True, "n": 2, "temperature": 0.01}),
    ("/v1/chat/completions", CHAT | {"return_token_ids": True}),
    ("/v1/completions", COMPLETION),
    ("/v1/completions", COMPLETION | {"n": 3, "temperature": 0.01}),
    ("/v1/completions", COMPLETION | {"logprobs": 1}),
    ("/v1/completions", COMPLETION | {"prompt": ["Hello", "Once"], "echo": True}),
]


def events_of(url: str, path: str, body: dict[str, Any]) -> list[ServerSentEvent]:
    with httpx.Client(base_url=url, timeout=30) as client, connect_sse(client, "POST", path, json=body) as source:
        return list(source.iter_sse())


@pytest.mark.parametrize(("path", "body"), WAYS)
def test_openai_streams(busy: str, path: str, body: dict[str, Any]) -> None:
    events = events_of(busy, path, body)
    assert all((event.event, event.id, event.retry) == ("message", "", None) for event in events)
    assert [event.data for event in events].index("[DONE]") == len(events) - 1
    chunks = [event.json() for event in events[:-1]]
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert all("usage" not in chunk for chunk in chunks)
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    for index in {choice["index"] for choice in choices}:
        own = [choice for choice in choices if choice["index"] == index]
        assert [choice["finish_reason"] is not None for choice in own] == [False] * (len(own) - 1) + [True]
        if "chat" in path:
            assert ["role" in choice["delta"] for choice in own] == [True] + [False] * (len(own) - 1)


def test_messages_keep_the_names_of_their_protocol(busy: str) -> None:
    events = events_of(busy, "/v1/messages", CHAT | {"max_tokens": 30})
    assert (events[0].event, events[-1].event) == ("message_start", "message_stop")
    assert all(event.json()["type"] == event.event and event.id == "" for event in events)


def test_keep_alives_go_out_while_a_request_waits(busy: str) -> None:
    with httpx.stream("POST", busy + "/v1/chat/completions", json=CHAT, timeout=30) as response:
        body = response.read()
    assert body.startswith(b": keep-alive\n\n" * 2)


def test_nothing_is_said_twice_of_a_broken_body(program: Program) -> None:
    response = httpx.post(program.url + "/v1/messages", json={"model": "parrot", "stream": True})
    assert response.status_code == 400
    assert response.json()["type"] == "error"
