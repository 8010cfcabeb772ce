"""What `vllm serve` answers and what Tailrace answers, to the same requests, on the same model with the same flags."""

import json
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests import parrot_model
from tests.event_source import Event
from tests.golden.record import Recording, field_at_fault, merged, record
from tests.golden.requests import cases
from tests.process.program import free_port, started
from tests.server import wait_until

logger = logging.getLogger("tests")

# The differences that are meant; docs/clients.md gives the reason for each of these kinds.
SENTENCE = "one sentence for what is wrong"
BEFORE = "refused before the stream, not in it"
SHAPE = "the words of the API that was asked"
MEANT = {
    "bad: temperature a word": SENTENCE,
    "bad: n a word": SENTENCE,
    "bad: seed": SENTENCE,
    "bad: too many stop strings": SENTENCE,
    "bad: messages a number": SENTENCE,
    "bad: a message without a role": SENTENCE,
    "bad: response_format": SENTENCE,
    "bad: a schema that is none": SENTENCE,
    "bad: no input": SENTENCE,
    "tokenize: bad": SENTENCE,
    "detokenize: bad": SENTENCE,
    "bad: top_logprobs too many, streamed": BEFORE,
    "bad: logit_bias over the vocabulary, streamed": BEFORE,
    "bad: no max_tokens": SHAPE,
    "broken JSON": SHAPE,
    "a list": SHAPE,
    "text": SHAPE,
    "the wrong method": SHAPE,
    "no such address": SHAPE,
}


def meant(name: str) -> str | None:
    without_api = name.partition(": ")[2] if name.startswith(("chat", "completion", "response", "message")) else name
    return MEANT.get(without_api) or MEANT.get(without_api.removesuffix(", streamed"))


@pytest.fixture(scope="module")
def flags(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("golden")
    model = parrot_model.build(folder / "parrot")
    adapter = parrot_model.build_adapter(folder / "adapter")
    return [str(model), *parrot_model.FLAGS, "--lora-modules", f"adapted={adapter}", "--enforce-eager"]


def recordings(*command: str) -> dict[str, Recording]:
    """What a server that `command` starts answers to every case, one after the other."""
    port = free_port()
    quiet = {"VLLM_LOGGING_LEVEL": "ERROR"}
    with started(*command, "--port", str(port), port=port, env=quiet) as program:

        def is_ready() -> bool:
            return program.process.poll() is not None or program.status("/v1/models") == 200

        wait_until(is_ready, 120, "the models")
        assert program.process.poll() is None, program.text
        started_s = time.monotonic()
        with httpx.Client(base_url=program.url, timeout=60) as client:
            answers = {case.name: record(client, case) for case in cases()}
        logger.info("%s: %d answers in %.1f s", command[0], len(answers), time.monotonic() - started_s)
        return answers


@pytest.fixture(scope="module")
def both(flags: list[str]) -> Iterator[tuple[dict[str, Recording], dict[str, Recording]]]:
    """One after the other: two engines at once would have to share the cores."""
    theirs = recordings("-m", "vllm.entrypoints.openai.api_server", "--model", *flags)
    yield theirs, recordings("app.py", *flags)


def chunk(delta: Any, **ending: str) -> Event:
    choice = {"index": 0, "delta": delta, "finish_reason": None, **ending}
    return Event("message", json.dumps({"choices": [choice]}), "")


def test_how_many_tokens_are_in_a_chunk_makes_no_difference() -> None:
    let, me = {"content": "Let", "reasoning": None}, {"content": " me", "reasoning": None}
    both = {"content": "Let me", "reasoning": None}
    whole = merged([chunk(both, finish_reason="length")])
    assert len(whole) == 1
    assert merged([chunk(let), chunk(me, finish_reason="length")]) == whole
    assert merged([chunk(let), chunk(me), chunk({}, finish_reason="length")]) == whole
    assert merged([chunk(both), chunk({"content": ""}, finish_reason="length")]) == whole
    assert merged([chunk(let, finish_reason="length"), chunk(me)]) != whole
    assert merged([chunk(let), chunk(both, finish_reason="length")]) != whole
    assert merged([chunk(both, finish_reason="stop")]) != whole


def test_where_reasoning_ends_in_a_chunk_makes_no_difference() -> None:
    whole = merged([chunk({"reasoning": "Hm", "content": "Yes"})])
    assert merged([chunk({"reasoning": "Hm"}), chunk({"content": "Yes"})]) == whole
    at_the_end = chunk({"reasoning": "m", "content": "Y"})
    assert merged([chunk({"reasoning": "H"}), at_the_end, chunk({"content": "es"})]) == whole


def test_how_much_of_a_tool_call_is_in_a_chunk_makes_no_difference() -> None:
    def call(index: int, arguments: str, **named: str) -> Event:
        return chunk({"tool_calls": [{"index": index, "function": {"arguments": arguments, **named}}]})

    whole = merged([call(0, "{}", name="weather"), call(1, "[]", name="time")])
    assert merged([call(0, "", name="weather"), call(0, "{}"), call(1, "[", name="time"), call(1, "]")]) == whole
    assert merged([call(0, "{}", name="weather"), call(0, "[]", name="time")]) != whole
    parts = [{"index": 0, "function": {"name": "weather"}}, {"index": 0, "function": {"arguments": "{}"}}]
    assert merged([chunk({"tool_calls": parts})]) == merged([call(0, "{}", name="weather")])


def test_what_begins_and_what_ends_a_stream_stays_by_itself() -> None:
    opening, usage = chunk({"role": "assistant", "content": ""}), Event("message", '{"choices": [], "usage": {}}', "")
    assert len(merged([opening, chunk({"content": "Let"}), chunk({"content": " me"}), usage])) == 3
    assert len(merged([opening, chunk({"content": "Let"}), usage, usage])) == 4


@pytest.mark.timeout(300)
def test_nothing_differs_that_is_not_meant(both: tuple[dict[str, Recording], dict[str, Recording]]) -> None:
    theirs, ours = both
    names = list(theirs)
    assert len(names) >= 60
    assert sum("bad" in name for name in names) >= 20
    assert len({case.name for case in cases()}) == len(list(cases()))
    unmeant = {name: (theirs[name], ours[name]) for name in names if theirs[name] != ours[name] and not meant(name)}
    assert not unmeant, "\n\n".join(f"{name}\n  {one}\n  {two}" for name, (one, two) in unmeant.items())


@pytest.mark.timeout(300)
def test_what_differs_differs_as_it_is_meant(both: tuple[dict[str, Recording], dict[str, Recording]]) -> None:
    theirs, ours = both
    for name in theirs:
        kind, one, two = meant(name), theirs[name], ours[name]
        if kind == SENTENCE:
            theirs_at_fault, ours_at_fault = field_at_fault(one), field_at_fault(two)
            assert one.status == two.status, name
            # Where vLLM stumbles it names no field.
            assert theirs_at_fault == ours_at_fault or theirs_at_fault["param"] is None, name
            assert ours_at_fault["param"], name
            assert "\n" not in two.body["error"]["message"], name
        elif kind == BEFORE:
            assert (one.status, two.status) == (200, 400), name
            assert one.body[0]["error"] == two.body["error"], name
        elif kind == SHAPE:
            assert one.status == two.status, name
            assert two.body["error"]["message"], name


def test_the_differences_are_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "clients.md").read_text()
    for kind in (SENTENCE, BEFORE, SHAPE):
        assert kind in page
