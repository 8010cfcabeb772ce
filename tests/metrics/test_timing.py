import pytest

from metrics.timing import StreamTiming


def test_no_time_is_defined_before_a_token() -> None:
    timing = StreamTiming(10.0)
    assert (timing.ttft_s, timing.tpot_s) == (None, None)


def test_one_token_has_a_ttft_and_no_tpot() -> None:
    timing = StreamTiming(10.0)
    timing.on_write(10.25, 1)
    assert (timing.ttft_s, timing.tpot_s) == (0.25, None)


def test_tpot_divides_by_tokens_and_not_by_events() -> None:
    timing = StreamTiming(10.0)
    timing.on_write(10.5, 2)
    timing.on_write(11.5, 5)
    assert timing.ttft_s == 0.5
    assert timing.tpot_s == pytest.approx(1.0 / 4)
