"""Whether a request that has no token yet waits in vLLM's queue, or is in prefill.

vLLM tells of both only with the first token. What it does tell, after every step, is how many requests wait. They are
the ones that came last, as the queue is served in order; with priorities this is an estimate.
"""

from typing import Any

from vllm.v1.metrics.loggers import StatLoggerBase


class QueueWatch:
    """Requests enter when they are submitted, and leave with their first token or when they end."""

    def __init__(self) -> None:
        self._unstarted: dict[str, None] = {}
        self._num_waiting: dict[int, int] = {}

    def enter(self, request_id: str) -> None:
        self._unstarted[request_id] = None

    def leave(self, request_id: str) -> None:
        self._unstarted.pop(request_id, None)

    def is_waiting(self, request_id: str) -> bool:
        num_waiting = sum(self._num_waiting.values())
        if request_id not in self._unstarted or not num_waiting:
            return False
        return request_id in list(self._unstarted)[-num_waiting:]

    def stat_logger(self, vllm_config: Any, engine_index: int = 0) -> "_StatLogger":
        """A factory, as `AsyncLLM` takes them."""
        return _StatLogger(self._num_waiting)


class _StatLogger(StatLoggerBase):  # type: ignore[misc]  # vLLM's types stop at this border
    """Keeps the number of waiting requests of each engine."""

    def __init__(self, num_waiting: dict[int, int]) -> None:
        self._num_waiting = num_waiting

    def record(
        self, scheduler_stats: Any, iteration_stats: Any, mm_cache_stats: Any = None, engine_idx: int = 0
    ) -> None:
        if scheduler_stats is not None:
            self._num_waiting[engine_idx] = scheduler_stats.num_waiting_reqs

    def log_engine_initialized(self) -> None:
        return None
