"""The engine's output on its way to whoever reads it, from vLLM's output processor on.

`AsyncLLM.generate` wakes a task for each request and step. Here the processor's own turn goes on instead: when the last
output of a step is in, every request that got some tells its listener, which encodes and writes it. What a listener
leaves, because its reader is slow, gathers in the source.
"""

import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Any

from vllm.outputs import RequestOutput
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError
from vllm.v1.engine.output_processor import OutputProcessor, RequestOutputCollector

from engine.interface import Delta
from engine.vllm.errors import from_vllm
from engine.vllm.queue_watch import QueueWatch

logger = logging.getLogger("tailrace.engine")

# Tells reasoning from the answer in an output of the engine.
ReadReasoning = Callable[[RequestOutput], Delta]


def _nobody() -> None:
    """The listener until there is one."""


class StepFeed:
    """Stands around `OutputProcessor.process_outputs`, which vLLM calls once an engine step.

    `on_late_tokens` hears of tokens for requests that vLLM no longer knows; it drops those, and counts them nowhere.
    """

    def __init__(self, processor: OutputProcessor, on_late_tokens: Callable[[int], None]) -> None:
        self._processor = processor
        self._process_outputs = processor.process_outputs
        self._on_late_tokens = on_late_tokens
        self._is_in_step = False
        self._fresh: list[VllmSource] = []
        processor.process_outputs = self._step

    def _step(self, outputs: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        known = self._processor.request_states
        for output in outputs:
            if output.request_id not in known and output.new_token_ids:
                self._on_late_tokens(len(output.new_token_ids))
        self._is_in_step = True
        try:
            return self._process_outputs(outputs, *args, **kwargs)
        finally:
            self._is_in_step = False
            fresh, self._fresh = self._fresh, []
            for source in fresh:
                _tell(source)

    def add(self, source: "VllmSource") -> None:
        """`source` has something to take."""
        if self._is_in_step:
            self._fresh.append(source)
        else:  # of an abort or of the engine's death, which come between steps
            _tell(source)


def _tell(source: "VllmSource") -> None:
    try:
        source.on_output()
    except Exception:  # which would end vLLM's output handler, and with it every stream
        logger.exception("a listener to the engine failed")


class VllmSource:
    """One request inside `AsyncLLM`; `put` is where vLLM's processor leaves its outputs."""

    def __init__(
        self,
        llm: AsyncLLM,
        collector: RequestOutputCollector,
        num_prompt_tokens: int,
        queue: QueueWatch,
        feed: StepFeed,
        read_reasoning: ReadReasoning | None = None,
    ) -> None:
        self._llm = llm
        self._request_id = collector.request_id
        self._merges = collector.aggregate
        self._num_prompt_tokens = num_prompt_tokens
        self._queue = queue
        self._feed = feed
        self._read_reasoning = read_reasoning
        self._output: RequestOutput | None = None
        self._failure: Exception | None = None
        self._has_started = False
        self.on_output: Callable[[], None] = _nobody
        queue.enter(self._request_id)
        if collector.output is not None:  # the engine was faster than the return from `add_request`
            self.put(collector.output)
        collector.put = self.put

    @property
    def num_prompt_tokens(self) -> int:
        return self._num_prompt_tokens

    def put(self, output: RequestOutput | Exception) -> None:
        """As `RequestOutputCollector.put`, but that an error does not take the place of output that came before it."""
        if isinstance(output, Exception):
            self._failure = output
        elif self._output is None:
            self._output = output
        else:
            self._output.add(output, aggregate=self._merges)
        self._feed.add(self)

    def listen(self, on_output: Callable[[], None]) -> None:
        self.on_output = on_output

    def take(self) -> Delta | None:
        output = self._output
        if output is None:
            if self._failure is not None:
                raise from_vllm(self._failure) from self._failure
            return None
        self._output = None
        if not self._has_started:
            self._has_started = True
            self._queue.leave(self._request_id)
        if self._read_reasoning is not None:
            return self._read_reasoning(output)
        completion = output.outputs[-1]
        # Of several choices, the last to end ends the request.
        finish_reason = completion.finish_reason if output.finished else None
        if len(output.outputs) == 1:
            return Delta(completion.text, completion.token_ids, finish_reason, "", output)
        token_ids = [token_id for choice in output.outputs for token_id in choice.token_ids]
        return Delta("".join(choice.text for choice in output.outputs), token_ids, finish_reason, "", output)

    @property
    def phase(self) -> str:
        processor = self._llm.output_processor
        parent = processor.parent_requests.get(self._request_id)
        children = parent.child_requests if parent is not None else (self._request_id,)
        states = (processor.request_states.get(child) for child in children)
        if any(state is not None and not state.is_prefilling for state in states):
            return "decode"
        return "queued" if self._queue.is_waiting(self._request_id) else "prefill"

    def take_rest(self) -> int:
        self._queue.leave(self._request_id)
        output, self._output = self._output, None
        return 0 if output is None else sum(len(choice.token_ids) for choice in output.outputs)

    async def abort(self) -> None:
        """`AsyncLLM.abort` puts a last output, which wakes the listener."""
        if not self._llm.errored:
            with contextlib.suppress(EngineDeadError):
                await self._llm.abort(self._request_id, internal=True)
