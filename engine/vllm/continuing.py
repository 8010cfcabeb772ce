"""Going on after the output of an earlier generation, as if it had never been cut.

To the engine that output is part of the prompt, which its prefix cache may still hold. The text goes on where its
reader has it: the output is replayed through vLLM's own detokenizer, which then takes the place of the one that vLLM
makes for the new request. So half a character, text that is held back, a stop string of which the reader has not seen
the end, and what a reasoning model is doing are as they were.
"""

import asyncio
import contextlib
import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from vllm.sampling_params import SamplingParams
from vllm.tokenizers import TokenizerLike
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.engine.detokenizer import IncrementalDetokenizer
from vllm.v1.engine.output_processor import OutputProcessor

from engine.interface import Delta, Terms
from engine.vllm.source import ReadReasoning


@dataclass(frozen=True, slots=True)
class Cut:
    """Where a generation stood when its reader had `num_tokens` of it.

    `finish_reason` is set when it had ended there, and only the word of it did not get through.
    """

    num_tokens: int
    detokenizer: IncrementalDetokenizer
    finish_reason: str | None


def replay(
    tokenizer: TokenizerLike | None,
    request: EngineCoreRequest,
    pieces: Sequence[Sequence[int]],
    read_reasoning: ReadReasoning | None,
) -> Cut:
    """Make anew what vLLM's output processor and `read_reasoning` knew when the reader had been told of all `pieces`.

    `request` is the earlier generation's, as vLLM's input processor makes it. About 2 us a token.
    """
    params = request.sampling_params
    detokenizer = IncrementalDetokenizer.from_new_request(tokenizer, request)
    stop_token_ids = {params.eos_token_id, *params.stop_token_ids}
    num_tokens, finish_reason = 0, None
    for piece in pieces:
        num_tokens += len(piece)
        is_stopped = bool(piece) and piece[-1] in stop_token_ids
        stop_string = detokenizer.update(list(piece), is_stopped)
        if is_stopped or stop_string is not None:
            finish_reason = "stop"
        elif num_tokens >= params.max_tokens:
            finish_reason = "length"
        # With its last token a reader was told of all text that had been held back.
        text = detokenizer.get_next_output_text(finish_reason is not None, True)
        if read_reasoning is not None:
            read_reasoning(Delta(text, piece, finish_reason))
    return Cut(num_tokens, detokenizer, finish_reason)


def count_on(params: SamplingParams, num_tokens: int, draws_by_position: bool) -> SamplingParams:
    """The same parameters for what comes after `num_tokens` of output.

    With `draws_by_position` the engine makes the random number for a token of the seed and the token's position in the
    context, so the same seed goes on with the same numbers. Else it draws one after the other: those that were
    drawn must not come again, so the seed is another one then, the same every time for the same cut. The text is as
    random as it would have been, but not the same.
    """
    later = params.clone()
    later.max_tokens = params.max_tokens - num_tokens
    later.min_tokens = max(0, params.min_tokens - num_tokens)
    if params.seed is not None and not draws_by_position:
        digest = hashlib.sha256(f"{params.seed}:{num_tokens}".encode()).digest()
        later.seed = int.from_bytes(digest[:8]) >> 1  # seeds are signed
    return later


def is_continuable(prompt: Any, params: SamplingParams) -> bool:
    """Whether a generation can go on from its token ids alone; `engine.interface.can_continue` says why not all can.

    Here penalties are known that come from the model's generation config, and prompts that hold images.
    """
    return bool(
        prompt.get("type") == "token"
        and params.n == 1
        and not params.presence_penalty
        and not params.frequency_penalty
        and params.structured_outputs is None
        and params.logprobs is None
    )


_CUT: ContextVar[Cut | None] = ContextVar("cut", default=None)


@contextlib.contextmanager
def going_on(cut: Cut | None) -> Iterator[None]:
    """A request that this task adds to the engine within goes on after `cut`."""
    token = _CUT.set(cut)
    try:
        yield
    finally:
        _CUT.reset(token)


def let_requests_go_on(processor: OutputProcessor) -> None:
    """Stand around `OutputProcessor.add_request`, which vLLM calls before it sends the request to the engine: no output
    can come before the detokenizer is in its place."""
    add_request = processor.add_request

    def add(request: EngineCoreRequest, *args: Any, **kwargs: Any) -> None:
        add_request(request, *args, **kwargs)
        if (cut := _CUT.get()) is not None:
            state = processor.request_states[request.request_id]
            state.detokenizer = cut.detokenizer
            state.sent_tokens_offset = cut.num_tokens  # what `--stream-interval` counts from

    processor.add_request = add


class EndedSource:
    """A generation that had ended before it was cut. The engine is not asked; the one delta says how it ended."""

    num_cached_tokens = None
    phase = "decode"

    def __init__(self, terms: Terms, finish_reason: str) -> None:
        self.terms = terms
        self._last: Delta | None = Delta("", (), finish_reason)
        self._on_output: Callable[[], None] = lambda: None

    def listen(self, on_output: Callable[[], None]) -> None:
        self._on_output = on_output
        asyncio.get_running_loop().call_soon(on_output)

    def take(self) -> Delta | None:
        last, self._last = self._last, None
        return last

    def take_rest(self) -> int:
        return 0

    async def abort(self) -> None:
        if self._last is not None:
            self._last = Delta("", (), "abort")
            self._on_output()
