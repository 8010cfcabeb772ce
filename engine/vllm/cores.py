"""How the engine uses a machine's cores where it computes on them: those that the event loop and the clients run on."""

import contextlib
import os
import time
from collections.abc import Iterator

from vllm import envs
from vllm.config import VllmConfig
from vllm.distributed.device_communicators.shm_broadcast import SpinCondition
from vllm.utils.cpu_resource_utils import get_allowed_cpu_list
from vllm.utils.ompmultiprocessing import OMPProcessManager

NUM_THREADS = "OMP_NUM_THREADS"

# How long a process of several sleeps before it looks for a message again.
NAP_S = 50e-6


def needs_no_worker(config: VllmConfig, executor: str | type | None) -> bool:
    """Whether one process is enough for the engine of `config`; `executor` is what was asked for.

    A worker process of its own is also the way to compute with threads that are bound to cores, by vLLM's
    `VLLM_CPU_OMP_THREADS_BIND`.
    """
    is_one = config.parallel_config.world_size_across_dp == 1
    return is_one and executor in (None, "uni") and envs.VLLM_CPU_OMP_THREADS_BIND in ("auto", "nobind")


@contextlib.contextmanager
def without_worker(config: VllmConfig) -> Iterator[None]:
    """An engine with `config` that is started in here computes in the engine core's process, as it does on a GPU.

    On the CPU vLLM makes a worker process even for one engine, as only a new process can be told how many threads
    OpenMP has, and which core each is bound to. But the engine core's process is new as well. Without a worker, a step
    is not sent to another process and back, the process that waited for it takes no core from the rest, and a start
    does not wait for a third import of vLLM.

    OpenMP's threads are as many as vLLM would bind, on the cores of the same memory node, and bound to none: with the
    thread that loads the library, all others of the engine core would be bound to one core.
    """
    chosen = OMPProcessManager(config).cpu_lists  # none with `nobind`
    config.parallel_config.distributed_executor_backend = "uni"
    if not chosen:
        yield
        return
    num_threads, cores = os.environ.get(NUM_THREADS), os.sched_getaffinity(0)
    os.environ[NUM_THREADS] = str(len(chosen[0]))
    os.sched_setaffinity(0, _same_node(chosen[0][0]))  # which a new process inherits
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)
        if num_threads is None:
            del os.environ[NUM_THREADS]
        else:
            os.environ[NUM_THREADS] = num_threads


def _same_node(core: int) -> set[int]:
    """All cores of the memory node of `core` that this process may use."""
    node_of = {cpu.id: cpu.numa_node for cpu in get_allowed_cpu_list()}
    return {other for other, node in node_of.items() if node == node_of[core]}


def sleep_between_looks() -> None:
    """Call in an engine process before it makes its queues: it does not keep others off the cores while it waits.

    For a second after each message, the processes of an engine that has several look for the next one in loops around
    `sched_yield`. Linux 6.18 was seen to keep a third process off both of two cores for as long as an answer took, 10 s
    and more, because of them.
    """
    wait = SpinCondition.wait

    def sleep(self: SpinCondition, timeout_ms: int | None = None) -> None:
        if time.monotonic() - self.last_read < self.busy_loop_s:
            time.sleep(NAP_S)
        else:
            wait(self, timeout_ms)

    SpinCondition.wait = sleep
