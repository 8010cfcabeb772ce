"""How the engine's processes get memory on a machine whose cores they compute on.

A step works in blocks of megabytes, of another size with each number of requests: its logits are 50 MB for 256 requests
and a vocabulary of 49,152. glibc gives such blocks back to the kernel when they are freed, and the kernel clears each
page that it hands out anew. Of a step of 32 ms, 25 were seen to be that.
"""

import contextlib
import ctypes
import os
from collections.abc import Iterator
from ctypes.util import find_library

# vLLM does the same with the library inside its own wheels for the CPU, which not all of them have; it looks for the
# first word, to see that it need not.
TCMALLOC = ("tcmalloc_minimal", "tcmalloc")

# mallopt(3).
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3

# Blocks up to this size, and as much free memory at the heap's end, stay with the process.
KEPT_BYTES = 1 << 30


@contextlib.contextmanager
def tcmalloc_preloaded() -> Iterator[None]:
    """Engine processes that are started in here have tcmalloc for their allocator, if it is installed.

    It finds a place for blocks that grow a little with each step, which glibc puts into fresh memory each time.
    """
    before = os.environ.get("LD_PRELOAD", "")
    found = None if "libtcmalloc" in before else next(filter(None, map(find_library, TCMALLOC)), None)
    if found is None:
        yield
        return
    os.environ["LD_PRELOAD"] = f"{found}:{before}"
    try:
        yield
    finally:  # what vLLM has added to it since stays
        os.environ["LD_PRELOAD"] = os.environ["LD_PRELOAD"].removeprefix(f"{found}:")


def keep_freed_memory() -> None:
    """Call in an engine process: glibc's allocator keeps large blocks for the next step. Others take no notice."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # which musl has not
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, KEPT_BYTES)
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
