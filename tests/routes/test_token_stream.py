"""The response alone, called with a `receive` and a `send` written by hand, under a deadline."""

import asyncio
import gc
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from starlette.types import Message

from engine.interface import GenerationRequest, Sampling
from engine.journal import MemoryJournal, Opening
from engine.lifecycle import Lifecycle
from engine.scripted import Script, ScriptedEngine
from engine.supervisor import Supervisor
from metrics.instruments import Instruments
from routes.connection import EXTENSION, Connection
from routes.delivery import Delivery
from routes.outbox import Outbox
from routes.pace import Pace
from routes.request_record import KEY, RequestRecord
from routes.sse import start_event
from routes.token_stream import TokenStream
from tests.event_source import done, parse, token_events

ROUTE = SimpleNamespace(path="/v1/stream")
SCOPE = {"type": "http", "method": "GET", "path": "/v1/stream", "query_string": b"", "headers": []}


@dataclass
class Reader:
    """A client and its transport: keeps what it is sent, and calls `on_body` with all that it has, each time."""

    on_body: Callable[[bytes], None] = lambda body: None
    body: bytes = b""
    start: Message = field(default_factory=dict)
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    writes: list[tuple[float, bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.connection = Connection(self, Outbox())  # type: ignore[arg-type]  # the part of a transport that it uses

    def leave(self) -> None:
        self.connection.mark_lost()
        self.gone.set()

    async def receive(self) -> Message:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.start = message
        else:
            assert message == {"type": "http.response.body", "body": b"", "more_body": False}

    def write(self, chunk: bytes) -> None:
        assert not self.gone.is_set(), "uvloop would raise"
        size, _, rest = chunk.partition(b"\r\n")
        block = rest.removesuffix(b"\r\n")
        assert len(block) == int(size, 16)
        self.body += block
        self.writes.append((asyncio.get_running_loop().time(), block))
        self.on_body(self.body)

    def get_extra_info(self, name: str) -> None:
        return None

    def get_write_buffer_size(self) -> int:
        return 0


def leaves_after(num_tokens: int) -> Reader:
    reader = Reader()
    reader.on_body = lambda body: reader.leave() if body.count(b"token") == num_tokens else None
    return reader


@dataclass
class Stage:
    """One stream over a scripted engine, and all that it leaves behind."""

    script: Script
    keep_alive_s: float = 15.0
    made: int = 0
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    journal: MemoryJournal = field(default_factory=lambda: MemoryJournal(lambda: 0.0))

    async def play(self, reader: Reader, max_tokens: int | None = None) -> Supervisor:
        async with asyncio.timeout(5):
            self.engine = ScriptedEngine(self.script, on_tokens=self.count)
            supervisor = Supervisor(self.engine, Lifecycle())
            await supervisor.start()
            request = GenerationRequest(prompt="a", sampling=Sampling(max_tokens=max_tokens))
            generation = await supervisor.admit(request)
            opening = Opening(None, (1,), False, Sampling(max_tokens=9), None, 0, "", True)
            self.entry = self.journal.open(generation.id, opening, on_lost=lambda loss: None)
            delivery = Delivery(Instruments(self.registry), self.keep_alive_s, 30, 8 << 20, Pace(0))
            response = TokenStream(generation, delivery, self.entry, start_event(generation.id, "scripted", 0))
            self.id = generation.id
            self.response = response
            record = RequestRecord("id", time.perf_counter())
            await response(
                SCOPE | {"state": {KEY: record}, "route": ROUTE, "extensions": {EXTENSION: reader.connection}},
                reader.receive,
                reader.send,
            )
            self.record = record
        return supervisor

    def count(self, count: int) -> None:
        self.made += count

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, {"route": "/v1/stream", "model": "scripted", **labels})


def words(count: int) -> list[str]:
    return [f" {number}" for number in range(count)]


def test_a_stream_is_start_tokens_done_marker() -> None:
    async def run() -> None:
        reader, stage = Reader(), Stage(Script(words(5), 0, 0))
        await stage.play(reader)
        events = parse(reader.body)
        stream_id = events[0].json["id"]
        assert [event.type for event in events] == ["start", *["message"] * 5, "done", "message"]
        assert [event.id for event in events] == [f"{stream_id}:{n}" for n in (0, 1, 2, 3, 4, 5, 5, 5)]
        assert done(events)["usage"] == {"prompt_tokens": 1, "completion_tokens": 5, "total_tokens": 6}
        assert stage.record.outcome == "completed"
        assert stage.record.ttft_s is not None
        assert stage.record.tpot_s is not None
        assert stage.value("tailrace_inter_token_latency_seconds_count") == 4
        assert stage.value("tailrace_prompt_tokens_total") == 1
        assert stage.value("tailrace_output_tokens_total") == 5
        assert stage.registry.get_sample_value("tailrace_streams_in_flight", {"route": "/v1/stream"}) == 0
        record = await stage.journal.find(stage.id)
        assert record is not None
        assert record.ending is not None
        assert record.num_tokens == 5

    asyncio.run(run())


def test_the_headers_keep_proxies_from_holding_the_stream_back() -> None:
    async def run() -> None:
        reader = Reader()
        await Stage(Script(["a"], 0, 0)).play(reader)
        headers = {name.decode(): value.decode() for name, value in reader.start["headers"]}
        assert headers["content-type"] == "text/event-stream; charset=utf-8"
        assert headers["cache-control"] == "no-store, no-transform"
        assert headers["x-accel-buffering"] == "no"

    asyncio.run(run())


def test_an_empty_token_makes_no_event_but_counts_in_the_next_id() -> None:
    async def run() -> None:
        reader = Reader()
        await Stage(Script(["a", "", "", "b", ""], 0, 0)).play(reader)
        events = parse(reader.body)
        assert [(event.json["token"], event.id.rpartition(":")[2]) for event in token_events(events)] == [
            ("a", "1"),
            ("b", "4"),
        ]
        assert done(events)["usage"]["completion_tokens"] == 5

    asyncio.run(run())


def test_several_tokens_in_one_delta_are_one_event_and_are_counted_as_they_are() -> None:
    async def run() -> None:
        reader = Reader()
        await Stage(Script(words(6), 0, 0, tokens_per_delta=3)).play(reader)
        assert [event.id.rpartition(":")[2] for event in token_events(parse(reader.body))] == ["3", "6"]

    asyncio.run(run())


@pytest.mark.parametrize("script", [Script(words(100), 0, 0), Script(words(100), 0, 0, hang_after=3)])
def test_a_reader_that_leaves_stops_the_engine(script: Script) -> None:
    async def run() -> None:
        reader, stage = leaves_after(3), Stage(script)
        supervisor = await stage.play(reader)
        assert not supervisor.in_flight
        assert not stage.engine.running
        assert stage.made <= 3 + 2
        assert stage.record.outcome == "disconnected"
        record = await stage.journal.find(stage.id)
        assert record is not None
        assert record.ending is None

    asyncio.run(run())


def test_a_reader_that_leaves_before_the_first_token_stops_the_engine() -> None:
    async def run() -> None:
        reader, stage = leaves_after(0), Stage(Script(words(5), 60, 0))
        supervisor = await stage.play(reader)
        assert (stage.made, supervisor.in_flight) == (0, set())
        assert stage.record.ttft_s is None
        assert stage.registry.get_sample_value("tailrace_disconnects_total", {"phase": "prefill"}) == 1

    asyncio.run(run())


def test_a_reader_that_left_before_the_response_began_stops_the_engine() -> None:
    async def run() -> None:
        reader, stage = Reader(), Stage(Script(words(5), 60, 0))
        reader.leave()
        supervisor = await stage.play(reader)
        assert not supervisor.in_flight
        assert not stage.engine.running

    asyncio.run(run())


def test_a_cancelled_response_stops_the_engine() -> None:
    async def run() -> None:
        stage = Stage(Script(words(5), 60, 0))
        task = asyncio.create_task(stage.play(Reader()))
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not stage.engine.running

    asyncio.run(run())


def test_the_disconnect_is_looked_at_before_a_token_is_encoded() -> None:
    """The flag alone is enough: even when the listener's cancellation has not arrived yet, nothing more is written."""

    async def run() -> None:
        reader, stage = Reader(), Stage(Script(words(50), 0, 0))

        def flag(body: bytes) -> None:
            if body.count(b"token") == 3:
                reader.connection.mark_lost()
                asyncio.get_running_loop().call_later(0.05, reader.gone.set)

        reader.on_body = flag
        await stage.play(reader)
        assert reader.body.count(b"token") == 3
        assert not stage.engine.running

    asyncio.run(run())


def test_nothing_of_a_stream_waits_for_the_garbage_collector() -> None:
    """With 5,000 streams open, a full collection stops them all for half a second."""

    async def run() -> None:
        reader, stage = Reader(), Stage(Script(words(5), 0, 0))
        await stage.play(reader)
        response = weakref.ref(stage.response)
        del stage.response, stage.entry, reader
        await asyncio.sleep(0)
        assert response() is None

    gc.collect()
    gc.disable()
    try:
        asyncio.run(run())
    finally:
        gc.enable()


def test_a_slow_reader_gets_everything_in_fewer_events() -> None:
    async def run() -> None:
        reader, stage = Reader(), Stage(Script(words(60), 0, 0.002))

        def pause(body: bytes) -> None:
            if body.count(b"token") == 2:
                reader.connection.mark_full(True)
                asyncio.get_running_loop().call_later(0.08, reader.connection.mark_full, False)

        reader.on_body = pause
        await stage.play(reader)
        events = parse(reader.body)
        assert "".join(event.json["token"] for event in token_events(events)) == "".join(words(60))
        assert len(token_events(events)) < 45
        assert done(events)["usage"]["completion_tokens"] == 60

    asyncio.run(run())


def test_an_engine_that_dies_ends_the_stream_with_an_error_event() -> None:
    async def run() -> None:
        reader, stage = Reader(), Stage(Script(words(9), 0, 0, die_after=3))
        await stage.play(reader)
        events = parse(reader.body)
        assert [event.type for event in events] == ["start", "message", "message", "message", "error"]
        assert events[-1].json == {"code": "engine_dead", "message": "the engine has died", "retryable": True}
        assert b"[DONE]" not in reader.body
        assert stage.record.outcome == "engine_dead"

    asyncio.run(run())


@pytest.mark.parametrize("script", [Script(words(2), 0.2, 0), Script(words(40), 0, 0.01)])
def test_a_comment_goes_out_after_silence_and_only_then(script: Script) -> None:
    keep_alive_s = 0.05

    async def run() -> None:
        reader = Reader()
        await Stage(script, keep_alive_s).play(reader)
        comments = [index for index, (_, block) in enumerate(reader.writes) if block == b": keep-alive\n\n"]
        for index in comments:
            assert reader.writes[index][0] - reader.writes[index - 1][0] >= 0.9 * keep_alive_s
        if script.ttft_s:
            assert 2 <= len(comments) <= 4
        assert [event.type for event in parse(reader.body)][-2:] == ["done", "message"]

    asyncio.run(run())


def test_zero_turns_the_comments_off() -> None:
    async def run() -> None:
        reader = Reader()
        await Stage(Script(words(2), 0.1, 0), keep_alive_s=0).play(reader)
        assert b": keep-alive" not in reader.body

    asyncio.run(run())


def test_timing_in_the_last_event_is_that_of_the_metrics() -> None:
    async def run() -> None:
        reader, stage = Reader(), Stage(Script(words(4), 0.05, 0.02))
        await stage.play(reader)
        timing: Any = done(parse(reader.body))["timing"]
        assert timing["tpot_ms"] == pytest.approx(20, abs=8)
        assert stage.record.tpot_s == pytest.approx(timing["tpot_ms"] / 1000, abs=1e-4)

    asyncio.run(run())
