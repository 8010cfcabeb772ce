"""The record, and what the journal in memory bounds."""

import asyncio
import gc
import tracemalloc

import pytest

from engine.journal import Ending, MemoryJournal, Passage, StreamRecord
from engine.journal.memory import GrowingRecord
from tests.engine.owners import ENDING, OPENING, Owner, passage, texts


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def record(*passages: Passage, ending: Ending | None = None) -> StreamRecord:
    return StreamRecord("x", OPENING, list(passages), ending)


def said(passage: Passage | None) -> str | None:
    return passage.text if passage else None


def test_text_after_an_event_is_what_its_reader_is_missing() -> None:
    passages = [passage(index + 1, letter) for index, letter in enumerate("abcd")]
    ended = record(*passages, ending=Ending("stop", 5, None, None))
    assert [said(ended.after(n)) for n in range(7)] == ["abcd", "bcd", "cd", "d", "", "", None]
    cut = record(*passages)
    assert [said(cut.after(n)) for n in range(7)] == ["abcd", "bcd", "cd", "d", "", None, None]


def test_what_is_missing_is_one_event_with_all_its_tokens() -> None:
    passages = [Passage(1, "a", "", [7]), Passage(2, "", "hm", [8]), Passage(4, "b", "", [9, 10])]
    assert record(*passages).after(1) == Passage(4, "b", "hm", [8, 9, 10])


def test_a_number_between_two_events_was_never_given_out() -> None:
    cut = record(Passage(2, "ab", "", [1, 2]), Passage(5, "cde", "", [3, 4, 5]))
    assert [said(cut.after(n)) for n in (1, 2, 3, 5)] == [None, "cde", None, ""]


def test_a_stream_that_said_nothing_misses_nothing() -> None:
    assert said(record().after(0)) == ""
    assert record().after(1) is None


def test_the_oldest_that_nobody_runs_go_first_when_there_are_too_many() -> None:
    async def run() -> None:
        journal = MemoryJournal(Clock(), max_streams=3)
        running = Owner().open(journal, "running")
        for id in ("a", "b", "c"):
            Owner().open(journal, id).entry.leave()
        assert [await texts(journal, id) for id in ("running", "a", "b", "c")] == [[], None, [], []]
        running.write(1)
        assert await texts(journal, "running") == ["a"]

    asyncio.run(run())


def test_what_streams_hold_is_bounded_and_given_back() -> None:
    async def run() -> None:
        size = OPENING.num_bytes + GrowingRecord("x", OPENING).add(passage(1))
        journal = MemoryJournal(Clock(), max_bytes=3 * size)
        for id in ("a", "b", "c", "d", "e"):
            owner = Owner().open(journal, id)
            owner.write(1)
            owner.end()
        assert [await texts(journal, id) for id in "abcde"] == [None, None, ["a"], ["a"], ["a"]]
        for id in "cde":
            assert await journal.cancel(id)
        owner = Owner().open(journal, "f")
        for n in range(1, 4):
            owner.write(n)
        assert await texts(journal, "f") == ["a"] * 3

    asyncio.run(run())


@pytest.mark.parametrize("text", ["a token", "토큰", "🙂", ""])
@pytest.mark.parametrize("reasoning", ["", "a thought"])
@pytest.mark.parametrize("num_ids", [1, 7])
def test_streams_take_no_more_memory_than_is_counted(text: str, reasoning: str, num_ids: int) -> None:
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        records = [GrowingRecord(str(index), OPENING) for index in range(20)]
        for growing in records:
            for n in range(300, 400):
                # Objects that nobody else has: a literal would be the same one every time.
                growing.add(Passage(n, f" {text}"[1:], f" {reasoning}"[1:], list(range(n, n + num_ids))))
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    counted = sum(growing.num_bytes for growing in records)
    assert counted / 5 < taken <= counted


def test_the_garbage_collector_has_nothing_to_do_with_what_was_said() -> None:
    growing = GrowingRecord("x", OPENING)
    gc.collect()
    before = len(gc.get_objects())
    for n in range(1, 1000):
        growing.add(passage(n))
    assert len(gc.get_objects()) - before < 50
    found = growing.record()
    assert found.passages == [passage(n) for n in range(1, 1000)]


def test_a_record_has_each_passage_as_it_was_written() -> None:
    passages = [Passage(1, "a", "", [7]), Passage(4, "", "hm", [8, 2**31 - 1, 9]), Passage(5, "b", "so", [10])]
    growing = GrowingRecord("x", OPENING)
    for one in passages:
        growing.add(one)
    assert growing.record() == record(*passages)


def test_a_running_stream_that_is_too_large_goes_on_unresumed() -> None:
    unresumed: list[None] = []

    async def run() -> None:
        journal = MemoryJournal(Clock(), max_bytes=10_000, on_unresumed=lambda: unresumed.append(None))
        small, large = Owner().open(journal, "small"), Owner().open(journal, "large")
        small.write(1)
        for n in range(1, 100):
            large.write(n, "long " * 10)
        large.end()
        assert large.heard == [*range(1, 100), "end"]
        assert await texts(journal, "large") is None
        assert await texts(journal, "small") == ["a"]
        assert len(journal) == 1

    asyncio.run(run())
    assert len(unresumed) == 1


def test_a_stream_that_cannot_be_resumed_can_still_be_cancelled() -> None:
    async def run() -> None:
        journal = MemoryJournal(Clock(), max_bytes=10)
        owner = Owner().open(journal, "x")
        assert await journal.claim("x", owner.heard.append) is None
        assert await journal.cancel("x")
        assert owner.heard == ["cancelled"]
        assert not await journal.cancel("x")

    asyncio.run(run())


def test_expiry_is_counted_from_the_end_or_the_cut() -> None:
    async def run() -> None:
        clock = Clock()
        journal = MemoryJournal(clock, window_s=10)
        owners = [Owner().open(journal, id) for id in ("ended", "cut", "running")]
        clock.now_s = 100
        owners[0].end()
        clock.now_s = 105
        owners[1].entry.leave()
        for now_s, known in ((110.0, [1, 1, 1]), (110.1, [0, 1, 1]), (115.1, [0, 0, 1])):
            clock.now_s = now_s
            assert [await texts(journal, id) is not None for id in ("ended", "cut", "running")] == known
        assert len(journal) == 1

    asyncio.run(run())


def test_the_owner_s_times_are_kept() -> None:
    async def run() -> None:
        journal = MemoryJournal(Clock())
        owner = Owner().open(journal, "x")
        owner.write(1)
        owner.end()
        found = await journal.find("x")
        assert found == record(passage(1), ending=ENDING)
        assert found and found.num_tokens == 3

    asyncio.run(run())
