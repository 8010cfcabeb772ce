"""What the shipped configuration promises of requests: who gets them, how often, and what is written down."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.nginx.pods import Pod, pod
from tests.nginx.proxy import Nginx, needs_nginx, nginx, shipped
from tests.process.program import free_port
from tests.server import wait_until

pytestmark = needs_nginx

QUERY = "/v1/stream?prompt=canary"
BODY = b'{"prompt":"' + b"canary" * 50_000 + b'"}'

METHODS = pytest.mark.parametrize("method", ["GET", "POST"])


@pytest.fixture
def lost() -> Iterator[Pod]:
    """A pod that takes a request, and is gone before it has answered."""
    with pod(echoes=False) as made:
        yield made


@pytest.fixture
def echo() -> Iterator[Pod]:
    with pod(echoes=True) as made:
        yield made


def ask(proxy: Nginx, method: str, **headers: str) -> httpx.Response:
    content = BODY if method == "POST" else None
    return httpx.request(method, proxy.url + QUERY, content=content, headers=headers, timeout=20)


def statuses(proxy: Nginx) -> set[str]:
    return {line.split()[4] for line in proxy.logs.splitlines() if " /v1/stream " in line}


@METHODS
def test_a_generation_that_may_have_begun_is_not_begun_on_a_second_pod(
    tmp_path: Path, lost: Pod, echo: Pod, method: str
) -> None:
    with nginx(tmp_path / "nginx", shipped(), lost.port, echo.port) as proxy:
        assert ask(proxy, method).status_code == 502
        assert (len(lost.requests), len(echo.requests)) == (1, 0)


@METHODS
def test_after_a_refused_connection_the_whole_request_goes_to_the_second_pod(
    tmp_path: Path, echo: Pod, method: str
) -> None:
    with nginx(tmp_path / "nginx", shipped(), free_port(), echo.port) as proxy:
        for _ in range(4):
            answer = ask(proxy, method)
            assert answer.status_code == 200
            assert answer.text.startswith(f"{method} {QUERY} HTTP/1.1\r\n")
            assert answer.content.endswith(BODY if method == "POST" else b"\r\n\r\n")
        assert len(echo.requests) == 4


@METHODS
def test_it_ends_at_the_second_pod(tmp_path: Path, lost: Pod, method: str) -> None:
    with nginx(tmp_path / "nginx", shipped(), free_port(), lost.port) as proxy:
        assert ask(proxy, method).status_code == 502
        assert len(lost.requests) == 1


@METHODS
def test_without_any_pod_it_says_so(tmp_path: Path, method: str) -> None:
    with nginx(tmp_path / "nginx", shipped(), free_port(), free_port()) as proxy:
        for _ in range(3):
            assert ask(proxy, method).status_code == 502


def test_what_clients_ask_is_in_no_log(tmp_path: Path, lost: Pod, echo: Pod) -> None:
    """Answered, refused, lost, and too large; in the access log and in what nginx has to complain of."""
    with nginx(tmp_path / "nginx", shipped(), free_port(), lost.port, echo.port) as proxy:
        for method in ("GET", "POST"):
            for _ in range(3):
                ask(proxy, method, Referer="http://page/?canary")
        assert httpx.post(proxy.url + QUERY, content=b"x" * ((8 << 20) + 1)).status_code == 413
        wait_until(lambda: {"200", "502", "413"} == statuses(proxy), 5, "a line for each way to end")
        assert "canary" not in proxy.logs


def test_the_pod_hears_who_asks_and_by_which_name(tmp_path: Path, echo: Pod) -> None:
    with nginx(tmp_path / "nginx", shipped(), echo.port) as proxy:
        heard = ask(proxy, "GET", **{"Host": "llm.example", "X-Forwarded-For": "10.1.2.3"}).text.split("\r\n")
        for header in (
            "Host: llm.example",
            "X-Forwarded-For: 10.1.2.3, 127.0.0.1",
            "X-Forwarded-Host: llm.example",
            "X-Forwarded-Proto: http",
        ):
            assert header in heard
        [given] = [line for line in heard if line.startswith("X-Request-Id: ")]
        assert "X-Request-Id: mine" in ask(proxy, "GET", **{"X-Request-Id": "mine"}).text
        made = given.removeprefix("X-Request-Id: ")
        wait_until(lambda: f"id={made} " in proxy.logs and "id=mine " in proxy.logs, 5, "both ids in the log")


@pytest.mark.parametrize(("num_bytes", "status"), [(8 << 20, 200), ((8 << 20) + 1, 413)])
def test_a_body_may_be_as_large_as_the_server_takes(tmp_path: Path, echo: Pod, num_bytes: int, status: int) -> None:
    with nginx(tmp_path / "nginx", shipped(), echo.port) as proxy:
        assert httpx.post(proxy.url, content=b"x" * num_bytes, timeout=20).status_code == status


def test_a_query_may_be_as_long_as_the_server_takes(tmp_path: Path, echo: Pod) -> None:
    with nginx(tmp_path / "nginx", shipped(), echo.port) as proxy:
        assert httpx.get(f"{proxy.url}/v1/stream?prompt={'x' * (33 << 10)}").status_code == 200


def test_a_client_can_be_kept_on_one_pod(tmp_path: Path, echo: Pod) -> None:
    with pod(echoes=True) as other:
        configuration = shipped().replace("# ip_hash;", "ip_hash;")
        with nginx(tmp_path / "nginx", configuration, echo.port, other.port) as proxy:
            for _ in range(6):
                assert ask(proxy, "GET").status_code == 200
        assert {len(echo.requests), len(other.requests)} == {0, 6}
