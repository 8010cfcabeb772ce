"""What both journals promise, by the same tests."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from engine.interface import GenerationRequest
from engine.journal import Journal, Loss, MemoryJournal, StreamRecord
from engine.journal.redis_journal import RedisJournal
from tests.engine.owners import ENDING, OPENING, REQUEST, Owner, passage, texts, until
from tests.engine.redis_server import SERVER, RedisServer, redis_server

WINDOW_S = 60.0
SHORT_WINDOW_S = 0.2

Making = Callable[[float], AbstractAsyncContextManager[Journal]]
Behaviour = Callable[[Journal, str], Awaitable[None]]


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


@pytest.fixture(params=["memory", "redis"])
def make(request: pytest.FixtureRequest) -> Making:
    if request.param == "redis":
        if SERVER is None:
            pytest.skip("needs Debian's package redis-server")
        url = request.getfixturevalue("server").url

    @asynccontextmanager
    async def making(window_s: float) -> AsyncIterator[Journal]:
        journal: Journal
        if request.param == "memory":
            journal = MemoryJournal(time.monotonic, window_s)
        else:
            journal = RedisJournal(url, window_s, timeout_s=10)
        await journal.start()
        try:
            yield journal
        finally:
            await journal.close()

    return making


def behaves(make: Making, behaviour: Behaviour, window_s: float = WINDOW_S) -> None:
    """Let a journal go through `behaviour` with an id that is new."""

    async def run() -> None:
        async with asyncio.timeout(30), make(window_s) as journal:
            await behaviour(journal, secrets.token_urlsafe(16))

    asyncio.run(run())


def test_writes_are_confirmed_in_order_and_found_again(make: Making) -> None:
    async def behaviour(journal: Journal, id: str) -> None:
        owner = Owner().open(journal, id)
        for n in range(1, 6):
            owner.write(n, f"안녕 {n}\n")
            await asyncio.sleep(0)
        await until(lambda: owner.heard == [1, 2, 3, 4, 5])
        assert await journal.find(id) == StreamRecord(id, OPENING, [passage(n, f"안녕 {n}\n") for n in range(1, 6)])
        assert await journal.find(id + "x") is None

    behaves(make, behaviour)


def test_what_was_found_does_not_change(make: Making) -> None:
    async def behaviour(journal: Journal, id: str) -> None:
        owner = Owner().open(journal, id)
        owner.write(1)
        await until(lambda: owner.heard)
        found = await journal.find(id)
        owner.write(2)
        await until(lambda: len(owner.heard) == 2)
        assert found and found.passages == [passage(1)]

    behaves(make, behaviour)


def test_a_stream_that_ended_is_replayed_for_the_window(make: Making) -> None:
    async def behaviour(journal: Journal, id: str) -> None:
        owner = Owner().open(journal, id, can_continue=False)
        owner.write(2)
        owner.end()
        await until(lambda: owner.heard == [2, "end"])
        owner.write(4)
        owner.end()
        owner.entry.leave()
        found = await journal.find(id)
        assert found and (found.passages, found.ending, found.num_tokens) == ([passage(2)], ENDING, 3)
        claimed = await journal.claim(id, owner.heard.append)
        assert claimed and claimed[0] == found
        claimed[1].write(passage(4), lambda: owner.heard.append(4))
        claimed[1].leave()
        assert await journal.find(id) == found
        assert owner.heard == [2, "end"]

    behaves(make, behaviour)


def test_a_cut_stream_is_continued_by_whoever_claims_it(make: Making) -> None:
    async def behaviour(journal: Journal, id: str) -> None:
        first = Owner().open(journal, id)
        first.write(1, "a")
        first.write(2, "b")
        await until(lambda: first.heard == [1, 2])
        first.entry.leave()
        first.entry.leave()
        await until_known(journal, id, ["a", "b"])
        claimed = await journal.claim(id, lambda loss: None)
        assert claimed and claimed[0] == StreamRecord(id, OPENING, [passage(1, "a"), passage(2, "b")])
        second = Owner()
        second.entry = claimed[1]
        second.write(3, "c")
        second.end()
        await until(lambda: second.heard == [3, "end"])
        assert await texts(journal, id) == ["a", "b", "c"]
        assert first.heard == [1, 2]

    behaves(make, behaviour)


@pytest.mark.parametrize("way", ["cut", "ended"])
def test_a_stream_that_nobody_runs_expires(make: Making, way: str) -> None:
    async def behaviour(journal: Journal, id: str) -> None:
        owner = Owner().open(journal, id)
        owner.write(1)
        await until(lambda: owner.heard)
        owner.end() if way == "ended" else owner.entry.leave()
        await until_known(journal, id, None)
        assert await journal.claim(id, owner.heard.append) is None
        assert not await journal.cancel(id)

    behaves(make, behaviour, SHORT_WINDOW_S)


def test_a_cut_stream_that_cannot_be_continued_is_forgotten(make: Making) -> None:
    async def behaviour(journal: Journal, id: str) -> None:
        owner = Owner().open(journal, id, can_continue=False)
        owner.write(1)
        await until(lambda: owner.heard)
        owner.entry.leave()
        await until_known(journal, id, None)

    behaves(make, behaviour)


def test_a_running_stream_outlives_the_window(make: Making) -> None:
    async def behaviour(journal: Journal, id: str) -> None:
        owner = Owner().open(journal, id)
        owner.write(1)
        await asyncio.sleep(2 * SHORT_WINDOW_S)
        assert await texts(journal, id) == ["a"]
        owner.write(2)
        await until(lambda: owner.heard == [1, 2])

    behaves(make, behaviour, SHORT_WINDOW_S)


def test_the_former_owner_hears_that_the_stream_was_taken(make: Making) -> None:
    async def behaviour(journal: Journal, id: str) -> None:
        first = Owner().open(journal, id)
        first.write(1, "a")
        await until(lambda: first.heard)
        second = await Owner().claim(journal, id)
        await until(lambda: first.loss, 0.5)
        first.write(2, "x")
        first.end()
        first.entry.leave()
        second.write(2, "b")
        await until(lambda: second.heard == [2])
        assert first.heard == [1, Loss.TAKEN]
        assert await texts(journal, id) == ["a", "b"]

    behaves(make, behaviour)


def test_of_many_claims_the_last_has_it(make: Making) -> None:
    async def behaviour(journal: Journal, id: str) -> None:
        first = Owner().open(journal, id)
        first.write(1)
        await until(lambda: first.heard)
        owners = await asyncio.gather(*(Owner().claim(journal, id) for _ in range(50)))
        await until(lambda: sum(owner.loss is Loss.TAKEN for owner in owners) == 49)
        [last] = [owner for owner in owners if owner.loss is None]
        last.write(2)
        await until(lambda: last.heard == [2])
        assert all(owner.heard == [Loss.TAKEN] for owner in owners if owner is not last)
        assert await texts(journal, id) == ["a", "a"]

    behaves(make, behaviour)


def test_a_running_stream_is_cancelled(make: Making) -> None:
    async def behaviour(journal: Journal, id: str) -> None:
        owner = Owner().open(journal, id)
        owner.write(1)
        await until(lambda: owner.heard)
        assert await journal.cancel(id)
        await until(lambda: owner.loss, 0.5)
        # The rest of it is for its reader alone.
        owner.write(2)
        owner.end()
        owner.write(3)
        assert owner.heard == [1, Loss.CANCELLED, 2, "end"]
        assert await journal.find(id) is None
        assert await journal.claim(id, owner.heard.append) is None
        assert not await journal.cancel(id)

    behaves(make, behaviour)


def test_a_stream_is_cancelled_before_anything_is_written(make: Making) -> None:
    async def behaviour(journal: Journal, id: str) -> None:
        owner = Owner().open(journal, id)
        assert await journal.cancel(id)
        await until(lambda: owner.loss, 0.5)
        assert await journal.find(id) is None

    behaves(make, behaviour)


@pytest.mark.parametrize("way", ["cut", "ended"])
def test_a_stream_that_nobody_runs_is_cancelled(make: Making, way: str) -> None:
    async def behaviour(journal: Journal, id: str) -> None:
        owner = Owner().open(journal, id)
        owner.write(1)
        if way == "ended":
            owner.end()
            await until(lambda: owner.heard == [1, "end"])
        else:
            owner.entry.leave()
            await until_known(journal, id, ["a"])
        heard = list(owner.heard)
        assert await journal.cancel(id)
        assert await journal.find(id) is None
        assert not await journal.cancel(id)
        assert owner.heard == heard

    behaves(make, behaviour)


def test_nothing_is_confirmed_after_the_owner_has_left(make: Making) -> None:
    async def behaviour(journal: Journal, id: str) -> None:
        owner = Owner().open(journal, id)
        owner.entry.write(passage(1), owner.entry.leave)
        owner.entry.write(passage(2), lambda: owner.heard.append(2))
        await until_known(journal, id, ["a", "a"] if journal.is_shared else ["a"])
        assert owner.heard == []

    behaves(make, behaviour)


def test_a_request_is_run_once(make: Making) -> None:
    async def behaviour(journal: Journal, id: str) -> None:
        for request in (REQUEST, GenerationRequest(prompt=[1, 2], made_before=([3], [4, 5]), is_chat=True)):
            await journal.keep(id, request)
            taken = await asyncio.gather(*(journal.take(id) for _ in range(50)))
            assert [one for one in taken if one is not None] == [request]
            await journal.keep(id, request)
            assert await journal.take(id) == request

    behaves(make, behaviour)


def test_a_request_is_forgotten_before_it_is_run(make: Making) -> None:
    async def behaviour(journal: Journal, id: str) -> None:
        await journal.keep(id, REQUEST)
        assert await journal.cancel(id)
        assert not await journal.cancel(id)
        assert await journal.take(id) is None

    behaves(make, behaviour)


async def until_known(journal: Journal, id: str, wanted: list[str] | None) -> None:
    async with asyncio.timeout(5):
        while await texts(journal, id) != wanted:  # noqa: ASYNC110  # nobody tells
            await asyncio.sleep(0.005)
