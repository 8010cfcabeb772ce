"""How the engine's processes are made, whatever they compute on, and which of all processes are ended with it."""

import subprocess
import sys
from collections.abc import Iterator
from multiprocessing import spawn

import psutil
import pytest
from vllm import envs
from vllm.utils.system_utils import get_mp_context

from engine import child_processes
from engine.child_processes import CHILD_MAIN, START_METHOD, StartedProcesses, set_main_of_children
from tests.server import wait_until


@pytest.fixture(autouse=True)
def unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    envs.disable_envs_cache()  # an engine that ran in this process had it
    monkeypatch.setattr(spawn, "get_preparation_data", spawn.get_preparation_data)
    monkeypatch.setenv(START_METHOD, "fork")


def test_they_are_new_ones_on_a_gpu_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(START_METHOD)
    set_main_of_children(on_cpu=False)
    assert get_mp_context().get_start_method() == "spawn"
    assert spawn.get_preparation_data("any")["init_main_from_name"] == CHILD_MAIN


def test_who_asks_for_forks_has_forks() -> None:
    set_main_of_children(on_cpu=False)
    assert get_mp_context().get_start_method() == "fork"


# It has a child of its own, and goes on when it is asked to end.
STUBBORN = """
import signal, subprocess, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen(["sleep", "60"])
time.sleep(60)
"""


@pytest.fixture
def children() -> Iterator[list[subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for child in started:
        child.kill()
        child.wait()


def a_child(children: list[subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
    children.append(subprocess.Popen(["sleep", "60"]))
    return children[-1]


def is_running(child: subprocess.Popen[bytes]) -> bool:
    return psutil.pid_exists(child.pid) and psutil.Process(child.pid).status() != psutil.STATUS_ZOMBIE


def test_those_that_were_started_within_are_ended(children: list[subprocess.Popen[bytes]]) -> None:
    before = a_child(children)
    with StartedProcesses() as processes:
        within = a_child(children)
    after = a_child(children)
    processes.end()
    assert [is_running(child) for child in (before, within, after)] == [True, False, True]


def test_also_while_they_are_being_started(children: list[subprocess.Popen[bytes]]) -> None:
    before = a_child(children)
    with StartedProcesses() as processes:
        within = a_child(children)
        processes.end()
        assert [is_running(child) for child in (before, within)] == [True, False]


def test_what_is_started_after_the_end_is_ended_too(children: list[subprocess.Popen[bytes]]) -> None:
    """A start that cannot be interrupted goes on for a while."""
    with StartedProcesses() as processes:
        processes.end()
        within = a_child(children)
    assert not is_running(within)


def test_none_was_started(children: list[subprocess.Popen[bytes]]) -> None:
    other = a_child(children)
    StartedProcesses().end()
    assert is_running(other)


def test_those_below_them_and_those_that_do_not_listen(
    children: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_processes, "GRACE_S", 0.2)
    with StartedProcesses() as processes:
        children.append(subprocess.Popen([sys.executable, "-c", STUBBORN]))
        child = psutil.Process(children[0].pid)
        wait_until(lambda: bool(child.children()), 10, "its child")
        [grandchild] = child.children()
    processes.end()
    assert not is_running(children[0])
    assert not grandchild.is_running() or grandchild.status() == psutil.STATUS_ZOMBIE


def test_one_that_ended_by_itself(children: list[subprocess.Popen[bytes]]) -> None:
    with StartedProcesses() as processes:
        within = a_child(children)
    within.kill()
    within.wait()
    processes.end()
    assert not is_running(within)
