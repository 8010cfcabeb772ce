"""What is known of one request when it has ended: for the log line, the counters and the histograms.

One record lies in each request's scope; whoever learns something writes it there, and `routes.observer` reads it once.
"""

import re
from dataclasses import dataclass

from starlette.types import Scope

KEY = "tailrace.request"

# A client's own id is taken when it can neither break a log line nor fill it.
REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")

# The route of a request that no route took. Never the client's own path, of which there is no end.
UNMATCHED = "unmatched"


@dataclass(slots=True)
class RequestRecord:
    """Times are on the clock of `time.perf_counter`. `outcome` is a word of the error table, or how a stream ended."""

    id: str
    started_s: float
    outcome: str = "completed"
    status: int = 0
    num_prompt_tokens: int | None = None
    num_output_tokens: int | None = None
    ttft_s: float | None = None
    tpot_s: float | None = None


def record_of(scope: Scope) -> RequestRecord:
    """The record in `scope`; one of no request where no observer stands before the application."""
    state = scope.setdefault("state", {})
    record = state.setdefault(KEY, RequestRecord("", 0.0))
    assert isinstance(record, RequestRecord)
    return record


def route_of(scope: Scope) -> str:
    """The template of the route that took the request."""
    return str(getattr(scope.get("route"), "path", UNMATCHED))
