"""A stream of any length says what vLLM says when it does not stream, while other streams are made."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.event_source import done, joined_text, parse, token_events
from tests.real.exact.conftest import MAX_NUM_SEQS
from tests.real.reference import completion
from tests.server import RunningServer

PROMPTS = {
    "english": "The capital of France is",
    "korean": "대한민국의 수도는 서울이고, 일본의 수도는",
    "emoji": "🙂🙃🎉 🎊🎈🎁 🙂🙃🎉 🎊🎈🎁 🙂🙃🎉",
}


@pytest.mark.parametrize("name", PROMPTS)
def test_joined_events_equal_the_text_that_is_not_streamed(exact: RunningServer, name: str) -> None:
    prompt = PROMPTS[name]

    def compare(max_tokens: int) -> None:
        params = {"prompt": prompt, "max_tokens": str(max_tokens), "temperature": "0"}
        expected = completion(exact, prompt, max_tokens=max_tokens)
        with exact.client() as client:
            body = client.get("/v1/stream", params=params).content
        for block in body.split(b"\n\n"):
            block.decode("utf-8")
        events = parse(body)
        assert joined_text(events) == expected.text
        allowed = expected.text.count("\ufffd")
        assert sum(event.json["token"].count("\ufffd") for event in token_events(events)) == allowed
        last = done(events)
        assert last["finish_reason"] == expected.finish_reason
        assert last["usage"]["completion_tokens"] == len(expected.token_ids)
        assert events[-1].id.endswith(f":{len(expected.token_ids)}")

    with ThreadPoolExecutor(MAX_NUM_SEQS) as readers:
        list(readers.map(compare, range(1, 41)))
