"""How the engine's processes share the cores on the CPU: unbound where they compute alone, asleep while they wait."""

import os
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.distributed.device_communicators.shm_broadcast import SpinCondition

from engine.vllm import cores

# A process that is bound to one core, as vLLM binds its worker, and its cores afterwards.
BOUND = """
import os
os.sched_setaffinity(0, {{{core}}})
from engine.vllm.cores import BINDINGS, leave_core
leave_core()
print(sorted(os.sched_getaffinity(0)), [name for name in BINDINGS if name in os.environ])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="of Linux")
@pytest.mark.parametrize(
    ("variables", "is_unbound"),
    [
        ({"OMP_NUM_THREADS": "1"}, True),
        ({"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "auto"}, True),
        ({"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "0"}, False),
        ({"OMP_NUM_THREADS": "2"}, False),
        ({}, False),
    ],
)
def test_a_worker_that_computes_with_one_thread_may_run_on_any_core(
    variables: dict[str, str], is_unbound: bool
) -> None:
    ours = os.sched_getaffinity(0)
    core = min(ours)
    environment = {name: value for name, value in os.environ.items() if "OMP" not in name}
    environment |= variables | {"GOMP_CPU_AFFINITY": str(core)}
    program = BOUND.format(core=core)
    seen = subprocess.run([sys.executable, "-c", program], capture_output=True, env=environment, check=True, text=True)
    expected = (sorted(ours), []) if is_unbound else ([core], ["GOMP_CPU_AFFINITY"])
    assert seen.stdout == f"{expected[0]} {expected[1]}\n"


class Notices:
    """What a process that waits looks at, `since_s` after its last message; notes how it waits."""

    busy_loop_s = 1.0

    def __init__(self, since_s: float, has_notice: bool = False) -> None:
        self.last_read = time.monotonic() - since_s
        self.waits: list[Any] = []
        self.local_notify_socket = self.poller = self
        self._has_notice = has_notice

    def recv(self, copy: bool) -> None:
        self.waits.append("received")

    def poll(self, timeout: int) -> list[tuple[object, int]]:
        self.waits.append(("poll", timeout))
        return [(self.local_notify_socket, 1)] if self._has_notice else []


@pytest.mark.parametrize(
    ("since_s", "has_notice", "expected"),
    [
        (0.0, False, [("nap", cores.NAP_S)]),
        (0.1, False, [("poll", cores.MISSED_NOTICE_MS)]),
        (0.1, True, [("poll", cores.MISSED_NOTICE_MS), "received"]),
        (2.0, False, [("vllm", 7)]),
    ],
)
def test_how_a_process_waits(
    since_s: float, has_notice: bool, expected: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SpinCondition, "wait", lambda notices, timeout_ms: notices.waits.append(("vllm", timeout_ms)))
    cores.sleep_between_looks()
    notices: Any = Notices(since_s, has_notice)
    monkeypatch.setattr(
        cores, "time", SimpleNamespace(monotonic=time.monotonic, sleep=lambda s: notices.waits.append(("nap", s)))
    )
    SpinCondition.wait(notices, 7)
    assert notices.waits == expected
