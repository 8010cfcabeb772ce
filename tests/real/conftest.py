"""One real engine, the embedded model on the CPU, for all tests of this folder: a start costs 25 s."""

from collections.abc import Iterator

import httpx
import pytest
from prometheus_client import REGISTRY

import settings
from engine import quiet
from routes.application import HttpSettings
from tests.server import RunningServer, running

# Few enough that a test can fill it and leave a request waiting.
MAX_NUM_SEQS = 12

# Small, so that prompts around the context's length are quick to prefill; still longer than any other test needs.
MAX_MODEL_LEN = 2048


@pytest.fixture(scope="session")
def server() -> Iterator[RunningServer]:
    quiet.set_up_logging()
    loaded = settings.load(["--max-num-seqs", str(MAX_NUM_SEQS), "--max-model-len", str(MAX_MODEL_LEN)])
    from engine.vllm_engine import VllmEngine

    engine = VllmEngine(loaded.args, loaded.uses_embedded_model)
    with running(engine, HttpSettings(access_log=False), REGISTRY) as server:
        yield server


@pytest.fixture
def client(server: RunningServer) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client
