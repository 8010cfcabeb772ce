"""The allocator that the engine's worker really has."""

from ctypes.util import find_library
from pathlib import Path

import psutil
import pytest

from engine.vllm.memory import TCMALLOC
from tests.server import RunningServer


@pytest.mark.skipif(not any(map(find_library, TCMALLOC)), reason="tcmalloc is not installed")
def test_the_worker_has_tcmalloc_and_this_process_has_not(server: RunningServer) -> None:
    here = psutil.Process()
    (worker,) = (child for child in here.children(recursive=True) if "Worker" in child.name())
    maps = [Path(f"/proc/{process.pid}/maps").read_text() for process in (worker, here)]
    assert ["libtcmalloc" in one for one in maps] == [True, False]
