"""Many writes in one system call: each socket gets its own bytes, and one that is in trouble keeps its trouble."""

import contextlib
import os
import platform
import socket
from collections.abc import Iterator

import pytest

from routes import native_aio
from routes.native_aio import CAPACITY, NativeAio


@pytest.fixture
def aio() -> Iterator[NativeAio]:
    with contextlib.closing(NativeAio()) as aio:
        yield aio


@contextlib.contextmanager
def pairs(count: int) -> Iterator[list[tuple[socket.socket, socket.socket]]]:
    """Connected sockets: ours, which does not block, and the reader's."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=count))
        made = []
        for _ in range(count):
            theirs = stack.enter_context(socket.create_connection(listener.getsockname()))
            ours = stack.enter_context(listener.accept()[0])
            ours.setblocking(False)
            made.append((ours, theirs))
        yield made


def fill(ours: socket.socket) -> None:
    with contextlib.suppress(BlockingIOError):
        while True:
            ours.send(b"x" * 65536)


def test_each_gets_its_own_bytes_also_beyond_one_call(aio: NativeAio) -> None:
    with pairs(2 * CAPACITY + 3) as made:
        for turn in range(3):
            blocks = [b"%d for %d" % (turn, index) * (1 + index % 7) for index in range(len(made))]
            assert aio.write([ours.fileno() for ours, _ in made], blocks) == [len(block) for block in blocks]
            for block, (_, theirs) in zip(blocks, made, strict=True):
                assert theirs.recv(65536) == block


def test_what_a_full_socket_does_not_take_is_said_and_the_others_get_theirs(aio: NativeAio) -> None:
    with pairs(3) as made:
        fill(made[1][0])
        assert aio.write([ours.fileno() for ours, _ in made], [b"one", b"two", b"three"]) == [3, 0, 5]
        assert (made[0][1].recv(10), made[2][1].recv(10)) == (b"one", b"three")


def test_a_block_larger_than_the_room_is_taken_in_part(aio: NativeAio) -> None:
    with pairs(2) as made:
        large = os.urandom(64 << 20)
        taken = aio.write([ours.fileno() for ours, _ in made], [large, b"small"])
        assert 0 < taken[0] < len(large)
        assert taken[1] == 5
        received = bytearray()
        while len(received) < taken[0]:
            received += made[0][1].recv(1 << 20)
        assert received == large[: taken[0]]


def test_a_reader_that_has_gone_takes_nothing_and_the_others_get_theirs(aio: NativeAio) -> None:
    with pairs(3) as made:
        made[0][0].shutdown(socket.SHUT_WR)
        assert aio.write([ours.fileno() for ours, _ in made], [b"one", b"two", b"three"]) == [0, 3, 5]


def test_a_closed_descriptor_takes_nothing_from_there_on(aio: NativeAio) -> None:
    """The kernel stops at it; a write by itself of those that follow is what is left."""
    with pairs(3) as made:
        fds = [ours.fileno() for ours, _ in made]
        made[1][0].close()
        assert aio.write(fds, [b"one", b"two", b"three"]) == [3, 0, 0]


def test_another_architecture_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "pdp11")
    with pytest.raises(OSError, match="not implemented"):
        NativeAio()


def test_a_kernel_that_refuses_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = native_aio.NUMBERS[platform.machine()]
    monkeypatch.setitem(native_aio.NUMBERS, platform.machine(), numbers._replace(io_setup=100_000))
    with pytest.raises(OSError, match="not implemented"):
        NativeAio()
