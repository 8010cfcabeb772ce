"""The one table of everything that can go wrong for a caller.

Each class is a row: the status of the answer when nothing was sent yet, the code that names it in JSON, in events and
in metrics, and whether the same request may succeed later. `docs/protocol.md` lists the same rows; a test compares
them.
"""

from typing import ClassVar


class TailraceError(Exception):
    """Base of the rows.

    `message` is one line for the caller: no traceback, no path, no class name. `param` names the field at fault.
    """

    status: ClassVar[int]
    code: ClassVar[str]
    retryable: ClassVar[bool] = False
    retry_after_s: ClassVar[int | None] = None

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


class InvalidRequest(TailraceError):
    status, code = 400, "invalid_request"


class ContextLength(TailraceError):
    status, code = 400, "context_length"


class Unauthorized(TailraceError):
    status, code = 401, "unauthorized"


class NotFound(TailraceError):
    status, code = 404, "not_found"


class ModelNotFound(TailraceError):
    status, code = 404, "model_not_found"


class MethodNotAllowed(TailraceError):
    status, code = 405, "method_not_allowed"


class StreamGone(TailraceError):
    status, code = 410, "stream_gone"


class BodyTooLarge(TailraceError):
    status, code = 413, "body_too_large"


class UriTooLong(TailraceError):
    status, code = 414, "uri_too_long"


class Internal(TailraceError):
    status, code = 500, "internal"


class Overloaded(TailraceError):
    status, code, retryable, retry_after_s = 503, "overloaded", True, 1


class Starting(TailraceError):
    # A model takes tens of seconds to load; asking every 5 s is often enough.
    status, code, retryable, retry_after_s = 503, "starting", True, 5


class Draining(TailraceError):
    # Another pod can take the request at once.
    status, code, retryable, retry_after_s = 503, "draining", True, 1


class EngineDead(TailraceError):
    # The supervisor restarts the process, which then has to load the model.
    status, code, retryable, retry_after_s = 503, "engine_dead", True, 5


ERROR_TABLE: tuple[type[TailraceError], ...] = (
    InvalidRequest,
    ContextLength,
    Unauthorized,
    NotFound,
    ModelNotFound,
    MethodNotAllowed,
    StreamGone,
    BodyTooLarge,
    UriTooLong,
    Internal,
    Overloaded,
    Starting,
    Draining,
    EngineDead,
)
