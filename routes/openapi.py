"""The OpenAPI document of the native routes, served at `/openapi.json`; pure."""

from collections.abc import Mapping
from typing import Any

from engine.errors import ERROR_TABLE, TailraceError
from routes.parameters import MAX_INT

Schema = Mapping[str, Any]

# Each with the range that vLLM gives it; a test compares the names with those that are read.
PARAMETERS: dict[str, Schema] = {
    "model": {"type": "string"},
    "max_tokens": {"type": "integer", "minimum": 1, "maximum": MAX_INT},
    "temperature": {"type": "number", "minimum": 0, "maximum": 2},
    "top_p": {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
    "top_k": {"type": "integer", "minimum": -1, "maximum": MAX_INT},
    "min_p": {"type": "number", "minimum": 0, "maximum": 1},
    "seed": {"type": "integer", "minimum": -MAX_INT, "maximum": MAX_INT},
    "stop": {"type": "array", "items": {"type": "string", "minLength": 1}, "maxItems": 4},
    "presence_penalty": {"type": "number", "minimum": -2, "maximum": 2},
    "frequency_penalty": {"type": "number", "minimum": -2, "maximum": 2},
    "repetition_penalty": {"type": "number", "exclusiveMinimum": 0},
    "min_tokens": {"type": "integer", "minimum": 0, "maximum": MAX_INT},
    "ignore_eos": {"type": "boolean"},
    "priority": {"type": "integer", "minimum": -MAX_INT, "maximum": MAX_INT},
}

QUERY_ONLY: dict[str, Schema] = {
    "prompt": {"type": "string", "minLength": 1},
    "message": {"type": "string"},
    "system": {"type": "string"},
    "errors": {"type": "string", "enum": ["event"]},
    "lastEventId": {"type": "string"},
}

BODY_ONLY: dict[str, Schema] = {
    "prompt": {
        "oneOf": [
            {"type": "string", "minLength": 1},
            {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}, "minItems": 1},
        ]
    },
    "messages": {
        "type": "array",
        "minItems": 1,
        "items": {
            "type": "object",
            "required": ["role", "content"],
            "properties": {"role": {"enum": ["system", "user", "assistant"]}, "content": {"type": "string"}},
        },
    },
}

ERROR: Schema = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["code", "message", "param"],
            "properties": {
                "code": {"enum": sorted(row.code for row in ERROR_TABLE)},
                "message": {"type": "string"},
                "param": {"type": ["string", "null"]},
            },
        }
    },
}


# One event as a reader sees it: one without a name, which carries text, is a `message`.
EVENT: Schema = {
    "type": "object",
    "required": ["data"],
    "properties": {
        "event": {"enum": ["start", "message", "done", "error"]},
        "id": {"type": "string"},
        "retry": {"type": "integer"},
        "data": {"type": "string"},
    },
}


def document() -> dict[str, Any]:
    """OpenAPI 3.1."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Tailrace",
            "version": "0.1.0",
            "description": "Tokens of a language model over Server-Sent Events.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": {
            "/v1/stream": {"get": _get_stream(), "post": _post_stream()},
            "/v1/streams": {"post": _keep_stream()},
            "/v1/streams/{id}": {"get": _run_stream(), "delete": _stop_stream()},
            "/healthz": {"get": _probe("Liveness: 503 once the engine has died.")},
            "/readyz": {"get": _probe("Readiness: 200 while new requests are served.")},
        },
        "components": {
            "schemas": {"Error": ERROR},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _get_stream() -> dict[str, Any]:
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "query", "schema": schema} for name, schema in (QUERY_ONLY | PARAMETERS).items()
    ]
    parameters.append(dict(LAST_EVENT_ID))
    return {
        "operationId": "getStream",
        "summary": "Start a stream, or come back to one.",
        "description": "Exactly one of `prompt` and `message`. What `new EventSource(url)` sends.",
        "parameters": parameters,
        "responses": _stream_responses(414),
        "security": [{}, {"key": []}],
    }


BODY: Schema = {
    "required": True,
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "properties": dict(BODY_ONLY | PARAMETERS),
                "additionalProperties": False,
                "oneOf": [{"required": ["prompt"]}, {"required": ["messages"]}],
            }
        }
    },
}

KEPT: Schema = {
    "type": "object",
    "required": ["id", "url", "expires_in"],
    "properties": {"id": {"type": "string"}, "url": {"type": "string"}, "expires_in": {"type": "integer"}},
}

ID: Schema = {
    "name": "id",
    "in": "path",
    "required": True,
    "schema": {"type": "string", "pattern": "^[A-Za-z0-9_-]{22}$"},
}
LAST_EVENT_ID: Schema = {"name": "Last-Event-ID", "in": "header", "schema": {"type": "string"}}


def _keep_stream() -> dict[str, Any]:
    return {
        "operationId": "keepStream",
        "summary": "Keep a request without running it.",
        "requestBody": BODY,
        "responses": {
            "201": {"description": "Its address.", "content": {"application/json": {"schema": KEPT}}},
            **_error_responses(400, 401, 404, 405, 413, 500, 503),
        },
        "security": [{}, {"key": []}],
    }


def _run_stream() -> dict[str, Any]:
    return {
        "operationId": "runStream",
        "summary": "Run a kept request and read it, or come back to it. No key is asked for.",
        "parameters": [ID, LAST_EVENT_ID],
        "responses": _stream_responses(414),
    }


def _stop_stream() -> dict[str, Any]:
    return {
        "operationId": "stopStream",
        "summary": "Stop a stream. No key is asked for.",
        "parameters": [ID],
        "responses": {"204": {"description": "It is stopped."}, **_error_responses(404, 405, 410, 500, 503)},
    }


def _post_stream() -> dict[str, Any]:
    return {
        "operationId": "postStream",
        "summary": "Start a stream, or come back to one.",
        "description": "Exactly one of `prompt` and `messages`.",
        "parameters": [LAST_EVENT_ID],
        "requestBody": BODY,
        "responses": _stream_responses(413),
        "security": [{}, {"key": []}],
    }


def _stream_responses(too_large: int) -> dict[str, Any]:
    responses: dict[str, Any] = {
        "200": {
            "description": "The events; see docs/protocol.md.",
            "content": {"text/event-stream": {"schema": EVENT}},
        },
        "204": {"description": "The stream ended and its reader has all of it."},
    }
    return responses | _error_responses(400, 401, 404, 405, 410, 500, 503, too_large)


def _error_responses(*statuses: int) -> dict[str, Any]:
    responses: dict[str, Any] = {}
    for status in sorted(statuses):
        rows = [row for row in ERROR_TABLE if row.status == status]
        responses[str(status)] = {
            "description": " or ".join(row.code for row in rows),
            "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
        } | _headers(rows)
    return responses


def _headers(rows: list[type[TailraceError]]) -> dict[str, Any]:
    if not any(row.retry_after_s for row in rows):
        return {}
    return {"headers": {"Retry-After": {"schema": {"type": "integer"}}}}


def _probe(summary: str) -> dict[str, Any]:
    state = {"content": {"text/plain": {"schema": {"type": "string"}}}}
    return {
        "summary": summary,
        "responses": {
            "200": {"description": "Yes; the body is the state."} | state,
            "503": {"description": "No; the body is the state."} | state,
        },
    }
