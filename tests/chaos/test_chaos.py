"""Half a minute of the storm (`make chaos`: ten), against a real engine; afterwards nothing is left of it."""

import asyncio
import logging
import os
import threading
import time
from collections.abc import Iterator

import psutil
import pytest
from prometheus_client import CollectorRegistry

import settings
from engine import quiet
from engine.vllm.engine import VllmEngine
from metrics.instruments import Instruments
from routes.application import HttpSettings
from tests import tiny_model
from tests.chaos.storm import MODEL, Storm
from tests.server import RunningServer, running, wait_until

logger = logging.getLogger("tests")

DURATION_S = float(os.environ.get("CHAOS_SECONDS", "30"))
SEED = int(os.environ.get("CHAOS_SEED", "1"))
MAX_GROWTH = 0.05


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """The tiny model in float32, in which a text does not depend on what else is in the batch."""
    quiet.hold_back()
    model = str(tiny_model.build(tmp_path_factory.mktemp("tiny")))
    loaded = settings.load(
        [model, "--served-model-name", MODEL, "--dtype", "float32", "--max-model-len", "2048", "--max-num-seqs", "16",
         "--max-num-queued-reqs", "40", "--kv-cache-memory-bytes", "512M"]
    )  # fmt: skip
    instruments = Instruments(CollectorRegistry())
    with running(VllmEngine(loaded.args), HttpSettings(access_log=False, stall_timeout_s=1.5), instruments) as server:
        yield server


class Memory:
    """The resident size of this process over time."""

    def __init__(self) -> None:
        self.samples: list[tuple[float, int]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def _sample(self) -> None:
        process = psutil.Process()
        while not self._stop.wait(0.5):
            self.samples.append((time.monotonic(), process.memory_info().rss))

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def growth_of_last_third(self) -> float:
        """Of the mean of the last tenth over the mean around the beginning of the last third."""
        sizes = [size for _, size in self.samples]
        count = len(sizes)
        before, after = sizes[count * 6 // 10 : count * 7 // 10], sizes[count * 9 // 10 :]
        return (sum(after) / len(after)) / (sum(before) / len(before)) - 1


def num_states(server: RunningServer) -> int:
    assert isinstance(server.engine, VllmEngine)
    assert server.engine._llm is not None
    return len(server.engine._llm.output_processor.request_states)


async def task_names() -> list[str]:
    return sorted(repr(task.get_coro()) for task in asyncio.all_tasks())


@pytest.mark.timeout(DURATION_S + 180)
def test_nothing_is_left_after_the_storm(server: RunningServer) -> None:
    storm = Storm(server.port, SEED)
    asyncio.run(storm.learn())
    tasks_before = server.run(task_names())
    memory = Memory()
    asyncio.run(storm.rage(DURATION_S))
    memory.stop()

    wait_until(lambda: server.num_in_flight == 0 and num_states(server) == 0, 5, "the end of every stream")
    wait_until(lambda: len(server.run(task_names())) <= len(tasks_before), 10, "the end of every task")
    growth = memory.growth_of_last_third()
    logger.info("seed %d, %g s: %s; memory grew by %.1f %%", SEED, DURATION_S, dict(storm.seen), growth * 100)
    assert storm.wrong == []
    assert storm.seen["good 200"] > 10 * DURATION_S / 60
    assert server.metric("tailrace_streams_in_flight") == 0
    assert growth < MAX_GROWTH
