"""Whatever bytes come: a request, or an error of the table that names a field."""

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import TailraceError
from engine.interface import GenerationRequest
from routes.parameters import BODY_NAMES, QUERY_NAMES, parse_body, parse_query, request_from_body, request_from_query

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda children: st.lists(children, max_size=4) | st.dictionaries(st.text(), children, max_size=4),
    max_leaves=12,
)
FIELDS = st.dictionaries(st.sampled_from(sorted(BODY_NAMES | {"n", ""})) | st.text(), JSON, max_size=5)


def outcome(parse: Any, request: Any, data: bytes) -> GenerationRequest | TailraceError:
    try:
        made = request(parse(data))
    except TailraceError as error:
        return error
    assert isinstance(made, GenerationRequest)
    return made


def check(result: GenerationRequest | TailraceError) -> None:
    if isinstance(result, TailraceError):
        assert 400 <= result.status < 500
        assert result.message.isprintable()
        assert len(result.message) < 300
        assert result.param is None or result.param.isprintable()
    else:
        assert (result.prompt is None) != (result.messages is None)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_as_a_body(data: bytes) -> None:
    check(outcome(parse_body, request_from_body, data))


@settings(max_examples=300, deadline=None)
@given(FIELDS)
def test_any_json_as_a_body(fields: dict[str, Any]) -> None:
    check(outcome(parse_body, request_from_body, json.dumps(fields).encode()))


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_as_a_query(data: bytes) -> None:
    check(outcome(parse_query, request_from_query, data))


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(sorted(QUERY_NAMES)), st.binary(max_size=20)), max_size=6))
def test_known_names_with_any_values_as_a_query(pairs: list[tuple[str, bytes]]) -> None:
    query = b"&".join(name.encode() + b"=" + value for name, value in pairs)
    check(outcome(parse_query, request_from_query, query))
