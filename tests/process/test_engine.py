"""The program with a real engine, started as a user does. The model is tiny: what is tested is the process."""

import contextlib
import http.server
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests import tiny_model
from tests.event_source import done, parse
from tests.process.program import Program, free_port, serving, started
from tests.server import wait_until
from tests.ways import WAYS, Way, answer, asked

# Long enough to be in flight when a signal comes, short enough to be drained.
LONG = "/v1/stream?prompt=x&ignore_eos=true&max_tokens=1500"

# Longer than any pause that a busy machine makes before a test kills what it wants to kill.
ENDLESS = "/v1/stream?prompt=x&ignore_eos=true&max_tokens=8000"
CANARY = ENDLESS.replace("prompt=x", "prompt=canary")

# As vLLM has it on the CPU by itself, and anywhere with more than one device.
WITH_WORKER = ("--distributed-executor-backend", "mp")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_model.build(tmp_path_factory.mktemp("tiny")))


def flags(model: str) -> tuple[str, ...]:
    return (model, "--served-model-name", "tiny", "--max-model-len", "8192", "--kv-cache-memory-bytes", "256M")


def assert_none_left(children: list[psutil.Process]) -> None:
    """Zombies are gone: what is left of them is for a parent to collect that may be gone itself."""

    def living() -> list[psutil.Process]:
        return [child for child in children if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]

    wait_until(lambda: not living(), 2, "the end of every engine process")


def assert_a_new_process_gets_its_turn(program: Program) -> None:
    """An engine that makes tokens on all cores leaves some of their time to others, its own clients for one."""
    code = "import sys, urllib.request; sys.exit(urllib.request.urlopen(sys.argv[1]).status != 200)"
    subprocess.run([sys.executable, "-c", code, program.url + "/healthz"], timeout=3, check=True)


def assert_quiet(program: Program) -> None:
    """What is being loaded, that it is ready, the address, a line to try: and not much more."""
    lines = [line for line in program.text.splitlines() if "tailrace.access" not in line]
    assert "loading" in lines[0]
    assert any("is ready on http://localhost:" in line for line in lines)
    assert any("try: curl -N 'http://localhost:" in line for line in lines)
    assert len(lines) <= 5, program.text


def test_from_an_open_port_to_ctrl_c_with_a_stream_in_flight(model: str) -> None:
    with serving(*flags(model)) as program:
        wait_until(lambda: program.status("/healthz") == 200, 30, "the open port")
        assert program.status("/readyz") == 503
        refused = httpx.get(program.url + LONG)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "starting")
        assert int(refused.headers["retry-after"]) > 0
        # What makes no token waits for the model.
        counted = httpx.post(f"{program.url}/tokenize", json={"prompt": "one two"}, timeout=120)
        assert (counted.status_code, counted.json()["count"]) == (200, 2)
        program.wait_ready()
        assert_quiet(program)
        children = program.children()
        assert children
        with httpx.stream("GET", program.url + LONG, timeout=30) as response:
            chunks = response.iter_bytes()
            body = next(chunks) + next(chunks)
            program.signal_group(signal.SIGINT)
            body += b"".join(chunks)
        assert done(parse(body))["usage"]["completion_tokens"] == 1500
        assert program.wait(15) == 0
        assert_none_left(children)
        assert "Traceback" not in program.text


def test_what_clients_send_is_in_no_output_of_any_process(model: str) -> None:
    """On 200, 400, an abort and the engine's death; as JSON, where every field of a record would show."""
    with serving(*flags(model), "--log-format", "json") as program:
        program.wait_ready()
        assert httpx.get(program.url + "/v1/stream?prompt=canary&max_tokens=3").status_code == 200
        assert httpx.get(program.url + "/v1/stream?prompt=canary&temperature=9").status_code == 400
        assert httpx.post(program.url + "/v1/stream", content=b'{"prompt":"canary').status_code == 400
        for one in WAYS:
            for model in ("tiny", "canary"):
                with asked(program.port, one.request("canary", 3, model=model)) as sock:
                    assert answer(sock).status == (200 if model == "tiny" else 404)
        with httpx.stream("GET", program.url + CANARY, timeout=30) as response:
            chunks = response.iter_bytes()
            next(chunks)
        metrics = httpx.get(program.url + "/metrics").text
        with httpx.stream("GET", program.url + CANARY, timeout=30) as response:
            chunks = response.iter_bytes()
            body = next(chunks)
            program.kill_child("EngineCore")
            body += b"".join(chunks)
        assert program.wait(20) == 1
        assert b"engine_dead" in body
        assert program.text.count('"outcome"') >= 5 + 2 * len(WAYS)
        assert "canary" not in program.text + metrics


def test_the_death_of_the_engine_ends_streams_and_the_process(model: str) -> None:
    with serving(*flags(model)) as program:
        program.wait_ready()
        children = program.children()
        with httpx.stream("GET", program.url + ENDLESS, timeout=30) as response:
            chunks = response.iter_bytes()
            body = next(chunks) + next(chunks)
            for _ in range(5):
                assert_a_new_process_gets_its_turn(program)
            program.kill_child("EngineCore")
            killed_s = time.monotonic()
            body += b"".join(chunks)
            assert time.monotonic() - killed_s < 2
        assert (parse(body)[-1].type, parse(body)[-1].json["code"]) == ("error", "engine_dead")
        assert program.wait(20) == 1
        assert_none_left(children)
        assert "GET /v1/stream 200 engine_dead" in program.text


@contextlib.contextmanager
def all_asked(program: Program, max_tokens: int) -> Iterator[dict[Way, socket.socket]]:
    """A request in every way there is, each of which the engine works on."""
    with contextlib.ExitStack() as readers:
        socks = {
            one: readers.enter_context(asked(program.port, one.request("x", max_tokens, model="tiny"))) for one in WAYS
        }
        wait_until(lambda: num_open(program) == len(WAYS), 10, "the requests")
        for one, sock in socks.items():
            if one.streams:
                sock.recv(1, socket.MSG_PEEK)
        yield socks


def num_open(program: Program) -> float:
    lines = httpx.get(program.url + "/metrics").text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith("tailrace_streams_in_flight{"))


def test_the_death_of_the_engine_is_told_in_every_way_within_two_seconds(model: str) -> None:
    with serving(*flags(model)) as program:
        program.wait_ready()
        with all_asked(program, 7000) as socks:
            program.kill_child("EngineCore")
            killed_s = time.monotonic()
            answers = {one: answer(sock) for one, sock in socks.items()}
            assert time.monotonic() - killed_s < 2
        for one, got in answers.items():
            assert (one.name, got.status) == (one.name, 200 if one.streams else 503)
            assert (one.name, one.error(got.body)) == (one.name, "the engine has died")
            assert b"[DONE]" not in got.body
        assert program.wait(20) == 1


def test_what_is_left_when_the_drain_is_over_is_told_so_in_every_way(model: str) -> None:
    with serving(*flags(model), "--shutdown-timeout", "1") as program:
        program.wait_ready()
        with all_asked(program, 7000) as socks:
            program.process.terminate()
            answers = {one: answer(sock) for one, sock in socks.items()}
        for one, got in answers.items():
            assert (one.name, got.status) == (one.name, 200 if one.streams else 503)
            assert (one.name, "shutting down" in str(one.error(got.body))) == (one.name, True)
            assert b"[DONE]" not in got.body
            assert one.streams or "retry-after:" in got.headers
        assert program.wait(20) == 0
        assert "Traceback" not in program.text


def test_a_drain_lets_every_way_finish(model: str) -> None:
    with serving(*flags(model)) as program:
        program.wait_ready()
        with all_asked(program, 400) as socks:
            program.process.terminate()
            answers = {one: answer(sock) for one, sock in socks.items()}
        assert [one.name for one, got in answers.items() if not one.is_whole(got.body)] == []
        assert program.wait(20) == 0


def test_sigterm_while_the_model_loads(model: str) -> None:
    with serving(*flags(model)) as program:
        wait_until(lambda: program.status("/healthz") == 200, 30, "the open port")
        wait_until(lambda: bool(program.children()), 30, "an engine process")
        children = program.children()
        program.signal_group(signal.SIGTERM)
        assert program.wait(10) == 0
        assert_none_left(children)


def test_a_model_that_cannot_be_loaded_ends_with_1(tmp_path: Path) -> None:
    with serving(str(tmp_path)) as program:
        assert program.wait(60) == 1
        assert "the engine could not start" in program.text


def test_the_engine_without_a_server(model: str) -> None:
    limit = ("--override-generation-config", '{"max_new_tokens": 12}')
    with started("-m", "engine", "Hello there", *flags(model)[0:1], *flags(model)[3:], *limit) as program:
        assert program.wait(100) == 0
        summary = program.text.splitlines()[-1]
        assert summary.startswith("[length, 12 tokens, TTFT ")
        assert " ms, TPOT " in summary


def test_ctrl_c_aborts_the_engine_without_a_server(model: str) -> None:
    with started("-m", "engine", "Hello there", *flags(model)[0:1], *flags(model)[3:]) as program:
        wait_until(lambda: len(program.text) > 0, 100, "the first token")
        children = program.children()
        program.signal_group(signal.SIGINT)
        assert program.wait(15) == 130
        assert program.text.endswith("aborted\n")
        assert_none_left(children)


def test_the_engine_core_does_not_outlive_a_parent_that_is_killed(model: str) -> None:
    with serving(*flags(model)) as program:
        program.wait_ready()
        core = program.child("EngineCore")
        assert core is not None and program.child("Worker") is None
        program.process.kill()
        assert_none_left([core])


def test_no_worker_outlives_a_parent_that_is_killed(model: str) -> None:
    with serving(*flags(model), *WITH_WORKER) as program:
        program.wait_ready()
        children = [child for child in (program.child("EngineCore"), program.child("Worker")) if child]
        assert len(children) == 2
        program.process.kill()
        assert_none_left(children)


def test_the_death_of_a_worker_is_the_death_of_the_engine(model: str) -> None:
    with serving(*flags(model), *WITH_WORKER) as program:
        program.wait_ready()
        children = program.children()
        with httpx.stream("GET", program.url + ENDLESS, timeout=30) as response:
            chunks = response.iter_bytes()
            body = next(chunks)
            for _ in range(5):
                assert_a_new_process_gets_its_turn(program)
            program.kill_child("Worker")
            body += b"".join(chunks)
        assert (parse(body)[-1].type, parse(body)[-1].json["code"]) == ("error", "engine_dead")
        assert program.wait(20) == 1
        assert_none_left(children)


def test_the_death_of_the_engine_while_it_starts(model: str) -> None:
    with serving(*flags(model)) as program:
        wait_until(lambda: program.child("EngineCore") is not None, 60)
        program.kill_child("EngineCore")
        assert program.wait(30) == 1
        assert "Traceback" not in program.text


def test_the_trace_of_a_caller_goes_on_in_vllm(model: str) -> None:
    trace_id = "0af7651916cd43dd8448eb211c80319c"
    port = free_port()
    env = {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf", "OTEL_BSP_SCHEDULE_DELAY": "200"}
    with span_collector() as (endpoint, spans):
        command = ("app.py", "--port", str(port), *flags(model), "--otlp-traces-endpoint", endpoint)
        with started(*command, port=port, env=env) as program:
            program.wait_ready()
            headers = {"traceparent": f"00-{trace_id}-b7ad6b7169203331-01"}
            httpx.get(program.url + "/v1/stream?prompt=x&max_tokens=3", headers=headers)
            wait_until(lambda: any(span.trace_id.hex() == trace_id for span in spans), 10, "a span of that trace")
            program.signal_group(signal.SIGTERM)
            assert program.wait(15) == 0


@contextlib.contextmanager
def span_collector() -> Iterator[tuple[str, list[Any]]]:
    """An OTLP collector over HTTP: its address, and the spans that it was sent."""
    spans: list[Any] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            export = ExportTraceServiceRequest()
            export.ParseFromString(self.rfile.read(int(self.headers["content-length"])))
            for resource in export.resource_spans:
                for scope in resource.scope_spans:
                    spans.extend(scope.spans)
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            return None

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as collector:
        thread = threading.Thread(target=collector.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{collector.server_address[1]}/v1/traces", spans
        collector.shutdown()
        thread.join()
