"""What a token costs on its way from the engine's output to the socket, counted and not timed.

    python -m bench.token_path            prints the counts, the baseline, and microseconds
    python -m bench.token_path --write    makes the counts the new baseline, for this minor version of Python

The real responses run over a source that does nothing, and write to sockets that nobody reads from; the time has the
kernel in it, the counts have not. Each step of the engine has a token for `STREAMS` streams. A count of
executed instructions and of calls into C is the same on every machine and at every load, so that a test can hold it to
a bound (`tests/bench/test_token_path.py`). Another minor version of Python compiles to other instructions: each has its
own baseline.
"""

import argparse
import asyncio
import gc
import json
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry
from starlette.types import Message

from bench import table
from bench.table import Figure
from engine.generation import Generation
from engine.interface import Delta, Sampling, Terms
from engine.journal import MemoryJournal, Opening
from engine.serving import ChoiceDelta, CommonStream
from metrics.instruments import Instruments
from routes.connection import EXTENSION, Connection
from routes.delivery import Delivery
from routes.event_stream import DeltaStream
from routes.ollama import Clock, LineStream
from routes.ollama_words import Lines
from routes.outbox import Outbox
from routes.pace import Pace
from routes.request_record import KEY, RequestRecord
from routes.surface_streams import ChunkStream
from routes.token_stream import TokenStream

T = TypeVar("T")

BASELINE = Path(__file__).with_suffix(".json")
VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"

# In each step of the engine.
STREAMS = 8

TOKEN = " word"
WARM_TOKENS = 20
COUNTED_TOKENS = 200
TIMED_TOKENS = 200
TIMED_RUNS = 20


@dataclass(frozen=True, slots=True)
class Count:
    """Of one token, on average."""

    instructions: float
    c_calls: float


class Source:
    """One request of an engine that makes a token whenever it is told to."""

    terms = Terms(num_prompt_tokens=1, max_tokens=1 << 20)
    num_cached_tokens = None
    phase = "decode"

    def __init__(self) -> None:
        self.on_output: Callable[[], None] | None = None
        self._delta: Delta | None = None
        self._num_tokens = 0

    def listen(self, on_output: Callable[[], None]) -> None:
        self.on_output = on_output

    def take(self) -> Delta | None:
        delta, self._delta = self._delta, None
        return delta

    def make(self, finish_reason: str | None = None) -> None:
        """The end of an engine's step: the path begins here."""
        assert self.on_output is not None
        self._num_tokens += 1
        self._delta = Delta(TOKEN, (self._num_tokens,), finish_reason)
        self.on_output()

    def take_rest(self) -> int:
        return 0

    async def abort(self) -> None:
        return None


class Wire:
    """A connection over the loopback, whose reader looks at the end what has come."""

    def __init__(self, listener: socket.socket) -> None:
        self._reader = socket.create_connection(listener.getsockname())
        self._socket, _ = listener.accept()
        self._socket.setblocking(False)

    def write(self, chunk: bytes) -> None:
        self._socket.sendall(chunk)

    def get_extra_info(self, name: str) -> socket.socket | None:
        return self._socket if name == "socket" else None

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def close(self) -> bytes:
        """All that the reader got."""
        self._socket.close()
        with self._reader, self._reader.makefile("rb") as everything:
            return everything.read()

    async def receive(self) -> Message:
        await asyncio.get_running_loop().create_future()
        raise AssertionError("this client does not leave")

    async def send(self, message: Message) -> None:
        return None


def _common(generation: Generation) -> CommonStream:
    """A chat as an engine hands it out; how vLLM reads its own outputs is not part of the path."""
    return CommonStream(
        id="chatcmpl-0",
        model="model",
        created_s=0,
        role="assistant",
        num_choices=1,
        generation=generation,
        read=lambda delta: [ChoiceDelta(0, {"content": delta.text}, delta.finish_reason)],
        last_chunk=lambda: None,
    )


def _chat(generation: Generation, delivery: Delivery) -> DeltaStream:
    return ChunkStream(_common(generation), delivery)


def _stream(generation: Generation, delivery: Delivery) -> DeltaStream:
    opening = Opening(None, (1,), False, Sampling(), None, 0, "", True)
    entry = MemoryJournal(time.monotonic).open(generation.id, opening, on_lost=lambda loss: None)
    return TokenStream(generation, delivery, entry, b"")


def _ollama(generation: Generation, delivery: Delivery) -> DeltaStream:
    return LineStream(_common(generation), Lines("model", is_chat=True), Clock(0.0), delivery)


PATHS: dict[str, Callable[[Generation, Delivery], DeltaStream]] = {"chat": _chat, "stream": _stream, "ollama": _ollama}


class Step:
    """What an engine's step sets off: a token for each stream, and the end of the event loop's turn."""

    def __init__(self, sources: Sequence[Source], outbox: Outbox) -> None:
        self._sources = sources
        self._outbox = outbox

    def make(self, finish_reason: str | None = None) -> None:
        for source in self._sources:
            source.make(finish_reason)
        self._outbox.flush()


def played(name: str, num_tokens: int, play: Callable[[Step], T]) -> T:
    """What `play` returns, called with `STREAMS` streams of that kind open; it makes `num_tokens` tokens for each."""

    async def run() -> T:
        outbox, delivery = Outbox(), Delivery(Instruments(CollectorRegistry()), 15.0, 30.0, 1 << 20, Pace(0))
        sources = [Source() for _ in range(STREAMS)]
        with socket.create_server(("127.0.0.1", 0)) as listener:
            wires = [Wire(listener) for _ in sources]
        answering = []
        for index, (source, wire) in enumerate(zip(sources, wires, strict=True)):
            generation = Generation(f"id{index}", "model", source, on_close=lambda generation: None)
            scope = {
                "type": "http",
                "state": {KEY: RequestRecord("id", time.perf_counter())},
                "route": SimpleNamespace(path="/"),
                "extensions": {EXTENSION: Connection(wire, outbox)},  # type: ignore[arg-type]  # the part that is used
            }
            answer = PATHS[name](generation, delivery)(scope, wire.receive, wire.send)
            answering.append(asyncio.create_task(answer))
        step = Step(sources, outbox)
        async with asyncio.timeout(60):
            while not all(source.on_output for source in sources):  # noqa: ASYNC110  # a few turns of the loop
                await asyncio.sleep(0)
            result = play(step)
            step.make("stop")
            await asyncio.gather(*answering)
        outbox.close()
        got = [wire.close().count(TOKEN.encode()) for wire in wires]
        assert got == [num_tokens + 1] * STREAMS, "every token is written"
        return result

    return asyncio.run(run())


def count(name: str) -> Count:
    """The same number at each call, on one minor version of Python."""

    def make(step: Step, num_tokens: int) -> None:
        for _ in range(num_tokens):
            step.make()

    def play(step: Step) -> Count:
        make(step, WARM_TOKENS)
        totals = _counted(lambda: make(step, COUNTED_TOKENS))
        return Count(*(round(total / COUNTED_TOKENS / STREAMS, 1) for total in totals))

    return played(name, WARM_TOKENS + COUNTED_TOKENS, play)


def _counted(work: Callable[[], None]) -> tuple[int, int]:
    """Instructions that `work` executes and functions of C that it calls, but for those of this file's own code."""
    num_instructions = num_c_calls = 0

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal num_instructions
        if frame.f_code.co_filename == __file__:
            return None
        if event == "opcode":
            num_instructions += 1
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return trace

    def profile(frame: FrameType, event: str, arg: Any) -> None:
        nonlocal num_c_calls
        if event == "c_call" and frame.f_code.co_filename != __file__:
            num_c_calls += 1

    tracer, profiler, collects = sys.gettrace(), sys.getprofile(), gc.isenabled()
    gc.disable()  # a collection may call into Python
    sys.setprofile(profile)
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(tracer)
        sys.setprofile(profiler)
        if collects:
            gc.enable()
    return num_instructions, num_c_calls


def microseconds(name: str) -> float:
    """Of one token, on this machine, now: the least of several runs."""

    def play(step: Step) -> float:
        started_s = time.perf_counter()
        for _ in range(TIMED_TOKENS):
            step.make()
        return (time.perf_counter() - started_s) / TIMED_TOKENS / STREAMS * 1e6

    return min(played(name, TIMED_TOKENS, play) for _ in range(TIMED_RUNS))


def baseline() -> dict[str, Count] | None:
    """What a token has cost on this minor version of Python; None when nobody has counted there."""
    counts = json.loads(BASELINE.read_text()).get(VERSION)
    return {name: Count(**count) for name, count in counts.items()} if counts else None


def write_baseline() -> None:
    all_counts = json.loads(BASELINE.read_text()) if BASELINE.exists() else {}
    all_counts[VERSION] = {name: asdict(count(name)) for name in PATHS}
    BASELINE.write_text(json.dumps(all_counts, indent=1) + "\n")


def run() -> list[Figure]:
    """Count, time, and print the table."""
    counts, known = {name: count(name) for name in PATHS}, baseline() or {}
    times_us = {name: microseconds(name) for name in PATHS}
    names = ["", "instructions", "baseline", "calls into C", "baseline", "us"]
    rows = []
    for name, now in counts.items():
        then = known.get(name)
        rows.append(
            [
                name,
                now.instructions,
                then and then.instructions,
                now.c_calls,
                then and then.c_calls,
                times_us[name],
            ]
        )
    print(f"the path of one token, on Python {VERSION}\n{table.render(names, rows)}")
    shown = ("chat", "stream")
    return [
        Figure("the path of a token", "instructions", {name: counts[name].instructions for name in shown}),
        Figure("the path of a token", "us", {name: times_us[name] for name in shown}),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.token_path")
    parser.add_argument("--write", action="store_true", help="make these counts the baseline of this version of Python")
    args = parser.parse_args()
    if args.write:
        write_baseline()
    run()


if __name__ == "__main__":
    main()
