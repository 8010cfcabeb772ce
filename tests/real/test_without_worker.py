"""What the engine's process really has: its allocator, its threads, and the cores that it may run on."""

import os
from ctypes.util import find_library
from pathlib import Path

import psutil
import pytest

from engine.vllm.memory import TCMALLOC
from tests.server import RunningServer


@pytest.fixture
def core(server: RunningServer) -> psutil.Process:
    titles = {" ".join(child.cmdline()): child for child in psutil.Process().children(recursive=True)}
    assert not [title for title in titles if "Worker" in title]
    (core,) = (child for title, child in titles.items() if "EngineCore" in title)
    return core


@pytest.mark.skipif(not any(map(find_library, TCMALLOC)), reason="tcmalloc is not installed")
def test_the_engine_has_tcmalloc_and_this_process_has_not(core: psutil.Process) -> None:
    maps = [Path(f"/proc/{process.pid}/maps").read_text() for process in (core, psutil.Process())]
    assert ["libtcmalloc" in one for one in maps] == [True, False]


def test_no_thread_of_the_engine_is_bound_to_a_core(core: psutil.Process) -> None:
    assert {frozenset(os.sched_getaffinity(one.id)) for one in core.threads()} == {frozenset(os.sched_getaffinity(0))}
