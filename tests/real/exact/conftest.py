"""An engine in float32, the embedded model, for texts that are compared to the byte while others are made.

In bf16 a near-tie may fall the other way when other requests are in the batch, or when tokens that were made one by one
are computed together.
"""

from collections.abc import Iterator

import pytest

import settings
from engine import quiet
from engine.vllm.engine import VllmEngine
from tests.server import RunningServer, running

MAX_NUM_SEQS = 32


@pytest.fixture(scope="package")
def exact() -> Iterator[RunningServer]:
    quiet.hold_back()
    loaded = settings.load(["--dtype", "float32", "--max-model-len", "2048", "--max-num-seqs", str(MAX_NUM_SEQS)])
    with running(VllmEngine(loaded.args, loaded.uses_embedded_model)) as server:
        yield server
