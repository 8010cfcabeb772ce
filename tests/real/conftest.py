"""One real engine, the embedded model on the CPU, for all tests of this folder: a start costs 25 s."""

from collections.abc import Iterator

import httpx
import pytest
from prometheus_client import REGISTRY

import settings
from engine import quiet
from metrics.instruments import Instruments
from routes.application import HttpSettings
from tests.server import RunningServer, running

# Many streams, and few enough that a test can fill it and leave a request waiting.
MAX_NUM_SEQS = 32

# Small, so that prompts around the context's length are quick to prefill; still longer than any other test needs.
MAX_MODEL_LEN = 2048


# Running and waiting requests together; one more is refused.
MAX_NUM_QUEUED_REQS = 48


@pytest.fixture(scope="session")
def server() -> Iterator[RunningServer]:
    quiet.hold_back()
    flags = {
        "--max-num-seqs": MAX_NUM_SEQS,
        "--max-model-len": MAX_MODEL_LEN,
        "--max-num-queued-reqs": MAX_NUM_QUEUED_REQS,
    }
    loaded = settings.load([str(part) for flag in flags.items() for part in flag])
    from engine.vllm.engine import VllmEngine

    instruments = Instruments(REGISTRY)
    engine = VllmEngine(loaded.args, loaded.uses_embedded_model, instruments.discarded.labels("after_abort").inc)
    with running(engine, HttpSettings(access_log=False), instruments) as server:
        yield server


@pytest.fixture
def client(server: RunningServer) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client
