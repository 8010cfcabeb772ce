"""Linux's native AIO, io_submit(2), for the one thing it is good at here: many small writes in one system call.

A write to a non-blocking socket is done, or refused, when the call returns; nothing is ever under way. Few libc have
wrappers for these calls, so they are made by number.
"""

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Sequence
from typing import NamedTuple


class Numbers(NamedTuple):
    """Of the system calls, on one architecture."""

    io_setup: int
    io_destroy: int
    io_getevents: int
    io_submit: int


NUMBERS = {"x86_64": Numbers(206, 207, 208, 209), "aarch64": Numbers(0, 1, 4, 2)}

# How many writes one system call takes; more are made in several.
CAPACITY = 128

# linux/aio_abi.h: `struct iocb`, the part of it that differs between writes, and `struct io_event`.
IOCB = struct.Struct("<QIiHhIQQqQII")
FD_AND_BUFFER, FD_OFFSET = struct.Struct("<IQQ"), 20
EVENT = struct.Struct("<QQqq")
IOCB_CMD_PWRITE = 1


class NativeAio:
    """Give it back with `close`.

    Raises:
        OSError: the kernel does not offer it, or not to this process: another system, a sandbox, none left
            (/proc/sys/fs/aio-max-nr).
    """

    def __init__(self) -> None:
        numbers = NUMBERS.get(platform.machine()) if platform.system() == "Linux" else None
        if numbers is None:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        self._numbers = numbers
        self._call = ctypes.CDLL(None, use_errno=True).syscall
        self._call.restype = ctypes.c_long
        self._iocbs = ctypes.create_string_buffer(CAPACITY * IOCB.size)
        for index in range(CAPACITY):
            IOCB.pack_into(self._iocbs, index * IOCB.size, index, 0, 0, IOCB_CMD_PWRITE, 0, 0, 0, 0, 0, 0, 0, 0)
        first = ctypes.addressof(self._iocbs)
        self._pointers = (ctypes.c_void_p * CAPACITY)(*(first + index * IOCB.size for index in range(CAPACITY)))
        self._events = ctypes.create_string_buffer(CAPACITY * EVENT.size)
        context = ctypes.c_ulong(0)
        if self._call(numbers.io_setup, ctypes.c_long(CAPACITY), ctypes.byref(context)) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        self._context = context

    def write(self, fds: Sequence[int], blocks: Sequence[bytes]) -> list[int]:
        """Write each block to the non-blocking socket beside it, no socket twice.

        Returns how many bytes each socket took: 0 where it takes nothing now, or never again. A write by itself will
        say which.
        """
        taken: list[int] = []
        for start in range(0, len(fds), CAPACITY):
            taken += self._submit(fds[start : start + CAPACITY], blocks[start : start + CAPACITY])
        return taken

    def _submit(self, fds: Sequence[int], blocks: Sequence[bytes]) -> list[int]:
        joined = b"".join(blocks)
        address = ctypes.cast(ctypes.c_char_p(joined), ctypes.c_void_p).value or 0
        offset = FD_OFFSET
        for fd, block in zip(fds, blocks, strict=True):
            num_bytes = len(block)
            FD_AND_BUFFER.pack_into(self._iocbs, offset, fd, address, num_bytes)
            address += num_bytes
            offset += IOCB.size
        taken = [0] * len(fds)
        # It stops at the first that it cannot even look at, a closed descriptor for one.
        num_done = self._call(self._numbers.io_submit, self._context, ctypes.c_long(len(fds)), self._pointers)
        if num_done > 0:
            count = ctypes.c_long(num_done)
            self._call(self._numbers.io_getevents, self._context, count, count, self._events, None)
            for position, _, num_bytes, _ in EVENT.iter_unpack(self._events.raw[: num_done * EVENT.size]):
                taken[position] = max(num_bytes, 0)
        return taken

    def close(self) -> None:
        self._call(self._numbers.io_destroy, self._context)
