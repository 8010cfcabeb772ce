"""A stream says exactly what vLLM says."""

import json

import httpx
from httpx_sse import connect_sse

from engine.vllm.off_loop import OFF_LOOP_BYTES
from tests.event_source import done, joined_text, parse
from tests.real.reference import completion
from tests.server import RunningServer


def test_the_first_token_arrives_before_the_last_is_made(server: RunningServer, client: httpx.Client) -> None:
    made_before = server.metric("vllm:generation_tokens_total")
    params = {"prompt": "The capital of France is", "max_tokens": "200", "ignore_eos": "true"}
    with connect_sse(client, "GET", "/v1/stream", params=params) as source:
        stream = source.iter_sse()
        types = [next(stream).event, next(stream).event]
        made = server.metric("vllm:generation_tokens_total") - made_before
        [last] = [event for event in stream if event.event == "done"]
    assert types == ["start", "message"]
    assert made < 200
    assert json.loads(last.data)["usage"]["completion_tokens"] == 200


def test_a_chat_goes_through_the_template(server: RunningServer, client: httpx.Client) -> None:
    expected = completion(
        server,
        "<|im_start|>system\nAnswer in one word.<|im_end|>\n<|im_start|>user\nIs water wet?<|im_end|>\n"
        "<|im_start|>assistant\n",
        max_tokens=12,
    ).text
    sampling = {"max_tokens": "12", "temperature": "0"}
    by_get = client.get("/v1/stream", params={"system": "Answer in one word.", "message": "Is water wet?", **sampling})
    messages = [{"role": "system", "content": "Answer in one word."}, {"role": "user", "content": "Is water wet?"}]
    by_post = client.post("/v1/stream", json={"messages": messages, "max_tokens": 12, "temperature": 0})
    assert joined_text(parse(by_get.content)) == joined_text(parse(by_post.content)) == expected


def test_token_ids_are_continued_as_they_are(server: RunningServer, client: httpx.Client) -> None:
    token_ids = [504, 3575, 282, 4649, 314]
    expected = completion(server, {"prompt_token_ids": token_ids}, max_tokens=8).text
    response = client.post("/v1/stream", json={"prompt": token_ids, "max_tokens": 8, "temperature": 0})
    events = parse(response.content)
    assert joined_text(events) == expected
    assert done(events)["usage"]["prompt_tokens"] == 5


def test_a_request_that_is_prepared_off_the_event_loop_is_answered_the_same(client: httpx.Client) -> None:
    fields = {"messages": [{"role": "user", "content": "Is water wet?"}], "max_tokens": 12, "temperature": 0}
    small = json.dumps(fields).encode()
    large = small[:-1] + b" " * OFF_LOOP_BYTES + b"}"
    texts = [joined_text(parse(client.post("/v1/stream", content=body).content)) for body in (small, large)]
    assert texts[0] == texts[1] != ""


def test_a_seed_makes_a_stream_repeatable(client: httpx.Client) -> None:
    params = {"prompt": "Once upon a time", "max_tokens": "20", "temperature": "1.5", "seed": "42"}
    texts = [joined_text(parse(client.get("/v1/stream", params=params).content)) for _ in range(2)]
    assert texts[0] == texts[1]
    other = client.get("/v1/stream", params=params | {"seed": "43"})
    assert joined_text(parse(other.content)) != texts[0]


def test_every_parameter_is_taken_and_reaches_vllm(client: httpx.Client) -> None:
    fields = {
        "prompt": "One two three", "max_tokens": 9, "temperature": 0.7, "top_p": 0.9, "top_k": 40, "min_p": 0.05,
        "seed": 1, "stop": ["zzz"], "presence_penalty": 0.1, "frequency_penalty": 0.1, "repetition_penalty": 1.1,
        "min_tokens": 9, "ignore_eos": True, "priority": 0, "model": "smollm2-135m-instruct",
    }  # fmt: skip
    response = client.post("/v1/stream", json=fields)
    assert done(parse(response.content)) == {
        "finish_reason": "length",
        "usage": {"prompt_tokens": 3, "completion_tokens": 9, "total_tokens": 12},
        "timing": done(parse(response.content))["timing"],
    }


def test_ttft_and_tpot_are_on_metrics_with_those_of_vllm(server: RunningServer, client: httpx.Client) -> None:
    names = ("tailrace_time_to_first_token_seconds_count", "tailrace_time_per_output_token_seconds_count")
    before = [server.metric(name, route="/v1/stream", model="smollm2-135m-instruct") for name in names]
    client.get("/v1/stream", params={"prompt": "hi", "max_tokens": "5", "ignore_eos": "true"})
    after = [server.metric(name, route="/v1/stream", model="smollm2-135m-instruct") for name in names]
    assert [b - a for a, b in zip(before, after, strict=True)] == [1, 1]
    for accept in ("", "application/openmetrics-text; version=1.0.0"):
        text = client.get("/metrics", headers={"Accept": accept}).text
        assert "\nvllm:generation_tokens_total{" in text
