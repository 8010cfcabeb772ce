"""Generation and Supervisor over the scripted engine: bare objects on one loop, no server."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from engine.errors import Draining, EngineDead, Internal, Starting, TailraceError
from engine.generation import Generation
from engine.interface import AnyRequest, Delta, GenerationRequest, Sampling, Terms
from engine.lifecycle import Lifecycle, State
from engine.scripted import Script, ScriptedEngine, ScriptedSource
from engine.supervisor import Supervisor

WORDS = [f" {number}" for number in range(50)]


def under_deadline(work: Coroutine[Any, Any, None]) -> None:
    async def run() -> None:
        async with asyncio.timeout(5):
            await work

    asyncio.run(run())


async def started(script: Script) -> tuple[Supervisor, ScriptedEngine, list[int]]:
    made: list[int] = []
    engine = ScriptedEngine(script, on_tokens=made.append)
    supervisor = Supervisor(engine, Lifecycle())
    await supervisor.start()
    return supervisor, engine, made


class Dropping:
    """An engine that drops the request, with `text` made before."""

    terms = Terms(num_prompt_tokens=1)
    num_cached_tokens = None
    phase = "prefill"

    def __init__(self, text: str) -> None:
        self._text = text

    def take_rest(self) -> int:
        return 0

    def listen(self, on_output: Callable[[], None]) -> None:
        return None

    def take(self) -> Delta:
        return Delta(self._text, range(len(self._text)), "abort")

    async def abort(self) -> None:
        return None


def ask(max_tokens: int | None = None) -> GenerationRequest:
    return GenerationRequest(prompt="one two three", sampling=Sampling(max_tokens=max_tokens))


def test_a_generation_runs_to_its_end_and_is_forgotten() -> None:
    async def work() -> None:
        supervisor, engine, made = await started(Script(WORDS, 0, 0))
        async with await supervisor.admit(ask(7)) as generation:
            assert supervisor.in_flight == {generation}
            text = "".join([delta.text async for delta in generation])
        assert text == "".join(WORDS[:7])
        assert (generation.num_prompt_tokens, generation.num_output_tokens) == (3, 7)
        assert generation.finish_reason == "length"
        assert sum(made) == 7
        assert not supervisor.in_flight
        assert not engine.running

    under_deadline(work())


def test_leaving_early_stops_the_engine_at_once() -> None:
    async def work() -> None:
        supervisor, engine, made = await started(Script(WORDS, 0, 0.001))
        async with await supervisor.admit(ask()) as generation:
            async for _ in generation:
                if generation.num_output_tokens >= 3:
                    break
        count = sum(made)
        assert not engine.running
        await asyncio.sleep(0.05)
        assert sum(made) == count

    under_deadline(work())


def test_an_abort_with_an_error_wakes_a_reader_that_waits() -> None:
    async def work() -> None:
        supervisor, _, _ = await started(Script(WORDS, 0, 0, hang_after=1))
        async with await supervisor.admit(ask()) as generation:
            await anext(generation)
            waiting = asyncio.create_task(anext(generation))
            await asyncio.sleep(0.01)
            await generation.abort(Draining("bye"))
            with pytest.raises(Draining, match="bye"):
                await waiting

    under_deadline(work())


def test_an_abort_without_an_error_ends_the_iteration() -> None:
    async def work() -> None:
        supervisor, _, _ = await started(Script(WORDS, 10, 0))
        async with await supervisor.admit(ask()) as generation:
            asyncio.get_running_loop().call_later(0.01, lambda: asyncio.ensure_future(generation.abort()))
            assert [delta async for delta in generation] == []
            assert "aborted" in repr(generation)

    under_deadline(work())


def test_a_request_that_the_engine_drops_is_an_error_and_not_an_end() -> None:
    async def work() -> None:
        async with Generation("id", "model", Dropping(""), lambda generation: None) as generation:
            with pytest.raises(Internal):
                await anext(generation)

    under_deadline(work())


@pytest.mark.parametrize("given", [Draining("bye"), None])
def test_text_that_was_made_before_the_drop_is_still_delivered(given: Draining | None) -> None:
    async def work() -> None:
        async with Generation("id", "model", Dropping("late"), lambda generation: None) as generation:
            if given is not None:
                await generation.abort(given)
            assert await anext(generation) == Delta("late", range(4))
            with pytest.raises(Draining if given else Internal):
                await anext(generation)
            assert generation.num_output_tokens == 4

    under_deadline(work())


def test_nobody_is_given_text_after_an_abort_without_an_error() -> None:
    async def work() -> None:
        async with Generation("id", "model", Dropping("late"), lambda generation: None) as generation:
            await generation.abort()
            assert [delta async for delta in generation] == []

    under_deadline(work())


@pytest.mark.parametrize(
    ("steps", "refusal"),
    [((), Starting), ((State.READY, State.DRAINING), Draining), ((State.DEAD,), EngineDead)],
)
def test_no_request_is_admitted_unless_ready(steps: tuple[State, ...], refusal: type[TailraceError]) -> None:
    async def work() -> None:
        lifecycle = Lifecycle()
        for step in steps:
            lifecycle.advance(step)
        with pytest.raises(refusal):
            await Supervisor(ScriptedEngine(Script(WORDS)), lifecycle).admit(ask())

    under_deadline(work())


@pytest.mark.parametrize(("stops", "refusal"), [(True, Draining), (False, Internal)])
def test_a_failure_while_the_engine_is_stopped_is_told_as_the_drain(stops: bool, refusal: type[TailraceError]) -> None:
    class Failing(ScriptedEngine):
        async def submit(self, request: AnyRequest, request_id: str) -> ScriptedSource:
            if stops:
                lifecycle.advance(State.DRAINING)
            raise Internal("it is gone")

    lifecycle = Lifecycle()

    async def work() -> None:
        supervisor = Supervisor(Failing(Script(WORDS)), lifecycle)
        await supervisor.start()
        with pytest.raises(refusal):
            await supervisor.admit(ask())

    under_deadline(work())


def test_a_drain_waits_for_streams_and_refuses_new_ones() -> None:
    async def work() -> None:
        supervisor, _, _ = await started(Script(WORDS, 0, 0.01))
        async with await supervisor.admit(ask(10)) as generation:
            reading = asyncio.create_task(read(generation))
            draining = asyncio.create_task(supervisor.drain(5, asyncio.Event()))
            await asyncio.sleep(0)
            with pytest.raises(Draining):
                await supervisor.admit(ask())
            assert await reading == "".join(WORDS[:10])
        await draining
        await supervisor.stop()
        assert supervisor.state is State.STOPPED

    under_deadline(work())


def test_a_drain_ends_what_is_left_after_its_time_and_when_it_is_skipped() -> None:
    async def work() -> None:
        for timeout_s, skip_at_once in ((0.02, False), (60, True)):
            supervisor, engine, _ = await started(Script(WORDS, 0, 10))
            reading = asyncio.create_task(read_one(supervisor))
            await asyncio.sleep(0.01)
            skip = asyncio.Event()
            if skip_at_once:
                skip.set()
            await supervisor.drain(timeout_s, skip)
            with pytest.raises(Draining):
                await reading
            assert not engine.running

    under_deadline(work())


def test_the_death_of_the_engine_reaches_every_stream_and_the_watch() -> None:
    async def work() -> None:
        supervisor, engine, _ = await started(Script(WORDS, 0, 10))
        readings = [asyncio.create_task(read_one(supervisor)) for _ in range(3)]
        await asyncio.sleep(0.01)
        engine.die()
        await supervisor.watch()
        for reading in readings:
            with pytest.raises(EngineDead):
                await reading
        assert supervisor.state is State.DEAD
        await supervisor.stop()
        assert supervisor.state is State.DEAD

    under_deadline(work())


def test_an_engine_that_cannot_start_is_dead() -> None:
    class Broken(ScriptedEngine):
        async def start(self) -> None:
            raise RuntimeError("no such model")

    async def work() -> None:
        supervisor = Supervisor(Broken(Script(WORDS)), Lifecycle())
        with pytest.raises(RuntimeError):
            await supervisor.start()
        assert supervisor.state is State.DEAD

    under_deadline(work())


async def read(generation: Generation) -> str:
    return "".join([delta.text async for delta in generation])


async def read_one(supervisor: Supervisor) -> str:
    async with await supervisor.admit(ask()) as generation:
        return await read(generation)
