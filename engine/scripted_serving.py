"""Chats and completions from the scripted engine: enough of OpenAI's words to try clients, proxies and dashboards.

Whatever is asked, the script is said. What it cannot do, it refuses by name.
"""

import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

from engine.call import Call
from engine.errors import InvalidRequest, ModelNotFound, NotFound
from engine.generation import Generation
from engine.interface import Delta, GenerationRequest, Sampling
from engine.serving import Answer, ChoiceDelta, CommonStream, Json, ModelCard, Plain, Surface

# Asking for one of these and not getting it would break the one who asked.
NOT_SCRIPTED = ("logprobs", "top_logprobs", "tools", "response_format", "structured_outputs", "echo", "prompt_logprobs")


class ScriptedServing:
    def __init__(self, model: str, max_model_len: int) -> None:
        self._model = model
        self._max_model_len = max_model_len

    async def list_models(self) -> Json:
        card = {"id": self._model, "object": "model", "owned_by": "tailrace", "created": int(time.time())}
        return {"object": "list", "data": [card | {"max_model_len": self._max_model_len}]}

    def cards(self) -> Sequence[ModelCard]:
        return [ModelCard(self._model, "scripted", "none", self._max_model_len)]

    async def open(self, surface: Surface, body: Json, call: Call) -> Answer:
        if surface not in (Surface.CHAT, Surface.COMPLETIONS):
            raise NotFound("the scripted engine serves no such address; start with a model for that")
        is_chat = surface is Surface.CHAT
        request = self._read(body, is_chat, call.num_bytes)
        generation = await call.admit(request)
        prefix = "chatcmpl" if is_chat else "cmpl"
        id, created_s = f"{prefix}-{secrets.token_hex(16)}", int(time.time())
        if not body.get("stream"):
            return Plain(200, await self._whole(generation, is_chat, id, created_s))
        head = {"id": id, "created": created_s, "model": self._model}
        wants_usage = bool((body.get("stream_options") or {}).get("include_usage"))
        kind = "chat.completion.chunk" if is_chat else "text_completion"
        return CommonStream(
            id=id,
            model=self._model,
            created_s=created_s,
            role="assistant" if is_chat else None,
            num_choices=1,
            generation=generation,
            read=_read_delta,
            last_chunk=lambda: (
                head | {"object": kind, "choices": [], "usage": _usage(generation)} if wants_usage else None
            ),
        )

    def _read(self, body: Json, is_chat: bool, num_bytes: int) -> GenerationRequest:
        if body.get("model") not in (None, self._model):
            raise ModelNotFound("this server does not serve that model", param="model")
        for name in NOT_SCRIPTED:
            if body.get(name):
                raise InvalidRequest(f"{name}: the scripted engine cannot do that", param=name)
        if body.get("n") not in (None, 1):
            raise InvalidRequest("n: the scripted engine makes one choice", param="n")
        sampling = Sampling(max_tokens=_max_tokens(body))
        if not is_chat:
            prompt = body.get("prompt")
            if not isinstance(prompt, str) or not prompt:
                raise InvalidRequest("prompt must be a text", param="prompt")
            return GenerationRequest(prompt=prompt, sampling=sampling, num_bytes=num_bytes)
        messages = body.get("messages")
        if not isinstance(messages, list) or not messages or not all(isinstance(one, dict) for one in messages):
            raise InvalidRequest("messages must be a list of objects", param="messages")
        return GenerationRequest(messages=messages, prompt_field="messages", sampling=sampling, num_bytes=num_bytes)

    async def _whole(self, generation: Generation, is_chat: bool, id: str, created_s: int) -> Json:
        text = "".join([delta.text async for delta in generation])
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": generation.finish_reason}
        choice |= {"message": {"role": "assistant", "content": text}} if is_chat else {"text": text}
        return {
            "id": id,
            "object": "chat.completion" if is_chat else "text_completion",
            "created": created_s,
            "model": self._model,
            "choices": [choice],
            "usage": _usage(generation),
        }


def _max_tokens(body: Json) -> int | None:
    for name in ("max_completion_tokens", "max_tokens"):
        if (value := body.get(name)) is not None:
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise InvalidRequest(f"{name} must be an integer of at least 1", param=name)
            return value
    return None


def _read_delta(delta: Delta) -> list[ChoiceDelta]:
    return [ChoiceDelta(0, {"content": delta.text}, delta.finish_reason)]


def _usage(generation: Generation) -> Mapping[str, int]:
    num_prompt, num_output = generation.num_prompt_tokens, generation.num_output_tokens
    return {"prompt_tokens": num_prompt, "completion_tokens": num_output, "total_tokens": num_prompt + num_output}
