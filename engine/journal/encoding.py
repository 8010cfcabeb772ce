"""Records and requests as JSON, for a journal outside the process. No I/O.

A stream is an array: its opening, its passages as arrays, its ending. So it is written piece by piece, and pieces are
joined with commas.
"""

from collections.abc import Mapping
from typing import Any

import orjson

from engine.interface import GenerationRequest, Sampling
from engine.journal.records import Ending, Opening, Passage, StreamRecord

# Of all that is written outside the process. What has another version is not read: pods of two versions share a journal
# during a rolling update, and to each the other's streams are unknown.
VERSION = 1


def encode_opening(opening: Opening) -> bytes:
    return orjson.dumps(opening, default=list)


def encode_passage(passage: Passage) -> bytes:
    return orjson.dumps((passage.num_tokens, passage.text, passage.reasoning, passage.token_ids), default=list)


def encode_ending(ending: Ending) -> bytes:
    return orjson.dumps(ending)


def decode_record(id: str, document: bytes) -> StreamRecord | None:
    """None when it is not what this version writes."""
    try:
        opening, *pieces = orjson.loads(document)
        ending = Ending(**pieces.pop()) if pieces and isinstance(pieces[-1], dict) else None
        return StreamRecord(id, _opening(opening), [Passage(*piece) for piece in pieces], ending)
    except (KeyError, TypeError, ValueError):
        return None


def encode_request(request: GenerationRequest) -> bytes:
    return orjson.dumps({"version": VERSION, "request": request}, default=list)


def decode_request(document: bytes) -> GenerationRequest | None:
    """None as for `decode_record`."""
    try:
        kept = orjson.loads(document)
        if kept["version"] != VERSION:
            return None
        fields = kept["request"]
        fields["sampling"] = _sampling(fields["sampling"])
        fields["made_before"] = tuple(fields["made_before"])
        return GenerationRequest(**fields)
    except (KeyError, TypeError, ValueError):
        return None


def _opening(fields: Mapping[str, Any]) -> Opening:
    return Opening(**{**fields, "sampling": _sampling(fields["sampling"])})


def _sampling(fields: Mapping[str, Any]) -> Sampling:
    return Sampling(**{**fields, "stop": tuple(fields["stop"])})
