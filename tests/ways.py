"""Every way to ask for tokens: what a promise of the program has to hold for, in one table."""

import contextlib
import json
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tests.event_source import parse

EMBEDDED = "smollm2-135m-instruct"

# At temperature 0 the embedded model writes more than 1,000 tokens to this, also where nobody can tell it to.
STORY = "Write a long story about a river."

Json = dict[str, Any]


def _turn(prompt: str) -> list[Json]:
    return [{"role": "user", "content": prompt}]


@dataclass(frozen=True)
class Way:
    """`fields` makes the body that asks for up to so many tokens to a prompt;."""

    name: str
    path: str
    streams: bool
    fields: Callable[[str, int], Json]

    def __str__(self) -> str:
        return self.name

    def body(self, prompt: str = STORY, max_tokens: int = 1000, /, model: str = EMBEDDED, **more: Any) -> bytes:
        stream = {} if self.path == "/v1/stream" else {"stream": self.streams}
        return json.dumps({"model": model} | self.fields(prompt, max_tokens) | stream | more).encode()

    def request(self, prompt: str = STORY, max_tokens: int = 1000, /, **more: Any) -> bytes:
        """The bytes of a whole request, after whose answer the connection is closed."""
        return request_bytes(self.path, self.body(prompt, max_tokens, **more))

    def error(self, answer: bytes) -> str | None:
        """The sentence of the error in an answer, whole or streamed; None when it has none."""
        if self.path.startswith("/api/"):
            last: Any = json.loads(answer.strip().rpartition(b"\n")[2])
        elif answer.lstrip().startswith(b"{"):
            last = json.loads(answer)
        else:
            datas = [event.data for event in parse(answer) if event.data != "[DONE]"]
            last = json.loads(datas[-1])
        if self.path == "/v1/responses" and last.get("type") == "error":
            return str(last["message"])
        if self.path == "/v1/stream" and "code" in last:
            return str(last["message"])
        error = last.get("error")
        if error is None:
            return None
        return str(error if isinstance(error, str) else error["message"])

    def text(self, answer: bytes) -> str:
        """The first choice's text in a whole answer."""
        if not self.streams:
            return self._said(json.loads(answer))
        if self.path.startswith("/api/"):
            return "".join(self._said(json.loads(line)) for line in answer.strip().split(b"\n"))
        events = [event for event in parse(answer) if event.data != "[DONE]"]
        if self.path == "/v1/stream":
            return "".join(event.json["token"] for event in events if event.type == "message")
        if self.path == "/v1/responses":
            return "".join(event.json["delta"] for event in events if event.type == "response.output_text.delta")
        if self.path == "/v1/messages":
            deltas = [event.json["delta"] for event in events if event.type == "content_block_delta"]
            return "".join(delta["text"] for delta in deltas if delta["type"] == "text_delta")
        return "".join(self._said(event.json) for event in events)

    def _said(self, data: Any) -> str:
        """The text in one object: a whole answer, a chunk, or a line."""
        if self.path == "/v1/responses":
            return str(data["output"][0]["content"][0]["text"])
        if self.path == "/v1/messages":
            return str(data["content"][0]["text"])
        if self.path.startswith("/api/"):
            return str(data["message"]["content"] if "message" in data else data.get("response", ""))
        choices = [choice for choice in data["choices"] if choice["index"] == 0]
        parts = [choice.get("message") or choice.get("delta") or {"content": choice.get("text")} for choice in choices]
        return "".join(part.get("content") or "" for part in parts)

    def is_whole(self, answer: bytes) -> bool:
        """Whether an answer came to its end."""
        if self.path.startswith("/api/"):
            return bool(json.loads(answer.strip().rpartition(b"\n")[2]).get("done"))
        if not self.streams:
            return "error" not in json.loads(answer) or json.loads(answer)["error"] is None
        last = {"/v1/responses": "response.completed", "/v1/messages": "message_stop"}.get(self.path)
        events = parse(answer)
        return events[-1].type == last if last else events[-1].data == "[DONE]"


def _both(name: str, path: str, fields: Callable[[str, int], Json]) -> tuple[Way, Way]:
    return Way(name, path, True, fields), Way(f"{name}, whole", path, False, fields)


WAYS = (
    Way("stream", "/v1/stream", True, lambda prompt, n: {"messages": _turn(prompt), "max_tokens": n, "temperature": 0}),
    *_both(
        "chat",
        "/v1/chat/completions",
        lambda prompt, n: {"messages": _turn(prompt), "max_tokens": n, "temperature": 0},
    ),
    *_both(
        "two choices",
        "/v1/chat/completions",
        lambda prompt, n: {"messages": _turn(prompt), "max_tokens": n, "temperature": 0.1, "n": 2},
    ),
    *_both(
        "chat with logprobs",
        "/v1/chat/completions",
        lambda prompt, n: {"messages": _turn(prompt), "max_tokens": n, "temperature": 0, "logprobs": True},
    ),
    *_both(
        "completion",
        "/v1/completions",
        lambda prompt, n: {"prompt": prompt, "max_tokens": n, "temperature": 0, "ignore_eos": True},
    ),
    *_both(
        "two prompts",
        "/v1/completions",
        lambda prompt, n: {"prompt": [prompt, prompt + "!"], "max_tokens": n, "temperature": 0, "ignore_eos": True},
    ),
    *_both(
        "response",
        "/v1/responses",
        lambda prompt, n: {"input": prompt, "max_output_tokens": n, "temperature": 0},
    ),
    *_both(
        "message",
        "/v1/messages",
        lambda prompt, n: {"messages": _turn(prompt), "max_tokens": n, "temperature": 0},
    ),
    *_both(
        "ollama chat",
        "/api/chat",
        lambda prompt, n: {"messages": _turn(prompt), "options": {"num_predict": n, "temperature": 0}},
    ),
    *_both(
        "ollama generate",
        "/api/generate",
        lambda prompt, n: {"prompt": prompt, "options": {"num_predict": n, "temperature": 0}},
    ),
)  # fmt: skip

# Those that the scripted engine has, too.
SCRIPTED_WAYS = tuple(
    way for way in WAYS if way.name.split(",")[0] in ("stream", "chat", "completion", "ollama chat", "ollama generate")
)


def way(name: str) -> Way:
    return next(one for one in WAYS if one.name == name)


def request_bytes(path: str, body: bytes) -> bytes:
    """A whole request, after whose answer the connection is closed."""
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


@contextlib.contextmanager
def asked(port: int, request: bytes, receive_buffer: int | None = None) -> Iterator[socket.socket]:
    """A connection on which `request` was sent. Leaving closes it."""
    with socket.socket() as sock:
        if receive_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        sock.settimeout(60)
        sock.connect(("127.0.0.1", port))
        sock.sendall(request)
        yield sock


def unchunked(rest: bytes) -> bytes:
    """A body without its chunks' frames; stops where it was cut."""
    body = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        if not size:
            break
        count = int(size, 16)
        body, rest = body + rest[:count], rest[count + 2 :]
    return body


@dataclass(frozen=True)
class RawAnswer:
    status: int
    headers: str
    body: bytes


def answer(sock: socket.socket, pause: Callable[[int], None] = lambda num_bytes: None) -> RawAnswer:
    """The whole answer; `pause` is called with the number of bytes read so far after each piece."""
    data = b""
    while piece := sock.recv(2048):
        data += piece
        pause(len(data))
    head, _, body = data.partition(b"\r\n\r\n")
    headers = head.decode().lower()
    if "transfer-encoding: chunked" in headers:
        body = unchunked(body)
    return RawAnswer(int(head.split(b" ", 2)[1]), headers, body)
