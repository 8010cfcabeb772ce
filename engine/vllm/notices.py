"""How vLLM's engine processes wait for each other on a machine where the cores are few."""

import time

from vllm.distributed.device_communicators.shm_broadcast import SpinCondition

# A notice can be missed by a process that has only just started to listen; then it looks for itself after this long.
MISSED_NOTICE_MS = 2


def wait_for_notices() -> None:
    """Call in an engine process whose cores others need too, before it makes its queues.

    For a second after each message, vLLM's processes look for the next one in loops around `sched_yield`, although a
    notice comes with each. Linux 6.18 was seen to keep a third process off both of two cores for as long as an answer
    took, 10 s and more, because of them. Here they sleep until the notice, which is what vLLM does after that second.
    """
    wait = SpinCondition.wait

    def wait_for_notice(self: SpinCondition, timeout_ms: int | None = None) -> None:
        since_last_read_s = time.monotonic() - self.last_read
        if since_last_read_s > self.busy_loop_s:
            wait(self, timeout_ms)
        elif self.local_notify_socket in dict(self.poller.poll(timeout=MISSED_NOTICE_MS)):
            self.local_notify_socket.recv(copy=False)

    SpinCondition.wait = wait_for_notice
