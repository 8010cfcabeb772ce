"""How the engine's processes share a machine's cores with each other and with this one, where they compute on them."""

import os
import time

from vllm.distributed.device_communicators.shm_broadcast import SpinCondition

# By which vLLM has a worker's OpenMP library bind its threads, one of them for each such library.
BINDINGS = ("GOMP_CPU_AFFINITY", "KMP_AFFINITY", "OMP_PLACES", "OMP_PROC_BIND")

# A process that waits for another looks for its message this often, and this long; most of a small model's steps are
# over by then. After that it sleeps until a notice, so that a large model's are not disturbed.
NAP_S = 50e-6
NAPS_FOR_S = 2e-3

# A notice can be missed by a process that has only just started to listen; then it looks for itself after this long.
MISSED_NOTICE_MS = 2


def leave_core() -> None:
    """Call in an engine process, before it has threads: a worker that computes with one thread may run on any core.

    vLLM binds a worker's compute threads to cores, and with the first of them every other thread of that process. One
    that computes alone then waits for its core while another process has it and the next is idle. The cores are those
    of the process that started this one. What an operator bound, by vLLM's `VLLM_CPU_OMP_THREADS_BIND`, stays bound.
    """
    if os.environ.get("OMP_NUM_THREADS") != "1" or os.environ.get("VLLM_CPU_OMP_THREADS_BIND", "auto") != "auto":
        return
    for name in BINDINGS:  # libraries are still to come, and each binds the thread that loads it
        os.environ.pop(name, None)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, os.sched_getaffinity(os.getppid()))


def sleep_between_looks() -> None:
    """Call in an engine process before it makes its queues: it does not keep others off the cores while it waits.

    For a second after each message, vLLM's processes look for the next one in loops around `sched_yield`. Linux 6.18
    was seen to keep a third process off both of two cores for as long as an answer took, 10 s and more, because of
    them. To sleep for each message until its notice, which is what vLLM does after that second, is no better: a core
    that was left idle is slow to come back, and with one stream a step took three times as long.
    """
    wait = SpinCondition.wait

    def sleep(self: SpinCondition, timeout_ms: int | None = None) -> None:
        since_last_read_s = time.monotonic() - self.last_read
        if since_last_read_s < NAPS_FOR_S:
            time.sleep(NAP_S)
        elif since_last_read_s > self.busy_loop_s:
            wait(self, timeout_ms)
        elif self.local_notify_socket in dict(self.poller.poll(timeout=MISSED_NOTICE_MS)):
            self.local_notify_socket.recv(copy=False)

    SpinCondition.wait = sleep
