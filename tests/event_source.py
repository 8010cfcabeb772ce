"""A parser of event streams that follows the WHATWG algorithm (HTML, section 9.2.6) to the letter, for tests."""

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Event:
    """What an `EventSource` dispatches: `id` is its last event id at that moment."""

    type: str
    data: str
    id: str

    @property
    def json(self) -> Any:
        return json.loads(self.data)


def parse(stream: bytes) -> list[Event]:
    """The events of a whole body. A trailing block without its blank line is dropped, as the standard says.

    Raises:
        UnicodeDecodeError: the standard replaces bytes that are not UTF-8; a test wants to know.
    """
    text = stream.decode("utf-8")
    text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    events: list[Event] = []
    type_, data, last_id = "", "", ""
    for line in text.split("\n")[:-1]:
        if line == "":
            if data:
                events.append(Event(type_ or "message", data.removesuffix("\n"), last_id))
            type_, data = "", ""
            continue
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "event":
            type_ = value
        elif name == "data":
            data += value + "\n"
        elif name == "id" and "\0" not in value:
            last_id = value
    return events


def joined_text(events: list[Event]) -> str:
    """The text of all token events."""
    return "".join(event.json["token"] for event in events if event.type == "message" and event.data != "[DONE]")


def token_events(events: list[Event]) -> list[Event]:
    return [event for event in events if event.type == "message" and event.data != "[DONE]"]


def done(events: list[Event]) -> Any:
    """The data of the `done` event; fails unless there is exactly one, followed by the marker."""
    assert [event.type for event in events].count("done") == 1
    assert events[-1].data == "[DONE]"
    assert events[-2].type == "done"
    return events[-2].json
