import pytest

from engine.errors import Overloaded
from engine.interface import GenerationRequest
from engine.kept_requests import KeptRequests


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def request(num_bytes: int = 10) -> GenerationRequest:
    return GenerationRequest(prompt="x", num_bytes=num_bytes)


def test_a_request_is_claimed_once() -> None:
    kept, wanted = KeptRequests(Clock()), request()
    id = kept.keep(wanted)
    assert kept.claim(id) is wanted
    assert kept.claim(id) is None
    kept.give_back(id, wanted)
    assert kept.claim(id) is wanted


def test_what_nobody_claims_expires() -> None:
    clock = Clock()
    kept = KeptRequests(clock, expires_in_s=10)
    first = kept.keep(request())
    clock.now_s = 5
    second = kept.keep(request())
    clock.now_s = 11
    assert kept.find(first) is None
    assert kept.find(second) is not None
    assert len(kept) == 1


def test_their_number_and_their_bytes_are_bounded() -> None:
    kept = KeptRequests(Clock(), max_requests=2)
    ids = [kept.keep(request()) for _ in range(2)]
    with pytest.raises(Overloaded):
        kept.keep(request())
    assert kept.claim(ids[0]) is not None
    kept.keep(request())

    kept = KeptRequests(Clock(), max_bytes=25)
    ids = [kept.keep(request()) for _ in range(2)]
    with pytest.raises(Overloaded):
        kept.keep(request())
    kept.claim(ids[1])
    kept.keep(request(15))


def test_ids_cannot_be_guessed() -> None:
    kept = KeptRequests(Clock())
    ids = {kept.keep(request()) for _ in range(100)}
    assert len(ids) == 100
    assert all(len(id) == 22 for id in ids)  # 128 bits, six to a character
