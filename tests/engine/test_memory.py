"""The engine's allocator on the CPU: tcmalloc where there is one, and a glibc that keeps what was freed."""

import os
import subprocess
import sys

import pytest

from engine.vllm import memory

# How often the kernel gave this process a page while it got, filled and freed a block of 64 MiB eight times.
FAULTS = """
import ctypes, resource
if {keeps}:
    from engine.vllm.memory import keep_freed_memory
    keep_freed_memory()
libc = ctypes.CDLL(None)
libc.prctl(41, 1, 0, 0, 0)  # PR_SET_THP_DISABLE: no pages of 2 MiB, of which there would be few
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def use():
    block = libc.malloc(64 << 20)
    ctypes.memset(block, 1, 64 << 20)
    libc.free(block)
use()
before = faults()
for _ in range(8):
    use()
print(faults() - before)
"""

PAGES_PER_BLOCK = (64 << 20) // os.sysconf("SC_PAGE_SIZE")


def num_faults(keeps: bool) -> int:
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    program = FAULTS.format(keeps=keeps)
    return int(subprocess.run([sys.executable, "-c", program], capture_output=True, env=environment, check=True).stdout)


@pytest.mark.skipif(sys.platform != "linux" or "glibc" not in str(os.confstr("CS_GNU_LIBC_VERSION")), reason="of glibc")
def test_freed_memory_is_kept() -> None:
    assert num_faults(keeps=False) > 4 * PAGES_PER_BLOCK, "what is to be kept would be kept anyway"
    assert num_faults(keeps=True) < 100


def install(patch: pytest.MonkeyPatch, *libraries: str) -> None:
    patch.setattr(memory, "find_library", lambda name: next((one for one in libraries if f"lib{name}." in one), None))


@pytest.mark.parametrize(
    ("installed", "before", "expected"),
    [
        (["libtcmalloc_minimal.so.4"], None, "libtcmalloc_minimal.so.4:"),
        (["libtcmalloc.so.4"], "/lib/libgomp.so.1", "libtcmalloc.so.4:/lib/libgomp.so.1"),
        (["libtcmalloc.so.4", "libtcmalloc_minimal.so.4"], None, "libtcmalloc_minimal.so.4:"),
        (["libtcmalloc_minimal.so.4"], "/opt/libtcmalloc.so", "/opt/libtcmalloc.so"),
        ([], None, None),
        ([], "/lib/libgomp.so.1", "/lib/libgomp.so.1"),
    ],
)
def test_what_is_preloaded(
    installed: list[str], before: str | None, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, *installed)
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    if before is not None:
        monkeypatch.setenv("LD_PRELOAD", before)
    with memory.tcmalloc_preloaded():
        assert os.environ.get("LD_PRELOAD") == expected
    assert os.environ.get("LD_PRELOAD", "") == (before or "")


def test_what_vllm_adds_stays_for_what_starts_later(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "libtcmalloc.so.4")
    monkeypatch.setenv("LD_PRELOAD", "a.so")
    with memory.tcmalloc_preloaded():
        os.environ["LD_PRELOAD"] += ":b.so"
    assert os.environ["LD_PRELOAD"] == "a.so:b.so"
