"""One server's answers, as what can be compared: ids and times are taken out, pieces of text put together."""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import httpx

from tests.event_source import Event, parse
from tests.golden.requests import Case

# Whatever is under these keys is another one each time.
CHANGING = frozenset({"id", "created", "created_at", "completed_at", "item_id", "request_id", "signature", "call_id"})

# What a chunk adds to, and does not replace.
GROWING = frozenset({"content", "reasoning", "text", "arguments", "delta", "thinking", "partial_json"})

# What a chunk counts up.
COUNTS = frozenset({"completion_tokens", "total_tokens"})


class Disagree(Exception):
    """Two chunks say different things of the same."""


@dataclass(frozen=True)
class Recording:
    status: int
    content_type: str
    body: Any
    ends_with_done: bool = False


def record(client: httpx.Client, case: Case) -> Recording:
    content = case.body if isinstance(case.body, bytes) else json.dumps(case.body).encode()
    response = client.request(case.method, case.path, content=content, headers=dict(case.headers))
    content_type = response.headers.get("content-type", "")
    if content_type.startswith("text/event-stream"):
        events = parse(response.content)
        done = [event for event in events if event.data == "[DONE]"]
        assert len(done) <= 1
        rest = [event for event in events if event.data != "[DONE]"]
        return Recording(response.status_code, content_type, merged(rest), bool(done) and events[-1] is done[0])
    return Recording(response.status_code, content_type, stable(response.json()))


def stable(value: Any, key: str = "") -> Any:
    if isinstance(value, dict):
        return {name: stable(item, name) for name, item in value.items() if name != "sequence_number"}
    if isinstance(value, list):
        return [stable(item, key) for item in value]
    if key in CHANGING and value is not None:
        return f"<{key}>"
    return value


def merged(events: Iterable[Event]) -> list[Any]:
    """The events, those put together that only add to each other.

    How many tokens are in one is chance (vLLM puts together what its reader did not fetch in time). So is whether the
    last has text, and which of several choices is told of first.
    """
    datas = [{"event": event.type} | stable(json.loads(event.data)) for event in events]
    datas.sort(key=_choice_of)
    result: list[Any] = []
    for data in datas:
        if result and _goes_on(result[-1]) and (data.get("choices") or "delta" in data):
            try:
                result[-1] = _merge(result[-1], data)
                continue
            except Disagree:
                pass
        result.append(_merge({}, data))
    return result


def _choice_of(data: Any) -> int:
    """Sorts by choice, what is of no choice last; events of other kinds all alike, so that they stay in order."""
    choices = data.get("choices")
    if choices is None:
        return 0
    return int(choices[0]["index"]) if choices else 1 << 30


def _goes_on(data: Any) -> bool:
    """Whether more may be added: a chat's opening is always an event of its own, and nothing comes after the end."""
    if "choices" not in data:
        return True
    closed = any(choice.get("finish_reason") or "role" in choice.get("delta", {}) for choice in data["choices"])
    return bool(data["choices"]) and not closed


def _merge(one: Any, two: Any, key: str = "") -> Any:
    """What the two say together.

    Raises:
        Disagree: they are not parts of one thing.
    """
    if two is None:
        return one
    if isinstance(two, dict):
        one = one or {}
        return {name: _merge(one.get(name), two.get(name), name) for name in one | two}
    if key in ("choices", "tool_calls"):
        parts: dict[int, Any] = {}
        for part in [*(one or ()), *two]:
            parts[part["index"]] = _merge(parts.get(part["index"]), part)
        return list(parts.values())
    if one is None:
        return two
    if isinstance(two, list) or (key in GROWING and isinstance(two, str)):
        return one + two
    if key in COUNTS:
        return max(one, two)
    if one != two:
        raise Disagree
    return one


def field_at_fault(recording: Recording) -> Any:
    """Of a refusal: what a program acts on. vLLM writes the way to the field from the body on."""
    error = recording.body["error"]
    param = re.sub(r"^body\.?", "", error.get("param") or "").partition(".")[0] or None
    return {"type": error.get("type"), "code": error.get("code"), "param": param}
