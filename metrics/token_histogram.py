"""A histogram that is cheap enough to be fed on every token.

`prometheus_client`'s own takes several locks an observation, which is right for what happens once a request. This one
is fed by one thread and read by the same, so it needs none.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector, CollectorRegistry
from prometheus_client.utils import floatToGoString


class Series:
    """One label set's counts. `observe` is the hot path."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


class TokenHistogram(Collector):
    """Feed it from one thread only."""

    def __init__(
        self, name: str, help: str, labels: Sequence[str], bounds: Sequence[float], registry: CollectorRegistry
    ) -> None:
        self._name, self._help, self._labels, self._bounds = name, help, labels, tuple(bounds)
        self._series: dict[tuple[str, ...], Series] = {}
        registry.register(self)

    def labels(self, *values: str) -> Series:
        """The series of these label values; ask once a stream, not once a token."""
        series = self._series.get(values)
        if series is None:
            series = self._series[values] = Series(self._bounds)
        return series

    def collect(self) -> Iterator[HistogramMetricFamily]:
        family = HistogramMetricFamily(self._name, self._help, labels=self._labels)
        for values, series in self._series.items():
            total, buckets = 0, []
            for bound, count in zip((*self._bounds, float("inf")), series.counts, strict=True):
                total += count
                buckets.append((floatToGoString(bound), total))  # type: ignore[no-untyped-call]
            family.add_metric(values, buckets, series.sum)
        yield family
