"""Two engines behind one process: vLLM balances between them, and every promise holds for both."""

import contextlib
import re
import threading
import time

import httpx
import pytest

from tests import tiny_model
from tests.event_source import done, parse
from tests.process.program import Program, serving
from tests.process.test_engine import assert_none_left
from tests.server import wait_until
from tests.ways import answer, asked, way

NUM_STREAMS = 6


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_model.build(tmp_path_factory.mktemp("tiny")))


def flags(model: str) -> tuple[str, ...]:
    return (
        model, "--served-model-name", "tiny", "--max-model-len", "8192", "--kv-cache-memory-bytes", "256M",
        "--data-parallel-size", "2",
    )  # fmt: skip


def by_engine(program: Program, name: str) -> dict[str, float]:
    """The values of one of vLLM's metrics, by the number of the engine."""
    text = httpx.get(program.url + "/metrics").text
    return {engine: float(value) for engine, value in re.findall(rf'^{name}{{engine="(\d)".*}} (\S+)$', text, re.M)}


@pytest.mark.timeout(240)
def test_abort_drain_and_metrics_hold_for_both_engines(model: str) -> None:
    stream = way("stream").request("x", 7000, model="tiny")
    with serving(*flags(model)) as program:
        program.wait_ready()
        children = program.children()
        with contextlib.ExitStack() as readers:
            for _ in range(NUM_STREAMS):
                readers.enter_context(asked(program.port, stream))
            wait_until(lambda: min(by_engine(program, "vllm:num_requests_running").values()) > 0, 10, "both at work")
            assert len(by_engine(program, "vllm:num_requests_running")) == 2
        wait_until(lambda: sum(by_engine(program, "vllm:num_requests_running").values()) == 0, 2, "the aborts")
        made = by_engine(program, "vllm:generation_tokens_total")
        threading.Event().wait(0.5)
        assert by_engine(program, "vllm:generation_tokens_total") == made
        assert all(count > 0 for count in made.values())

        def left() -> bool:
            text = httpx.get(program.url + "/metrics").text
            return f'outcome="disconnected",route="/v1/stream"}} {NUM_STREAMS}.0' in text

        wait_until(left, 2, "the count of those that left")
        with asked(program.port, way("chat").request("x", 300, model="tiny")) as chat:
            with httpx.stream("GET", program.url + "/v1/stream?prompt=x&ignore_eos=true&max_tokens=300") as response:
                chunks = response.iter_bytes()
                body = next(chunks)
                program.process.terminate()
                body += b"".join(chunks)
            assert way("chat").is_whole(answer(chat).body)
        assert done(parse(body))["usage"]["completion_tokens"] == 300
        assert program.wait(30) == 0
        assert_none_left(children)


@pytest.mark.timeout(240)
def test_the_death_of_one_engine_ends_the_process(model: str) -> None:
    with serving(*flags(model)) as program:
        program.wait_ready()
        children = program.children()
        with contextlib.ExitStack() as readers:
            request = way("chat").request("x", 7000, model="tiny")
            socks = [readers.enter_context(asked(program.port, request)) for _ in range(NUM_STREAMS)]
            wait_until(lambda: min(by_engine(program, "vllm:num_requests_running").values()) > 0, 10, "both at work")
            program.kill_child("EngineCore_DP1")
            killed_s = time.monotonic()
            answers = [answer(sock) for sock in socks]
            assert time.monotonic() - killed_s < 2
        assert {way("chat").error(got.body) for got in answers} == {"the engine has died"}
        assert program.wait(20) == 1
        assert_none_left(children)
