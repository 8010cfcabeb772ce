"""What vLLM itself answers, not streamed, on the same engine: the truth that streams are compared with."""

import itertools
from typing import Any

from vllm import SamplingParams
from vllm.outputs import CompletionOutput
from vllm.sampling_params import RequestOutputKind

from engine.vllm.engine import VllmEngine
from tests.server import RunningServer

_numbers = itertools.count()


def completion(server: RunningServer, prompt: Any, **params: Any) -> CompletionOutput:
    """The final output of `AsyncLLM.generate` for `prompt`, at temperature 0."""
    engine = server.engine
    assert isinstance(engine, VllmEngine)
    llm = engine._llm
    assert llm is not None

    async def generate() -> CompletionOutput:
        sampling = SamplingParams(temperature=0, output_kind=RequestOutputKind.FINAL_ONLY, **params)
        last = None
        async for output in llm.generate(prompt, sampling, f"reference-{next(_numbers)}"):
            last = output.outputs[0]
        assert last is not None
        return last

    return server.run(generate())
