from urllib.parse import quote, urlencode

import pytest

from engine.errors import InvalidRequest, TailraceError, UriTooLong
from engine.interface import GenerationRequest, Sampling
from routes.parameters import MAX_QUERY_BYTES, parse_body, parse_query, request_from_body, request_from_query


def from_query(query: str) -> GenerationRequest:
    return request_from_query(parse_query(query.encode()))


def from_body(body: bytes) -> GenerationRequest:
    return request_from_body(parse_body(body))


def test_every_parameter_of_a_query_is_read_with_its_type() -> None:
    query = urlencode(
        [("prompt", "한국어 a+b"), ("model", "m"), ("max_tokens", "5"), ("temperature", "0.5"), ("top_p", ".9"),
         ("top_k", "-1"), ("min_p", "0"), ("seed", "-7"), ("stop", "a"), ("stop", " b"), ("presence_penalty", "1e-1"),
         ("frequency_penalty", "2"), ("repetition_penalty", "1."), ("min_tokens", "1"), ("ignore_eos", "true"),
         ("priority", "3")]
    )  # fmt: skip
    assert from_query(query) == GenerationRequest(
        prompt="한국어 a+b",
        model="m",
        priority=3,
        sampling=Sampling(5, 0.5, 0.9, -1, 0.0, -7, ("a", " b"), 0.1, 2.0, 1.0, 1, True),
    )


def test_a_body_takes_text_ids_or_messages() -> None:
    assert from_body(b'{"prompt":"x"}').prompt == "x"
    assert from_body(b'{"prompt":[1,2]}').prompt == [1, 2]
    messages = from_body(b'{"messages":[{"role":"user","content":"hi"}],"stop":"a","seed":null,"max_tokens":5.0}')
    assert messages.messages == [{"role": "user", "content": "hi"}]
    assert messages.sampling == Sampling(max_tokens=5, stop=("a",))


def test_a_message_is_one_user_turn_and_a_system_turn_goes_before_it() -> None:
    assert from_query("message=hi&system=be+brief").messages == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "hi"},
    ]


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("", "prompt"),
        ("prompt=a&message=b", "prompt"),
        ("prompt=a&system=b", "system"),
        ("prompt=a&prompt=b", "prompt"),
        ("prompt=a&n=1000000", "n"),
        ("prompt=a&stream=true", "stream"),
        ("prompt=a&%0d%0aX-Evil:1=1", "??X-Evil?1"),
        ("prompt=%ff", "prompt"),
        ("prompt=%ed%a0%80", "prompt"),
        ("prompt=a&temperature=nan", "temperature"),
        ("prompt=a&temperature=Infinity", "temperature"),
        ("prompt=a&temperature=1e999", "temperature"),
        ("prompt=a&temperature=1_0", "temperature"),
        ("prompt=a&temperature=", "temperature"),
        ("prompt=a&temperature=%20 1", "temperature"),
        ("prompt=a&max_tokens=1.5", "max_tokens"),
        ("prompt=a&max_tokens=" + "9" * 5000, "max_tokens"),
        ("prompt=a&max_tokens=٣", "max_tokens"),
        ("prompt=a&seed=9999999999999999999", "seed"),
        ("prompt=a&ignore_eos=maybe", "ignore_eos"),
        ("prompt=a&errors=json", "errors"),
        ("prompt=a" + "&stop=x" * 500, "stop"),
        ("prompt=a&messages=b", "messages"),
    ],
)
def test_bad_queries_name_the_field(query: str, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        from_query(query if "%" in query else quote(query, safe="=&"))
    assert caught.value.param == param
    assert caught.value.message.isprintable()


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"", "body"),
        (b"[]", "body"),
        (b'"text"', "body"),
        (b"{", "body"),
        (b'{"prompt":"a","temperature":NaN}', "temperature"),
        (b'{"prompt":"a","temperature":-Infinity}', "temperature"),
        (b'{"prompt":"a","temperature":1e999}', "temperature"),
        (b'{"prompt":"\\ud800"}', "prompt"),
        (b'{"prompt":"\xff"}', "prompt"),
        (b'{"temperature":1,"prompt":"\xed\xa0\x80"}', "prompt"),
        (b'{"messages":' + b"[" * 100_000, "messages"),
        (b'{"prompt":' * 100_000, "prompt"),
        (b'{"prompt":"a","seed":123456789012345678901234567890}', "seed"),
        (b'{"prompt":"a","max_tokens":true}', "max_tokens"),
        (b'{"prompt":"a","max_tokens":"5x"}', "max_tokens"),
        (b'{"prompt":"a","temperature":[1]}', "temperature"),
        (b'{"prompt":"a","n":1000000}', "n"),
        (b'{"prompt":"a","stop":[1]}', "stop"),
        (b'{"prompt":"a","ignore_eos":1}', "ignore_eos"),
        (b'{"prompt":"a","model":5}', "model"),
        (b'{"prompt":5}', "prompt"),
        (b'{"prompt":[true]}', "prompt"),
        (b'{"prompt":[-1]}', "prompt"),
        (b'{"prompt":[1.5]}', "prompt"),
        (b'{"prompt":[99999999999]}', "prompt"),
        (b'{"prompt":null}', "prompt"),
        (b'{"prompt":"a","messages":[{}]}', "prompt"),
        (b'{"messages":"hi"}', "messages"),
        (b'{"messages":[]}', "messages"),
        (b'{"messages":["hi"]}', "messages"),
        (b'{"prompt":"a","\\u0000\\n":1}', "??"),
    ],
)
def test_bad_bodies_name_the_field(body: bytes, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        from_body(body)
    assert caught.value.param == param
    assert caught.value.message.isprintable()


def test_a_query_that_is_too_long_is_told_to_post() -> None:
    parse_query(b"prompt=" + b"a" * (MAX_QUERY_BYTES - 7))
    with pytest.raises(UriTooLong, match="POST") as caught:
        parse_query(b"prompt=" + b"a" * (MAX_QUERY_BYTES - 6))
    assert isinstance(caught.value, TailraceError)
