"""What is written in one turn of the event loop, to many readers, arrives whole and in order."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import pytest

from engine.scripted import Script, ScriptedEngine
from routes import outbox
from routes.application import HttpSettings
from routes.outbox import Outbox
from tests.event_source import done, joined_text, parse
from tests.routes.test_native_aio import pairs
from tests.server import running


class Reader:
    """What `Connection` is to the outbox."""

    def __init__(self, ours: socket.socket) -> None:
        self.fd = ours.fileno()
        self.is_there = True
        self.rest = b""

    def write_now(self, data: bytes) -> None:
        self.rest += data


def refuse() -> None:
    raise OSError("not here")


@pytest.fixture(params=["at once", "one by one"])
def box(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Outbox]:
    if request.param == "one by one":
        monkeypatch.setattr(outbox, "NativeAio", refuse)
    with contextlib.closing(Outbox()) as box:
        yield box


def test_a_turn_ends_in_one_write_each_before_any_task_that_it_woke(box: Outbox) -> None:
    async def run() -> None:
        told: list[str] = []
        with pairs(2) as made:
            readers = [Reader(ours) for ours, _ in made]
            box.put(readers[0], b"to the first", lambda now_s: told.append("first"))
            box.put(readers[1], b"to the second", lambda now_s: told.append("second"))
            asyncio.get_running_loop().call_soon(told.append, "a task")
            assert told == []
            await asyncio.sleep(0)
            assert told == ["first", "second", "a task"]
            got = [
                theirs.recv(100) if not reader.rest else reader.rest
                for reader, (_, theirs) in zip(readers, made, strict=True)
            ]
            assert got == [b"to the first", b"to the second"]

    asyncio.run(run())


def test_a_second_block_for_one_reader_comes_after_its_first(box: Outbox) -> None:
    async def run() -> None:
        times_s: list[float] = []
        with pairs(2) as made:
            first, second = (Reader(ours) for ours, _ in made)
            box.put(first, b"one ", times_s.append)
            box.put(second, b"other", times_s.append)
            box.put(first, b"two", times_s.append)
            assert len(times_s) == 2
            box.flush()
            assert times_s == sorted(times_s)
            assert len(times_s) == 3
            arrived = b"" if first.rest == b"one two" else made[0][1].recv(100)
            assert arrived + first.rest == b"one two"
            box.flush()  # of nothing

    asyncio.run(run())


def test_who_has_left_gets_nothing_and_nobody_is_told(box: Outbox) -> None:
    """Its descriptor may be another reader's by now."""

    async def run() -> None:
        told: list[str] = []
        with pairs(3) as made:
            readers = [Reader(ours) for ours, _ in made]
            for name, reader in zip("abc", readers, strict=True):
                box.put(reader, name.encode(), lambda now_s, name=name: told.append(name))  # type: ignore[misc]
            readers[1].is_there = False
            box.flush()
            assert told == ["a", "c"]
            made[1][1].setblocking(False)
            with pytest.raises(BlockingIOError):
                made[1][1].recv(1)
            assert readers[1].rest == b""

    asyncio.run(run())


def test_what_a_socket_does_not_take_is_kept_by_its_reader(box: Outbox) -> None:
    async def run() -> None:
        with pairs(2) as made:
            readers = [Reader(ours) for ours, _ in made]
            large = b"0123456789abcdef" * (4 << 20)
            box.put(readers[0], large, lambda now_s: None)
            box.put(readers[1], b"small", lambda now_s: None)
            box.flush()
            received = bytearray()
            while len(received) + len(readers[0].rest) < len(large):
                received += made[0][1].recv(1 << 20)
            assert bytes(received) + readers[0].rest == large

    asyncio.run(run())


@pytest.mark.parametrize("has_aio", [True, False])
def test_forty_streams_at_once_are_whole_either_way(has_aio: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not has_aio:
        monkeypatch.setattr(outbox, "NativeAio", refuse)
    words = [f" word{index}" for index in range(60)]
    with running(ScriptedEngine(Script(words, 0.02, 0.005)), HttpSettings(access_log=False)) as server:

        async def read_all() -> list[bytes]:
            async def read() -> bytes:
                reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
                writer.write(b"GET /v1/stream?prompt=x HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                answer = await reader.read()
                writer.close()
                return answer

            return await asyncio.gather(*(read() for _ in range(40)))

        for answer in asyncio.run(read_all()):
            body = b""
            chunks = answer.partition(b"\r\n\r\n")[2]
            while chunks:
                size, _, rest = chunks.partition(b"\r\n")
                body, chunks = body + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
            events = parse(body)
            assert joined_text(events) == "".join(words)
            assert done(events)["finish_reason"] == "stop"
