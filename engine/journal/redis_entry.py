"""The owner's side of one stream in Redis: what waits to be written, and who waits for it. No I/O.

Invariant: `on_written` is called once for each write, in order, and never after the stream was taken or left.
"""

import logging
from collections.abc import Callable, Iterator
from typing import Protocol

from engine.journal.encoding import encode_ending, encode_opening, encode_passage
from engine.journal.records import Ending, Loss, Opening, Passage
from engine.journal.scripts import Verb

logger = logging.getLogger("tailrace.journal")

Operation = tuple[Verb, int, bytes]


class Batches(Protocol):
    """What an entry needs of its journal."""

    max_stream_bytes: int

    @property
    def is_available(self) -> bool: ...

    def enqueue(self, entry: "RedisEntry") -> None:
        """Ask `entry` for its operations when the next batch is made."""
        ...

    def drop(self, entry: "RedisEntry") -> None:
        """As `enqueue`, but once Redis can be reached: it has something of the stream that must not be continued."""
        ...

    def forget(self, entry: "RedisEntry") -> None:
        """Nobody runs the stream any more, here."""
        ...

    def count_unresumed(self) -> None:
        """A stream goes on, and cannot be resumed."""
        ...


class RedisEntry:
    """`length` is how many elements the stream's list has in Redis, 0 before it was opened there."""

    __slots__ = (
        "_batches",
        "_can_continue",
        "_is_lost",
        "_is_over",
        "_is_resumable",
        "_is_unheard",
        "_num_bytes",
        "_on_written",
        "_opening",
        "_pieces",
        "_sent",
        "_verb",
        "fence",
        "id",
        "is_queued",
        "key",
        "length",
        "on_lost",
    )

    def __init__(
        self,
        batches: Batches,
        id: str,
        key: bytes,
        fence: bytes,
        on_lost: Callable[[Loss], None],
    ) -> None:
        self.id = id
        self.key = key
        self.fence = fence
        self.length = 0
        self.on_lost = on_lost
        self.is_queued = False
        self._batches = batches
        self._can_continue = True
        # It takes nothing more, and: it has nobody to call any more.
        self._is_over = False
        self._is_unheard = False
        self._is_resumable = True
        self._is_lost = False
        self._opening = b""
        self._num_bytes = 0
        self._verb = Verb.WRITE
        self._pieces: list[bytes] = []
        # Who waits for what is queued, and for what was sent.
        self._on_written: list[Callable[[], None]] = []
        self._sent: list[Callable[[], None]] = []

    def __repr__(self) -> str:
        state = "over" if self._is_over else "running" if self._is_resumable else "unresumed"
        return f"<RedisEntry {self.id} {state} {len(self._pieces)} pieces queued>"

    def open(self, opening: Opening) -> None:
        """A new stream."""
        self._can_continue = opening.can_continue
        self._opening = encode_opening(opening)
        self._add(self._opening)

    def adopt(self, length: int, num_bytes: int, can_continue: bool) -> None:
        """A stream that was claimed."""
        self.length, self._num_bytes, self._can_continue = length, num_bytes, can_continue

    # The interface.

    def when_open(self, on_open: Callable[[], None]) -> None:
        if self._is_over:
            return
        if self._takes():
            self._on_written.append(on_open)
            self._batches.enqueue(self)
        else:
            on_open()

    def write(self, passage: Passage, on_written: Callable[[], None]) -> None:
        if self._is_over:
            return
        if self._takes():
            piece = encode_passage(passage)
            self._pieces.append(piece)
            self._on_written.append(on_written)
            self._add(piece)
        else:
            on_written()

    def end(self, ending: Ending, on_written: Callable[[], None]) -> None:
        if self._is_over:
            return
        if self._takes():
            self._is_over = True
            self._verb = Verb.END
            self._pieces.append(encode_ending(ending))
            self._on_written.append(on_written)
            self._batches.enqueue(self)
        else:
            on_written()
            self._stop_listening()

    def leave(self) -> None:
        if self._is_over:
            return
        self._stop_listening()
        if self._is_resumable and self._batches.is_available:
            self._verb = Verb.LEAVE if self._can_continue else Verb.DROP
            self._batches.enqueue(self)

    # What the journal calls.

    @property
    def is_running(self) -> bool:
        return self._is_resumable and not self._is_over

    @property
    def is_dropping(self) -> bool:
        return self._verb is Verb.DROP

    def operations(self) -> Iterator[Operation]:
        """What is to be done in Redis; then nothing is queued. Each has the length that the list has before."""
        piece = b",".join(self._pieces)
        self._pieces.clear()
        self._sent += self._on_written
        self._on_written.clear()
        if self._opening and self._verb is not Verb.DROP:
            yield Verb.OPEN, 0, b",".join((self._opening, piece)) if piece else self._opening
            self._opening, self.length, piece = b"", 3, b""
            if self._verb is Verb.WRITE:
                return
        if self.length:
            yield self._verb, self.length, piece
            self.length += bool(piece)

    def confirm(self) -> None:
        """All that was sent is in Redis."""
        self._call(self._sent)
        if self._verb is Verb.END and not self.is_queued:
            self._stop_listening()

    def refuse(self, reason: str) -> None:
        """What was sent is not in Redis, because the stream is not this owner's, or is not there."""
        if reason in tuple(Loss):
            self.lose(Loss(reason))
        elif self._verb is not Verb.DROP:
            self.give_up()

    def lose(self, loss: Loss) -> None:
        if self._is_lost or self._is_unheard:
            return
        self._is_lost, self._is_resumable, self._verb = True, False, Verb.DROP
        self._pieces.clear()
        self._batches.forget(self)
        if loss is Loss.TAKEN:
            self._stop_listening()
            self.on_lost(loss)
            return
        self._call_all()
        if not self._is_unheard:
            self.on_lost(loss)

    def cancel(self) -> None:
        """As `lose`, where Redis has not been told."""
        self._drop()
        self.lose(Loss.CANCELLED)

    def discard(self) -> None:
        """There is nothing to own."""
        self._stop_listening()

    def give_up(self) -> None:
        """Redis has not, or cannot have, all of the stream."""
        self._pieces.clear()
        if not self._is_resumable or self._is_unheard:
            return
        self._is_resumable = False
        self._drop()
        self._batches.count_unresumed()
        self._call_all()

    def _takes(self) -> bool:
        """Whether something can be written. What is missed by one write makes all later ones worthless."""
        if self._is_resumable and not self._batches.is_available:
            self.give_up()
        return self._is_resumable

    def _drop(self) -> None:
        self._verb = Verb.DROP
        if self.length:
            self._batches.drop(self)

    def _add(self, piece: bytes) -> None:
        self._num_bytes += len(piece)
        if self._num_bytes > self._batches.max_stream_bytes:
            self.give_up()
        elif not self.is_queued:
            self._batches.enqueue(self)

    def _stop_listening(self) -> None:
        self._is_over = self._is_unheard = True
        self._sent.clear()
        self._on_written.clear()
        self._batches.forget(self)

    def _call_all(self) -> None:
        """Nobody needs to wait for Redis any more."""
        self._call(self._sent)
        self._call(self._on_written)
        if self._is_over:
            self._stop_listening()

    def _call(self, waiting: list[Callable[[], None]]) -> None:
        """One after the other. What one of them does may be to leave, and then the rest is not called."""
        calls = waiting.copy()
        waiting.clear()
        for on_written in calls:
            if self._is_unheard:
                return
            try:
                on_written()
            except Exception:  # what is wrong with one stream must not stop the others for ever
                logger.exception("a stream failed when it was told that its output is written")
