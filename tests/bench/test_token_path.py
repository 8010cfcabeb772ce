"""The path of a token does not grow unseen. It is counted, not timed: the same number on every machine."""

import sys

import pytest

from bench import token_path

# How much more a token may cost than in the baseline.
GROWTH = 1.2

RENEW = ".venv/bin/python -m bench.token_path --write"


@pytest.mark.parametrize("name", sorted(token_path.PATHS))
def test_a_token_costs_no_more_than_it_did(name: str) -> None:
    baseline = token_path.baseline()
    if baseline is None:
        pytest.skip(f"nobody has counted on Python {token_path.VERSION}; this makes a baseline: {RENEW}")
    now, then = token_path.count(name), baseline[name]
    for what in ("instructions", "c_calls"):
        has, had = getattr(now, what), getattr(then, what)
        assert has <= GROWTH * had, f"{name}: {has:g} {what} a token, were {had:g}; if that is worth it: {RENEW}"


@pytest.mark.parametrize("name", sorted(token_path.PATHS))
def test_the_count_is_the_same_every_time(name: str) -> None:
    assert token_path.count(name) == token_path.count(name)


def test_counting_leaves_no_tracer_behind() -> None:
    before = sys.gettrace(), sys.getprofile()
    token_path.count("chat")
    assert (sys.gettrace(), sys.getprofile()) == before
