"""A counter that is cheap enough for every token, as `token_histogram` is a histogram that is."""

from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector, CollectorRegistry


class Count:
    """One label set's count. Adding to `value` is the hot path."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0


class TokenCounter(Collector):
    """Feed it from one thread only."""

    def __init__(self, name: str, help: str, labels: Sequence[str], registry: CollectorRegistry) -> None:
        self._name, self._help, self._labels = name, help, labels
        self._counts: dict[tuple[str, ...], Count] = {}
        registry.register(self)

    def labels(self, *values: str) -> Count:
        """The count of these label values; ask once a stream, not once a token."""
        return self._counts.setdefault(values, Count())

    def collect(self) -> Iterator[CounterMetricFamily]:
        family = CounterMetricFamily(self._name, self._help, labels=self._labels)
        for values, count in self._counts.items():
            family.add_metric(values, count.value)
        yield family
