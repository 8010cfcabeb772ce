"""Streamed chats and completions that ask for nothing out of the ordinary, as deltas.

What is here stands in for the generators with which vLLM makes text of each, and calls them for the rare options.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

from vllm.entrypoints.generate.base.protocol import UsageInfo
from vllm.entrypoints.generate.base.serving import build_per_request_timing_metrics, build_spec_decoding_metrics
from vllm.entrypoints.openai.chat_completion.protocol import (
    ChatCompletionNamedToolChoiceParam,
    ChatCompletionRequest,
    ChatCompletionStreamResponse,
)
from vllm.entrypoints.openai.chat_completion.serving import (
    OpenAIServingChat,
    _make_completion_tokens_details,
    _make_prompt_tokens_details,
)
from vllm.entrypoints.openai.completion.protocol import CompletionRequest, CompletionStreamResponse
from vllm.entrypoints.openai.completion.serving import OpenAIServingCompletion
from vllm.entrypoints.serve.engine.protocol import PromptTokenUsageInfo
from vllm.entrypoints.serve.utils.api_utils import should_include_usage
from vllm.entrypoints.serve.utils.tool_calls_utils import maybe_filter_parallel_tool_calls
from vllm.outputs import RequestOutput
from vllm.parser.abstract_parser import Parser
from vllm.utils.collection_utils import as_list

from engine.generation import DROPPED, Generation
from engine.interface import Delta
from engine.serving import ChoiceDelta, CommonStream, Json
from engine.vllm.calling import OPENING, Draft, Outputs


def chat_drafter(chat: OpenAIServingChat) -> Callable[..., Any]:
    """What stands in for `OpenAIServingChat.chat_completion_stream_generator`, and calls it for the rare options."""
    by_vllm = chat.chat_completion_stream_generator

    def draft(
        request: ChatCompletionRequest,
        outputs: Any,
        request_id: str,
        model: str,
        conversation: Any,
        tokenizer: Any,
        metadata: Any,
        **rest: Any,
    ) -> Any:
        _, per_chunk_usage = should_include_usage(request.stream_options, chat.enable_force_include_usage)
        logs_outputs = chat.enable_log_outputs and chat.request_logger
        is_rare = (
            request.logprobs or request.echo or request.return_token_ids or request.return_prompt_text
            or per_chunk_usage or logs_outputs
        )  # fmt: skip
        wants_deltas = OPENING.get().call.wants_deltas
        if not isinstance(outputs, Outputs) or (is_rare and not wants_deltas):
            return by_vllm(request, outputs, request_id, model, conversation, tokenizer, metadata, **rest)
        reader = _ChatReader(chat, request, tokenizer, **rest)

        def build(generation: Generation) -> CommonStream:
            created_s = int(time.time())
            return CommonStream(
                id=request_id,
                model=model,
                created_s=created_s,
                role=chat.get_chat_request_role(request),
                num_choices=request.n or 1,
                generation=generation,
                read=reader.read,
                last_chunk=lambda: reader.last_chunk(request_id, created_s, model),
                fingerprint=None if reader.include_usage else chat.system_fingerprint,
            )

        return Draft(outputs, build)

    return draft


class _ChatReader:
    """What vLLM's chat makes of an output, choice by choice; parsed for reasoning and tools where the server does."""

    def __init__(
        self,
        chat: OpenAIServingChat,
        request: ChatCompletionRequest,
        tokenizer: Any,
        chat_template_kwargs: Any = None,
        mm_token_counts: Any = None,
    ) -> None:
        num_choices = request.n or 1
        self._chat = chat
        self._request = request
        self._mm_token_counts = mm_token_counts
        self._parsers: list[Parser | None] = [None] * num_choices
        if chat.parser_cls is not None:
            self._parsers = [chat._make_parser(request, tokenizer, chat_template_kwargs) for _ in range(num_choices)]
        self._names_tool = isinstance(request.tool_choice, ChatCompletionNamedToolChoiceParam)
        self._called_tools = [False] * num_choices
        self._num_tokens = [0] * num_choices
        # To count those of them that were reasoning, which vLLM does at the end.
        self._token_ids: list[list[int]] = [[] for _ in range(num_choices)]
        self._has_ended = [False] * num_choices
        self._last: RequestOutput | None = None
        self._prompt_token_ids: Sequence[int] | None = None
        self._num_prompt_tokens = 0
        self._num_cached: tuple[int | None, int | None] = (None, None)
        self.include_usage, _ = should_include_usage(request.stream_options, chat.enable_force_include_usage)

    def read(self, delta: Delta) -> list[ChoiceDelta]:
        result: RequestOutput | None = delta.raw
        if result is None:
            message = self._message(0, delta.text, delta.token_ids, False)
            return [] if message is None else [ChoiceDelta(0, message)]
        if self._last is None:
            self._num_cached = (result.num_cached_tokens, result.num_cache_creation_tokens)
        self._last = result
        if result.prompt_token_ids is not None:
            self._prompt_token_ids = result.prompt_token_ids
            self._num_prompt_tokens = len(result.prompt_token_ids) + len(result.encoder_prompt_token_ids or ())
        choices = []
        for output in result.outputs:
            index = output.index
            if self._has_ended[index] or not (output.text or output.token_ids or self._num_tokens[index]):
                continue
            finish_reason = None if output.finish_reason in DROPPED else output.finish_reason
            message = self._message(index, output.text, output.token_ids, finish_reason is not None)
            if message is None:
                if finish_reason is None:
                    continue
                message = {}
            if finish_reason is not None:
                self._has_ended[index] = True
                if self._called_tools[index] and not self._names_tool and finish_reason == "stop":
                    finish_reason = "tool_calls"
            choices.append(ChoiceDelta(index, message, finish_reason, output.stop_reason))
        return choices

    def _message(self, index: int, text: str, token_ids: Sequence[int], finished: bool) -> Json | None:
        self._num_tokens[index] += len(token_ids)
        parser = self._parsers[index]
        if parser is None:
            return {"content": text}
        if self._chat._include_reasoning_tokens_details:
            self._token_ids[index].extend(token_ids)
        message = parser.parse_delta(
            delta_text=text,
            delta_token_ids=as_list(token_ids),
            request=self._request,
            prompt_token_ids=self._prompt_token_ids,
            finished=finished,
        )
        if message is None:
            return None
        self._called_tools[index] |= bool(message.tool_calls)
        message = maybe_filter_parallel_tool_calls(message, self._request)
        return dict(message.model_dump(exclude_unset=True))

    def last_chunk(self, id: str, created_s: int, model: str) -> Json | None:
        """The chunk with the usage, which vLLM sends after the last choice has ended, where it was asked for."""
        if not self.include_usage:
            return None
        chat = self._chat
        num_output_tokens = sum(self._num_tokens)
        usage = UsageInfo(
            prompt_tokens=self._num_prompt_tokens,
            completion_tokens=num_output_tokens,
            total_tokens=self._num_prompt_tokens + num_output_tokens,
        )
        if chat._include_reasoning_tokens_details:
            pairs = zip(self._parsers, self._token_ids, strict=True)
            num_reasoning = sum(parser.count_reasoning_tokens(tuple(ids)) for parser, ids in pairs if parser and ids)
            usage.completion_tokens_details = _make_completion_tokens_details(num_reasoning)
        usage.prompt_tokens_details = _make_prompt_tokens_details(
            chat.enable_prompt_tokens_details, *self._num_cached, self._mm_token_counts
        )
        chunk = ChatCompletionStreamResponse(
            id=id,
            object="chat.completion.chunk",
            created=created_s,
            choices=[],
            model=model,
            usage=usage,
            system_fingerprint=chat.system_fingerprint,
            metrics=_metrics(chat, self._last, num_output_tokens) if (self._request.n or 1) == 1 else None,
        )
        return dict(chunk.model_dump(mode="json", exclude_unset=True, exclude_none=True))


def _metrics(serving: Any, last: RequestOutput | None, num_output_tokens: int) -> Any:
    """What vLLM tells of one generation's times, with `--enable-per-request-metrics`, and of its speculations."""
    metrics = None
    if serving.enable_per_request_metrics:
        metrics = build_per_request_timing_metrics(last.metrics if last else None, num_output_tokens)
    if (speculations := build_spec_decoding_metrics(last)) is not None:
        metrics = metrics or build_per_request_timing_metrics(None, 0)
        metrics.speculative_decoding = speculations
    return metrics


def completion_drafter(completions: OpenAIServingCompletion) -> Callable[..., Any]:
    """What stands in for `OpenAIServingCompletion.completion_stream_generator`, as `chat_drafter` for chats."""
    by_vllm = completions.completion_stream_generator

    def draft(
        request: CompletionRequest,
        engine_inputs: Any,
        merged: Any,
        request_id: str,
        created_s: int,
        model: str,
        num_prompts: int,
        tokenizer: Any,
        request_metadata: Any,
    ) -> Any:
        include_usage, per_chunk_usage = should_include_usage(
            request.stream_options, completions.enable_force_include_usage
        )
        outputs, wants_deltas = OPENING.get().outputs, OPENING.get().call.wants_deltas
        is_rare = request.logprobs is not None or request.echo or request.return_token_ids or per_chunk_usage
        if num_prompts != 1 or len(outputs) != 1 or (is_rare and not wants_deltas):
            return by_vllm(
                request, engine_inputs, merged, request_id, created_s, model, num_prompts, tokenizer, request_metadata
            )
        reader = _CompletionReader(completions, request.n or 1)

        def build(generation: Generation) -> CommonStream:
            return CommonStream(
                id=request_id,
                model=model,
                created_s=created_s,
                role=None,
                num_choices=request.n or 1,
                generation=generation,
                read=reader.read,
                last_chunk=lambda: reader.last_chunk(request_id, created_s, model) if include_usage else None,
                fingerprint=None if include_usage else completions.system_fingerprint,
            )

        return Draft(outputs[0], build)

    return draft


class _CompletionReader:
    """What vLLM's completions make of an output, choice by choice."""

    def __init__(self, completions: OpenAIServingCompletion, num_choices: int) -> None:
        self._completions = completions
        self._num_tokens = [0] * num_choices
        self._last: RequestOutput | None = None
        self._num_prompt_tokens = 0
        self._num_cached: int | None = None

    def read(self, delta: Delta) -> list[ChoiceDelta]:
        result: RequestOutput | None = delta.raw
        if result is None:
            self._num_tokens[0] += len(delta.token_ids)
            return [ChoiceDelta(0, {"content": delta.text})]
        if self._last is None:
            self._num_cached = result.num_cached_tokens
        self._last = result
        if result.prompt_token_ids is not None:
            self._num_prompt_tokens = len(result.prompt_token_ids)
        choices = []
        for output in result.outputs:
            if not (output.text or output.token_ids or self._num_tokens[output.index]):
                continue
            self._num_tokens[output.index] += len(output.token_ids)
            finish_reason = None if output.finish_reason in DROPPED else output.finish_reason
            choices.append(ChoiceDelta(output.index, {"content": output.text}, finish_reason, output.stop_reason))
        return choices

    def last_chunk(self, id: str, created_s: int, model: str) -> Json:
        num_output_tokens = sum(self._num_tokens)
        usage = UsageInfo(
            prompt_tokens=self._num_prompt_tokens,
            completion_tokens=num_output_tokens,
            total_tokens=self._num_prompt_tokens + num_output_tokens,
        )
        if self._completions.enable_prompt_tokens_details and self._num_cached is not None:
            usage.prompt_tokens_details = PromptTokenUsageInfo(cached_tokens=self._num_cached)
        chunk = CompletionStreamResponse(
            id=id,
            created=created_s,
            model=model,
            choices=[],
            usage=usage,
            system_fingerprint=self._completions.system_fingerprint,
            metrics=_metrics(self._completions, self._last, num_output_tokens) if len(self._num_tokens) == 1 else None,
        )
        return dict(chunk.model_dump(mode="json", exclude_unset=False, exclude_none=True))
