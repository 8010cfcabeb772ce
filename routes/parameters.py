"""Query strings and JSON bodies to a `GenerationRequest`; pure.

Here the shape is checked: names, types, finite numbers, valid UTF-8. Ranges are vLLM's to judge. Every error names the
field. Nothing is accepted and ignored: an unknown name is an error.
"""

import math
import re
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import unquote_to_bytes

import orjson

from engine.errors import InvalidRequest, UriTooLong
from engine.interface import GenerationRequest, Sampling

# Proxies stop well before this (nginx at 8 KiB a line by default), and uvicorn's parser at 64 KiB.
MAX_QUERY_BYTES = 32 << 10

# A query of this many fields is no request. Bounds the time spent on it.
MAX_QUERY_FIELDS = 64

# Parsing cannot be interrupted, and what it costs is objects. 8 MiB of empty lists stopped the event loop for 0.5 s and
# more; of anything with fewer brackets, for 0.2 s. Counted in strings too, which is why there are so many: a prompt
# with more of them is longer than any model's context.
MAX_BRACKETS = 250_000

MAX_INT = 2**63 - 1


def _integer(name: str, value: object) -> int:
    if isinstance(value, str):
        if not re.fullmatch(r"[+-]?[0-9]{1,19}", value):
            raise InvalidRequest(f"{name} must be an integer", param=name)
        value = int(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidRequest(f"{name} must be an integer", param=name)
    if not -MAX_INT <= value <= MAX_INT:
        raise InvalidRequest(f"{name} must fit in 64 bits", param=name)
    return value


def _number(name: str, value: object) -> float:
    if isinstance(value, str):
        if not re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?", value):
            raise InvalidRequest(f"{name} must be a number", param=name)
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidRequest(f"{name} must be a number", param=name)
    if not math.isfinite(value):
        raise InvalidRequest(f"{name} must be a finite number", param=name)
    return float(value)


def _flag(name: str, value: object) -> bool:
    if isinstance(value, str):
        value = {"true": True, "1": True, "false": False, "0": False}.get(value.lower())
    if not isinstance(value, bool):
        raise InvalidRequest(f"{name} must be true or false", param=name)
    return value


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise InvalidRequest(f"{name} must be a string", param=name)
    return value


def _texts(name: str, value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise InvalidRequest(f"{name} must be a string or a list of strings", param=name)
    return tuple(value)


SAMPLING: dict[str, Callable[[str, object], object]] = {
    "max_tokens": _integer,
    "temperature": _number,
    "top_p": _number,
    "top_k": _integer,
    "min_p": _number,
    "seed": _integer,
    "stop": _texts,
    "presence_penalty": _number,
    "frequency_penalty": _number,
    "repetition_penalty": _number,
    "min_tokens": _integer,
    "ignore_eos": _flag,
}

COMMON = {"model", "priority", *SAMPLING}
QUERY_NAMES = frozenset({"prompt", "message", "system", "errors", "lastEventId", *COMMON})
BODY_NAMES = frozenset({"prompt", "messages", *COMMON})

# Of which an error in a body may say that it is in them: ours, and those of the other surfaces.
NAMES = BODY_NAMES | {
    "n", "input", "instructions", "logit_bias", "logprobs", "top_logprobs", "max_completion_tokens",
    "max_output_tokens", "options", "format", "response_format", "stop_sequences", "stream", "stream_options", "system",
    "tools", "tokens",
}  # fmt: skip

Fields = Mapping[str, Any]


def parse_query(query: bytes) -> dict[str, Any]:
    """The fields of a query string, decoded strictly. `stop` may be repeated and is always a list.

    Raises:
        UriTooLong: longer than `MAX_QUERY_BYTES`.
        InvalidRequest: not UTF-8, a name given twice, too many fields.
    """
    if len(query) > MAX_QUERY_BYTES:
        raise query_too_long()
    pairs = [pair for pair in query.split(b"&") if pair]
    if len(pairs) > MAX_QUERY_FIELDS:
        raise InvalidRequest(f"the query string has more than {MAX_QUERY_FIELDS} fields", param="stop")
    fields: dict[str, Any] = {}
    for pair in pairs:
        raw_name, _, raw_value = pair.partition(b"=")
        name = _decode("the query string", raw_name)
        value = _decode(name if name in QUERY_NAMES else "a value in the query string", raw_value)
        if name == "stop":
            fields.setdefault(name, []).append(value)
        elif name in fields:
            raise InvalidRequest(f"{_shown(name)} is given more than once", param=_shown(name))
        else:
            fields[name] = value
    return fields


def query_too_long() -> UriTooLong:
    return UriTooLong(f"the query string is longer than {MAX_QUERY_BYTES} bytes; send the request with POST")


def _decode(name: str, raw: bytes) -> str:
    try:
        return unquote_to_bytes(raw.replace(b"+", b" ")).decode()
    except UnicodeDecodeError:
        raise InvalidRequest(f"{name} is not valid UTF-8", param=name if name in QUERY_NAMES else None) from None


def parse_body(body: bytes) -> dict[str, Any]:
    """The fields of a JSON object.

    Raises:
        InvalidRequest: not JSON, not an object. orjson refuses NaN, Infinity, numbers over a double's range, lone
            surrogates, invalid UTF-8 and nesting deeper than 1,024.
    """
    if body.count(b"[") + body.count(b"{") > MAX_BRACKETS:
        raise InvalidRequest(f"the body has more than {MAX_BRACKETS} brackets and braces", param="body")
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise _broken_json(body, error) from None
    if not isinstance(fields, dict):
        raise InvalidRequest("the body must be a JSON object", param="body")
    return fields


def _broken_json(body: bytes, error: orjson.JSONDecodeError) -> InvalidRequest:
    """Name the field that the parser was in: the last `"name":` of ours before the place where it stopped."""
    try:
        before = body.decode()[: error.pos]
        reason = error.msg
    except UnicodeDecodeError as bad:
        before = body[: bad.start].decode()
        reason = "not valid UTF-8"
    names = re.findall(r'"(\w{1,32})"\s*:', before)
    name = next((name for name in reversed(names) if name in NAMES), "body")
    return InvalidRequest(f"{name}: the body is not valid JSON: {reason}", param=name)


def request_from_query(fields: Fields) -> GenerationRequest:
    """Exactly one of `prompt` and `message` (with `system` or without)."""
    _refuse_unknown(fields, QUERY_NAMES)
    if fields.get("errors", "event") != "event":
        raise InvalidRequest("errors must be event", param="errors")
    _exactly_one(fields, "prompt", "message")
    if "message" not in fields:
        if "system" in fields:
            raise InvalidRequest("system goes with message, not with prompt", param="system")
        return _request(fields, prompt=_text("prompt", fields["prompt"]))
    messages = [{"role": "user", "content": _text("message", fields["message"])}]
    if "system" in fields:
        messages.insert(0, {"role": "system", "content": _text("system", fields["system"])})
    return _request(fields, messages=messages, prompt_field="message")


def request_from_body(fields: Fields, num_bytes: int = 0) -> GenerationRequest:
    """Exactly one of `prompt` (text or token ids) and `messages`. A null is as good as absent."""
    fields = {name: value for name, value in fields.items() if value is not None}
    _refuse_unknown(fields, BODY_NAMES)
    _exactly_one(fields, "prompt", "messages")
    if "messages" in fields:
        messages = fields["messages"]
        if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
            raise InvalidRequest("messages must be a list of objects", param="messages")
        if not messages:
            raise InvalidRequest("messages must not be empty", param="messages")
        return _request(fields, messages=messages, prompt_field="messages", num_bytes=num_bytes)
    prompt = fields["prompt"]
    if isinstance(prompt, list):
        if not all(type(token) is int and 0 <= token < 2**31 for token in prompt):
            raise InvalidRequest("prompt must be a string or a list of token ids", param="prompt")
        return _request(fields, prompt=prompt, num_bytes=num_bytes)
    return _request(fields, prompt=_text("prompt", prompt), num_bytes=num_bytes)


def _request(fields: Fields, **prompt: Any) -> GenerationRequest:
    sampling = {name: read(name, fields[name]) for name, read in SAMPLING.items() if name in fields}
    return GenerationRequest(
        model=_text("model", fields["model"]) if "model" in fields else None,
        priority=_integer("priority", fields["priority"]) if "priority" in fields else None,
        sampling=Sampling(**sampling),  # type: ignore[arg-type]  # the table above gives each its type
        **prompt,
    )


def _refuse_unknown(fields: Fields, known: frozenset[str]) -> None:
    for name in fields:
        if name not in known:
            raise InvalidRequest(f"unknown parameter: {_shown(name)}", param=_shown(name))


def _exactly_one(fields: Fields, first: str, second: str) -> None:
    if (first in fields) == (second in fields):
        raise InvalidRequest(f"give exactly one of {first} and {second}", param=first)


def _shown(name: str) -> str:
    """A client's own word, short and printable, for an error that must name it."""
    return re.sub(r"[^\w.-]", "?", name[:64])
