"""The reader of the measurements: a closed loop of streams over one server, in a process of its own.

    python -m bench.client --port 8000 --surface chat --streams 64 --requests 512

Each of `--streams` connections asks, reads its stream to the end, and asks again, until `--requests` were asked. With
`--per-second` they are asked so many a second, at even distances, whenever a connection is free: a steady load, where
a closed loop of streams that are all as long asks in waves. It is one thread around `epoll`, because it shares the
machine with what it measures; it takes the bytes apart no further than it must. Prints one JSON object, a `Summary`.

Invariant: what is counted is whole. A stream that is refused, is cut, tells of an error or has another number of tokens
than was asked for ends the run with exit code 1 and a line that says so; `--may-fail` allows for some, which are asked
for again then, and timed anew.
"""

import argparse
import json
import random
import select
import socket
import statistics
import sys
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

MODEL = "tiny"

# How long all streams together may be silent before the run counts as failed.
SILENCE_LIMIT_S = 120.0

# Below what malloc takes from the kernel anew each time: with 256 KiB a read cost 13 us, and now 2.
READ_BYTES = 16 << 10

# Prompts are made of these: each is another one, so that no prefix cache knows it, and all are about as long.
WORDS = (
    "river stone cloud paper green seven house light winter glass music letter garden silver north morning bridge "
    "table yellow market window forest number ocean kitchen story engine island button simple"
).split()
WORDS_PER_PROMPT = 30


class Failed(Exception):
    """A stream that is not what it must be; the message is for people."""


@dataclass(frozen=True, slots=True)
class Surface:
    """How to ask, and how to tell an event with text: it has `text`, and not `no_text`."""

    path: str
    body: Callable[[str, int], dict[str, object]]
    text: bytes
    no_text: bytes


def _turn(prompt: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": prompt}]


SURFACES = {
    "chat": Surface(
        "/v1/chat/completions",
        lambda prompt, num_tokens: {
            "model": MODEL, "messages": _turn(prompt), "max_tokens": num_tokens, "temperature": 0, "ignore_eos": True,
            "stream": True, "stream_options": {"include_usage": True},
        },
        b'"content":"',
        b'"content":""',
    ),
    "stream": Surface(
        "/v1/stream",
        lambda prompt, num_tokens: {
            "messages": _turn(prompt), "max_tokens": num_tokens, "temperature": 0, "ignore_eos": True,
        },
        b'"token":"',
        b'"token":""',
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Summary:
    """Times in seconds, as the reader sees them.

    A gap is the time between two reads that brought text. `last_first_token_s` counts from the first request: what the
    last of a crowd waits when all ask at once. `client_cpu_s` is what reading cost this process.
    """

    num_requests: int
    num_failed: int
    num_tokens: int
    num_events: int
    num_bytes: int
    seconds: float
    ttft_p50_s: float
    ttft_p99_s: float
    last_first_token_s: float
    tpot_p50_s: float
    itl_p99_s: float
    e2e_p50_s: float
    client_cpu_s: float


class Body:
    """Takes the frames off a chunked HTTP/1.1 response (RFC 9112, 7.1), however its bytes are cut."""

    def __init__(self) -> None:
        self._rest = b""
        self._has_head = False
        self.has_ended = False

    def feed(self, data: bytes) -> bytes:
        """What `data` brings of the body.

        Raises:
            Failed: another status than 200, or a body that does not come in chunks.
        """
        rest = self._rest + data
        if not self._has_head:
            head, end, after = rest.partition(b"\r\n\r\n")
            if not end:
                self._rest = rest
                return b""
            if not head.startswith(b"HTTP/1.1 200 ") or b"transfer-encoding: chunked" not in head.lower():
                raise Failed(f"refused: {rest[:400].decode(errors='replace')}")
            self._has_head, rest = True, after
        at, parts = 0, []
        while (size_end := rest.find(b"\r\n", at)) >= 0:
            size = int(rest[at:size_end], 16)
            end_at = size_end + 2 + size + 2
            if len(rest) < end_at:
                break
            parts.append(rest[size_end + 2 : end_at - 2])
            at = end_at
            if size == 0:
                self.has_ended = True
                break
        self._rest = rest[at:]
        return b"".join(parts)


class Events:
    """Counts the events of one stream that have text; knows its usage and its end."""

    def __init__(self, surface: Surface) -> None:
        self._text, self._no_text = surface.text, surface.no_text
        self._rest = b""
        self.num_with_text = 0
        self.num_tokens: int | None = None
        self.is_done = False

    def feed(self, body: bytes) -> bool:
        """Whether `body` brought text.

        Raises:
            Failed: it brought an error.
        """
        blocks = (self._rest + body).split(b"\n\n")
        self._rest = blocks.pop()
        before = self.num_with_text
        for block in blocks:
            if self._text in block and self._no_text not in block:
                self.num_with_text += 1
            elif b'"usage":{' in block:
                self.num_tokens = int(json.loads(block.rpartition(b"data: ")[2])["usage"]["completion_tokens"])
            elif block == b"data: [DONE]":
                self.is_done = True
            elif b"event: error" in block or block.startswith(b'data: {"error"'):
                raise Failed(f"an error in the stream: {block.decode(errors='replace')[:400]}")
        return self.num_with_text > before


class Stream:
    """One connection, and the request that is under way on it."""

    def __init__(self, sock: socket.socket, surface: Surface) -> None:
        self.sock = sock
        self._surface = surface
        self.is_asking = False

    def ask(self, request: bytes) -> None:
        self.request, self.is_asking = request, True
        self.body, self.events = Body(), Events(self._surface)
        self.first_s: float | None = None
        self.last_s = 0.0
        self.sent_s = time.perf_counter()
        self.sock.sendall(request)

    def __str__(self) -> str:
        events = self.events
        end = "with" if events.is_done else "without"
        return f"{events.num_with_text} events with text, {events.num_tokens} tokens in its usage, {end} its last event"

    def check_whole(self, num_tokens: int) -> None:
        """Raises Failed unless the stream that has just ended is what was asked for."""
        if not self.events.is_done or self.events.num_tokens != num_tokens or self.first_s is None:
            raise Failed(f"an incomplete stream: {self}; {num_tokens} tokens were asked for")


class Load:
    """What is asked of the server on `port`, and what was seen."""

    def __init__(
        self,
        port: int,
        surface: Surface,
        num_requests: int,
        num_tokens: int,
        seed: int,
        may_fail: int = 0,
        per_second: float = 0.0,
    ) -> None:
        self._port = port
        self._distance_s = 1 / per_second if per_second > 0 else 0.0
        self._may_fail = may_fail
        self._num_failed = 0
        self._surface = surface
        self._num_tokens = num_tokens
        self._requests = [self._request(random.Random(f"{seed} {index}")) for index in range(num_requests)]
        self._gaps_s = array("d")
        self._ttft_s = array("d")
        self._tpot_s = array("d")
        self._e2e_s = array("d")
        self._last_first_s = 0.0
        self._num_events = 0
        self._num_bytes = 0

    def _request(self, chance: random.Random) -> bytes:
        prompt = " ".join(chance.choices(WORDS, k=WORDS_PER_PROMPT))
        body = json.dumps(self._surface.body(prompt, self._num_tokens)).encode()
        head = f"POST {self._surface.path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body

    def run(self, num_streams: int) -> Summary:
        """Ask everything, `num_streams` at a time.

        Raises:
            Failed, OSError
        """
        num_requests = len(self._requests)
        streams: dict[int, Stream] = {}
        with select.epoll() as poll:
            try:
                for _ in range(min(num_streams, num_requests)):
                    self._connect(streams, poll)
                started_s, cpu_s = time.perf_counter(), time.process_time()
                self._exchange(streams, poll)
                seconds, cpu_s = time.perf_counter() - started_s, time.process_time() - cpu_s
            finally:
                for stream in streams.values():
                    stream.sock.close()
        return Summary(
            num_requests=num_requests,
            num_failed=self._num_failed,
            num_tokens=num_requests * self._num_tokens,
            num_events=self._num_events,
            num_bytes=self._num_bytes,
            seconds=seconds,
            ttft_p50_s=statistics.median(self._ttft_s),
            ttft_p99_s=percentile(self._ttft_s, 99),
            last_first_token_s=self._last_first_s - started_s,
            tpot_p50_s=statistics.median(self._tpot_s) if self._tpot_s else 0.0,
            itl_p99_s=percentile(self._gaps_s, 99),
            e2e_p50_s=statistics.median(self._e2e_s),
            client_cpu_s=cpu_s,
        )

    def _connect(self, streams: dict[int, Stream], poll: select.epoll) -> Stream:
        sock = socket.create_connection(("127.0.0.1", self._port))
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        poll.register(sock, select.EPOLLIN)
        stream = streams[sock.fileno()] = Stream(sock, self._surface)
        return stream

    def _exchange(self, streams: dict[int, Stream], poll: select.epoll) -> None:
        """Ask on every stream, and again where one has ended, until all is asked and answered."""
        waiting, free = self._requests[::-1], list(streams.values())
        next_s = time.perf_counter()
        while streams:
            while waiting and free and (wait_s := next_s - time.perf_counter()) <= 0:
                free.pop().ask(waiting.pop())
                next_s += self._distance_s
            if not waiting:
                for stream in free:
                    del streams[stream.sock.fileno()]
                    stream.sock.close()
                free.clear()
            may_ask = bool(waiting and free)
            ready = poll.poll(wait_s if may_ask else SILENCE_LIMIT_S)
            if not ready and not may_ask:
                raise Failed(f"{len(streams)} streams were silent for {SILENCE_LIMIT_S:g} s")
            for number, _ in ready:
                stream = streams[number]
                if not stream.is_asking:  # a server may close what has been idle
                    free.remove(stream)
                    stream.sock.close()
                    del streams[number]
                    free.append(self._connect(streams, poll))
                    continue
                try:
                    if not self._read(stream):
                        continue
                    has_failed = False
                except (Failed, ConnectionError):
                    if self._num_failed == self._may_fail:
                        raise
                    self._num_failed += 1
                    has_failed = True
                    waiting.append(stream.request)
                if has_failed or not waiting:
                    stream.sock.close()
                    del streams[number]
                if waiting:
                    free.append(self._connect(streams, poll) if has_failed else stream)

    def _read(self, stream: Stream) -> bool:
        """Take what has come; whether the stream has ended."""
        data = stream.sock.recv(READ_BYTES)
        now_s = time.perf_counter()
        if not data:
            raise Failed(f"the server closed a connection: {stream}")
        self._num_bytes += len(data)
        if stream.events.feed(stream.body.feed(data)):
            if stream.first_s is None:
                stream.first_s = now_s
            else:
                self._gaps_s.append(now_s - stream.last_s)
            stream.last_s = now_s
        if not stream.body.has_ended:
            return False
        stream.check_whole(self._num_tokens)
        stream.is_asking = False
        self._note(stream, now_s)
        return True

    def _note(self, stream: Stream, now_s: float) -> None:
        assert stream.first_s is not None
        self._num_events += stream.events.num_with_text
        self._ttft_s.append(stream.first_s - stream.sent_s)
        self._e2e_s.append(now_s - stream.sent_s)
        self._last_first_s = max(self._last_first_s, stream.first_s)
        if self._num_tokens > 1:
            self._tpot_s.append((stream.last_s - stream.first_s) / (self._num_tokens - 1))


def percentile(values: Sequence[float], percent: int) -> float:
    """The nearest rank; 0 of no values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)] if ordered else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.client")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--surface", choices=sorted(SURFACES), default="chat")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--requests", type=int, default=512, help="as many as --streams: a burst")
    parser.add_argument("--tokens", type=int, default=128, help="of each stream")
    parser.add_argument("--per-second", type=float, default=0, help="requests, at even distances; 0 for a closed loop")
    parser.add_argument("--may-fail", type=int, default=0, help="as many streams, which are asked for again")
    parser.add_argument("--seed", type=int, default=0, help="another seed, other prompts")
    args = parser.parse_args()
    surface = SURFACES[args.surface]
    load = Load(args.port, surface, args.requests, args.tokens, args.seed, args.may_fail, args.per_second)
    try:
        print(json.dumps(asdict(load.run(args.streams))))
    except (Failed, OSError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
