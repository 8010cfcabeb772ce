"""A seeded mix of good and bad clients against one server, bounded in time and in number.

Every client is one coroutine on a raw connection. A good one reads its whole stream and compares the text with the one
that the server gave when it was at peace; the others leave, stall, send nonsense or come in crowds.
"""

import asyncio
import random
import time
from collections import Counter
from dataclasses import dataclass, field

from tests.ways import Way, request_bytes, unchunked, way

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

WAYS = tuple(
    way(name) for name in ("stream", "chat", "chat, whole", "completion", "completion, whole", "message", "ollama chat")
)

MODEL = "tiny"

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
    expected: dict[bytes, tuple[Way, str]] = field(default_factory=dict)

    async def learn(self) -> None:
        """Send the good requests one by one, for their texts."""
        for one in WAYS:
            for prompt in PROMPTS:
                for max_tokens in (1, 7, 40):
                    request = ask(one, prompt, max_tokens)
                    self.expected[request] = (one, one.text((await self._exchange(request))[1]))

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
        request = chance.choice(list(self.expected))
        status, answer = await self._exchange(request)
        self.seen[f"good {status}"] += 1
        if status == 503:
            return
        one, text = self.expected[request]
        if not one.is_whole(answer) or one.text(answer) != text:
            self.wrong.append(f"{request!r} gave {answer[-300:]!r}")

    async def _leave(self, chance: random.Random) -> None:
        reader, writer = await self._send(ask(chance.choice(WAYS), chance.choice(PROMPTS), 1500))
        try:
            async with asyncio.timeout(chance.expovariate(4)):
                while await reader.read(4096):
                    pass
        except TimeoutError:
            pass
        writer.transport.abort()
        self.seen["left"] += 1

    async def _stall(self, chance: random.Random) -> None:
        _, writer = await self._send(ask(chance.choice(WAYS), chance.choice(PROMPTS), 1900))
        writer.transport.pause_reading()  # type: ignore[attr-defined]  # an asyncio.Transport in fact
        await asyncio.sleep(chance.uniform(1, 4))
        writer.transport.abort()
        self.seen["stalled"] += 1

    async def _hostile(self, chance: random.Random) -> None:
        status, answer = await self._exchange(request_bytes(chance.choice(WAYS).path, chance.choice(HOSTILE)))
        self.seen[f"hostile {status}"] += 1
        if not 400 <= status < 500 and status != 503:
            self.wrong.append(f"a hostile request was answered by {status}: {answer[:300]!r}")

    async def _half_a_request(self, chance: random.Random) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", self.port)
        request = ask(chance.choice(WAYS), chance.choice(PROMPTS), 5)
        writer.write(request[: chance.randrange(len(request))])
        await asyncio.sleep(chance.uniform(0, 0.5))
        writer.transport.abort()
        self.seen["half a request"] += 1

    async def _crowd(self, chance: random.Random) -> None:
        requests = [ask(chance.choice(WAYS), "crowd", 2) for _ in range(CROWD)]
        answers = await asyncio.gather(*map(self._exchange, requests), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                self.seen[f"crowd {type(answer).__name__}"] += 1
                continue
            self.seen[f"crowd {answer[0]}"] += 1
            if answer[0] not in (200, 503):
                self.wrong.append(f"one of a crowd was answered by {answer[0]}")

    async def _send(self, request: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(request)
        return reader, writer

    async def _exchange(self, request: bytes) -> tuple[int, bytes]:
        """Send a request and read its answer to the end: status and body."""
        reader, writer = await self._send(request)
        try:
            answer = await reader.read(-1)
        finally:
            writer.transport.abort()
        headers, _, rest = answer.partition(b"\r\n\r\n")
        status = int(headers.split(b" ")[1])
        return status, unchunked(rest) if b"chunked" in headers.lower() else rest


def ask(one: Way, prompt: str, max_tokens: int) -> bytes:
    return one.request(prompt, max_tokens, model=MODEL)
