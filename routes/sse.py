"""Events to bytes: the exact blocks of a native stream, without I/O.

Every function returns whole blocks, each ended by one blank line, with LF line ends. JSON keeps every line end of the
text inside its escapes, so no token can break the framing (WHATWG HTML, section 9.2.6).
"""

import orjson

from engine.errors import TailraceError

# What a browser waits before it reconnects, in ms. Short, because a cut stream is continued, not begun anew.
RETRY_MS = 1000

DONE_MARKER = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"


def start_event(stream_id: str, model: str, created_s: int) -> bytes:
    data = orjson.dumps({"id": stream_id, "model": model, "created": created_s})
    return b"event: start\nid: %b:0\nretry: %d\ndata: %b\n\n" % (stream_id.encode(), RETRY_MS, data)


def token_event(stream_id: str, num_tokens: int, text: str, reasoning: str = "") -> bytes:
    """`num_tokens` is how many output tokens the stream has had with this event.

    Where a reasoning model ends to think, both may be in one event: what it thought comes first.
    """
    head = (stream_id.encode(), num_tokens)
    if not reasoning:
        return b'id: %b:%d\ndata: {"token":%b}\n\n' % (*head, orjson.dumps(text))
    said: dict[str, str] = {"reasoning": reasoning} | ({"token": text} if text else {})
    return b"id: %b:%d\ndata: %b\n\n" % (*head, orjson.dumps(said))


def done_event(
    stream_id: str, num_tokens: int, num_prompt_tokens: int, finish_reason: str, timing_ms: dict[str, float | None]
) -> bytes:
    """The last event and the marker that some readers wait for."""
    usage = {
        "prompt_tokens": num_prompt_tokens,
        "completion_tokens": num_tokens,
        "total_tokens": num_prompt_tokens + num_tokens,
    }
    data = orjson.dumps({"finish_reason": finish_reason, "usage": usage, "timing": timing_ms})
    return b"id: %b:%d\nevent: done\ndata: %b\n\n" % (stream_id.encode(), num_tokens, data) + DONE_MARKER


def error_event(error: TailraceError) -> bytes:
    """How a stream ends that cannot be finished."""
    fields: dict[str, object] = {"code": error.code, "message": error.message, "retryable": error.retryable}
    if error.param is not None:
        fields["param"] = error.param
    return b"event: error\ndata: %b\n\n" % orjson.dumps(fields)
