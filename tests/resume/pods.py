"""Two pods that share a journal, behind nginx as it is shipped: all processes of their own, which can be killed."""

import contextlib
import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil

from tests.engine.redis_server import RedisServer, redis_server
from tests.nginx.proxy import Nginx, nginx, shipped
from tests.process.program import Program, free_port, started
from tests.server import wait_until

# Beside another pod that works, on two cores.
STARTS_WITHIN_S = 140

# Two engines share two cores: one thread each, which is bound to no core, for both would be bound to the same one.
ENV = {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}

# Numbered, so that what is lost or said twice shows; some of several bytes, and of several code points.
WORDS = [f" {index}{('', '번', '🙂', '👩‍👩‍👧')[index % 4]}" for index in range(60)]
ITL_S = 0.03


@dataclass
class Pod:
    """Has its port for life, however often it is started."""

    flags: tuple[str, ...]
    port: int = field(default_factory=free_port)
    _stack: ExitStack = field(default_factory=ExitStack)
    _program: Program | None = None

    @property
    def program(self) -> Program:
        assert self._program is not None
        return self._program

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def is_running(self) -> bool:
        return self._program is not None and self._program.process.poll() is None

    def start(self) -> None:
        """Without waiting until it is ready; does nothing while it runs."""
        if not self.is_running:
            self._stack.close()
            command = ("app.py", "--port", str(self.port), *self.flags)
            self._program = self._stack.enter_context(started(*command, port=self.port, env=ENV))

    def wait_ready(self) -> None:
        wait_until(lambda: self.program.status("/readyz") == 200 or not self.is_running, STARTS_WITHIN_S, "readiness")
        assert self.is_running, self.program.text

    def kill(self) -> None:
        """As its node does that is lost; returns when nothing of it is left, which takes its engine a moment."""
        children = self.program.children()
        self.program.process.kill()
        self.program.wait(10)
        _, alive = psutil.wait_procs(children, 15)
        assert not alive

    def close(self) -> None:
        self._stack.close()

    def metric(self, name: str, **labels: str) -> float:
        """The sum of all samples of that name and those labels."""
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        lines = httpx.get(self.url + "/metrics", timeout=10).text.splitlines()
        return sum(
            float(line.rpartition(" ")[2])
            for line in lines
            if line.partition("{")[0].partition(" ")[0] == name and all(label in line for label in wanted)
        )

    @property
    def num_in_flight(self) -> int:
        return int(self.metric("tailrace_streams_in_flight"))


@dataclass(frozen=True)
class Site:
    redis: RedisServer
    pods: tuple[Pod, Pod]
    proxy: Nginx

    def make_ready(self) -> None:
        """Both pods, whatever became of them."""
        for pod in self.pods:
            pod.start()
        for pod in self.pods:
            pod.wait_ready()
        self._wait_for_nginx()

    def _wait_for_nginx(self) -> None:
        """nginx leaves out a pod that it could not reach until it has got a whole answer from it."""
        before = [pod.metric("tailrace_requests_total", outcome="completed") for pod in self.pods]

        def asks_both() -> bool:
            httpx.get(f"{self.proxy.url}/v1/stream?prompt=x&max_tokens=1", timeout=30)
            now = [pod.metric("tailrace_requests_total", outcome="completed") for pod in self.pods]
            return all(later > earlier for earlier, later in zip(before, now, strict=True))

        wait_until(asks_both, 20, "nginx with both pods")

    @property
    def busier(self) -> Pod:
        """The pod with more streams."""
        return max(self.pods, key=lambda pod: pod.num_in_flight)

    def metric(self, name: str, **labels: str) -> float:
        return sum(pod.metric(name, **labels) for pod in self.pods)


@contextlib.contextmanager
def two_pods(journal: str, *flags: str) -> Iterator[tuple[Pod, Pod]]:
    pods = Pod((*flags, "--journal", journal)), Pod((*flags, "--journal", journal))
    try:
        for pod in pods:
            pod.start()
        for pod in pods:
            pod.wait_ready()
        yield pods
    finally:
        for pod in pods:
            pod.close()


@contextlib.contextmanager
def site(folder: Path, *flags: str) -> Iterator[Site]:
    with redis_server() as redis, two_pods(redis.url, *flags) as pods:
        with nginx(folder / "nginx", shipped(), *(pod.port for pod in pods)) as proxy:
            yield Site(redis, pods, proxy)


def scripted(folder: Path, ttft_ms: int = 50, itl_ms: int = round(ITL_S * 1000)) -> tuple[str, ...]:
    """The flags of a pod without a model that says `WORDS`; `folder` takes the file in which these are."""
    script = folder / "words.json"
    script.write_text(json.dumps(WORDS), encoding="utf-8")
    return (
        "--engine", "scripted", "--scripted-text", str(script),
        "--scripted-ttft-ms", str(ttft_ms), "--scripted-itl-ms", str(itl_ms),
    )  # fmt: skip
