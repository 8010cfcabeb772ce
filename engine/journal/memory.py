"""The journal of one process, in its memory.

Invariant: it holds at most `max_streams` streams of `max_bytes` together, the running ones included.
"""

from array import array
from collections import OrderedDict
from collections.abc import Callable
from itertools import chain

from engine.interface import GenerationRequest
from engine.journal.kept_requests import KeptRequests
from engine.journal.records import Ending, Entry, Loss, Opening, Passage, StreamRecord


class GrowingRecord:
    """A record that is still being written: its passages as columns, none of them an object of its own.

    Two objects for every token are three times as large, and the garbage collector looks at all of them again and again
    (`docs/performance.md`).
    """

    __slots__ = ("_ends", "_num_tokens", "_reasonings", "_texts", "_token_ids", "ending", "id", "num_bytes", "opening")

    def __init__(self, id: str, opening: Opening) -> None:
        self.id = id
        self.opening = opening
        self.ending: Ending | None = None
        # What it takes in memory, estimated from above.
        self.num_bytes = opening.num_bytes
        self._num_tokens = array("i")
        self._texts: list[str] = []
        self._reasonings: dict[int, str] = {}  # by the passage: few have any
        # Of all passages, and where each of them ends.
        self._token_ids = array("i")
        self._ends = array("i")

    def add(self, passage: Passage) -> int:
        """What the stream has grown by, in bytes."""
        all_ids = self._token_ids
        # A string is 76 bytes and at most 4 a character; and a column has room for an eighth more than is in it.
        num_bytes = 96 + 4 * len(passage.text) + 5 * len(passage.token_ids)
        if passage.reasoning:
            self._reasonings[len(self._texts)] = passage.reasoning
            num_bytes += 200 + 4 * len(passage.reasoning)
        self._texts.append(passage.text)
        self._num_tokens.append(passage.num_tokens)
        all_ids.extend(passage.token_ids)
        self._ends.append(len(all_ids))
        self.num_bytes += num_bytes
        return num_bytes

    def record(self) -> StreamRecord:
        """A copy of what is known now."""
        starts = chain((0,), self._ends)
        passages = [
            Passage(num_tokens, text, self._reasonings.get(index, ""), self._token_ids[start:end].tolist())
            for index, (num_tokens, text, start, end) in enumerate(
                zip(self._num_tokens, self._texts, starts, self._ends, strict=False)
            )
        ]
        return StreamRecord(self.id, self.opening, passages, self.ending)


class MemoryJournal:
    """What is too much goes in this order: streams that nobody runs, oldest first, then the largest of those that run.

    The owner of such a running one keeps it, but it cannot be resumed any more; `on_unresumed` is called.
    """

    is_shared = False

    def __init__(
        self,
        clock: Callable[[], float],
        window_s: float = 120.0,
        max_streams: int = 10_000,
        max_bytes: int = 64 << 20,
        on_unresumed: Callable[[], None] = lambda: None,
    ) -> None:
        self._clock = clock
        self._window_s = window_s
        self._max_streams = max_streams
        self._max_bytes = max_bytes
        self._on_unresumed = on_unresumed
        self._requests = KeptRequests(clock)
        self._streams: dict[str, GrowingRecord] = {}
        self._num_bytes = 0
        # The owners of those that run; an owner whose stream was dropped is still one, and can be cancelled. And when
        # those expire that nobody runs, the oldest first.
        self._owners: dict[str, _MemoryEntry] = {}
        self._expiries_s: OrderedDict[str, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._streams)

    async def start(self) -> None:
        pass

    async def close(self) -> None:
        pass

    def open(self, id: str, opening: Opening, on_lost: Callable[[Loss], None]) -> Entry:
        self._forget_old()
        self._drop(id)
        self._take_away(id, Loss.TAKEN)
        stream = self._streams[id] = GrowingRecord(id, opening)
        entry = self._owners[id] = _MemoryEntry(self, id, stream, on_lost)
        self._num_bytes += stream.num_bytes
        self._make_room()
        return entry

    async def find(self, id: str) -> StreamRecord | None:
        self._forget_old()
        stream = self._streams.get(id)
        return None if stream is None else stream.record()

    async def claim(self, id: str, on_lost: Callable[[Loss], None]) -> tuple[StreamRecord, Entry] | None:
        self._forget_old()
        stream = self._streams.get(id)
        if stream is None:
            return None
        if stream.ending is not None:
            return stream.record(), _MemoryEntry(self, id, None, on_lost, is_over=True)
        self._take_away(id, Loss.TAKEN)
        self._expiries_s.pop(id, None)
        entry = self._owners[id] = _MemoryEntry(self, id, stream, on_lost)
        return stream.record(), entry

    async def cancel(self, id: str) -> bool:
        self._forget_old()
        was_kept = self._requests.take(id) is not None
        was_known = was_kept or id in self._streams or id in self._owners
        self._drop(id)
        self._take_away(id, Loss.CANCELLED)
        return was_known

    async def keep(self, id: str, request: GenerationRequest) -> None:
        self._requests.keep(id, request)

    async def take(self, id: str) -> GenerationRequest | None:
        return self._requests.take(id)

    # What entries call.

    def add_bytes(self, num_bytes: int) -> None:
        """Count what a stream has grown by, and make room when that is too much."""
        self._num_bytes += num_bytes
        if self._num_bytes > self._max_bytes:
            self._make_room()

    def let_go(self, owner: "_MemoryEntry", is_kept: bool) -> None:
        """Nobody runs the stream any more. It is kept for the window, or not at all."""
        id = owner.id
        if self._owners.get(id) is not owner:
            return
        del self._owners[id]
        if is_kept:
            self._forget_old()
            self._expiries_s[id] = self._clock() + self._window_s
        else:
            self._drop(id)

    def _take_away(self, id: str, loss: Loss) -> None:
        owner = self._owners.pop(id, None)
        if owner is not None:
            owner.lose(loss)

    def _forget_old(self) -> None:
        now_s = self._clock()
        while self._expiries_s and next(iter(self._expiries_s.values())) < now_s:
            self._drop(next(iter(self._expiries_s)))

    def _make_room(self) -> None:
        while self._num_bytes > self._max_bytes or len(self._streams) > self._max_streams:
            if self._expiries_s:
                self._drop(next(iter(self._expiries_s)))
            else:
                largest = max(self._streams.values(), key=lambda stream: stream.num_bytes)
                self._drop(largest.id)
                self._owners[largest.id].give_up()
                self._on_unresumed()

    def _drop(self, id: str) -> None:
        self._expiries_s.pop(id, None)
        stream = self._streams.pop(id, None)
        if stream is not None:
            self._num_bytes -= stream.num_bytes


class _MemoryEntry:
    """One owner's side. Without a stream it cannot be resumed."""

    __slots__ = ("_is_over", "_journal", "_on_lost", "_stream", "id")

    def __init__(
        self,
        journal: MemoryJournal,
        id: str,
        stream: GrowingRecord | None,
        on_lost: Callable[[Loss], None],
        is_over: bool = False,
    ) -> None:
        self._journal = journal
        self.id = id
        self._stream = stream
        self._on_lost = on_lost
        self._is_over = is_over

    def when_open(self, on_open: Callable[[], None]) -> None:
        if not self._is_over:
            on_open()

    def write(self, passage: Passage, on_written: Callable[[], None]) -> None:
        if self._is_over:
            return
        if self._stream is not None:
            self._journal.add_bytes(self._stream.add(passage))
        on_written()

    def end(self, ending: Ending, on_written: Callable[[], None]) -> None:
        if self._is_over:
            return
        if self._stream is not None:
            self._stream.ending = ending
        self._let_go(is_kept=self._stream is not None)
        on_written()

    def leave(self) -> None:
        if not self._is_over:
            self._let_go(is_kept=self._stream is not None and self._stream.opening.can_continue)

    def lose(self, loss: Loss) -> None:
        self._is_over, self._stream = loss is Loss.TAKEN, None
        self._on_lost(loss)

    def give_up(self) -> None:
        """The stream was dropped, and goes on."""
        self._stream = None

    def _let_go(self, is_kept: bool) -> None:
        self._is_over, self._stream = True, None
        self._journal.let_go(self, is_kept)
