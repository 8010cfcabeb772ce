"""Ollama's words to OpenAI's, and back; pure.

Requests become bodies for the engine's own serving layer, deltas become lines. `docs/clients.md` lists what is taken
and what is left alone.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import orjson

from engine.errors import InvalidRequest
from engine.serving import ChoiceDelta, Json, ModelCard, Surface

# The Ollama whose API is spoken here; some clients ask before they ask anything else.
VERSION = "0.12.0"

# Ollama's name of an option to vLLM's.
OPTIONS = {
    "num_predict": "max_tokens",
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "seed": "seed",
    "stop": "stop",
    "repeat_penalty": "repetition_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
}

# Options that say how Ollama is to load a model, which is loaded already, or that vLLM has nothing like.
WITHOUT_EFFECT = frozenset({
    "num_ctx", "num_batch", "num_gpu", "main_gpu", "num_thread", "num_keep", "numa", "low_vram", "f16_kv", "logits_all",
    "vocab_only", "use_mmap", "use_mlock", "embedding_only", "repeat_last_n", "penalize_newline", "tfs_z", "typical_p",
    "mirostat", "mirostat_tau", "mirostat_eta",
})  # fmt: skip

# Ollama's word for a model's only version.
LATEST = ":latest"

FAR_FUTURE = "2318-01-01T00:00:00Z"


@dataclass(frozen=True, slots=True)
class Wanted:
    """A request of Ollama's. `body` is None when it asks for nothing but that the model be loaded, or unloaded."""

    is_chat: bool
    surface: Surface
    body: dict[str, Any] | None
    streams: bool
    load_word: str = "load"


def name_of(fields: Json, names: Sequence[str]) -> str:
    """The served name that a request's `model` means.

    Raises:
        InvalidRequest: there is none. Whether it is served is for the engine to say.
    """
    name = fields.get("model") or fields.get("name")
    if not isinstance(name, str):
        raise InvalidRequest("model is required", param="model")
    return name if name in names else name.removesuffix(LATEST)


def chat_request(fields: Json, card: ModelCard) -> Wanted:
    """`/api/chat`."""
    messages = fields.get("messages")
    if not messages:
        return Wanted(True, Surface.CHAT, None, _streams(fields), _load_word(fields))
    if not isinstance(messages, list) or not all(isinstance(one, dict) for one in messages):
        raise InvalidRequest("messages must be a list of objects", param="messages")
    body = _common(fields, card) | {"messages": _messages(messages)}
    if fields.get("tools"):
        body["tools"] = fields["tools"]
        body["tool_choice"] = "auto"
    return Wanted(True, Surface.CHAT, body, _streams(fields))


def generate_request(fields: Json, card: ModelCard) -> Wanted:
    """`/api/generate`: one turn through the chat template, or with `raw` the prompt as it is."""
    for name in ("suffix", "template", "context"):
        if fields.get(name):
            raise InvalidRequest(f"{name} is not supported", param=name)
    prompt = fields.get("prompt") or ""
    if not isinstance(prompt, str):
        raise InvalidRequest("prompt must be a string", param="prompt")
    if not prompt:
        return Wanted(False, Surface.CHAT, None, _streams(fields), _load_word(fields))
    if fields.get("raw"):
        return Wanted(False, Surface.COMPLETIONS, _common(fields, card) | {"prompt": prompt}, _streams(fields))
    messages = [{"role": "user", "content": prompt, "images": fields.get("images")}]
    if fields.get("system"):
        messages.insert(0, {"role": "system", "content": fields["system"]})
    body = _common(fields, card) | {"messages": _messages(messages)}
    return Wanted(False, Surface.CHAT, body, _streams(fields))


def _streams(fields: Json) -> bool:
    return fields.get("stream") is not False


def _load_word(fields: Json) -> str:
    return "unload" if fields.get("keep_alive") in (0, "0", "0s") else "load"


def _common(fields: Json, card: ModelCard) -> dict[str, Any]:
    if fields.get("logprobs"):
        raise InvalidRequest("logprobs is not supported", param="logprobs")
    body: dict[str, Any] = {"model": card.name, "stream": True} | _sampling(fields.get("options") or {})
    if wanted := fields.get("format"):
        body["response_format"] = _response_format(wanted)
    if (thinks := fields.get("think")) is not None:
        if thinks and not card.thinks:
            raise InvalidRequest(f"{card.name} does not support thinking", param="think")
        if card.thinks:
            body["chat_template_kwargs"] = {"enable_thinking": bool(thinks), "thinking": bool(thinks)}
            body["include_reasoning"] = bool(thinks)
    return body


def _sampling(options: object) -> dict[str, Any]:
    if not isinstance(options, dict):
        raise InvalidRequest("options must be an object", param="options")
    sampling = {}
    for name, value in options.items():
        if name in WITHOUT_EFFECT or value is None:
            continue
        if name not in OPTIONS:
            raise InvalidRequest(f"unknown option: options.{shown_name(name)}", param="options")
        if name == "num_predict" and isinstance(value, int) and value <= 0:
            continue  # Ollama's way to say: as many as there may be
        if name == "seed" and value == -1:
            continue
        sampling[OPTIONS[name]] = value
    return sampling


def shown_name(name: str) -> str:
    """A client's own word, short and printable, for an error that must name it."""
    return re.sub(r"[^\w.:/-]", "?", name[:64])


def _response_format(wanted: object) -> Json:
    if wanted == "json":
        return {"type": "json_object"}
    if isinstance(wanted, dict):
        return {"type": "json_schema", "json_schema": {"name": "format", "schema": wanted, "strict": True}}
    raise InvalidRequest('format must be "json" or a JSON schema', param="format")


def _messages(messages: Sequence[Json]) -> list[dict[str, Any]]:
    """Ollama knows a tool's call by the tool's name, OpenAI by an id."""
    called: dict[str, str] = {}
    result = []
    for number, message in enumerate(messages):
        role = message.get("role")
        turn: dict[str, Any] = {"role": role, "content": _content(message)}
        if message.get("thinking"):
            turn["reasoning"] = message["thinking"]
        if calls := message.get("tool_calls"):
            turn["tool_calls"] = [_call(call, f"call_{number}_{index}", called) for index, call in enumerate(calls)]
        if role == "tool":
            name = message.get("tool_name") or message.get("name")
            turn["tool_call_id"] = called.get(str(name), "call_0_0")
        result.append(turn)
    return result


def _content(message: Json) -> object:
    content, images = message.get("content") or "", message.get("images")
    if not images:
        return content
    if not isinstance(images, list) or not all(isinstance(image, str) for image in images):
        raise InvalidRequest("images must be a list of base64 strings", param="images")
    urls = [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{image}"}} for image in images]
    return [{"type": "text", "text": content}, *urls]


def _call(call: object, id: str, called: dict[str, str]) -> Json:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise InvalidRequest("messages: a tool call must have a function with a name", param="messages")
    called[function["name"]] = id
    arguments = json.dumps(function.get("arguments") or {}, ensure_ascii=False)
    return {"id": id, "type": "function", "function": {"name": function["name"], "arguments": arguments}}


def in_ollamas_words(message: str) -> str:
    """An error that names a field of vLLM's names Ollama's."""
    for theirs, ours in OPTIONS.items():
        message = re.sub(rf"\b{ours}\b", f"options.{theirs}", message)
    return message


@dataclass(slots=True)
class Lines:
    """The lines of one answer. Tool calls are told whole, in the line before the last."""

    model: str
    is_chat: bool
    _tool_calls: dict[int, dict[str, str]] = field(default_factory=dict)

    def delta(self, choices: Sequence[ChoiceDelta]) -> bytes:
        """A line for what the choices say; empty when that is nothing that can be told yet."""
        content, thinking = said_in(choices)
        for choice in choices:
            self.collect(choice.message.get("tool_calls") or ())
        return _line(self._head() | self._said(content, thinking) | {"done": False}) if content or thinking else b""

    def collect(self, calls: Sequence[Json]) -> None:
        """Put the pieces of tool calls together."""
        for call in calls:
            known = self._tool_calls.setdefault(call.get("index", 0), {"name": "", "arguments": ""})
            function = call.get("function") or {}
            for name in known:
                known[name] += function.get(name) or ""

    def done(self, reason: str, counts: Json) -> bytes:
        """The last line, and before it one with the tools that were called."""
        calls = b""
        if self._tool_calls:
            calls = _line(self._head() | self._said("", "", with_calls=True) | {"done": False})
            self._tool_calls = {}
        return calls + _line(self.whole(reason, counts))

    def whole(self, reason: str, counts: Json, content: str = "", thinking: str = "") -> dict[str, Any]:
        """An answer that is not streamed; with neither text, what the last line says."""
        said = self._said(content, thinking, with_calls=True)
        return self._head() | said | {"done": True, "done_reason": reason, **counts}

    def _said(self, content: str, thinking: str, with_calls: bool = False) -> dict[str, Any]:
        said: dict[str, Any] = {"thinking": thinking} if thinking else {}
        if not self.is_chat:
            return {"response": content} | said
        if with_calls and self._tool_calls:
            said["tool_calls"] = [
                {"function": {"name": call["name"], "arguments": _object(call["arguments"])}}
                for call in self._tool_calls.values()
            ]
        return {"message": {"role": "assistant", "content": content} | said}

    def _head(self) -> dict[str, Any]:
        return {"model": self.model, "created_at": now()}


def said_in(choices: Sequence[ChoiceDelta]) -> tuple[str, str]:
    """The answer's text, and what was thought."""
    content = "".join(choice.message.get("content") or "" for choice in choices)
    return content, "".join(choice.message.get("reasoning") or "" for choice in choices)


def _line(fields: Json) -> bytes:
    return orjson.dumps(fields) + b"\n"


def error_line(message: str) -> bytes:
    return _line({"error": message})


def _object(text: str) -> object:
    """A tool's arguments, as an object; what is no JSON stays text, rather than be lost."""
    try:
        return json.loads(text or "{}")
    except ValueError:
        return {"arguments": text}


def done_reason(finish_reason: str | None) -> str:
    return "length" if finish_reason == "length" else "stop"


def now() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


def listed(card: ModelCard, started_at: str) -> dict[str, Any]:
    """A model in `/api/tags`."""
    return {
        "name": card.name,
        "model": card.name,
        "modified_at": started_at,
        "size": card.num_bytes,
        "digest": hashlib.sha256(card.name.encode()).hexdigest(),
        "details": details(card),
    }


def running(card: ModelCard, started_at: str) -> dict[str, Any]:
    """A model in `/api/ps`. One that is served stays loaded."""
    about = {"expires_at": FAR_FUTURE, "size_vram": card.num_bytes, "context_length": card.max_model_len}
    return {**listed(card, started_at), **about}


def shown(card: ModelCard, started_at: str) -> dict[str, Any]:
    """A model in `/api/show`."""
    capabilities = ["completion", *["tools"] * card.calls_tools, *["thinking"] * card.thinks]
    return {
        "modelfile": f"FROM {card.name}",
        "parameters": "",
        "template": "",
        "details": details(card),
        "model_info": {
            "general.architecture": card.family,
            f"{card.family}.context_length": card.max_model_len,
        },
        "capabilities": capabilities,
        "modified_at": started_at,
    }


def details(card: ModelCard) -> Mapping[str, Any]:
    return {
        "parent_model": card.parent or "",
        "format": "safetensors",
        "family": card.family,
        "families": [card.family],
        "parameter_size": "",
        "quantization_level": card.dtype,
    }
