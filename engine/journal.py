"""What is remembered of streams, so that a reader who comes back is answered without a second generation.

For now: streams that ended, in memory, bounded in number, bytes and age. A stream that was cut is not in it, and its
reader is told that it is gone; continuing it needs the prompt and the parameters too, which is what comes next here.
"""

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Passage:
    """What one event said, and what a reasoning model thought; with it the stream had `num_tokens` output tokens."""

    num_tokens: int
    text: str
    reasoning: str = ""


@dataclass(frozen=True, slots=True)
class StreamRecord:
    """A stream that ended: its passages in order, and the bytes of its last event."""

    id: str
    passages: Sequence[Passage]
    num_tokens: int
    farewell: bytes

    @property
    def num_bytes(self) -> int:
        # A character counts 4 bytes, a passage 100 of overhead: an estimate from above, so the bound holds.
        return len(self.farewell) + sum(4 * len(one.text + one.reasoning) + 100 for one in self.passages)

    def after(self, num_tokens: int) -> Passage | None:
        """All that a reader is missing whose last event had `num_tokens`; None when no event had that number."""
        if num_tokens == 0:
            return self._joined(0)
        if num_tokens == self.num_tokens:
            return self._joined(len(self.passages))
        index = bisect_left(self.passages, num_tokens, key=lambda passage: passage.num_tokens)
        if index == len(self.passages) or self.passages[index].num_tokens != num_tokens:
            return None
        return self._joined(index + 1)

    def _joined(self, index: int) -> Passage:
        rest = self.passages[index:]
        return Passage(self.num_tokens, "".join(one.text for one in rest), "".join(one.reasoning for one in rest))


class Journal(Protocol):
    def keep(self, record: StreamRecord) -> None: ...

    def find(self, stream_id: str) -> StreamRecord | None:
        """The record, or None when it is unknown or has expired."""
        ...


class MemoryJournal:
    """Keeps the newest records: at most `max_streams`, `max_bytes` and `window_s` old."""

    def __init__(
        self, clock: Callable[[], float], window_s: float = 120.0, max_streams: int = 10_000, max_bytes: int = 64 << 20
    ) -> None:
        self._clock = clock
        self._window_s = window_s
        self._max_streams = max_streams
        self._max_bytes = max_bytes
        self._records: OrderedDict[str, tuple[float, StreamRecord]] = OrderedDict()
        self._num_bytes = 0

    def __len__(self) -> int:
        return len(self._records)

    def keep(self, record: StreamRecord) -> None:
        self._records[record.id] = (self._clock(), record)
        self._num_bytes += record.num_bytes
        self._forget_old()
        while len(self._records) > self._max_streams or self._num_bytes > self._max_bytes:
            self._drop_oldest()

    def find(self, stream_id: str) -> StreamRecord | None:
        self._forget_old()
        _, record = self._records.get(stream_id, (0.0, None))
        return record

    def _forget_old(self) -> None:
        now_s = self._clock()
        while self._records and now_s - next(iter(self._records.values()))[0] > self._window_s:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        _, (_, record) = self._records.popitem(last=False)
        self._num_bytes -= record.num_bytes
