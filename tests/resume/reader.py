"""A reader of one stream, as an `EventSource` is: it keeps whole events, and comes back with the last id."""

import asyncio
import itertools
import time
import urllib.parse
from collections.abc import AsyncIterator, Callable
from typing import Any

from tests.event_source import Event, done, joined_text, parse, token_events

# How long one stream may take with all its returns, on a machine that starts an engine meanwhile.
HANGS_AFTER_S = 100


class Reader:
    """Of the stream that `fields` ask `GET /v1/stream` for, or of the one at `path`."""

    def __init__(self, path: str = "/v1/stream", **fields: object) -> None:
        self._target = f"{path}?{urllib.parse.urlencode({'errors': 'event'} | fields)}"
        self.events: list[Event] = []
        self.came_s: list[float] = []  # when each event did
        self.statuses: list[int] = []  # of each answer
        self.last_id = ""
        self.retry_s = 3.0

    def __repr__(self) -> str:
        return f"<Reader {self._target[:60]} {self.statuses} {self.events[-2:]}>"

    @property
    def stream_id(self) -> str:
        return self.last_id.partition(":")[0]

    @property
    def num_tokens(self) -> int:
        """How many tokens it has been told of."""
        return int(self.last_id.partition(":")[2] or 0)

    @property
    def text(self) -> str:
        return joined_text(self.events)

    @property
    def usage(self) -> Any:
        return done(self.events)["usage"]

    @property
    def finish_reason(self) -> str:
        return str(done(self.events)["finish_reason"])

    @property
    def errors(self) -> list[str]:
        return [event.json["code"] for event in self.events if event.type == "error"]

    @property
    def is_whole(self) -> bool:
        return bool(self.events) and self.events[-1].data == "[DONE]"

    @property
    def has_ended(self) -> bool:
        """Whether a page would not come back."""
        if self.statuses[-1:] not in ([], [200], [0]) or self.is_whole:
            return True
        last = self.events[-1] if self.events else None
        return last is not None and last.type == "error" and not last.json["retryable"]

    @property
    def longest_gap_s(self) -> float:
        """Between two events with text."""
        said_s = [came_s for event, came_s in zip(self.events, self.came_s, strict=True) if token_events([event])]
        return max((later - earlier for earlier, later in itertools.pairwise(said_s)), default=0.0)

    def begin_anew(self) -> None:
        """Forget a stream of which nothing was said."""
        self.events.clear()
        self.came_s.clear()
        self.statuses.clear()
        self.last_id = ""

    async def read(self, port: int, stop_at: int | None = None) -> None:
        """One connection, to its end; or until there are `stop_at` tokens, and then it is closed."""
        async with asyncio.timeout(HANGS_AFTER_S):
            await self._read(port, stop_at)

    async def _read(self, port: int, stop_at: int | None) -> None:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            self.statuses.append(0)
            return
        try:
            writer.write(self._request())
            rest = b""
            async for piece in self._body(reader):
                *blocks, rest = (rest + piece).split(b"\n\n")
                for block in blocks:
                    self._hear(block + b"\n\n")
                if stop_at is not None and self.num_tokens >= stop_at:
                    return
        except OSError:
            pass  # the connection was reset
        finally:
            writer.transport.abort()

    async def read_to_the_end(self, port: int) -> None:
        """Come back until the stream has ended; each time after as long as the server said."""
        async with asyncio.timeout(HANGS_AFTER_S):
            while not self.has_ended:
                if self.statuses:
                    await asyncio.sleep(self.retry_s)
                await self.read(port)

    def _request(self) -> bytes:
        head = f"GET {self._target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
        return f"{head}Last-Event-ID: {self.last_id}\r\n\r\n".encode() if self.last_id else f"{head}\r\n".encode()

    async def _body(self, reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
        """The pieces of a body of events, until its end or the connection's."""
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            self.statuses.append(0)
            return
        self.statuses.append(int(head.split(b" ", 2)[1]))
        if self.statuses[-1] != 200:
            return
        if b"transfer-encoding: chunked" not in head.lower():
            yield await reader.read(-1)
            return
        while size := int(await reader.readline() or b"0", 16):
            try:
                yield (await reader.readexactly(size + 2))[:-2]
            except asyncio.IncompleteReadError as cut:
                yield cut.partial
                return

    def _hear(self, block: bytes) -> None:
        for event in parse(block):
            self.last_id = event.id or self.last_id
            self.events.append(event)
            self.came_s.append(time.monotonic())
        if block.startswith(b"event: start\n"):
            self.retry_s = int(block.partition(b"retry: ")[2].split(b"\n")[0]) / 1000


def assert_whole(reader: Reader, text: str, num_tokens: int) -> None:
    """It was told all of `text`, each character once, with numbers that only rise, of an answer of `num_tokens`."""
    assert reader.is_whole, reader
    assert reader.text == text, reader
    counts = [int(event.id.rpartition(":")[2]) for event in token_events(reader.events)]
    assert counts == sorted(set(counts)), reader
    assert {event.id.partition(":")[0] for event in reader.events if event.id} == {reader.stream_id}, reader
    assert [event.type for event in reader.events].count("start") == 1, reader
    assert reader.num_tokens == reader.usage["completion_tokens"] == num_tokens, reader
    assert reader.usage["total_tokens"] == num_tokens + reader.usage["prompt_tokens"], reader


async def until(condition: Callable[[], bool], timeout_s: float = 60) -> None:
    """Let the readers read until `condition` holds."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110  # what it looks at has no event
            await asyncio.sleep(0.01)
