"""The journal that many processes share, in Redis or Valkey 7+ (not in a cluster).

Output is written ahead of the bytes that show it, for all streams at once: what is written in one turn of the event
loop is one batch, and while a batch is under way the next one gathers. Keys, each with an expiry:

    tailrace:stream:ID     a list; see `scripts`
    tailrace:request:ID    a request that was not run yet
    tailrace:probe:N       written to see whether Redis takes writes

When Redis fails, takes too long or is full, the journal is down: streams go on at once, and those that missed a write
cannot be resumed any more, for what comes after a gap must never be continued. It is tried again every second.
"""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable, Iterator

from engine.errors import Overloaded
from engine.interface import GenerationRequest
from engine.journal.encoding import decode_record, decode_request, encode_request
from engine.journal.records import EXPIRES_IN_S, Entry, Loss, Opening, StreamRecord
from engine.journal.redis_entry import RedisEntry
from engine.journal.redis_link import RETRY_S, Argument, RedisLink, Unreachable
from engine.journal.scripts import CANCEL, CHANNEL, READ, WRITE

logger = logging.getLogger("tailrace.journal")

# How long a stream outlives the window that is run by a pod that was killed: what renews its expiry may be late.
SLACK_S = 30.0

# One stream's record. The largest prompts that models take, a million tokens, are 7 MB.
MAX_STREAM_BYTES = 16 << 20


class RedisJournal:
    """`url` is as `connect_to` takes it. Every other call than the constructor is made on the event loop.

    `timeout_s` limits each call to Redis, and so how long a stream can wait for it. `on_available` hears whether Redis
    answers, first when the journal has started; `on_unresumed` is called for each stream that goes on and cannot be
    resumed.
    """

    is_shared = True

    def __init__(
        self,
        url: str,
        window_s: float = 120.0,
        timeout_s: float = 1.0,
        max_stream_bytes: int = MAX_STREAM_BYTES,
        on_available: Callable[[bool], None] = lambda is_available: None,
        on_unresumed: Callable[[], None] = lambda: None,
    ) -> None:
        """
        Raises:
            ValueError: `url` is none.
        """
        self._link = RedisLink(url, timeout_s, self._on_link_change)
        self._timeout_s = timeout_s
        self._window_ms = round(1000 * window_s)
        self._running_ms = round(1000 * (window_s + SLACK_S))
        self._on_available = on_available
        self._on_unresumed = on_unresumed
        self.max_stream_bytes = max_stream_bytes
        self.num_batches = 0
        # A fence is given out once, by this process's name and a number.
        self._name = secrets.token_urlsafe(9)
        self._num_fences = 0
        # Streams that this process runs, by fence.
        self._entries: dict[bytes, RedisEntry] = {}
        # Those that have something to write; those of the batch that is under way; those whose records must go once
        # Redis answers again.
        self._queue: list[RedisEntry] = []
        self._in_flight: list[RedisEntry] = []
        self._stale: list[RedisEntry] = []
        self._has_work = asyncio.Event()
        self._is_listening = asyncio.Event()
        self._is_closing = False
        self._writer: asyncio.Task[None] | None = None
        self._others: list[asyncio.Task[None]] = []

    def __repr__(self) -> str:
        state = "available" if self.is_available else "down"
        return f"<RedisJournal {self._name} {state} {len(self._entries)} running {len(self._queue)} queued>"

    @property
    def is_available(self) -> bool:
        """Whether Redis takes writes, as far as is known."""
        return self._link.is_available

    async def start(self) -> None:
        self._writer = asyncio.create_task(self._write_batches())
        self._others = [asyncio.create_task(self._listen()), asyncio.create_task(self._renew())]
        await self._link.start()
        if not self.is_available:
            return
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._is_listening.wait(), self._timeout_s)

    async def close(self) -> None:
        self._is_closing = True
        self._has_work.set()
        if self._writer is not None:
            await self._writer
        for task in self._others:
            task.cancel()
        await asyncio.gather(*self._others, return_exceptions=True)
        await self._link.close()

    # Streams.

    def open(self, id: str, opening: Opening, on_lost: Callable[[Loss], None]) -> Entry:
        entry = self._new_entry(id, on_lost)
        if self.is_available:
            entry.open(opening)
        else:
            entry.give_up()
        return entry

    async def find(self, id: str) -> StreamRecord | None:
        with _answered():
            reply = await self._link.call(READ, [stream_key(id)], [b"", 0])
        return reply and decode_record(id, reply[0])

    async def claim(self, id: str, on_lost: Callable[[Loss], None]) -> tuple[StreamRecord, Entry] | None:
        early: list[Loss] = []
        # The entry is known before Redis is asked: the word of the next claim may come before the answer to this one.
        entry = self._new_entry(id, early.append)
        try:
            with _answered():
                reply = await self._link.call(READ, [entry.key], [entry.fence, self._running_ms])
        except BaseException:  # a cancellation, too
            entry.discard()
            raise
        if reply is None:
            entry.discard()
            return None
        document, former, length = reply
        self._lose(former, Loss.TAKEN)
        record = decode_record(id, document)
        if record is None or early:
            entry.discard()
            return None
        if record.ending is not None:
            entry.discard()
            return record, entry
        entry.adopt(length, len(document), record.opening.can_continue)
        entry.on_lost = on_lost
        return record, entry

    async def cancel(self, id: str) -> bool:
        was_kept, holder, failure = False, None, None
        try:
            with _answered():
                was_kept = bool(await self._link.execute("DEL", request_key(id)))
                holder = await self._link.call(CANCEL, [stream_key(id)], [self._running_ms])
        except Overloaded as error:
            failure = error
        if holder is not None:
            self._lose(holder, Loss.CANCELLED)
            return True
        # Redis knows nothing of a stream that cannot be resumed; who runs it does.
        entry = next((entry for entry in self._entries.values() if entry.id == id), None)
        if entry is not None:
            entry.cancel()
            return True
        if failure is not None and not was_kept:
            raise failure
        return was_kept

    # Requests.

    async def keep(self, id: str, request: GenerationRequest) -> None:
        with _answered():
            await self._link.execute("SET", request_key(id), encode_request(request), "EX", EXPIRES_IN_S)

    async def take(self, id: str) -> GenerationRequest | None:
        with _answered():
            kept = await self._link.execute("GETDEL", request_key(id))
        return kept and decode_request(kept)

    # What entries call.

    def enqueue(self, entry: RedisEntry) -> None:
        if not entry.is_queued:
            entry.is_queued = True
            self._queue.append(entry)
            self._has_work.set()

    def forget(self, entry: RedisEntry) -> None:
        self._entries.pop(entry.fence, None)

    def drop(self, entry: RedisEntry) -> None:
        if self.is_available:
            self.enqueue(entry)
        else:
            self._stale.append(entry)

    def count_unresumed(self) -> None:
        self._on_unresumed()

    # Batches.

    async def _write_batches(self) -> None:
        while not (self._is_closing and not self._queue):
            await self._has_work.wait()
            self._has_work.clear()
            while self._queue:
                await self._write_batch()

    async def _write_batch(self) -> None:
        entries, self._queue = self._queue, []
        self._in_flight = entries
        writers: list[RedisEntry] = []
        keys: list[bytes] = []
        lines: list[bytes] = []
        for entry in entries:
            entry.is_queued = False
            for verb, length, piece in entry.operations():
                writers.append(entry)
                keys.append(entry.key)
                lines += (b"%b %d %b" % (verb, length, entry.fence), piece)
        try:
            args: list[Argument] = [self._running_ms, self._window_ms, b"\n".join(lines) + b"\n"]
            refused = await self._link.call(WRITE, keys, args) if keys else ()
        except Unreachable:
            return  # and the journal is down
        self.num_batches += 1
        for number, reason in zip(refused[::2], refused[1::2], strict=True):
            writers[number - 1].refuse(reason.decode())
        for entry in entries:
            entry.confirm()
        self._in_flight = []

    def _on_link_change(self, is_available: bool) -> None:
        self._on_available(is_available)
        if is_available:
            stale, self._stale = self._stale, []
            for entry in stale:
                self.enqueue(entry)
        else:
            self._let_everyone_go_on()

    def _let_everyone_go_on(self) -> None:
        entries = self._in_flight + self._queue
        self._in_flight, self._queue = [], []
        self._stale += [entry for entry in entries if entry.is_dropping]
        for entry in entries:
            entry.is_queued = False
            entry.give_up()

    async def _renew(self) -> None:
        """A stream that is silent for long, in the queue or in a prefill, must not expire."""
        while True:
            await asyncio.sleep(self._running_ms / 3000)
            self._touch_all()

    def _touch_all(self) -> None:
        """Write nothing to each stream: its expiry is renewed, and its owner hears if it has lost it."""
        if self.is_available:
            for entry in self._entries.values():
                if entry.is_running:
                    self.enqueue(entry)

    # Losses.

    async def _listen(self) -> None:
        """Hear of lost streams at once, also of those that write nothing."""
        while True:
            try:
                async with self._link.pubsub() as channel:
                    await channel.subscribe(CHANNEL)
                    async for message in channel.listen():
                        if message["type"] == "message":
                            fence, _, loss = message["data"].partition(b" ")
                            self._lose(fence, Loss(loss.decode()))
                        else:
                            self._is_listening.set()
                            self._touch_all()  # what was said while nobody listened
            except Exception as failure:  # as in RedisLink; an owner hears by its next write, meanwhile
                logger.debug("lost streams are not heard of at once: %s", failure)
            await asyncio.sleep(RETRY_S)

    def _new_entry(self, id: str, on_lost: Callable[[Loss], None]) -> RedisEntry:
        self._num_fences += 1
        fence = f"{self._name}.{self._num_fences}".encode()
        entry = self._entries[fence] = RedisEntry(self, id, stream_key(id), fence, on_lost)
        return entry

    def _lose(self, fence: bytes, loss: Loss) -> None:
        entry = self._entries.get(fence)
        if entry is not None:
            entry.lose(loss)


@contextlib.contextmanager
def _answered() -> Iterator[None]:
    """What is asked for in here is not known to be gone when Redis does not answer.

    Raises:
        Overloaded
    """
    try:
        yield
    except Unreachable as failure:
        raise Overloaded("the journal is out of reach at the moment; try again later") from failure


def stream_key(id: str) -> bytes:
    return b"tailrace:stream:" + id.encode()


def request_key(id: str) -> bytes:
    return b"tailrace:request:" + id.encode()
