"""The feed of the engine's steps, and the sources that it fills, without an engine."""

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.exceptions import EngineDeadError
from vllm.v1.engine.output_processor import RequestOutputCollector

from engine.errors import EngineDead
from engine.interface import Delta, Terms
from engine.vllm.queue_watch import QueueWatch
from engine.vllm.source import StepFeed, VllmSource
from tests.engine.sources import next_of


def output(text: str) -> Any:
    completion = CompletionOutput(index=0, text=text, token_ids=[1], cumulative_logprob=None, logprobs=None)
    return RequestOutput("id", None, [1], None, [completion], finished=False)


class Processor:
    """The parts of vLLM's output processor that the sources see."""

    def __init__(self) -> None:
        self.request_states = {"a": None, "b": None}
        self.queues: dict[str, Any] = {}

    def process_outputs(self, outputs: Sequence[Any]) -> str:
        for one in outputs:
            if one.request_id in self.queues:
                self.queues[one.request_id].put(output(one.text))
        return "processed"


class Stage:
    def __init__(self) -> None:
        self.late: list[int] = []
        self.has_more = False
        self.processor = Processor()
        self.feed = StepFeed(self.processor, lambda: self.has_more, self.late.append)
        self.sources = {name: self._source(name) for name in ("a", "b")}

    def _source(self, name: str) -> VllmSource:
        queue = self.processor.queues[name] = RequestOutputCollector(RequestOutputKind.DELTA, name)
        return VllmSource(None, queue, Terms(), QueueWatch(), self.feed)

    def step(self, **texts: str) -> None:
        outputs = [SimpleNamespace(request_id=name, text=text, new_token_ids=[1, 2]) for name, text in texts.items()]
        assert self.processor.process_outputs(outputs) == "processed"


def test_output_that_a_slow_reader_has_not_taken_comes_before_the_error() -> None:
    async def run() -> None:
        stage = Stage()
        slow, waiting = stage.sources.values()
        reading = asyncio.create_task(next_of(waiting))
        await asyncio.sleep(0)
        stage.step(a="late")
        for queue in stage.processor.queues.values():  # as `OutputProcessor.propagate_error` does
            queue.put(EngineDeadError())
        assert (await next_of(slow)).text == "late"
        for source in (next_of(slow), reading):
            with pytest.raises(EngineDead):
                await source

    asyncio.run(asyncio.wait_for(run(), 5))


def test_listeners_are_told_once_a_step_when_its_last_output_is_in() -> None:
    stage, seen = Stage(), []
    a, b = stage.sources.values()
    a.listen(lambda: seen.append((a.take(), b.take())))
    b.listen(lambda: seen.append((a.take(), b.take())))
    stage.step(a="1", b="2")
    texts = [[delta.text if delta else None for delta in pair] for pair in seen]
    assert texts == [["1", "2"], [None, None]]


def test_what_is_not_taken_gathers() -> None:
    stage = Stage()
    for word in ("one ", "two ", "three"):
        stage.step(a=word)
    delta = stage.sources["a"].take()
    assert delta is not None
    assert (delta.text, len(delta.token_ids)) == ("one two three", 3)
    assert stage.sources["a"].take() is None


def test_output_that_came_before_the_source_is_not_lost() -> None:
    stage = Stage()
    queue = RequestOutputCollector(RequestOutputKind.DELTA, "c")
    queue.put(output("early"))
    delta = VllmSource(None, queue, Terms(), QueueWatch(), stage.feed).take()
    assert delta is not None
    assert delta.text == "early"


def test_a_listener_that_fails_does_not_end_the_step_of_the_others(caplog: pytest.LogCaptureFixture) -> None:
    stage, told = Stage(), []
    stage.sources["a"].listen(lambda: 1 / 0)  # type: ignore[arg-type]
    stage.sources["b"].listen(lambda: told.append("b"))
    stage.step(a="1", b="2")
    assert told == ["b"]
    assert "a listener to the engine failed" in caplog.text


def test_tokens_for_a_request_that_vllm_has_forgotten_are_counted() -> None:
    stage = Stage()
    stage.step(a="1", forgotten="x")
    assert stage.late == [2]


def test_steps_that_wait_already_are_handed_on_together() -> None:
    async def run() -> None:
        stage, seen = Stage(), []
        source = stage.sources["a"]

        def take() -> None:
            delta = source.take()
            seen.append(delta and delta.text)

        source.listen(take)
        stage.has_more = True
        stage.step(a="one ")
        stage.step(a="two ")
        assert seen == []
        stage.has_more = False
        stage.step(a="three")
        assert seen == ["one two three"]
        stage.has_more = True  # but of what is no step
        stage.step(a="four")
        await asyncio.sleep(0)
        assert seen[-1] == "four"

    asyncio.run(run())


def test_text_past_vllms_objects_keeps_its_order_with_them() -> None:
    stage = Stage()
    source = stage.sources["a"]
    source.put(output("first "))
    source.put_text("second ", [2, 3])
    assert told(source.take()) == ("first second ", 3)
    source.put_text("third ", [4])
    source.put_text("fourth ", [5])
    assert told(source.take()) == ("third fourth ", 2)
    source.put_text("fifth ", [6])
    source.put(output("last"))
    assert told(source.take()) == ("fifth last", 2)
    source.put(output("a "))
    source.put_text("b ", [7])
    source.put(output("c "))
    source.put_text("d", [8])
    assert told(source.take()) == ("a b c d", 4)
    source.put_text("rest", [9, 10])
    assert source.take_rest() == 2
    assert source.take() is None


def told(delta: Delta | None) -> tuple[str, int]:
    assert delta is not None
    return delta.text, len(delta.token_ids)
