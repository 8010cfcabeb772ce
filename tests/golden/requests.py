"""What is asked of `vllm serve` and of Tailrace alike: all that clients send, and what must be refused."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

USER = [{"role": "user", "content": "Hi"}]
SYSTEM = [{"role": "system", "content": "Be brief."}, *USER]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer", "maximum": 9}}, "required": ["a"]}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather in a city.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]
CALL = r'<tool_call>\n\{"name": "weather", "arguments": \{"city": "Oslo"\}\}\n</tool_call>'
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}
ANTHROPIC_TOOLS = [{"name": "weather", "description": "x", "input_schema": TOOLS[0]["function"]["parameters"]}]  # type: ignore[index]


@dataclass(frozen=True)
class Case:
    name: str
    path: str
    body: Any
    method: str = "POST"
    headers: tuple[tuple[str, str], ...] = (("content-type", "application/json"),)


GOOD_CHATS: dict[str, dict[str, Any]] = {
    "nothing but messages": {},
    "a system prompt": {"messages": SYSTEM},
    "content in parts": {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]},
    "max_tokens": {"max_tokens": 5},
    "max_completion_tokens": {"max_completion_tokens": 5},
    "seed": {"seed": 7, "temperature": 1.0, "max_tokens": 8},
    "sampling": {"top_p": 0.9, "top_k": 5, "min_p": 0.01, "seed": 1, "temperature": 0.7, "max_tokens": 8},
    "penalties": {"presence_penalty": 1, "frequency_penalty": -1, "repetition_penalty": 1.1, "max_tokens": 8},
    "a stop string": {"stop": " makes", "max_tokens": 12},
    "stop strings that are shown": {"stop": ["5", "x"], "include_stop_str_in_output": True},
    "a stop token": {"stop_token_ids": [30], "max_tokens": 12},
    "min_tokens": {"min_tokens": 22, "max_tokens": 25},
    "ignore_eos": {"ignore_eos": True, "max_tokens": 25},
    "two choices": {"n": 2, "seed": 3, "temperature": 1.0, "max_tokens": 6},
    "logprobs": {"logprobs": True, "max_tokens": 4},
    "top_logprobs": {"logprobs": True, "top_logprobs": 2, "max_tokens": 3},
    "logit_bias": {"logit_bias": {"30": 90}, "max_tokens": 3},
    "token ids": {"return_token_ids": True, "max_tokens": 4},
    "the prompt's text": {"return_prompt_text": True, "max_tokens": 2},
    "echo": {
        "echo": True, "add_generation_prompt": False, "max_tokens": 3,
        "messages": [*USER, {"role": "assistant", "content": "Well"}], "continue_final_message": True,
    },
    "a JSON object": {"response_format": {"type": "json_object"}, "max_tokens": 30},
    "a JSON schema": {
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}, "max_tokens": 60
    },
    "a regex": {"structured_outputs": {"regex": "[a-c]{3}"}},
    "a choice": {"structured_outputs": {"choice": ["yes", "no"]}},
    "tools that are not called": {"tools": TOOLS},
    "a tool that is called": {"tools": TOOLS, "structured_outputs": {"regex": CALL}},
    "a named tool": {
        "tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "weather"}}, "max_tokens": 80
    },
    "no tool": {"tools": TOOLS, "tool_choice": "none"},
    "an answer to a tool": {
        "tools": TOOLS,
        "messages": [
            *USER,
            {
                "role": "assistant", "content": "",
                "tool_calls": [{"id": "c", "type": "function", "function": {"name": "weather", "arguments": "{}"}}],
            },
            {"role": "tool", "tool_call_id": "c", "content": "rain"},
        ],
    },
    "no reasoning": {"include_reasoning": False},
    "an adapter": {"model": "adapted"},
    "an unknown field": {"something": 1, "max_tokens": 3},
}  # fmt: skip

# How a stream's usage is told: these are only valid in one.
STREAM_OPTIONS: dict[str, dict[str, Any]] = {
    "usage": {"stream_options": {"include_usage": True}},
    "usage on every chunk": {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    "usage of two": {"stream_options": {"include_usage": True}, "n": 2, "seed": 3, "max_tokens": 4},
}

GOOD_COMPLETIONS: dict[str, dict[str, Any]] = {
    "a text": {},
    "token ids": {"prompt": [19556, 30]},
    "two prompts": {"prompt": ["Hello", "Once"]},
    "two choices": {"n": 2, "seed": 3, "temperature": 1.0},
    "logprobs": {"logprobs": 2},
    "echo": {"echo": True},
    "echo with logprobs": {"echo": True, "logprobs": 1},
    "a stop string": {"prompt": "Let me see:", "stop": [" makes"], "max_tokens": 9},
    "token ids back": {"return_token_ids": True},
    "a JSON schema": {
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}, "max_tokens": 60
    },
}  # fmt: skip

GOOD_RESPONSES: dict[str, dict[str, Any]] = {
    "a text": {},
    "messages": {"input": [{"role": "user", "content": "Hi"}]},
    "instructions": {"instructions": "Be brief."},
    "max_output_tokens": {"max_output_tokens": 4},
    "tools": {
        "tools": [{"type": "function", "name": "weather", "parameters": SCHEMA}], "max_output_tokens": 40
    },
}  # fmt: skip

GOOD_MESSAGES: dict[str, dict[str, Any]] = {
    "a turn": {},
    "a system prompt": {"system": "Be brief."},
    "max_tokens": {"max_tokens": 4},
    "stop_sequences": {"stop_sequences": [" makes"]},
    "tools": {"tools": ANTHROPIC_TOOLS},
}

BAD_CHATS: dict[str, Any] = {
    "temperature too high": {"temperature": 9},
    "temperature below 0": {"temperature": -1},
    "temperature a word": {"temperature": "warm"},
    "top_p 0": {"top_p": 0},
    "top_p over 1": {"top_p": 2},
    "top_k -2": {"top_k": -2},
    "min_p": {"min_p": 3},
    "presence_penalty": {"presence_penalty": 5},
    "max_tokens 0": {"max_tokens": 0},
    "max_tokens below 0": {"max_tokens": -3},
    "max_tokens over the context": {"max_tokens": 999999},
    "n 0": {"n": 0},
    "n a word": {"n": "two"},
    "seed": {"seed": 1 << 70},
    "too many stop strings": {"stop": ["a", "b", "c", "d", "e"]},
    "an empty stop string": {"stop": ""},
    "top_logprobs without logprobs": {"top_logprobs": 2},
    "top_logprobs too many": {"logprobs": True, "top_logprobs": 999},
    "stream_options without a stream": {"stream_options": {"include_usage": True}},
    "an unknown model": {"model": "gpt-9"},
    "no messages": {"messages": None},
    "messages a number": {"messages": 5},
    "a message without a role": {"messages": [{"content": "x"}]},
    "a role nobody has": {"messages": [{"role": "boss", "content": "x"}]},
    "an image": {"messages": [{"role": "user", "content": [IMAGE]}]},
    "a prompt too long": {"messages": [{"role": "user", "content": "word " * 3000}]},
    "response_format": {"response_format": {"type": "yaml"}},
    "a schema that is none": {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": 5}}},
    "two constraints": {"structured_outputs": {"regex": "a", "choice": ["b"]}},
    "tool_choice without tools": {"tool_choice": "required"},
    "a named tool that is not there": {
        "tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "nothing"}}
    },
    "min_tokens over max_tokens": {"min_tokens": 9, "max_tokens": 3},
    "logit_bias over the vocabulary": {"logit_bias": {"9999999": 1}},
}  # fmt: skip


def cases() -> Iterator[Case]:
    def chat(name: str, fields: dict[str, Any]) -> Case:
        return Case(f"chat: {name}", "/v1/chat/completions", {"messages": USER, "temperature": 0} | fields)

    def completion(name: str, fields: dict[str, Any]) -> Case:
        base = {"prompt": "Hello", "temperature": 0, "max_tokens": 5}
        return Case(f"completion: {name}", "/v1/completions", base | fields)

    def response(name: str, fields: dict[str, Any]) -> Case:
        return Case(f"response: {name}", "/v1/responses", {"input": "Hi", "temperature": 0} | fields)

    def message(name: str, fields: dict[str, Any]) -> Case:
        base = {"model": "parrot", "messages": USER, "temperature": 0, "max_tokens": 40}
        return Case(f"message: {name}", "/v1/messages", base | fields)

    for kind, good in (
        (chat, GOOD_CHATS), (completion, GOOD_COMPLETIONS), (response, GOOD_RESPONSES), (message, GOOD_MESSAGES)
    ):  # fmt: skip
        for name, fields in good.items():
            yield kind(name, fields)
            yield kind(f"{name}, streamed", fields | {"stream": True})
    for kind in (chat, completion):
        for name, fields in STREAM_OPTIONS.items():
            yield kind(name, fields | {"stream": True})
    for name, fields in BAD_CHATS.items():
        yield chat(f"bad: {name}", fields)
        if "stream_options" not in fields:
            yield chat(f"bad: {name}, streamed", fields | {"stream": True})
    yield completion("bad: no prompt", {"prompt": None})
    yield completion("bad: an unknown token", {"prompt": [10**6]})
    yield completion("bad: an empty prompt", {"prompt": ""})
    yield completion("bad: echo and a beam, streamed", {"use_beam_search": True, "n": 2, "stream": True})
    yield response("bad: no input", {"input": None})
    yield response("bad: a response before that is not known", {"previous_response_id": "resp_x"})
    yield message("bad: no max_tokens", {"max_tokens": None})
    yield message("bad: an unknown model", {"model": "gpt-9"})
    yield Case("broken JSON", "/v1/chat/completions", b'{"messages":')
    yield Case("a list", "/v1/chat/completions", [])
    yield Case("text", "/v1/chat/completions", b"{}", headers=(("content-type", "text/plain"),))
    yield Case("the wrong method", "/v1/chat/completions", None, "GET")
    yield Case("no such address", "/v1/nothing", {})
    yield Case("tokenize a text", "/tokenize", {"prompt": "Hello there", "return_token_strs": True})
    yield Case("tokenize a chat", "/tokenize", {"messages": USER})
    yield Case("tokenize: bad", "/tokenize", {"prompt": 5})
    yield Case("detokenize", "/detokenize", {"tokens": [19556, 665]})
    yield Case("detokenize: bad", "/detokenize", {"tokens": ["x"]})
    yield Case("count tokens", "/v1/messages/count_tokens", {"model": "parrot", "messages": USER})
    yield Case("models", "/v1/models", None, "GET")
