"""A reader that leaves costs nothing more, whatever its request was waiting for."""

import contextlib
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import pytest
from httpx_sse import EventSource, connect_sse

from tests.real.conftest import MAX_NUM_SEQS
from tests.server import RunningServer, wait_until
from tests.ways import WAYS, Way, answer, asked

LONG = {"prompt": "Once upon a time", "max_tokens": 1500, "ignore_eos": True}


@contextlib.contextmanager
def reading(server: RunningServer, num_events: int, **fields: object) -> Iterator[EventSource]:
    """A stream of which `num_events` were read; leaving the block closes the connection."""
    with server.client() as client, connect_sse(client, "POST", "/v1/stream", json=LONG | fields) as source:
        events = source.iter_sse()
        for _ in range(num_events):
            next(events)
        yield source


def num_waiting(server: RunningServer) -> float:
    return server.metric("vllm:num_requests_waiting")


def num_running(server: RunningServer) -> float:
    return server.metric("vllm:num_requests_running")


def is_quiet(server: RunningServer) -> bool:
    return num_waiting(server) == 0 and num_running(server) == 0 and server.num_in_flight == 0


def assert_stands_still(server: RunningServer) -> None:
    """No token is made for half a second: 30 steps of this engine."""
    made = server.metric("vllm:generation_tokens_total")
    threading.Event().wait(0.5)
    assert server.metric("vllm:generation_tokens_total") == made


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_in_decode(server: RunningServer, way: Way) -> None:
    with asked(server.port, way.request("Hi", 2)) as sock:  # vLLM compiles for the first logprobs of its life
        assert way.is_whole(answer(sock).body)
    left = server.metric("tailrace_disconnects_total", phase="decode")
    with asked(server.port, way.request()):
        made = server.metric("vllm:generation_tokens_total")
        wait_until(lambda: server.metric("vllm:generation_tokens_total") >= made + 3, 5)
    wait_until(lambda: is_quiet(server), 2)
    assert_stands_still(server)
    assert server.metric("tailrace_disconnects_total", phase="decode") == left + 1


@pytest.mark.parametrize("way", [way for way in WAYS if way.path != "/v1/stream"][::3], ids=str)
def test_in_the_queue(server: RunningServer, way: Way) -> None:
    left = server.metric("tailrace_disconnects_total", phase="queued")
    with ExitStack() as running:
        for _ in range(MAX_NUM_SEQS):
            running.enter_context(reading(server, 2))
        with asked(server.port, way.request()):
            wait_until(lambda: num_waiting(server) >= 1)
            assert num_running(server) == MAX_NUM_SEQS
        wait_until(lambda: num_waiting(server) == 0, 2)
        assert server.num_in_flight == MAX_NUM_SEQS
    wait_until(lambda: is_quiet(server), 2)
    assert_stands_still(server)
    assert server.metric("tailrace_disconnects_total", phase="queued") == left + 1


@pytest.mark.parametrize("way", [way for way in WAYS if way.name.split(",")[0] != "two prompts"], ids=str)
def test_in_prefill(server: RunningServer, way: Way) -> None:
    prompt = f"{way} " + "word " * 1900  # seconds of prefill, and in no cache
    made = server.metric("vllm:generation_tokens_total")
    with asked(server.port, way.request(prompt, 40)):
        wait_until(lambda: server.num_in_flight == 1)
    wait_until(lambda: is_quiet(server), 2)
    assert server.metric("vllm:generation_tokens_total") <= made + 2
    assert_stands_still(server)


def test_many_at_once_at_random_moments(server: RunningServer) -> None:
    def leave_after(num_events: int) -> None:
        with contextlib.suppress(httpx.HTTPError), reading(server, num_events):
            pass

    threads = [threading.Thread(target=leave_after, args=(1 + index % 7,)) for index in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    wait_until(lambda: is_quiet(server), 2)
    assert_stands_still(server)


def test_a_reader_that_leaves_is_counted_as_disconnected(server: RunningServer) -> None:
    before = server.metric("tailrace_requests_total", outcome="disconnected")
    with reading(server, 3):
        pass
    wait_until(lambda: server.metric("tailrace_requests_total", outcome="disconnected") == before + 1)


@pytest.fixture(autouse=True)
def _start_quiet(server: RunningServer) -> None:
    wait_until(lambda: is_quiet(server), 10)
