"""Text that may become a stop string is held back until it is known."""

import httpx
import pytest

from tests.event_source import done, joined_text, parse, token_events

# The model repeats this list at temperature 0, so that what it says next is known.
COUNTING = "alpha beta gamma delta. alpha beta gamma delta. alpha beta gamma delta. alpha"
KOREAN = "하나 둘 셋 넷. 하나 둘 셋 넷. 하나 둘 셋 넷. 하나 둘 셋 넷. 하나"
FOO = "foobar baz foobar baz foobar baz foobar baz foobar baz"


def stream(client: httpx.Client, prompt: str, stop: list[str], max_tokens: int = 24) -> tuple[list[str], str, str]:
    """The text after each event, the whole text, and the finish reason."""
    params: list[tuple[str, str | int | float | bool | None]] = [
        ("prompt", prompt), ("temperature", "0"), ("max_tokens", max_tokens), *[("stop", text) for text in stop]
    ]  # fmt: skip
    events = parse(client.get("/v1/stream", params=params).content)
    said, texts = "", []
    for event in token_events(events):
        said += event.json["token"]
        texts.append(said)
    return texts, joined_text(events), done(events)["finish_reason"]


@pytest.mark.parametrize(
    ("prompt", "stop"),
    [(COUNTING, ["beta gamma"]), (COUNTING, ["a gam"]), (KOREAN, ["셋 넷"]), (FOO, ["foo", "foobar"])],
)
def test_a_stop_string_that_spans_tokens_is_cut_out_whole(client: httpx.Client, prompt: str, stop: list[str]) -> None:
    _, unstopped, _ = stream(client, prompt, [])
    ends = [unstopped.index(text) for text in stop]
    texts, whole, reason = stream(client, prompt, stop)
    assert reason == "stop"
    assert whole == unstopped[: min(ends)]
    # No event ever showed a character of the stop string that was to come.
    assert all(whole.startswith(text) for text in texts)


def test_a_near_miss_is_flushed_at_the_end(client: httpx.Client) -> None:
    _, unstopped, _ = stream(client, COUNTING, [], max_tokens=6)
    near_miss = unstopped[-4:] + "and something that does not come"
    texts, whole, reason = stream(client, COUNTING, [near_miss], max_tokens=6)
    assert (whole, reason) == (unstopped, "length")
    assert texts[-1] == unstopped
