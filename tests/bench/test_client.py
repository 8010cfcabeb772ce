"""The client of the measurements reads both protocols, however the bytes are cut, and lets nothing incomplete pass."""

import contextlib
import dataclasses
import socket
import threading

import pytest

from bench.client import SURFACES, Body, Events, Failed, Load, percentile
from engine.scripted import Script, ScriptedEngine
from tests.server import running

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"

CHAT = (
    b'data: {"id":"c","choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n',
    b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"\xed\x95\x9c\\n\\n"}}]}\n\n',
    b'data: {"id":"c","choices":[{"index":0,"delta":{"content":" b"},"finish_reason":"length"}]}\n\n',
    b'data: {"id":"c","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}\n\n',
    b"data: [DONE]\n\n",
)
STREAM = (
    b'event: start\nid: s:0\nretry: 1000\ndata: {"id":"s","model":"tiny","created":1}\n\n',
    b": keep-alive\n\n",
    b'id: s:1\ndata: {"token":"\xed\x95\x9c"}\n\n',
    b'id: s:2\ndata: {"token":" b"}\n\n',
    b'id: s:2\nevent: done\ndata: {"finish_reason":"length","usage":{"prompt_tokens":3,"completion_tokens":2}}\n\n'
    b"data: [DONE]\n\n",
)


def response(blocks: tuple[bytes, ...]) -> bytes:
    return HEAD + b"".join(b"%x\r\n%b\r\n" % (len(block), block) for block in blocks) + b"0\r\n\r\n"


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 10_000])
@pytest.mark.parametrize(("surface", "blocks"), [("chat", CHAT), ("stream", STREAM)])
def test_a_stream_is_read_however_it_is_cut(surface: str, blocks: tuple[bytes, ...], size: int) -> None:
    body, events, told = Body(), Events(SURFACES[surface]), 0
    data = response(blocks)
    for at in range(0, len(data), size):
        told += events.feed(body.feed(data[at : at + size]))
    assert body.has_ended
    assert events.is_done
    assert (events.num_with_text, events.num_tokens) == (2, 2)
    assert 1 <= told <= 2


def test_a_refusal_and_an_error_event_fail() -> None:
    with pytest.raises(Failed, match="503"):
        Body().feed(b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 2\r\n\r\n{}")
    with pytest.raises(Failed, match="engine_dead"):
        Events(SURFACES["stream"]).feed(b'event: error\ndata: {"code":"engine_dead"}\n\n')
    with pytest.raises(Failed, match="gone"):
        Events(SURFACES["chat"]).feed(b'data: {"error":{"message":"gone"}}\n\n')


@pytest.mark.parametrize("surface", ["chat", "stream"])
def test_a_load_is_read_to_its_end(surface: str) -> None:
    with running(ScriptedEngine(Script([" a"] * 20, 0.01, 0.002), "tiny")) as server:
        seen = Load(server.port, SURFACES[surface], 12, 20, seed=0).run(num_streams=5)
        assert (seen.num_requests, seen.num_tokens) == (12, 240)
        assert 12 < seen.num_events <= 240
        assert 0.005 < seen.ttft_p50_s <= seen.ttft_p99_s
        assert seen.ttft_p50_s + 19 * seen.tpot_p50_s == pytest.approx(seen.e2e_p50_s, rel=0.5)
        assert server.metric("tailrace_output_tokens_total") == 240
        assert server.num_in_flight == 0


def test_a_steady_load_asks_at_even_distances_while_a_connection_is_free() -> None:
    with running(ScriptedEngine(Script([" a"] * 20, 0.01, 0.002), "tiny")) as server:
        steady = Load(server.port, SURFACES["chat"], 12, 20, seed=0, per_second=25).run(num_streams=8)
        assert 11 / 25 <= steady.seconds < 11 / 25 + 0.5
        assert (steady.num_requests, steady.num_tokens) == (12, 240)
        busy = Load(server.port, SURFACES["chat"], 12, 20, seed=0, per_second=10_000).run(num_streams=1)
        assert busy.seconds >= 12 * busy.tpot_p50_s * 19


@pytest.mark.parametrize(
    ("script", "complaint"),
    [
        (Script([" a"] * 20, 0, 0, die_after=5), "engine has died"),
        (Script([" a"] * 10, 0, 0), "incomplete stream: .* 10 tokens in its usage"),
    ],
)
def test_a_stream_that_is_not_whole_fails(script: Script, complaint: str) -> None:
    with running(ScriptedEngine(script, "tiny")) as server, pytest.raises(Failed, match=complaint):
        Load(server.port, SURFACES["chat"], 3, 20, seed=0).run(num_streams=3)


def test_a_stream_that_may_fail_is_asked_for_again() -> None:
    """The first connection is closed unanswered, as servers do with one that was idle for too long."""
    whole = response(CHAT)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            for answer in (b"", whole):
                connection, _ = listener.accept()
                with connection:
                    connection.recv(65536)
                    connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        seen = Load(listener.getsockname()[1], SURFACES["chat"], 1, 2, seed=0, may_fail=1).run(num_streams=1)
        thread.join(5)
    assert (seen.num_failed, seen.num_requests, seen.num_events) == (1, 1, 2)


def test_a_connection_that_the_server_closes_while_it_is_idle_is_made_anew() -> None:
    whole = response(CHAT)

    def answer(connection: socket.socket) -> None:
        with connection:
            while connection.recv(65536):
                connection.sendall(whole)

    def serve() -> None:
        idle, _ = listener.accept()
        idle.close()
        with contextlib.suppress(OSError):  # the test is over
            while True:
                threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, daemon=True).start()
        seen = Load(listener.getsockname()[1], SURFACES["chat"], 2, 2, seed=0, per_second=2).run(num_streams=2)
        assert (seen.num_failed, seen.num_requests) == (0, 2)
        listener.shutdown(socket.SHUT_RDWR)


def test_a_request_that_is_refused_fails() -> None:
    with running(ScriptedEngine(Script([" a"] * 20, 0, 0, die_after=5), "tiny")) as server:
        surface = dataclasses.replace(SURFACES["stream"], path="/v1/nowhere")
        with pytest.raises(Failed, match="refused"):
            Load(server.port, surface, 1, 20, seed=0).run(num_streams=1)


def test_a_percentile_is_one_of_the_values() -> None:
    assert percentile([], 99) == 0.0
    assert percentile([3.0], 99) == 3.0
    assert percentile(range(1, 101), 99) == 100
    assert percentile(range(1, 101), 50) == 51
