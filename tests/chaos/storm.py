"""A seeded mix of good and bad clients against one server, bounded in time and in number.

Every client is one coroutine on a raw connection. A good one reads its whole stream and compares the text with the one
that the server gave when it was at peace; the others leave, stall, send nonsense or come in crowds.
"""

import asyncio
import json
import random
import time
from collections import Counter
from dataclasses import dataclass, field

from tests.event_source import joined_text, parse

PROMPTS = (
    "Once upon a time",
    "한국의 수도는",
    "🙂🙃🎉",
    "def main():",
    "1, 2, 3,",
    "The sea",
    "alpha beta",
    "Dear Sir,",
)

HOSTILE = (
    b'{"prompt":"a","temperature":NaN}',
    b'{"prompt":"\\ud800"}',
    b'{"prompt":"a","n":1000000}',
    b'{"messages":' + b"[" * 100_000,
    b'{"prompt":"a","stop":[' + b'"x",' * 100_000 + b'"x"]}',
    b'{"prompt":"' + b"word " * 200_000 + b'"}',
    b'{"prompt":[999999999]}',
    b"\xff\x00",
)

NUM_CLIENTS = 24
CROWD = 40

# Good clients are most of it, so that what the others do would show in them.
WEIGHTS = {"good": 50, "leave": 25, "stall": 3, "hostile": 15, "half a request": 5, "crowd": 2}


@dataclass
class Storm:
    """`learn`, then `rage`; then `seen` counts what happened, and `wrong` lists what must not."""

    port: int
    seed: int
    seen: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    expected: dict[bytes, str] = field(default_factory=dict)

    async def learn(self) -> None:
        """Send the good requests one by one, for their texts."""
        for prompt in PROMPTS:
            for max_tokens in (1, 7, 40):
                body = ask(prompt, max_tokens)
                self.expected[body] = joined_text(parse((await self._exchange(body))[1]))

    async def rage(self, duration_s: float) -> None:
        """Send all kinds at once, until the time is up."""
        ends_s = time.monotonic() + duration_s
        async with asyncio.TaskGroup() as group:
            for number in range(NUM_CLIENTS):
                group.create_task(self._client(random.Random(self.seed * 1000 + number), ends_s))

    async def _client(self, chance: random.Random, ends_s: float) -> None:
        actions = {
            "good": self._good, "leave": self._leave, "stall": self._stall, "hostile": self._hostile,
            "half a request": self._half_a_request, "crowd": self._crowd,
        }  # fmt: skip
        while time.monotonic() < ends_s:
            [kind] = chance.choices(list(WEIGHTS), list(WEIGHTS.values()))
            try:
                async with asyncio.timeout(60):
                    await actions[kind](chance)
            except TimeoutError:
                self.wrong.append(f"{kind} hung")
            except OSError as error:
                self.seen[f"{kind}: {type(error).__name__}"] += 1

    async def _good(self, chance: random.Random) -> None:
        body = chance.choice(list(self.expected))
        status, answer = await self._exchange(body)
        self.seen[f"good {status}"] += 1
        if status == 503:
            return
        events = parse(answer)
        if events[-1].data != "[DONE]" or joined_text(events) != self.expected[body]:
            self.wrong.append(f"{body!r} gave {answer[-300:]!r}")

    async def _leave(self, chance: random.Random) -> None:
        reader, writer = await self._send(ask(chance.choice(PROMPTS), 1500))
        try:
            async with asyncio.timeout(chance.expovariate(4)):
                while await reader.read(4096):
                    pass
        except TimeoutError:
            pass
        writer.transport.abort()
        self.seen["left"] += 1

    async def _stall(self, chance: random.Random) -> None:
        _, writer = await self._send(ask(chance.choice(PROMPTS), 1900))
        writer.transport.pause_reading()  # type: ignore[attr-defined]  # an asyncio.Transport in fact
        await asyncio.sleep(chance.uniform(1, 4))
        writer.transport.abort()
        self.seen["stalled"] += 1

    async def _hostile(self, chance: random.Random) -> None:
        status, answer = await self._exchange(chance.choice(HOSTILE))
        self.seen[f"hostile {status}"] += 1
        if not 400 <= status < 500 and status != 503:
            self.wrong.append(f"a hostile request was answered by {status}: {answer[:300]!r}")

    async def _half_a_request(self, chance: random.Random) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", self.port)
        request = head(1000) + ask(chance.choice(PROMPTS), 5)
        writer.write(request[: chance.randrange(len(request))])
        await asyncio.sleep(chance.uniform(0, 0.5))
        writer.transport.abort()
        self.seen["half a request"] += 1

    async def _crowd(self, chance: random.Random) -> None:
        answers = await asyncio.gather(*[self._exchange(ask("crowd", 2)) for _ in range(CROWD)], return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                self.seen[f"crowd {type(answer).__name__}"] += 1
                continue
            self.seen[f"crowd {answer[0]}"] += 1
            if answer[0] not in (200, 503):
                self.wrong.append(f"one of a crowd was answered by {answer[0]}")

    async def _send(self, body: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(head(len(body)) + body)
        return reader, writer

    async def _exchange(self, body: bytes) -> tuple[int, bytes]:
        """Send a request and read its answer to the end: status and body."""
        reader, writer = await self._send(body)
        try:
            answer = await reader.read(-1)
        finally:
            writer.transport.abort()
        headers, _, rest = answer.partition(b"\r\n\r\n")
        status = int(headers.split(b" ")[1])
        return status, unchunked(rest) if b"chunked" in headers.lower() else rest


def ask(prompt: str, max_tokens: int) -> bytes:
    return json.dumps({"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}).encode()


def head(num_bytes: int) -> bytes:
    return b"POST /v1/stream HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % num_bytes


def unchunked(rest: bytes) -> bytes:
    """A body without its chunks' frames; stops where it was cut."""
    body = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        if not size:
            break
        count = int(size, 16)
        body, rest = body + rest[:count], rest[count + 2 :]
    return body
