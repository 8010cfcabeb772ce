"""vLLM's own serving classes over this process's engine: templates, tools, reasoning parsers, structured output,
logprobs, LoRA and validation are theirs.

Two things are ours. The engine that those classes see hands each generation to the `Call` that it belongs to, so that
it is admitted, drained and aborted like every other one. And a streamed chat or completion that asks for nothing out of
the ordinary is handed out as deltas (`CommonStream`), not as the text that vLLM would make of each.
"""

import logging
import os
from argparse import Namespace
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self, TypeAlias, TypeVar

from jinja2 import TemplateError
from pydantic import BaseModel, ValidationError
from starlette.datastructures import Headers, State
from vllm import envs
from vllm.entrypoints.anthropic.protocol import AnthropicCountTokensRequest, AnthropicMessagesRequest
from vllm.entrypoints.launchers.api_server.app_state import init_app_state
from vllm.entrypoints.openai.chat_completion.protocol import (
    ChatCompletionRequest,
)
from vllm.entrypoints.openai.chat_completion.serving import (
    OpenAIServingChat,
)
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.openai.completion.serving import OpenAIServingCompletion
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.entrypoints.serve.engine.protocol import ErrorResponse
from vllm.entrypoints.serve.exception_handling.error_response import create_error_response
from vllm.entrypoints.serve.tokenize.protocol import (
    DetokenizeRequest,
    TokenizeChatRequest,
    TokenizeCompletionRequest,
)
from vllm.exceptions import VLLMError
from vllm.utils.collection_utils import as_list
from vllm.v1.engine.async_llm import AsyncLLM

from engine.call import Call
from engine.errors import ContextLength, Internal, InvalidRequest, ModelNotFound, TailraceError
from engine.interface import Delta
from engine.serving import Answer, Json, ModelCard, Plain, RawEvents, Surface
from engine.vllm.calling import OPENING, CallingLLM, Draft, Opening
from engine.vllm.drafts import chat_drafter, completion_drafter
from engine.vllm.errors import explain_validation, from_vllm
from engine.vllm.off_loop import OffLoop, render_small_at_once
from engine.vllm.source import ReadReasoning

# What vLLM's layer raises when the request is at fault: its own errors, and Python's, which it has not replaced yet.
CLIENT_FAULTS = (VLLMError, ValueError, TypeError, OverflowError, NotImplementedError, TemplateError)

# vLLM quotes what it could not read, however long that is.
MAX_SENTENCE_CHARS = 800

T = TypeVar("T")

OpenAIRequest: TypeAlias = CompletionRequest | ChatCompletionRequest


class VllmServing:
    """Made by `create`, because vLLM's classes take an event loop to make."""

    def __init__(self, llm: AsyncLLM, args: Namespace, state: State, off_loop: OffLoop) -> None:
        self._llm = llm
        self._args = args
        self._state = state
        self._off_loop = off_loop
        self.chat: OpenAIServingChat = state.openai_serving_chat
        self.completions: OpenAIServingCompletion = state.openai_serving_completion
        self._take_over()

    @classmethod
    async def create(cls, llm: AsyncLLM, args: Namespace, off_loop: OffLoop) -> Self:
        """Build vLLM's serving classes; loads the LoRA adapters that the command line names."""
        state = State()
        await init_app_state(CallingLLM(llm), state, args, await llm.get_supported_tasks())
        render_small_at_once(llm.renderer, with_templates=not args.trust_request_chat_template)
        return cls(llm, args, state, off_loop)

    def _take_over(self) -> None:
        """The four places where vLLM's objects do as we want. They are attributes of the instances, set here alone."""
        chat, completions = self.chat, self.completions
        chat.chat_completion_stream_generator = chat_drafter(chat)
        completions.completion_stream_generator = completion_drafter(completions)
        for holder, name in (
            (chat, "render_chat_request"),
            (self._state.anthropic_serving_messages, "render_chat_request"),
            (completions, "render_completion_request"),
            (self._state.openai_serving_responses, "_render_resolved_response_inputs"),
        ):
            setattr(holder, name, self._beside(getattr(holder, name)))
        if os.environ.get("VLLM_LOGGING_LEVEL") == "ERROR":
            # It logs names of models that clients send, and a traceback for every stream that an engine's death cuts.
            logging.getLogger("vllm.entrypoints").setLevel(logging.CRITICAL)

    def _beside(self, render: Callable[..., Awaitable[T]]) -> Callable[..., Awaitable[T]]:
        async def render_beside(*args: Any, **kwargs: Any) -> T:
            return await self._off_loop.run(OPENING.get().call.num_bytes, lambda: render(*args, **kwargs))

        return render_beside

    def adapter_of(self, request: OpenAIRequest) -> Any:
        """The LoRA adapter that the request's model names; None for the base model.

        Raises:
            ModelNotFound
        """
        adapter = self.chat.models.lora_requests.get(request.model)
        if adapter is None and not self.chat.models.is_base_model(request.model):
            raise ModelNotFound("this server does not serve that model", param="model")
        return adapter

    async def render(self, request: OpenAIRequest) -> Any:
        """Template and tokenise, in vLLM's own threads.

        Raises:
            InvalidRequest, and whatever vLLM raises.
        """
        renderer = self._state.online_renderer
        if isinstance(request, CompletionRequest):
            rendered = await renderer.render_completion(request)
        else:
            rendered = await renderer.render_chat(request)
            if isinstance(rendered, tuple):
                _, rendered = rendered
        if isinstance(rendered, ErrorResponse):
            raise InvalidRequest(rendered.error.message, param=rendered.error.param)
        return rendered[0]

    def reasoning_of(
        self, request: ChatCompletionRequest, prompt_token_ids: Sequence[int]
    ) -> tuple[dict[str, Any], ReadReasoning | None]:
        """What the engine has to know of this request's reasoning, and how to tell it in the outputs.

        Nothing, and None, where the server has no `--reasoning-parser`.
        """
        chat = self.chat
        if chat.parser_cls is None:
            return {}, None
        kwargs = chat._effective_chat_template_kwargs(request)
        parser = chat._make_parser(request, chat.renderer.tokenizer, kwargs)
        if parser.reasoning_parser is None:
            return {}, None

        def read(delta: Delta) -> Delta:
            message = parser.parse_delta(
                delta_text=delta.text,
                delta_token_ids=as_list(delta.token_ids),
                request=request,
                prompt_token_ids=prompt_token_ids,
                finished=delta.finish_reason is not None,
            )
            text, reasoning = (message.content or "", message.reasoning or "") if message else ("", "")
            return Delta(text, delta.token_ids, delta.finish_reason, reasoning, delta.raw)

        options = chat._engine_reasoning_kwargs(request, parser, kwargs, list(prompt_token_ids))
        return options, read

    async def list_models(self) -> Json:
        models = await self._state.openai_serving_models.show_available_models()
        return dict(models.model_dump())

    def cards(self) -> Sequence[ModelCard]:
        config = self._llm.model_config
        base = self._state.openai_serving_models.base_model_paths
        adapters = self._state.openai_serving_models.lora_requests.values()
        base_card = ModelCard(
            base[0].name,
            family=str(config.hf_config.model_type),
            dtype=str(config.dtype).removeprefix("torch."),
            max_model_len=int(config.max_model_len),
            num_bytes=_num_bytes(Path(config.model)),
            thinks=bool(self._args.structured_outputs_config.reasoning_parser),
            calls_tools=bool(self._args.enable_auto_tool_choice),
        )
        cards = [replace(base_card, name=one.name) for one in base]
        return cards + [replace(base_card, name=one.lora_name, parent=base[0].name) for one in adapters]

    async def open(self, surface: Surface, body: Json, call: Call) -> Answer:
        opening = Opening(call)
        OPENING.set(opening)
        try:
            return await self._open(surface, body, opening)
        except ValidationError as error:
            param, message = explain_validation(error)
            return _refusal(surface, 400, "Bad Request", message, param)
        except TailraceError as error:
            if error.status < 500 and isinstance(error.__cause__, CLIENT_FAULTS):
                return _error(surface, create_error_response(error.__cause__))
            raise
        except CLIENT_FAULTS as error:
            if call.failure is not None:
                raise call.failure from error
            response = create_error_response(error)
            if _is_fault(response):
                raise from_vllm(error) from error
            return _error(surface, response)

    async def _open(self, surface: Surface, body: Json, opening: Opening) -> Answer:
        call = opening.call
        request = await self._validate(surface, body, call.num_bytes)
        raw = SimpleNamespace(headers=Headers(dict(call.headers)), state=State())
        result = await self._answer(surface, request, raw, call.num_bytes)
        if isinstance(result, ErrorResponse):
            return _error(surface, result)
        if isinstance(result, BaseModel):
            by_alias = surface is Surface.RESPONSES
            exclude_none = surface in (Surface.MESSAGES, Surface.COUNT_TOKENS)
            return Plain(200, result.model_dump(mode="json", by_alias=by_alias, exclude_none=exclude_none))
        if isinstance(result, Draft):
            return result.build(await result.outputs.submit(needs_raw=False))
        for outputs in opening.outputs:
            await outputs.submit()
        return RawEvents(_response_events(result) if surface is Surface.RESPONSES else result)

    async def _validate(self, surface: Surface, body: Json, num_bytes: int) -> Any:
        self._refuse_endless(body)
        self._refuse_misshapen(body)
        if body.get("background"):
            raise InvalidRequest("background responses are not supported here", param="background")

        async def validate() -> Any:
            return REQUESTS[surface](body).model_validate(body)

        return await self._off_loop.run(num_bytes, validate)

    def _refuse_misshapen(self, body: Json) -> None:
        """What vLLM would stumble over before it could name the field."""
        for name in ("messages", "tools"):
            value = body.get(name)
            if value is not None and not (isinstance(value, list) and all(isinstance(one, dict) for one in value)):
                raise InvalidRequest(f"{name} must be a list of objects", param=name)
        num_choices = body.get("n")
        if isinstance(num_choices, int) and num_choices > envs.VLLM_MAX_N_SEQUENCES:
            # Before vLLM asks whether there is room for so many now.
            raise InvalidRequest(f"n must be at most {envs.VLLM_MAX_N_SEQUENCES}", param="n")
        if not isinstance(body.get("stream_options") or {}, dict):
            raise InvalidRequest("stream_options must be an object", param="stream_options")

    def _refuse_endless(self, body: Json) -> None:
        for name in ("messages", "prompt", "input", "tokens"):
            refuse_endless(name, body.get(name), self._llm.model_config.max_model_len)

    async def _answer(self, surface: Surface, request: Any, raw: Any, num_bytes: int) -> Any:
        state = self._state
        match surface:
            case Surface.CHAT:
                return await self.chat.create_chat_completion(request, raw)
            case Surface.COMPLETIONS:
                return await self.completions.create_completion(request, raw)
            case Surface.RESPONSES:
                return await state.openai_serving_responses.create_responses(request, raw)
            case Surface.MESSAGES:
                return await state.anthropic_serving_messages.create_messages(request, raw)
            case Surface.COUNT_TOKENS:
                return await state.anthropic_serving_messages.count_tokens(request, raw)
            case Surface.TOKENIZE:
                tokenization = state.serving_tokenization
                return await self._off_loop.run(num_bytes, lambda: tokenization.create_tokenize(request, raw))
            case Surface.DETOKENIZE:
                tokenization = state.serving_tokenization
                return await self._off_loop.run(num_bytes, lambda: tokenization.create_detokenize(request, raw))


REQUESTS: Mapping[Surface, Callable[[Json], type[BaseModel]]] = {
    Surface.CHAT: lambda body: ChatCompletionRequest,
    Surface.COMPLETIONS: lambda body: CompletionRequest,
    Surface.RESPONSES: lambda body: ResponsesRequest,
    Surface.MESSAGES: lambda body: AnthropicMessagesRequest,
    Surface.COUNT_TOKENS: lambda body: AnthropicCountTokensRequest,
    Surface.TOKENIZE: lambda body: TokenizeChatRequest if "messages" in body else TokenizeCompletionRequest,
    Surface.DETOKENIZE: lambda body: DetokenizeRequest,
}


def refuse_endless(name: str, value: object, max_model_len: int) -> None:
    """What has more parts than the context has tokens cannot fit, whatever the parts are; do not look at them.

    Raises:
        ContextLength
    """
    if not isinstance(value, list):
        return
    contents = (part.get("content") for part in value if isinstance(part, dict))
    num_parts = len(value) + sum(len(parts) for parts in contents if isinstance(parts, list))
    if num_parts > max_model_len:
        raise ContextLength(
            f"{name} has {num_parts} parts; this model's context has {max_model_len} tokens", param=name
        )


def _num_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("*.safetensors")) if folder.is_dir() else 0


def _refusal(surface: Surface, status: int, type: str, message: str, param: str | None) -> Plain:
    if surface in (Surface.MESSAGES, Surface.COUNT_TOKENS):
        return Plain(status, {"type": "error", "error": {"type": type, "message": message}})
    return Plain(status, {"error": {"message": message, "type": type, "param": param, "code": status}})


def _is_fault(response: ErrorResponse) -> bool:
    return bool(response.error.code >= 500 and response.error.code != HTTPStatus.NOT_IMPLEMENTED)


def _error(surface: Surface, response: ErrorResponse) -> Plain:
    """A refusal as vLLM words it.

    Raises:
        Internal: it is not the caller's fault; vLLM words that with its own insides.
    """
    error = response.error
    if _is_fault(response):
        raise Internal("the engine failed on this request")
    return _refusal(surface, error.code, error.type, error.message[:MAX_SENTENCE_CHARS], error.param)


async def _response_events(events: AsyncIterator[Any]) -> AsyncIterator[str]:
    async for event in events:
        name = getattr(event, "type", "unknown")
        yield f"event: {name}\ndata: {event.model_dump_json(indent=None, by_alias=True)}\n\n"
