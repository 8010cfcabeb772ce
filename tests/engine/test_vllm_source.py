"""What vLLM's collectors do when the engine dies, without an engine."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.exceptions import EngineDeadError
from vllm.v1.engine.output_processor import RequestOutputCollector

from engine.errors import EngineDead
from engine.vllm.engine import VllmSource, _keep_output_before_failure
from engine.vllm.queue_watch import QueueWatch


def output(text: str) -> Any:
    completion = CompletionOutput(index=0, text=text, token_ids=[1], cumulative_logprob=None, logprobs=None)
    return RequestOutput("id", None, [1], None, [completion], finished=False)


class Processor:
    """The part of vLLM's output processor that tells every request of an error, as vLLM has it."""

    def __init__(self, queues: list[Any]) -> None:
        self.request_states = {str(index): SimpleNamespace(queue=queue) for index, queue in enumerate(queues)}

    def propagate_error(self, error: Exception) -> None:
        for state in self.request_states.values():
            state.queue.put(error)


def test_output_that_a_slow_reader_has_not_taken_comes_before_the_error() -> None:
    async def run() -> None:
        collectors = [RequestOutputCollector(RequestOutputKind.DELTA, str(number)) for number in range(2)]
        slow, waiting = (VllmSource(None, collector, 1, QueueWatch()) for collector in collectors)
        processor = Processor(collectors)
        _keep_output_before_failure(processor)
        reading = asyncio.create_task(waiting.next())
        await asyncio.sleep(0)
        collectors[0].put(output("late"))
        processor.propagate_error(EngineDeadError())
        assert (await slow.next()).text == "late"
        for source in (slow.next(), reading):
            with pytest.raises(EngineDead):
                await source

    asyncio.run(asyncio.wait_for(run(), 5))
