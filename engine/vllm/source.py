"""The engine's output on its way to whoever reads it, from vLLM's output processor on.

`AsyncLLM.generate` wakes a task for each request and step. Here the processor's own turn goes on instead: when the last
output of a step is in, every request that got some tells its listener, which encodes and writes it. What a listener
leaves, because its reader is slow, gathers in the source.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Any

from vllm.outputs import RequestOutput
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError
from vllm.v1.engine.output_processor import OutputProcessor, RequestOutputCollector, RequestState

from engine.interface import Delta, Terms
from engine.vllm.errors import from_vllm
from engine.vllm.queue_watch import QueueWatch

logger = logging.getLogger("tailrace.engine")

# Tells reasoning from the answer in a delta.
ReadReasoning = Callable[[Delta], Delta]


def _nobody() -> None:
    """The listener until there is one."""


class StepFeed:
    """Stands around `OutputProcessor.process_outputs`, which vLLM calls once an engine step.

    `has_more` says whether the next step's output waits already: then this process is late, and what both made goes out
    together. `on_late_tokens` hears of tokens for requests that vLLM no longer knows; it drops those, and counts them
    nowhere.
    """

    def __init__(
        self, processor: OutputProcessor, has_more: Callable[[], bool], on_late_tokens: Callable[[int], None]
    ) -> None:
        self._processor = processor
        self._process_outputs = processor.process_outputs
        self._has_more = has_more
        self._on_late_tokens = on_late_tokens
        self._is_in_step = False
        self._fresh: dict[VllmSource, None] = {}
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
            if self._has_more():  # whose turn comes before that of any callback
                asyncio.get_running_loop().call_soon(self._hand_on)
            else:
                self._hand_on()

    def _hand_on(self) -> None:
        fresh, self._fresh = self._fresh, {}
        for source in fresh:
            _tell(source)

    def add(self, source: "VllmSource") -> None:
        """`source` has something to take."""
        if self._is_in_step:
            self._fresh[source] = None
        else:  # of an abort or of the engine's death, which come between steps
            _tell(source)


def _tell(source: "VllmSource") -> None:
    try:
        source.on_output()
    except Exception:  # which would end vLLM's output handler, and with it every stream
        logger.exception("a listener to the engine failed")


def says_only_text(state: RequestState, params: SamplingParams) -> bool:
    """Whether a request's outputs between its first and its last have nothing in them but text and ids."""
    return (
        state.parent_req is None
        and state.output_kind == RequestOutputKind.DELTA
        and state.stream_interval == 1
        and params.logprobs is None
        and params.prompt_logprobs is None
    )


class VllmSource:
    """One request inside `AsyncLLM`; `put` is where vLLM's processor leaves its outputs."""

    def __init__(
        self,
        llm: AsyncLLM,
        collector: RequestOutputCollector,
        terms: Terms,
        queue: QueueWatch,
        feed: StepFeed,
        read_reasoning: ReadReasoning | None = None,
    ) -> None:
        self._llm = llm
        self._request_id = collector.request_id
        self._merges = collector.aggregate
        self.terms = terms
        self.num_cached_tokens: int | None = None
        self._queue = queue
        self._feed = feed
        self._read_reasoning = read_reasoning
        self._output: RequestOutput | None = None
        # What came after `_output` by `put_text`.
        self._text = ""
        self._token_ids: list[int] = []
        self._failure: Exception | None = None
        self._has_started = False
        self.on_output: Callable[[], None] = _nobody
        queue.enter(self._request_id)
        if collector.output is not None:  # the engine was faster than the return from `add_request`
            self.put(collector.output)
        collector.put = self.put

    def take_text_from(self, state: RequestState) -> None:
        """From the first token to the last, take no more of vLLM's `state` than text and ids.

        vLLM makes two objects of a dozen fields of them, and this is done for every token. Only where nobody asked for
        more of it (logprobs, several choices), and where what is read is a delta, and not vLLM's own output.
        """
        detokenizer, is_first = state.detokenizer, True

        def make_request_output(
            new_token_ids: list[int],
            pooling_output: Any,
            finish_reason: Any,
            *args: Any,
            **kwargs: Any,
        ) -> RequestOutput | None:
            nonlocal is_first
            if finish_reason is not None:
                del state.make_request_output  # which holds on to `state`
                return state.make_request_output(new_token_ids, pooling_output, finish_reason, *args, **kwargs)
            if is_first:
                is_first = False
                return RequestState.make_request_output(
                    state, new_token_ids, pooling_output, finish_reason, *args, **kwargs
                )
            self.put_text(detokenizer.get_next_output_text(False, True), new_token_ids)
            return None

        state.make_request_output = make_request_output

    def put_text(self, text: str, token_ids: list[int]) -> None:
        self._text += text
        if self._token_ids:
            self._token_ids += token_ids
        else:
            self._token_ids = token_ids
        self._feed.add(self)

    def put(self, output: RequestOutput | Exception) -> None:
        """As `RequestOutputCollector.put`, but that an error does not take the place of output that came before it."""
        if isinstance(output, Exception):
            self._failure = output
        elif self._output is None and not self._token_ids:
            self._output = output
        else:
            self._merge(output)
        self._feed.add(self)

    def _merge(self, output: RequestOutput) -> None:
        """In the order in which they came: `_output`, then what came by `put_text`, then `output`."""
        if self._token_ids:
            completion = output.outputs[0]
            completion.text = self._text + completion.text
            completion.token_ids = [*self._token_ids, *completion.token_ids]
            self._text, self._token_ids = "", []
        if self._output is None:
            self._output = output
        else:
            self._output.add(output, aggregate=self._merges)

    def listen(self, on_output: Callable[[], None]) -> None:
        self.on_output = on_output

    def take(self) -> Delta | None:
        output = self._output
        if output is not None:
            delta = self._of_output(output)
        elif self._token_ids:
            delta = Delta(self._text, self._token_ids)
            self._text, self._token_ids = "", []
        elif self._failure is not None:
            raise from_vllm(self._failure) from self._failure
        else:
            return None
        return delta if self._read_reasoning is None else self._read_reasoning(delta)

    def _of_output(self, output: RequestOutput) -> Delta:
        self._output = None
        if not self._has_started:
            self._has_started = True
            self._queue.leave(self._request_id)
            self.num_cached_tokens = output.num_cached_tokens
        if self._token_ids:
            completion = output.outputs[0]
            completion.text += self._text
            completion.token_ids = [*completion.token_ids, *self._token_ids]
            self._text, self._token_ids = "", []
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
        num_tokens = len(self._token_ids)
        self._token_ids = []
        return num_tokens + (sum(len(choice.token_ids) for choice in output.outputs) if output is not None else 0)

    async def abort(self) -> None:
        """`AsyncLLM.abort` puts a last output, which wakes the listener."""
        if not self._llm.errored:
            with contextlib.suppress(EngineDeadError):
                await self._llm.abort(self._request_id, internal=True)
