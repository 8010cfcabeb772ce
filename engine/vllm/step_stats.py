"""vLLM's own metrics, with the one that it feeds for every token fed once a step."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from typing import Any

from prometheus_client import Histogram
from vllm.v1.metrics.loggers import PrometheusStatLogger


class StepStats(PrometheusStatLogger):  # type: ignore[misc]  # vLLM's types stop at this border
    """vLLM takes it in the place of its own, because it is one."""

    def record(
        self, scheduler_stats: Any, iteration_stats: Any, mm_cache_stats: Any = None, engine_idx: int = 0
    ) -> None:
        gaps_s: Sequence[float] = ()
        if iteration_stats is not None:
            gaps_s, iteration_stats.inter_token_latencies_iter = iteration_stats.inter_token_latencies_iter, ()
        super().record(scheduler_stats, iteration_stats, mm_cache_stats, engine_idx)
        observe_all(self.histogram_inter_token_latency[engine_idx], gaps_s)


def observe_all(histogram: Histogram, values: Sequence[float]) -> None:
    """As `observe` of each, which looks for the bucket one by one and takes two locks each time."""
    if not values:
        return
    histogram._sum.inc(sum(values))
    bounds = histogram._upper_bounds  # the last is infinity
    for index, count in Counter(bisect_left(bounds, value) for value in values).items():
        histogram._buckets[index].inc(count)
