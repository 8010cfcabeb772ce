"""Two pods behind nginx are restarted one after the other, while readers keep coming: nobody is cut off silently."""

import collections
import concurrent.futures
import contextlib
import logging
import threading
import time
from pathlib import Path

import pytest

from tests import tiny_model
from tests.event_source import parse
from tests.nginx.proxy import Nginx, needs_nginx, nginx, shipped
from tests.process.program import Program, free_port, started
from tests.server import wait_until
from tests.ways import RawAnswer, answer, asked, way

pytestmark = needs_nginx

logger = logging.getLogger("tests")

NUM_READERS = 20
NUM_TOKENS = 40
LOAD_S = 60

# Longer than an answer takes on a busy machine, and than a drain may last: who waits longer hangs.
HANGS_AFTER_S = 40

# Between two answers: two cores are also to start a pod meanwhile, which takes it 25 s alone.
PAUSE_S = 2

# Beside the load, on two cores; measured: 107 s with a pause of 0.5 s.
STARTS_WITHIN_S = 140

STREAM = (
    f"GET /v1/stream?prompt=x&ignore_eos=true&max_tokens={NUM_TOKENS} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
).encode()
CHAT = way("chat").request("x", NUM_TOKENS, model="tiny", ignore_eos=True)

# What a reader sees: all of it; an error after which it may come again; a refusal before the first byte.
DONE, ERROR, REFUSED = "done", "retryable error", "refused"


def outcome(request: bytes, got: RawAnswer) -> str:
    """One of the three above, or what was wrong."""
    if got.status in (502, 503):
        is_honest = got.status == 502 or "retry-after:" in got.headers
        return REFUSED if is_honest else "503 without Retry-After"
    if got.status != 200:
        return f"status {got.status}"
    events = parse(got.body)
    if not events:
        return "an empty stream"
    if events[-1].data == "[DONE]":
        return DONE
    if request == STREAM:
        return ERROR if events[-1].type == "error" and events[-1].json["retryable"] else f"cut after {events[-1]}"
    error = events[-1].json.get("error") or {}
    return ERROR if error.get("type") in ("draining", "engine_dead") else f"cut after {events[-1]}"


def read(proxy: Nginx, request: bytes) -> str:
    try:
        with asked(proxy.port, request) as sock:
            sock.settimeout(HANGS_AFTER_S)
            return outcome(request, answer(sock))
    except (OSError, ValueError, IndexError) as error:
        return f"no answer: {error!r}"


def keep_reading(proxy: Nginx, request: bytes, enough: threading.Event) -> collections.Counter[str]:
    """One reader: asks again a little later, for the machine is also to start a pod meanwhile."""
    counts: collections.Counter[str] = collections.Counter()
    while not enough.is_set():
        seen = read(proxy, request)
        counts[seen] += 1
        enough.wait(PAUSE_S)
    return counts


def start(stack: contextlib.ExitStack, port: int, model: str) -> Program:
    flags = (model, "--served-model-name", "tiny", "--max-model-len", "2048", "--kv-cache-memory-bytes", "256M")
    # Threads that wait for one another by spinning, of two engines on the same two cores, would take minutes to start.
    env = {"OMP_NUM_THREADS": "1"}
    return stack.enter_context(started("app.py", "--port", str(port), *flags, port=port, env=env))


def wait_ready(pod: Program) -> None:
    wait_until(lambda: pod.status("/readyz") == 200 or pod.process.poll() is not None, STARTS_WITHIN_S, "readiness")
    assert pod.process.poll() is None, pod.text


@pytest.mark.timeout(400)
def test_a_rolling_restart_cuts_nobody_off(tmp_path: Path) -> None:
    model = str(tiny_model.build(tmp_path / "tiny"))
    enough = threading.Event()
    with contextlib.ExitStack() as stack:
        pods = [start(stack, free_port(), model) for _ in range(2)]
        for pod in pods:
            wait_ready(pod)
        proxy = stack.enter_context(nginx(tmp_path / "nginx", shipped(), *(pod.port for pod in pods)))
        readers = stack.enter_context(concurrent.futures.ThreadPoolExecutor(NUM_READERS))
        stack.callback(enough.set)  # before the readers are waited for, also when something fails
        started_s = time.monotonic()
        reading = [
            readers.submit(keep_reading, proxy, (STREAM, CHAT)[index % 2], enough) for index in range(NUM_READERS)
        ]
        for pod in pods:
            enough.wait(5)
            pod.process.terminate()
            assert pod.wait(40) == 0
            logger.info("%.1f s: port %d is closed", time.monotonic() - started_s, pod.port)
            wait_ready(start(stack, pod.port, model))
            logger.info("%.1f s: port %d is ready again", time.monotonic() - started_s, pod.port)
        enough.wait(max(5.0, LOAD_S - (time.monotonic() - started_s)))
        enough.set()
        counts = [one.result(HANGS_AFTER_S + 5) for one in reading]
    total = sum(counts, collections.Counter())
    logger.info("%d readers in %.0f s: %s", NUM_READERS, time.monotonic() - started_s, dict(total))
    assert set(total) <= {DONE, ERROR, REFUSED}
    assert all(one[DONE] for one in counts)
