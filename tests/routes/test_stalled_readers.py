"""Readers that do not read, or read slowly, over real sockets."""

import logging
import socket
import threading
import time
from collections.abc import Iterator

import psutil
import pytest

from engine.scripted import Script, ScriptedEngine
from routes.application import HttpSettings
from routes.connection import Progress
from tests.event_source import done, parse
from tests.server import RunningServer, running, wait_until
from tests.ways import SCRIPTED_WAYS, Way, answer, asked, way

logger = logging.getLogger("tests")

STALL_TIMEOUT_S = 1.0
TEXT = ["x" * 1000] * 600


@pytest.fixture
def server() -> Iterator[RunningServer]:
    """600 KB of text, made as fast as it is taken."""
    with running(
        ScriptedEngine(Script(TEXT, 0, 0)), HttpSettings(access_log=False, stall_timeout_s=STALL_TIMEOUT_S)
    ) as server:
        yield server


def ask(server: RunningServer, receive_buffer: int = 4096, query: str = "prompt=x") -> socket.socket:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    sock.settimeout(30)
    sock.connect(("127.0.0.1", server.port))
    sock.sendall(f"GET /v1/stream?{query} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    return sock


def num_stalled(server: RunningServer) -> float:
    return server.metric("tailrace_requests_total", outcome="stalled")


@pytest.mark.parametrize("way", [way for way in SCRIPTED_WAYS if way.streams], ids=str)
def test_a_reader_that_takes_nothing_is_aborted(server: RunningServer, way: Way) -> None:
    assert isinstance(server.engine, ScriptedEngine)
    with asked(server.port, way.request(model="scripted"), receive_buffer=4096) as sock:
        sock.recv(100)
        took_s = wait_until(lambda: num_stalled(server) == 1, 3 * STALL_TIMEOUT_S, "the stall")
        assert took_s >= 0.9 * STALL_TIMEOUT_S
        assert not server.engine.running
        assert server.num_in_flight == 0
        with pytest.raises(ConnectionResetError):
            while sock.recv(65536):
                pass


def test_a_whole_answer_that_the_kernel_cannot_hold_is_not_waited_for_either() -> None:
    settings = HttpSettings(access_log=False, stall_timeout_s=STALL_TIMEOUT_S)
    chat = way("chat, whole")
    with running(ScriptedEngine(Script(["x" * 10_000] * 2_000, 0, 0)), settings) as server:
        with asked(server.port, chat.request("x", 2_000, model="scripted"), receive_buffer=4096) as sock:
            sock.recv(100)
            wait_until(lambda: num_stalled(server) == 1, 3 * STALL_TIMEOUT_S, "the stall")
        assert server.metric("tailrace_output_tokens_total") == 0
        assert server.metric("tailrace_discarded_tokens_total", reason="stalled") == 2_000


@pytest.mark.parametrize("way", SCRIPTED_WAYS, ids=str)
def test_a_slow_reader_gets_the_complete_text(server: RunningServer, way: Way) -> None:
    started_s = time.monotonic()

    def pause(num_bytes: int) -> None:
        if num_bytes < 400_000:
            threading.Event().wait(0.0125)

    with asked(server.port, way.request(model="scripted"), receive_buffer=4096) as sock:
        got = answer(sock, pause)
    assert time.monotonic() - started_s > 2 * STALL_TIMEOUT_S
    assert way.is_whole(got.body)
    assert way.text(got.body) == "".join(TEXT)
    assert num_stalled(server) == 0


def test_a_reader_that_waits_for_the_first_token_is_not_stalled() -> None:
    engine = ScriptedEngine(Script(["a"], 2.0, 0))
    with running(engine, HttpSettings(access_log=False, stall_timeout_s=0.3)) as server, server.client() as client:
        assert done(parse(client.get("/v1/stream", params={"prompt": "x"}).content))


def test_two_hundred_stalled_readers_cost_little_memory_and_none_stays(server: RunningServer) -> None:
    process = psutil.Process()
    with ask(server) as first:
        first.recv(100)
        wait_until(lambda: num_stalled(server) == 1, 3 * STALL_TIMEOUT_S)
    before = process.memory_info().rss
    readers = [ask(server) for _ in range(200)]
    wait_until(lambda: server.num_in_flight == 200, 5)
    peak = 0

    def all_stalled() -> bool:
        nonlocal peak
        peak = max(peak, process.memory_info().rss)
        return num_stalled(server) == 201

    wait_until(all_stalled, 10, "the stall of all")
    for reader in readers:
        reader.close()
    after = process.memory_info().rss
    logger.info("resident before %d MiB, at the peak %d MiB, after %d MiB", before >> 20, peak >> 20, after >> 20)
    # Per stream 64 KiB of uvicorn's write buffer, and the text of the stream itself, which the journal would keep.
    assert (peak - before) / 200 < 1 << 20
    assert server.num_in_flight == 0


def test_a_body_that_does_not_come_is_not_waited_for(server: RunningServer) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as sock:
        sock.sendall(b'POST /v1/stream HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"prompt"')
        sock.settimeout(10)
        assert sock.recv(65536).startswith(b"HTTP/1.1 400")


def test_headers_without_end_are_refused(server: RunningServer) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as sock:
        sock.sendall(b"GET /v1/stream?prompt=x HTTP/1.1\r\nHost: x\r\n")
        with pytest.raises(OSError):  # reset or broken pipe, by how far the sending got
            for _ in range(10_000):
                sock.sendall(b"X-Padding: " + b"a" * 1000 + b"\r\n")


@pytest.mark.parametrize(
    ("samples", "stalled_at"),
    [
        ([(0, 0, 10), (5, 0, 10), (10, 0, 10), (15, 0, 10)], None),  # nothing to take
        ([(0, 5, 10), (5, 5, 10), (9, 5, 10), (10, 5, 10)], 10),
        ([(0, 5, 10), (5, 5, 10), (9, 5, 11), (14, 5, 11), (18, 5, 11), (19, 5, 11)], 19),  # took one, then none
        ([(0, 0, 10), (98, 0, 10), (100, 5, 10), (105, 5, 10), (107, 5, 10), (108, 5, 10)], 108),
        ([(0, 5, 10), (5, 5, 10), (9, 0, 10), (12, 5, 10), (15, 5, 10), (18, 5, 10), (19, 5, 10)], 19),  # had all
        ([(0, 5, 10), (5, 5, 10), (60, 5, 11), (65, 5, 11)], None),  # nobody looked, and it has taken some since
        ([(0, 5, 10), (60, 5, 10), (62, 5, 11), (65, 5, 11)], None),  # it was kept from its core as well
        ([(0, 5, 10), (60, 5, 10), (62, 5, 10), (65, 5, 10)], 65),
    ],
)
def test_progress_is_any_byte_taken_or_none_to_take(
    samples: list[tuple[float, int, int]], stalled_at: float | None
) -> None:
    progress = Progress(10)
    found = next((now for now, pending, taken in samples if progress.is_stalled(now, pending, taken)), None)
    assert found == stalled_at
