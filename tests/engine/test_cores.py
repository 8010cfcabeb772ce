"""How the engine uses the cores of the CPU: in one process where that is enough, asleep where several wait."""

import os
import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.distributed.device_communicators.shm_broadcast import SpinCondition

from engine.vllm import cores


def config_of(world_size: int = 1) -> Any:
    return SimpleNamespace(
        parallel_config=SimpleNamespace(world_size_across_dp=world_size, distributed_executor_backend="mp")
    )


@pytest.mark.parametrize(
    ("world_size", "executor", "bind", "expected"),
    [
        (1, None, "auto", True),
        (1, "uni", "auto", True),
        (1, None, "nobind", True),
        (1, "mp", "auto", False),
        (1, object, "auto", False),
        (1, None, "0-1", False),
        (2, None, "auto", False),
    ],
)
def test_which_engines_need_no_worker(
    world_size: int, executor: str | type | None, bind: str, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cores, "envs", SimpleNamespace(VLLM_CPU_OMP_THREADS_BIND=bind))
    assert cores.needs_no_worker(config_of(world_size), executor) is expected


@pytest.mark.skipif(sys.platform != "linux", reason="of Linux")
@pytest.mark.parametrize("num_threads_before", [None, "7"])
def test_an_engine_computes_on_the_cores_of_one_node(
    num_threads_before: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = os.sched_getaffinity(0)
    first, *others = sorted(ours)
    nodes = [SimpleNamespace(id=first, numa_node=0), *(SimpleNamespace(id=core, numa_node=1) for core in others)]
    monkeypatch.setattr(cores, "get_allowed_cpu_list", lambda: nodes)
    monkeypatch.setattr(cores, "OMPProcessManager", lambda config: SimpleNamespace(cpu_lists=[[first]]))
    monkeypatch.delenv(cores.NUM_THREADS, raising=False)
    if num_threads_before is not None:
        monkeypatch.setenv(cores.NUM_THREADS, num_threads_before)
    config = config_of()
    with cores.without_worker(config):
        assert (os.environ[cores.NUM_THREADS], os.sched_getaffinity(0)) == ("1", {first})
        assert config.parallel_config.distributed_executor_backend == "uni"
    assert (os.environ.get(cores.NUM_THREADS), os.sched_getaffinity(0)) == (num_threads_before, ours)


def test_without_binding_the_operator_chooses_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "OMPProcessManager", lambda config: SimpleNamespace(cpu_lists=[]))
    monkeypatch.setenv(cores.NUM_THREADS, "3")
    config = config_of()
    with cores.without_worker(config):
        assert os.environ[cores.NUM_THREADS] == "3"
    assert config.parallel_config.distributed_executor_backend == "uni"


@pytest.mark.parametrize(("since_s", "expected"), [(0.0, ("nap", cores.NAP_S)), (2.0, ("vllm", 7))])
def test_how_a_process_of_several_waits(
    since_s: float, expected: tuple[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[tuple[str, float | None]] = []
    monkeypatch.setattr(SpinCondition, "wait", lambda condition, timeout_ms: waits.append(("vllm", timeout_ms)))
    cores.sleep_between_looks()
    monkeypatch.setattr(
        cores, "time", SimpleNamespace(monotonic=time.monotonic, sleep=lambda nap_s: waits.append(("nap", nap_s)))
    )
    condition: Any = SimpleNamespace(last_read=time.monotonic() - since_s, busy_loop_s=1.0)
    SpinCondition.wait(condition, 7)
    assert waits == [expected]
