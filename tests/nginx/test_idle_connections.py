"""Connections between requests: which side closes them, and that nobody's request is lost by it."""

import concurrent.futures
import contextlib
import logging
import re
import signal
import time
from pathlib import Path

import psutil
import pytest

from engine.scripted import Script, ScriptedEngine
from routes.server import IDLE_TIMEOUT_S
from tests.nginx.proxy import Nginx, needs_nginx, nginx, shipped
from tests.process.program import serving
from tests.server import running, wait_until
from tests.ways import answer, asked

pytestmark = needs_nginx

logger = logging.getLogger("tests")

# uvicorn's own timeout is 5 s: it would end a connection while a request is on its way.
PAUSES_S = (4.9, 4.95, 5.0, 5.05, 5.1)

# As many as the shipped configuration keeps, so that each is used again in each round.
NUM_KEPT = 64

REQUEST = b"GET /v1/stream?prompt=x&max_tokens=1 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


def ask(proxy: Nginx) -> int:
    with asked(proxy.port, REQUEST) as sock:
        return answer(sock).status


def kept_connections(proxy: Nginx, port: int) -> set[int]:
    """nginx's ends of its connections to the server."""
    connections = psutil.Process(proxy.pid).net_connections()
    return {
        one.laddr.port for one in connections if one.raddr and one.raddr.port == port and one.status == "ESTABLISHED"
    }


def test_nginx_closes_first() -> None:
    [timeout_s] = re.findall(r"^    keepalive_timeout (\d+)s;", shipped(), re.MULTILINE)
    assert int(timeout_s) < IDLE_TIMEOUT_S
    assert f"keepalive {NUM_KEPT};" in shipped()


def test_a_connection_that_was_idle_for_five_seconds_can_be_used_again(tmp_path: Path) -> None:
    """500 times and more, in rounds: all connections fall idle together, and are used again together."""
    num_reused = 0
    with contextlib.ExitStack() as stack:
        # The first token takes long enough for all requests of a round to be in flight at once, each on its connection.
        server = stack.enter_context(running(ScriptedEngine(Script(["x"], 0.5))))
        proxies = [stack.enter_context(nginx(tmp_path / name, shipped(), server.port)) for name in ("one", "two")]
        clients = stack.enter_context(concurrent.futures.ThreadPoolExecutor(NUM_KEPT * len(proxies)))
        statuses = list(clients.map(ask, proxies * NUM_KEPT))
        for pause_s in PAUSES_S:
            before = [kept_connections(proxy, server.port) for proxy in proxies]
            time.sleep(pause_s)
            statuses += clients.map(ask, proxies * NUM_KEPT)
            after = [kept_connections(proxy, server.port) for proxy in proxies]
            num_reused += sum(len(old & new) for old, new in zip(before, after, strict=True))
    logger.info("%d requests on connections that had been idle for 4.9 to 5.1 s", num_reused)
    assert set(statuses) == {200}
    assert num_reused >= 500


def test_idle_connections_do_not_hold_up_the_end(tmp_path: Path) -> None:
    with serving("--engine", "scripted") as program:
        program.wait_ready()
        with nginx(tmp_path / "nginx", shipped(), program.port) as proxy:
            with concurrent.futures.ThreadPoolExecutor(20) as clients:
                assert set(clients.map(ask, [proxy] * 20)) == {200}
            assert len(kept_connections(proxy, program.port)) > 5
            program.signal_group(signal.SIGTERM)
            assert program.wait(2) == 0
            wait_until(lambda: not kept_connections(proxy, program.port), 2, "the end of every connection")


@pytest.mark.parametrize("num_bytes", [0, 20])
def test_a_connection_without_a_whole_request_does_not_either(num_bytes: int) -> None:
    with serving("--engine", "scripted") as program:
        program.wait_ready()
        with asked(program.port, REQUEST[:num_bytes]):
            program.signal_group(signal.SIGTERM)
            assert program.wait(2) == 0
