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

# What the last chunk of a choice says beside its text; that it has text of its own is chance.
ENDING = frozenset({"finish_reason", "stop_reason", "system_fingerprint"})


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
    """The events, those put together that differ only in what they add: how many tokens are in one is chance, and so is
    which of several choices is told of first."""
    datas = [{"event": event.type} | stable(json.loads(event.data)) for event in events]
    datas.sort(key=_choice_of)
    result: list[Any] = []
    for data in datas:
        if result and (both := _merge(result[-1], data)) is not None:
            result[-1] = both
        else:
            result.append(data)
    return result


def _choice_of(data: Any) -> int:
    """Sorts by choice, what is of no choice last; events of other kinds all alike, so that they stay in order."""
    choices = data.get("choices")
    if choices is None:
        return 0
    return int(choices[0]["index"]) if choices else 1 << 30


def _merge(one: Any, two: Any, key: str = "") -> Any:
    """What the two say together; None when they say different things."""
    if isinstance(one, dict) and isinstance(two, dict) and one.keys() <= two.keys() <= one.keys() | ENDING:
        both = {name: _merge(one.get(name), two[name], name) for name in two}
        disagree = [name for name in both if both[name] is None and (one.get(name), two[name]) != (None, None)]
        return None if disagree else both
    if key in ENDING and one is None:
        return two
    if key in GROWING and isinstance(one, str) and isinstance(two, str):
        return one + two
    if key in ("token_ids", "content") and isinstance(one, list) and isinstance(two, list):
        return one + two
    if key == "logprobs" and isinstance(one, list) and isinstance(two, list):
        return one + two
    if key in ("completion_tokens", "total_tokens"):
        return max(one, two)
    if isinstance(one, list) and isinstance(two, list) and len(one) == len(two):
        items = [_merge(first, second, key) for first, second in zip(one, two, strict=True)]
        return None if any(item is None for item in items) else items
    return one if one == two else None


def field_at_fault(recording: Recording) -> Any:
    """Of a refusal: what a program acts on. vLLM writes the way to the field from the body on."""
    error = recording.body["error"]
    param = re.sub(r"^body\.?", "", error.get("param") or "").partition(".")[0] or None
    return {"type": error.get("type"), "code": error.get("code"), "param": param}
