"""The journal's words: what is known of a stream, and the interface by which it is written and found.

A stream has one owner at most. Whoever claims it is the owner from then on; the former one hears of it, and what it
still writes is refused.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from engine.interface import GenerationRequest, Sampling

# How long a request is kept that nobody has run. A page asks for the stream as soon as it has the id; this is for slow
# networks.
EXPIRES_IN_S = 120


@dataclass(frozen=True, slots=True)
class Opening:
    """What a stream began with: enough to go on with it in another process.

    `model` is as the request named it; `sampling` has its `max_tokens` resolved. `holder` is a digest of the API key
    that started the stream, "" without one or where the id is the capability. Without `can_continue` the stream may be
    replayed once it has ended, but not continued: it is forgotten when its reader is cut.
    """

    model: str | None
    prompt_token_ids: Sequence[int]
    is_chat: bool
    sampling: Sampling
    priority: int | None
    created_s: int
    holder: str
    can_continue: bool

    @property
    def num_bytes(self) -> int:
        """What it takes in memory, estimated from above: an int that is not a small one has 28 bytes, its slot 8."""
        return 1000 + 36 * len(self.prompt_token_ids)


@dataclass(slots=True)  # not frozen: that triples what making one costs, and one is made for every token
class Passage:
    """What one event said, and what a reasoning model thought; with it the stream had `num_tokens` output tokens."""

    num_tokens: int
    text: str
    reasoning: str = ""
    token_ids: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Ending:
    """How a stream ended, with the output tokens of the whole of it. A time that was not measured is None."""

    finish_reason: str
    num_tokens: int
    ttft_ms: float | None
    tpot_ms: float | None


@dataclass(slots=True)
class StreamRecord:
    """What was known of a stream when it was looked up: its passages in order, and its ending if it had one."""

    id: str
    opening: Opening
    passages: list[Passage]
    ending: Ending | None = None

    @property
    def num_tokens(self) -> int:
        """Output tokens that the record knows of. The last ones of a stream may have had no text, and so no passage."""
        if self.ending is not None:
            return self.ending.num_tokens
        return self.passages[-1].num_tokens if self.passages else 0

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
        return Passage(
            self.num_tokens,
            "".join(passage.text for passage in rest),
            "".join(passage.reasoning for passage in rest),
            [id for passage in rest for id in passage.token_ids],
        )


class Loss(StrEnum):
    """Why an owner has lost its stream."""

    TAKEN = "taken"
    CANCELLED = "cancelled"


class Entry(Protocol):
    """The owner's side of one stream. All of it is called on the event loop, and none of it waits.

    Once the stream was taken or left, or has ended, every further call does nothing. One that was cancelled is recorded
    no more, but its reader is told the rest of it: what is written is confirmed, and at once.
    """

    def when_open(self, on_open: Callable[[], None]) -> None:
        """Call `on_open` once the stream can be come back to, maybe in place. It counts as a `write` of nothing."""
        ...

    def write(self, passage: Passage, on_written: Callable[[], None]) -> None:
        """Add `passage`, and call `on_written` once that is safe, maybe in place.

        That is when it is in the journal, or when it is known that the journal cannot take it: the stream goes on then,
        and cannot be resumed. The calls of one entry come in order, and none after `Loss.TAKEN` or `leave`.
        `on_written` must not raise. The passage is the journal's from now on.
        """
        ...

    def end(self, ending: Ending, on_written: Callable[[], None]) -> None:
        """The stream has ended. It is kept for the window, so that what a reader misses can be replayed."""
        ...

    def leave(self) -> None:
        """The reader was cut: the window starts now. What was written and is not safe yet still becomes it."""
        ...


class Journal(Protocol):
    """Remembers streams for the length of the window, and requests until they are run.

    What asks for either raises `Overloaded` while the journal is out of reach: what it has may be there later.
    """

    @property
    def is_shared(self) -> bool:
        """Whether other processes see the same streams."""
        ...

    def open(self, id: str, opening: Opening, on_lost: Callable[[Loss], None]) -> Entry:
        """A new stream that the caller owns. `on_lost` is called on the event loop, once at most; it must not raise."""
        ...

    async def find(self, id: str) -> StreamRecord | None:
        """A copy of what is known now. None: unknown, expired, or of another version."""
        ...

    async def claim(self, id: str, on_lost: Callable[[Loss], None]) -> tuple[StreamRecord, Entry] | None:
        """Own the stream, whoever did so before: that owner hears `Loss.TAKEN`.

        None as for `find`, and when the stream was lost again before this returned; `on_lost` is not called then.

        A stream that has ended has no owner. Its record is returned with an entry on which every call does nothing.
        """
        ...

    async def cancel(self, id: str) -> bool:
        """Forget the stream, or the request that was not run yet. False when neither is known.

        Whoever owns the stream hears `Loss.CANCELLED`; an owner in this process does so while the journal is out of
        reach, too.
        """
        ...

    async def keep(self, id: str, request: GenerationRequest) -> None:
        """Keep a request that was accepted and not run yet, for `EXPIRES_IN_S`.

        Raises:
            Overloaded: also when too many wait to be run. Those that wait are kept.
        """
        ...

    async def take(self, id: str) -> GenerationRequest | None:
        """Take the request out. Of two at the same moment one gets it, whichever pods they are on."""
        ...

    async def start(self) -> None:
        """Make the journal ready. Does not raise: one that is unreachable is tried again in the background."""
        ...

    async def close(self) -> None:
        """Write what was not written yet, and let go of everything."""
        ...
