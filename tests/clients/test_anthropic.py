"""The official `anthropic` client."""

from collections.abc import Iterator
from typing import Any

import anthropic
import pytest

from tests.parrot_model import ANSWER, REASONING
from tests.process.program import Program

ASKED: Any = {"model": "parrot", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 50}
ASKED["extra_body"] = {"temperature": 0}


@pytest.fixture
def client(busy: str) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=busy, api_key="none", max_retries=0, timeout=30) as client:
        yield client


def test_a_message(client: anthropic.Anthropic) -> None:
    answer = client.messages.create(**ASKED)
    assert [block.type for block in answer.content] == ["thinking", "text"]
    assert answer.content[1].text == ANSWER
    assert (answer.stop_reason, answer.usage.output_tokens) == ("end_turn", 19)


def test_a_streamed_message(client: anthropic.Anthropic) -> None:
    with client.messages.stream(**ASKED) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == ANSWER
    assert final.content[0].thinking == REASONING  # type: ignore[union-attr]
    assert final.stop_reason == "end_turn"


def test_tokens_are_counted(client: anthropic.Anthropic) -> None:
    counted = client.messages.count_tokens(model="parrot", messages=ASKED["messages"])
    assert counted.input_tokens == client.messages.create(**ASKED).usage.input_tokens


def test_refusals_are_the_client_s_own_exceptions(program: Program) -> None:
    with anthropic.Anthropic(base_url=program.url, api_key="none", max_retries=0) as client:
        with pytest.raises(anthropic.NotFoundError):
            client.messages.create(**ASKED | {"model": "gpt-9"})
        with pytest.raises(anthropic.BadRequestError):
            client.messages.create(**ASKED | {"extra_body": {"temperature": 9}})
