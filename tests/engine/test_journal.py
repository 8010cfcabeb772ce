from engine.journal import MemoryJournal, Passage, StreamRecord


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def record(id: str, text: str = "abc") -> StreamRecord:
    passages = [Passage(index + 1, letter) for index, letter in enumerate(text)]
    return StreamRecord(id, passages, len(text) + 1, b"farewell")


def said(passage: Passage | None) -> str | None:
    return passage.text if passage else None


def test_text_after_an_event_is_what_its_reader_is_missing() -> None:
    kept = record("x", "abcd")
    assert [said(kept.after(n)) for n in range(7)] == ["abcd", "bcd", "cd", "d", "", "", None]


def test_a_number_between_two_events_was_never_given_out() -> None:
    kept = StreamRecord("x", [Passage(2, "ab"), Passage(5, "cde")], 5, b"")
    assert [said(kept.after(n)) for n in (1, 2, 3, 5)] == [None, "cde", None, ""]


def test_a_record_expires_after_the_window() -> None:
    clock = Clock()
    journal = MemoryJournal(clock, window_s=10)
    journal.keep(record("x"))
    clock.now_s = 10
    assert journal.find("x") is not None
    clock.now_s = 10.1
    assert journal.find("x") is None
    assert len(journal) == 0


def test_the_oldest_go_when_there_are_too_many_or_they_are_too_large() -> None:
    journal = MemoryJournal(Clock(), max_streams=2)
    for id in ("a", "b", "c"):
        journal.keep(record(id))
    assert [journal.find(id) is not None for id in ("a", "b", "c")] == [False, True, True]

    journal = MemoryJournal(Clock(), max_bytes=3 * record("a").num_bytes)
    for id in ("a", "b", "c", "d", "e"):
        journal.keep(record(id))
    assert len(journal) == 3
    assert journal.find("e") is not None
