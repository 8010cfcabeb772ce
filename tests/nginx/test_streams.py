"""Streams through nginx: every token comes when it was made, and a silence does not end them.

With the configuration that is shipped, and with the defaults of nginx, its buffers and its compression.
"""

import concurrent.futures
import contextlib
import itertools
import json
import logging
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from engine.scripted import Script, ScriptedEngine
from routes.application import HttpSettings
from tests.nginx.proxy import BARE, Nginx, needs_nginx, nginx, shipped
from tests.server import RunningServer, running, wait_until

pytestmark = needs_nginx

logger = logging.getLogger("tests")

ITL_S = 0.2
WORDS = [f" word{index}." for index in range(12)]

CONFIGURATIONS = pytest.mark.parametrize("configuration", [shipped(), BARE], ids=["shipped", "bare"])


@dataclass(frozen=True)
class Surface:
    """How one kind of client asks, and what the last bytes of a whole answer are."""

    name: str
    method: str
    path: str
    body: dict[str, object] | None
    end: bytes

    def __str__(self) -> str:
        return self.name


TURN = {"messages": [{"role": "user", "content": "x"}], "stream": True}
SURFACES = (
    Surface("stream", "GET", "/v1/stream?message=x", None, b"data: [DONE]\n\n"),
    Surface("chat", "POST", "/v1/chat/completions", TURN, b"data: [DONE]\n\n"),
    Surface("ollama", "POST", "/api/chat", TURN | {"model": "scripted"}, b"}\n"),
)


@dataclass(frozen=True)
class Watched:
    """A whole answer, and when each word of it came, in seconds since the request."""

    headers: httpx.Headers
    body: bytes
    words_s: list[float]

    def deviation_s(self) -> float:
        """The largest difference between the time since the word before, or the request, and what it should be."""
        assert len(self.words_s) == len(WORDS)
        return max(abs(later - earlier - ITL_S) for earlier, later in itertools.pairwise([0.0, *self.words_s]))


def watch(proxy: Nginx, surface: Surface) -> Watched:
    """Ask as a browser does, which takes compressed answers."""
    content = json.dumps(surface.body) if surface.body else None
    headers = {"Accept-Encoding": "gzip", "Content-Type": "application/json"}
    body = b""
    words_s: list[float] = []
    started_s = time.monotonic()
    with httpx.stream(
        surface.method, proxy.url + surface.path, content=content, headers=headers, timeout=100
    ) as response:
        assert response.status_code == 200
        for piece in response.iter_bytes():
            body += piece
            num_new = len(re.findall(rb"word\d+\.", body)) - len(words_s)
            words_s += [time.monotonic() - started_s] * num_new
    return Watched(response.headers, body, words_s)


@pytest.fixture(scope="module")
def paced() -> Iterator[RunningServer]:
    with running(ScriptedEngine(Script(WORDS, ITL_S, ITL_S))) as server:
        yield server


@CONFIGURATIONS
@pytest.mark.parametrize("surface", SURFACES, ids=str)
def test_every_token_comes_when_it_was_made(
    tmp_path: Path, paced: RunningServer, configuration: str, surface: Surface
) -> None:
    with nginx(tmp_path / "nginx", configuration, paced.port) as proxy:
        # A busy machine is late now and then; a proxy that holds tokens back is late each time.
        for _ in range(3):
            watched = watch(proxy, surface)
            encoding = watched.headers.get("content-encoding", "identity")
            logger.info("%s, %s: late by %.0f ms at most", surface, encoding, watched.deviation_s() * 1000)
            assert watched.body.endswith(surface.end)
            assert encoding == "identity" or configuration == BARE
            if watched.deviation_s() < 0.1:
                break
        assert watched.deviation_s() < 0.1


@CONFIGURATIONS
@pytest.mark.parametrize("surface", SURFACES, ids=str)
def test_a_reader_that_leaves_nginx_leaves_the_engine(
    tmp_path: Path, paced: RunningServer, configuration: str, surface: Surface
) -> None:
    with nginx(tmp_path / "nginx", configuration, paced.port) as proxy:
        content = json.dumps(surface.body) if surface.body else None
        headers = {"Content-Type": "application/json"}
        with httpx.stream(surface.method, proxy.url + surface.path, content=content, headers=headers) as response:
            pieces = response.iter_bytes()
            next(pieces)
            assert paced.num_in_flight == 1
        wait_until(lambda: paced.num_in_flight == 0, 0.5, "the abort")


def hasty(configuration: str) -> str:
    return configuration.replace("proxy_read_timeout 60s", "proxy_read_timeout 10s")


def test_silence_longer_than_nginx_waits_ends_no_stream(tmp_path: Path) -> None:
    """nginx gives up on a pod that says nothing for 60 s; here a sixth of that, of the silence and of what breaks it.
    All surfaces wait side by side, behind both nginxes."""
    assert shipped().count("proxy_read_timeout 60s;") == 1
    patient = BARE.replace("location / {", "proxy_read_timeout 60s;\n    location / {")  # as nginx has it by itself
    with contextlib.ExitStack() as stack:
        settings = HttpSettings(access_log=False, keep_alive_s=HttpSettings().keep_alive_s / 6)
        server = stack.enter_context(running(ScriptedEngine(Script(WORDS[:2], 12, 0.01)), settings))
        proxies = [
            stack.enter_context(nginx(tmp_path / name, configuration, server.port))
            for name, configuration in (("shipped", hasty(shipped())), ("bare", hasty(patient)))
        ]
        readers = stack.enter_context(concurrent.futures.ThreadPoolExecutor(6))
        asked = [(surface, readers.submit(watch, proxy, surface)) for proxy in proxies for surface in SURFACES]
        for surface, answer in asked:
            watched = answer.result(60)
            assert watched.words_s[0] > 11.5
            assert watched.body.endswith(surface.end)
