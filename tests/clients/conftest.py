"""A Tailrace of its own process, on the model that thinks, with so little room that requests have to wait.

While they wait, keep-alives go out every 0.05 s: no client may be disturbed by them.
"""

import threading
from collections.abc import Iterator

import httpx
import pytest

from tests import parrot_model
from tests.process.program import Program, serving
from tests.server import wait_until

MAX_NUM_SEQS = 2

# How long a request waits: half a second or more of tokens.
OCCUPYING = {"prompt": "x", "max_tokens": 300, "ignore_eos": True}


@pytest.fixture(scope="package")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    folder = tmp_path_factory.mktemp("clients")
    model = parrot_model.build(folder / "parrot")
    adapter = parrot_model.build_adapter(folder / "adapter")
    flags = [*parrot_model.FLAGS, "--lora-modules", f"adapted={adapter}", "--max-num-seqs", str(MAX_NUM_SEQS)]
    with serving(str(model), *flags, "--sse-keep-alive-interval", "0.05") as program:
        program.wait_ready()
        yield program


@pytest.fixture
def busy(program: Program) -> Iterator[str]:
    """The address of the server, all of whose places are taken for a while."""

    def occupy() -> None:
        httpx.post(program.url + "/v1/stream", json=OCCUPYING, timeout=60)

    threads = [threading.Thread(target=occupy) for _ in range(MAX_NUM_SEQS)]
    for thread in threads:
        thread.start()
    wait_until(lambda: num_running(program) == MAX_NUM_SEQS, 10)
    yield program.url
    for thread in threads:
        thread.join(60)


def num_running(program: Program) -> float:
    lines = httpx.get(program.url + "/metrics").text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith("vllm:num_requests_running{"))
