"""One request cannot stall the others, however large it is."""

import json
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest
from httpx_sse import connect_sse

from tests.server import RunningServer, wait_until
from tests.ways import EMBEDDED

logger = logging.getLogger("tests")

NUM_STREAMS = 10
MAX_GAP_S = 0.5

GIANTS = {
    "a prompt of 8 MiB": json.dumps({"prompt": "word " * ((8 << 20) // 5 - 10)}).encode(),
    "a prompt of 8 MiB without a space": json.dumps({"prompt": "가" * ((8 << 20) // 6 - 10)}).encode(),
    "a million token ids": json.dumps({"prompt": [1] * 1_000_000}).encode(),
    "a chat of 5 MB": json.dumps(
        {"messages": [{"role": ("user", "assistant")[i % 2], "content": "word " * 16} for i in range(42_000)]}
    ).encode(),
    "a message of 5 MB": json.dumps({"messages": [{"role": "user", "content": "word " * 1_000_000}]}).encode(),
    "a chat of 300,000 parts": b'{"messages":[{"role":"user","content":['
    + b'{"type":"text","text":"a"},' * 300_000
    + b"{}]}]}",
    "2.8 million empty lists": b'{"prompt":[' + b"[]," * 2_790_000 + b"[]]}",
    "JSON 100,000 deep": b'{"messages":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "500,000 stop strings": b'{"prompt":"a","stop":[' + b'"x",' * 499_999 + b'"x"]}',
}  # fmt: skip


# The same on the other surfaces, by the path that they are sent to.
ELSEWHERE = {
    "a completion of 8 MiB": ("/v1/completions", GIANTS["a prompt of 8 MiB"]),
    "an OpenAI chat of 5 MB": ("/v1/chat/completions", GIANTS["a chat of 5 MB"]),
    "an OpenAI message of 5 MB": ("/v1/chat/completions", GIANTS["a message of 5 MB"]),
    "a response of 8 MiB": ("/v1/responses", GIANTS["a prompt of 8 MiB"].replace(b'"prompt"', b'"input"', 1)),
    "an Anthropic message of 5 MB": (
        "/v1/messages",
        json.dumps(
            {"model": EMBEDDED, "max_tokens": 5, "messages": [{"role": "user", "content": "word " * 1_000_000}]}
        ).encode(),
    ),
    "a short chat with tools of 4 MB": (
        "/v1/chat/completions",
        json.dumps(
            {
                "messages": [{"role": "user", "content": "Hi"}],
                "tools": [
                    {"type": "function", "function": {"name": f"f{i}", "description": "word " * 30, "parameters": {}}}
                    for i in range(20_000)
                ],
            }
        ).encode(),
    ),
    "an Ollama prompt of 8 MiB": (
        "/api/generate", GIANTS["a prompt of 8 MiB"].replace(b"{", b'{"model":"%b",' % EMBEDDED.encode(), 1)
    ),
    "8 MiB to tokenize": ("/tokenize", GIANTS["a prompt of 8 MiB"]),
}  # fmt: skip


class Gaps:
    """The longest silence of each watcher, between its first sign and its last, and how many signs it had."""

    def __init__(self) -> None:
        self.longest_s: dict[str, float] = {}
        self.num_signs: dict[str, int] = {}
        self.stop = threading.Event()
        self.num_watching = 0

    def watch(self, name: str, signs: Iterator[object]) -> None:
        next(signs)
        self.num_watching += 1
        last_s = time.monotonic()
        self.longest_s[name] = 0.0
        self.num_signs[name] = 0
        for _ in signs:
            self.num_signs[name] += 1
            now_s = time.monotonic()
            self.longest_s[name] = max(self.longest_s[name], now_s - last_s)
            last_s = now_s
            if self.stop.is_set():
                return

    def worst(self, prefix: str) -> float:
        return max(gap_s for name, gap_s in self.longest_s.items() if name.startswith(prefix))

    def fewest(self, prefix: str) -> int:
        return min(num_signs for name, num_signs in self.num_signs.items() if name.startswith(prefix))


def tokens(server: RunningServer) -> Iterator[object]:
    # Sampled, four tokens of a thousand have no text of their own, and so no event: that is a silence of two steps.
    fields = {"prompt": "Once upon a time", "max_tokens": 1900, "ignore_eos": True, "temperature": 0}
    with server.client() as client, connect_sse(client, "POST", "/v1/stream", json=fields) as source:
        yield from source.iter_sse()


def probes(server: RunningServer, pause: threading.Event) -> Iterator[object]:
    with server.client() as client:
        while True:
            yield client.get("/healthz").status_code
            pause.wait(0.05)


@contextmanager
def watched(server: RunningServer) -> Iterator[Gaps]:
    gaps = Gaps()
    threads = [
        threading.Thread(target=gaps.watch, args=(f"stream {number}", tokens(server))) for number in range(NUM_STREAMS)
    ]
    threads.append(threading.Thread(target=gaps.watch, args=("probe", probes(server, gaps.stop))))
    for thread in threads:
        thread.start()
    wait_until(lambda: gaps.num_watching == len(threads), 10, "every stream")
    threading.Event().wait(1.0)
    gaps.longest_s = dict.fromkeys(gaps.longest_s, 0.0)
    gaps.num_signs = dict.fromkeys(gaps.num_signs, 0)
    try:
        yield gaps
    finally:
        gaps.stop.set()
        for thread in threads:
            thread.join(10)


@pytest.mark.parametrize("name", [*GIANTS, *ELSEWHERE])
def test_no_stream_and_no_probe_waits_for_a_giant(server: RunningServer, name: str) -> None:
    path, body = ELSEWHERE.get(name) or ("/v1/stream", GIANTS[name])
    with watched(server) as gaps, server.client() as client:
        started_s = time.monotonic()
        response = client.post(path, content=body, headers={"content-type": "application/json"})
        took_s = time.monotonic() - started_s
        threading.Event().wait(0.3)
        streams, probe = gaps.worst("stream"), gaps.worst("probe")
    logger.info(
        "%s: refused in %.3f s; longest gap of streams %.3f s, of the probe %.3f s", name, took_s, streams, probe
    )
    assert response.status_code == 400 or path == "/tokenize"
    assert "error" in response.json() or path == "/tokenize"
    assert max(streams, probe) < MAX_GAP_S


def test_the_longest_prompt_that_fits_is_no_trouble_either(server: RunningServer, client: httpx.Client) -> None:
    """Streams wait for each of its steps, of which there are 32."""
    with watched(server) as gaps:
        started_s = time.monotonic()
        response = client.post("/v1/stream", json={"prompt": "word " * 2000, "max_tokens": 1})
        took_s = time.monotonic() - started_s
        streams, probe, num_tokens = gaps.worst("stream"), gaps.worst("probe"), gaps.fewest("stream")
    logger.info("2,000 tokens in %.1f s: longest gap of streams %.3f s, of the probe %.3f s", took_s, streams, probe)
    assert response.status_code == 200
    assert num_tokens > 20
    assert max(streams, probe) < MAX_GAP_S
