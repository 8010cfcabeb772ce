import orjson
import pytest

from engine.errors import EngineDead, InvalidRequest
from routes import sse
from tests.event_source import Event, parse

HOSTILE_TOKENS = [
    "\n", "\n\n", "\r", "\r\n", " lead", "data: x", ": x", "[DONE]", "\u2028", "\ufeff", "\0", "id: 1", "한국어",
    "🙂", '"\\',
]  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE_TOKENS)
def test_no_token_can_break_its_event(text: str) -> None:
    block = sse.token_event("id", 7, text)
    assert parse(block) == [Event("message", orjson.dumps({"token": text}).decode(), "id:7")]
    assert parse(block)[0].json == {"token": text}
    assert block.endswith(b"\n\n")
    assert block.count(b"\n") == 3
    assert b"\r" not in block


def test_text_that_is_not_ascii_is_sent_as_it_is() -> None:
    assert "한국어 🙂".encode() in sse.token_event("id", 1, "한국어 🙂")


def test_a_stream_has_the_bytes_of_the_protocol() -> None:
    blocks = [
        sse.start_event("6fJ", "smollm2-135m-instruct", 1790000000),
        sse.token_event("6fJ", 3, "안녕"),
        sse.done_event("6fJ", 57, 31, "stop", {"ttft_ms": 41.2, "tpot_ms": 28.9}),
    ]
    assert b"".join(blocks).decode() == (
        "event: start\n"
        "id: 6fJ:0\n"
        "retry: 1000\n"
        'data: {"id":"6fJ","model":"smollm2-135m-instruct","created":1790000000}\n'
        "\n"
        "id: 6fJ:3\n"
        'data: {"token":"안녕"}\n'
        "\n"
        "id: 6fJ:57\n"
        "event: done\n"
        'data: {"finish_reason":"stop","usage":{"prompt_tokens":31,"completion_tokens":57,"total_tokens":88},'
        '"timing":{"ttft_ms":41.2,"tpot_ms":28.9}}\n'
        "\n"
        "data: [DONE]\n"
        "\n"
    )


def test_an_error_says_whether_to_try_again() -> None:
    [event] = parse(sse.error_event(EngineDead("gone")))
    assert (event.type, event.json) == ("error", {"code": "engine_dead", "message": "gone", "retryable": True})
    [event] = parse(sse.error_event(InvalidRequest("bad", param="seed")))
    assert event.json == {"code": "invalid_request", "message": "bad", "retryable": False, "param": "seed"}


def test_a_keep_alive_is_no_event() -> None:
    assert parse(sse.KEEP_ALIVE) == []
