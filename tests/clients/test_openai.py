"""The official `openai` client, which must not be able to tell Tailrace from `vllm serve`."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.parrot_model import ANSWER, REASONING, WEATHER
from tests.process.program import Program

MESSAGES: Any = [{"role": "user", "content": "Hi"}]
TOOLS: Any = [WEATHER]
CALL = r'<tool_call>\n\{"name": "weather", "arguments": \{"city": "Oslo"\}\}\n</tool_call>'
CALLING = {"structured_outputs": {"regex": CALL}}
SCHEMA: Any = {
    "type": "json_schema",
    "json_schema": {
        "name": "x",
        "schema": {"enum": ["yes", "no"]},
    },
}


@pytest.fixture
def client(busy: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=busy + "/v1", api_key="none", max_retries=0, timeout=30) as client:
        yield client


def test_a_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="parrot", messages=MESSAGES, temperature=0)
    choice = answer.choices[0]
    assert (choice.message.content, choice.finish_reason) == (ANSWER, "stop")
    assert choice.message.reasoning == REASONING  # type: ignore[attr-defined]
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 19


def test_a_streamed_chat(client: openai.OpenAI) -> None:
    chunks = list(client.chat.completions.create(model="parrot", messages=MESSAGES, temperature=0, stream=True))
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert "".join(getattr(delta, "reasoning", None) or "" for delta in deltas) == REASONING
    assert "".join(delta.content or "" for delta in deltas) == ANSWER
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason] == ["stop"]
    assert all(chunk.usage is None for chunk in chunks)


def test_usage_comes_last_and_only_when_asked_for(client: openai.OpenAI) -> None:
    chunks = list(
        client.chat.completions.create(
            model="parrot", messages=MESSAGES, temperature=0, stream=True, stream_options={"include_usage": True}
        )
    )
    assert [chunk.usage is not None for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 19


def test_the_helper_that_puts_a_stream_together(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model="parrot", messages=MESSAGES, temperature=0.01, n=2) as stream:
        final = stream.get_final_completion()
    assert [choice.message.content for choice in final.choices] == [ANSWER, ANSWER]


def test_a_tool_is_called(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="parrot", messages=MESSAGES, temperature=0, tools=TOOLS, extra_body=CALLING
    )
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.tool_calls is not None
    call = choice.message.tool_calls[0]
    assert call.type == "function"
    assert (call.function.name, json.loads(call.function.arguments)) == ("weather", {"city": "Oslo"})


def test_a_tool_is_called_in_a_stream(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(
        model="parrot", messages=MESSAGES, temperature=0, tools=TOOLS, extra_body=CALLING
    ) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].finish_reason == "tool_calls"
    assert final.choices[0].message.tool_calls is not None
    call = final.choices[0].message.tool_calls[0]
    assert (call.function.name, json.loads(call.function.arguments)) == ("weather", {"city": "Oslo"})


def test_a_schema_is_kept_to(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="parrot", messages=MESSAGES, temperature=0, response_format=SCHEMA, max_tokens=80
    )
    assert json.loads(answer.choices[0].message.content or "") in ("yes", "no")


def test_logprobs(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="parrot", messages=MESSAGES, temperature=0, logprobs=True, top_logprobs=2, max_tokens=3
    )
    assert answer.choices[0].logprobs is not None
    assert [len(token.top_logprobs) for token in answer.choices[0].logprobs.content or ()] == [2, 2, 2]


def test_a_seed_makes_the_same_choice_twice(client: openai.OpenAI) -> None:
    texts = {
        client.completions.create(model="parrot", prompt="Hello", seed=5, temperature=1.0, max_tokens=8).choices[0].text
        for _ in range(2)
    }
    assert len(texts) == 1


def test_a_completion_streamed_and_not(client: openai.OpenAI) -> None:
    asked: Any = {"model": "parrot", "prompt": "Let me see:", "temperature": 0, "max_tokens": 4, "stop": " makes"}
    whole = client.completions.create(**asked)
    chunks = list(client.completions.create(**asked, stream=True))
    assert whole.choices[0].text == "".join(chunk.choices[0].text for chunk in chunks) == " two plus three"
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason == "stop"


def test_a_response(client: openai.OpenAI) -> None:
    answer = client.responses.create(model="parrot", input="Hi", temperature=0)
    assert answer.output_text == ANSWER
    assert answer.status == "completed"


def test_a_streamed_response(client: openai.OpenAI) -> None:
    events = list(client.responses.create(model="parrot", input="Hi", temperature=0, stream=True))
    assert (events[0].type, events[-1].type) == ("response.created", "response.completed")
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == ANSWER
    assert "".join(event.delta for event in events if event.type == "response.reasoning_text.delta") == REASONING
    assert [event.sequence_number for event in events] == list(range(len(events)))


def test_the_async_client(busy: str) -> None:
    async def ask() -> tuple[str, str]:
        async with openai.AsyncOpenAI(base_url=busy + "/v1", api_key="none", max_retries=0) as client:
            stream = await client.chat.completions.create(
                model="adapted", messages=MESSAGES, temperature=0, stream=True
            )
            text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
            answer = await client.responses.create(model="parrot", input="Hi", temperature=0)
            return text, answer.output_text

    assert asyncio.run(ask()) == (ANSWER, ANSWER)


def test_models_lists_the_adapter(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["parrot", "adapted"]


@pytest.mark.parametrize(
    ("fields", "error", "param"),
    [
        ({"temperature": 9}, openai.BadRequestError, "temperature"),
        ({"n": "two"}, openai.BadRequestError, "n"),
        ({"messages": 5}, openai.BadRequestError, "messages"),
        ({"model": "gpt-9"}, openai.NotFoundError, "model"),
        ({"logit_bias": {"9999999": 1}, "stream": True}, openai.BadRequestError, "logit_bias"),
    ],
)
def test_a_refusal_is_the_client_s_own_exception(
    program: Program, fields: dict[str, Any], error: type[openai.APIStatusError], param: str
) -> None:
    with openai.OpenAI(base_url=program.url + "/v1", api_key="none", max_retries=0) as client:
        with pytest.raises(error) as raised:
            client.chat.completions.create(**{"model": "parrot", "messages": MESSAGES} | fields)
        assert raised.value.param == param
