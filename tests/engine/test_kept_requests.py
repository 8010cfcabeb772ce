import pytest

from engine.errors import Overloaded
from engine.interface import GenerationRequest
from engine.journal.kept_requests import KeptRequests


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def request(num_bytes: int = 10) -> GenerationRequest:
    return GenerationRequest(prompt="x", num_bytes=num_bytes)


def test_a_request_is_taken_once_and_can_be_given_back() -> None:
    kept, wanted = KeptRequests(Clock()), request()
    kept.keep("a", wanted)
    assert kept.take("a") is wanted
    assert kept.take("a") is None
    kept.keep("a", wanted)
    assert kept.take("a") is wanted


def test_what_nobody_takes_expires() -> None:
    clock = Clock()
    kept = KeptRequests(clock, expires_in_s=10)
    kept.keep("a", request())
    clock.now_s = 5
    kept.keep("b", request())
    clock.now_s = 11
    assert kept.take("a") is None
    assert len(kept) == 1
    assert kept.take("b") is not None


def test_their_number_and_their_bytes_are_bounded() -> None:
    kept = KeptRequests(Clock(), max_requests=2)
    for id in ("a", "b"):
        kept.keep(id, request())
    with pytest.raises(Overloaded):
        kept.keep("c", request())
    assert kept.take("a") is not None
    kept.keep("c", request())

    kept = KeptRequests(Clock(), max_bytes=25)
    for id in ("a", "b"):
        kept.keep(id, request())
    with pytest.raises(Overloaded):
        kept.keep("c", request())
    kept.take("b")
    kept.keep("c", request(15))
