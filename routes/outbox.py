"""What is written to many readers in one turn of the event loop, handed to the kernel in one system call.

An engine's step ends in a small write for each of its streams. Made one by one, each is a system call of its own, and
each wakes its reader: where that shares the machine, the kernel lets it run there and then, in this process's place.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from typing import Protocol

from routes.native_aio import NativeAio

# Hears when a block was handed to the socket, on the clock of `time.perf_counter`.
OnWritten = Callable[[float], None]


class Addressee(Protocol):
    """Whoever is written to, over a non-blocking socket with the descriptor `fd`."""

    fd: int

    @property
    def is_there(self) -> bool:
        """Whether `fd` is still its own. Another one's socket may have the number soon after."""

    def write_now(self, data: bytes) -> None:
        """Hand `data` to the socket by itself, and keep what the socket does not take."""


class Outbox:
    """One for all connections of an event loop."""

    def __init__(self) -> None:
        self._entries: dict[Addressee, tuple[bytes, OnWritten]] = {}
        self._aio: NativeAio | None = None
        with contextlib.suppress(OSError):  # then every write is made by itself
            self._aio = NativeAio()

    def put(self, addressee: Addressee, data: bytes, on_written: OnWritten) -> None:
        """To be written when this turn of the event loop has ended, before any task that it wakes runs."""
        if addressee in self._entries:
            self.flush()
        if not self._entries:
            asyncio.get_running_loop().call_soon(self.flush)
        self._entries[addressee] = (data, on_written)

    def flush(self) -> None:
        """Write what is there now. What was for somebody who has left is dropped."""
        entries, self._entries = self._entries, {}
        if self._aio is not None and len(entries) > 1:
            _write_together(entries, self._aio)
            return
        for addressee, (block, on_written) in entries.items():
            if addressee.is_there:
                addressee.write_now(block)
                on_written(time.perf_counter())

    def close(self) -> None:
        """After the last write."""
        if self._aio is not None:
            self._aio.close()
            self._aio = None


def _write_together(entries: Mapping[Addressee, tuple[bytes, OnWritten]], aio: NativeAio) -> None:
    there = [addressee for addressee in entries if addressee.is_there]
    blocks = [entries[addressee][0] for addressee in there]
    taken = aio.write([addressee.fd for addressee in there], blocks)
    for addressee, block, num_bytes in zip(there, blocks, taken, strict=True):
        if num_bytes < len(block):
            addressee.write_now(block[num_bytes:])
    now_s = time.perf_counter()
    for addressee in there:
        entries[addressee][1](now_s)
