"""What the engine's worker really has: its allocator, and the cores that it may run on."""

import os
from ctypes.util import find_library
from pathlib import Path

import psutil
import pytest

from engine.vllm.memory import TCMALLOC
from tests.server import RunningServer


def the_worker() -> psutil.Process:
    (worker,) = (child for child in psutil.Process().children(recursive=True) if "Worker" in child.name())
    return worker


@pytest.mark.skipif(not any(map(find_library, TCMALLOC)), reason="tcmalloc is not installed")
def test_the_worker_has_tcmalloc_and_this_process_has_not(server: RunningServer) -> None:
    maps = [Path(f"/proc/{process.pid}/maps").read_text() for process in (the_worker(), psutil.Process())]
    assert ["libtcmalloc" in one for one in maps] == [True, False]


@pytest.mark.skipif(len(os.sched_getaffinity(0)) > 2, reason="the worker computes with more than one thread")
def test_a_worker_that_computes_with_one_thread_is_not_bound_to_a_core(server: RunningServer) -> None:
    threads = the_worker().threads()
    assert {frozenset(os.sched_getaffinity(one.id)) for one in threads} == {frozenset(os.sched_getaffinity(0))}
