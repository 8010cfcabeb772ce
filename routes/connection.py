"""The client's connection below ASGI: whether it is still there, whether its reader takes bytes, and a way to write.

ASGI tells of a disconnect only to a task that waits for it, and nothing of the bytes; and it writes from a task, which
would have to be woken for every token. uvicorn's protocol class, extended in `routes.server`, puts one `Connection`
into each request's scope.
"""

import asyncio
import contextlib
import fcntl
import socket
import struct
import termios
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

from starlette.types import Receive, Scope

from routes.outbox import OnWritten, Outbox
from routes.timer import Repeated

T = TypeVar("T")

EXTENSION = "tailrace.connection"

# struct tcp_info, linux/tcp.h: `__u64 tcpi_bytes_acked` is 120 bytes in, since Linux 4.1.
TCP_INFO_BYTES = 128
BYTES_ACKED_OFFSET = 120

# What the kernel may hold of a stream that it cannot send yet. Its own bound is megabytes: a whole answer would vanish
# in there, and a reader that takes nothing could not be told from one that has it all. What waits in the engine instead
# reaches a slow reader in fewer and larger events. As little as HTTP/2 servers use; bytes under way do not count.
MAX_UNSENT_BYTES = 16 << 10

# A stall is looked for this often a timeout: it is found at most a quarter later than it could be.
CHECKS_PER_TIMEOUT = 4


class Connection:
    """One client's connection; `lost_s` is when its close became visible, on the clock of `time.perf_counter`."""

    def __init__(self, transport: asyncio.Transport, outbox: Outbox) -> None:
        self._transport = transport
        self._outbox = outbox
        self.lost_s: float | None = None
        # Whether there is a reader, and it keeps up; what is written while it does not would wait in this process.
        # Looked at before every token.
        self.can_take = True
        self._on_room: Callable[[], None] | None = None
        self.fd = -1
        if sock := self._socket():
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, MAX_UNSENT_BYTES)
            self.fd = sock.fileno()
        # Of TLS, what the socket gets is the transport's own affair.
        self._is_plain = self.fd >= 0 and transport.get_extra_info("sslcontext") is None

    def mark_lost(self) -> None:
        if self.lost_s is None:
            self.lost_s = time.perf_counter()
        self.can_take = False

    def mark_full(self, is_full: bool) -> None:
        self.can_take = not is_full and self.lost_s is None
        if self.can_take and self._on_room is not None:
            self._on_room()

    def write(self, block: bytes, on_written: OnWritten) -> None:
        """Hand `block` to the socket, as one chunk of a body whose head said that it comes in chunks (RFC 9112, 7.1).

        Together with what others write in this turn of the event loop, which has then ended; `on_written` hears when.
        Never waits, and keeps what the socket does not take: look at `can_take` before. Drops it when nobody is there.
        """
        if self.lost_s is not None:
            return
        chunk = b"%x\r\n%b\r\n" % (len(block), block)
        if self._is_plain and not self._transport.get_write_buffer_size():
            self._outbox.put(self, chunk, on_written)
        else:
            self._transport.write(chunk)
            on_written(time.perf_counter())

    def flush(self) -> None:
        """Write now what was to be written at the end of this turn: before ASGI's `send`, which would overtake it."""
        self._outbox.flush()

    @property
    def is_there(self) -> bool:
        return self.lost_s is None and not self._transport.is_closing()

    def write_now(self, data: bytes) -> None:
        self._transport.write(data)

    @contextlib.contextmanager
    def listened(self, on_room: Callable[[], None]) -> Iterator[None]:
        """Call `on_room` whenever the reader can take something again."""
        self._on_room = on_room
        try:
            yield
        finally:
            self._on_room = None

    async def wait_for_room(self) -> None:
        """Return when the reader can take something. Never, when it has left: whoever waits is cancelled then."""
        if not self.can_take:
            room = asyncio.Event()
            with self.listened(room.set):
                await room.wait()

    def cut(self) -> None:
        """Reset: what is still to be written is dropped, here and in the kernel."""
        if sock := self._socket():
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()
        self.mark_lost()  # what is written before the event loop says so would raise

    def num_bytes_pending(self) -> int:
        """What was written and has not arrived: in this process's buffer, and in the kernel's."""
        pending = self._transport.get_write_buffer_size()
        if sock := self._socket():
            pending += struct.unpack("i", fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, b"\0" * 4))[0]
        return pending

    def num_bytes_taken(self) -> int:
        """What the reader's side has acknowledged since the connection was made. Only its changes mean something."""
        sock = self._socket()
        if sock is None:
            return -self._transport.get_write_buffer_size()
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES)
        return int(struct.unpack_from("Q", info, BYTES_ACKED_OFFSET)[0])

    def _socket(self) -> socket.socket | None:
        sock = self._transport.get_extra_info("socket")
        return sock if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6) else None

    def watched(self, timeout_s: float, on_stall: Callable[[], None]) -> contextlib.AbstractContextManager[None]:
        """Call `on_stall` once, when bytes have been pending for `timeout_s` and the reader took none of them.

        A slow reader takes some and is left in peace. 0 lets every reader wait for ever.
        """
        if timeout_s <= 0:
            return contextlib.nullcontext()
        progress, interval_s = Progress(timeout_s), timeout_s / CHECKS_PER_TIMEOUT

        def check() -> float | None:
            if self.lost_s is not None:
                return None
            if progress.is_stalled(time.monotonic(), self.num_bytes_pending(), self.num_bytes_taken()):
                on_stall()
                return None
            return interval_s

        return Repeated(check, interval_s)


class Progress:
    """For how long the reader has taken no byte, and had some to take; pure.

    A look that comes late does not count for all the time since the last: this process, and maybe the reader's machine
    with it, was kept from its core, or suspended. Then the reader gets its chance first.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._max_gap_s = 2 * timeout_s / CHECKS_PER_TIMEOUT
        self._taken: int | None = None
        self._looked_s = 0.0
        self._still_s = 0.0

    def is_stalled(self, now_s: float, num_bytes_pending: int, num_bytes_taken: int) -> bool:
        gap_s, self._looked_s = now_s - self._looked_s, now_s
        if num_bytes_pending == 0 or num_bytes_taken != self._taken:
            self._taken, self._still_s = num_bytes_taken, 0.0
            return False
        self._still_s += min(gap_s, self._max_gap_s)
        return self._still_s >= self._timeout_s


async def unless_gone(work: Awaitable[T], receive: Receive, on_gone: Callable[[], Awaitable[None]]) -> T | None:
    """What `work` returns or raises; or, when the client leaves first, `on_gone` is awaited and `work` is cancelled.

    Cancelling it cancels `work`.
    """
    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(_disconnect(receive))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        await on_gone()
        return None
    finally:
        for task in (working, leaving):
            if not task.done():
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await task


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue


def connection_of(scope: Scope) -> Connection:
    """The request's connection.

    Raises:
        KeyError: the application runs under another server than that of `routes.server`.
    """
    connection: Connection = scope["extensions"][EXTENSION]
    return connection
