from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_open_metrics

from bench.token_recording import cost_us
from metrics.token_histogram import TokenHistogram

VALUES = [0.001, 0.0011, 0.5, 7.0, 100.0, 0.0]
BOUNDS = (0.001, 0.01, 1.0, 10.0)

# The budget is 2 us; a machine that does something else at the time is given twice that.
MAX_COST_US = 4.0


def test_it_says_what_the_library_s_own_histogram_says() -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    cheap = TokenHistogram("h", "Help.", ("route",), BOUNDS, ours)
    plain = Histogram("h", "Help.", ("route",), buckets=BOUNDS, registry=theirs)
    for value in VALUES:
        cheap.labels("r").observe(value)
        plain.labels("r").observe(value)

    def without_created(text: bytes) -> list[bytes]:
        return [line for line in text.splitlines() if b"_created" not in line]

    assert without_created(generate_latest(ours)) == without_created(generate_latest(theirs))
    assert b"# EOF" in generate_open_metrics(ours)  # type: ignore[no-untyped-call]


def test_recording_a_token_stays_in_its_budget() -> None:
    assert cost_us() < MAX_COST_US
