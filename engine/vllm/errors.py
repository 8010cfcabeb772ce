"""The one mapping from vLLM's and pydantic's exceptions to the error table."""

import logging
import re

from pydantic import ValidationError
from vllm.entrypoints.serve.exception_handling.error_response import create_error_response
from vllm.exceptions import GracefulHTTPError
from vllm.v1.engine.exceptions import EngineDeadError

from engine.errors import (
    ContextLength,
    EngineDead,
    Internal,
    InvalidRequest,
    ModelNotFound,
    Overloaded,
    TailraceError,
)
from engine.interface import Sampling

logger = logging.getLogger("tailrace.engine")

# What vLLM calls the field at fault when a prompt is too long for the context.
TOO_LONG = frozenset({"input_text", "input_tokens"})

SAMPLING_FIELD = re.compile(r"\b(" + "|".join([*Sampling.__dataclass_fields__, "priority"]) + r")\b")


def from_vllm(error: Exception, prompt_field: str = "prompt") -> TailraceError:
    """The row of the table for what vLLM raised; `prompt_field` is the caller's name for the prompt."""
    if isinstance(error, TailraceError):
        return error
    if isinstance(error, EngineDeadError):
        return EngineDead("the engine has died")
    if isinstance(error, GracefulHTTPError):
        return Overloaded("the engine is busy; try again later or elsewhere")
    info = create_error_response(error).error
    if info.code >= 500:
        logger.error("the engine failed", exc_info=error)
        return Internal("the engine failed on this request")
    if info.code == 404:
        return ModelNotFound("this server does not serve that model", param="model")
    parameter = getattr(error, "parameter", None)
    message = _first_line(str(error.args[0]) if error.args else info.message)
    if parameter in TOO_LONG:
        return ContextLength(message, param=prompt_field)
    if parameter == "max_tokens" and "max_model_len" in message:
        return ContextLength(message, param=parameter)
    named = SAMPLING_FIELD.search(message)
    return _invalid(named.group() if named else prompt_field, message)


def from_validation(error: ValidationError, prompt_field: str) -> TailraceError:
    """The row of the table for a request that vLLM's types do not take."""
    where, message = explain_validation(error)
    # What is not a sampling parameter is in the prompt, or in a part of it that vLLM validates by itself.
    return _invalid(where if where and SAMPLING_FIELD.fullmatch(where) else prompt_field, message)


def explain_validation(error: ValidationError) -> tuple[str | None, str]:
    """The field at fault and what is wrong with it, in a line; pydantic's own text would quote the input and class
    names."""
    errors = error.errors(include_url=False, include_input=False)
    # A value that may be of several types fails for each of them; the one it was meant to be fails for another reason.
    first = next((one for one in errors if not one["type"].endswith("_type")), errors[0])
    where = getattr(first.get("ctx", {}).get("error"), "parameter", None) or next(iter(first["loc"]), None)
    message = _first_line(first["msg"]).removeprefix("Value error, ")
    if where is None:
        return None, message
    return str(where), message if str(where) in message else f"{where}: {message}"


def _invalid(field: str, message: str) -> InvalidRequest:
    return InvalidRequest(message if field in message else f"{field}: {message}", param=field)


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]
