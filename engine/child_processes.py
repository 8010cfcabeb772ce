"""The engine's processes, as the operating system sees them: out of the terminal's reach, and gone when this one is."""

import contextlib
import ctypes
import os
import signal
import sys
from multiprocessing import resource_tracker, spawn
from typing import Any, Self

import psutil

# prctl(2): the signal that a process gets when the thread that started it ends.
PR_SET_PDEATHSIG = 1

# The module that the engine's processes have for their main one.
CHILD_MAIN = "engine.child_main"

# vLLM's variable for how its processes are made: by itself it forks, where it does not compute on the CPU.
START_METHOD = "VLLM_WORKER_MULTIPROC_METHOD"

# Set in the environment of engine processes that compute on the CPU.
ON_CPU = "TAILRACE_ENGINE_ON_CPU"

# How long a child gets between being asked to end and being killed.
GRACE_S = 3.0


def set_main_of_children(on_cpu: bool) -> None:
    """Call before the engine's processes are started: they will have `CHILD_MAIN` for their main module.

    By itself multiprocessing imports this process's main file into each of them, whatever that is: the server, a test
    runner, somebody's notebook. Forks would import nothing: not the module that ends them with this process, whose
    listening socket they have. So they are new processes, if `START_METHOD` does not say otherwise.
    """
    os.environ.setdefault(START_METHOD, "spawn")
    if on_cpu:
        os.environ[ON_CPU] = "1"
    prepare = spawn.get_preparation_data

    def with_own_main(name: str) -> dict[str, Any]:
        data = prepare(name)
        data.pop("init_main_from_path", None)
        return data | {"init_main_from_name": CHILD_MAIN}

    if prepare.__name__ != with_own_main.__name__:
        spawn.get_preparation_data = with_own_main


def shield_children_from_ctrl_c() -> None:
    """Call in the thread that starts the engine's processes: they inherit its signal mask, and theirs do too.

    A terminal sends Ctrl-C to its whole process group. A worker that gets it exits at once, and takes with it the
    streams that this process is about to drain. The mask is of this thread alone; the main one still hears of Ctrl-C.
    """
    # First, because starting the tracker ends with unblocking the signal (CPython, multiprocessing.resource_tracker).
    resource_tracker.ensure_running()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


def die_with_parent() -> None:
    """Call in an engine process as it starts: it is killed when its parent ends, also when that was killed itself.

    Nothing else would end it then: it waits for requests that nobody can send any more. Linux only, as the engine is.
    The parent must have started it from a thread that lives as long as the engine may.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == 1:  # the parent ended before this one asked
        os.kill(os.getpid(), signal.SIGKILL)


class StartedProcesses:
    """The processes that this one starts while this context is entered, and those below them.

    Python's resource tracker must run already. It is not to be ended: it ends with this process, and frees what others
    forgot.
    """

    def __init__(self) -> None:
        self._others: set[psutil.Process] | None = None
        self._started: list[psutil.Process] = []
        self._is_ended = False

    def __enter__(self) -> Self:
        self._others = set(psutil.Process().children())
        return self

    def __exit__(self, *_: object) -> None:
        self._started, self._others = self._so_far(), None
        if self._is_ended:
            self.end()

    def _so_far(self) -> list[psutil.Process]:
        others = self._others  # which another thread may be about to forget
        if others is None:
            return self._started
        return [child for child in psutil.Process().children() if child not in others]

    def end(self) -> None:
        """End them, asking first. Blocks for at most `GRACE_S` and a moment.

        Those that are started after this are ended when the context is left.
        """
        self._is_ended = True
        ending: list[psutil.Process] = []
        for process in self._so_far():
            with contextlib.suppress(psutil.NoSuchProcess):
                ending += [process, *process.children(recursive=True)]
        for process in ending:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.terminate()
        _, alive = psutil.wait_procs(ending, timeout=GRACE_S)
        for process in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(alive, timeout=1.0)
