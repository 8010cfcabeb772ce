"""A server that is measured: a process group of its own, on the model that all of them serve, and its clocks."""

import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from filelock import FileLock

from bench.client import MODEL, Summary
from engine import embedded_model
from tests import tiny_model

ROOT = Path(__file__).parents[1]

START_LIMIT_S = 900.0
STOP_LIMIT_S = 30.0

# A start and a stop of engine processes leave work behind them, which would be counted into the next measurement.
SETTLE_S = 2.0

# One stream in so many of a peer's may fail. On two cores vLLM's engine processes keep its front ends from running for
# seconds at a time (see `engine.vllm.notices.wait_for_notices`); they then close connections that wait for them.
PEER_FAILURES_IN = 2

# Which file the Rust front end of `vllm serve` is; it comes inside the CUDA wheel, as vllm/vllm-rs.
RUST_FRONT_END = "VLLM_RUST_FRONTEND_PATH"

# Eager, as on the CPU the compiler takes longer than the whole measurement; as many sequences as the largest load has.
ENGINE_FLAGS = ("--served-model-name", MODEL, "--enforce-eager", "--max-model-len", "2048", "--max-num-seqs", "256")

# For the peer that would log each request by uvicorn; ours has its line for each.
NO_LOG = "--disable-uvicorn-access-log"

ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}


def the_tiny_model() -> Path:
    """The folder of the tests' tiny model, made once and kept in the cache: one whose engine costs next to nothing."""
    folder = embedded_model.cache_dir() / "bench-tiny"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_suffix(".lock")):
        if not (folder / "whole").exists():
            tiny_model.build(folder)
            (folder / "whole").touch()
    return folder


@dataclass(frozen=True, slots=True)
class Target:
    """Something that answers the client: `command` is what Python is to run, before `--port`."""

    name: str
    what: str
    command: tuple[str, ...]
    surface: str = "chat"
    ready_path: str = "/health"
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_ours(self) -> bool:
        return self.command[0] == "app.py"


def tailrace(name: str, *flags: str, surface: str = "chat") -> Target:
    return Target(name, f"Tailrace, {surface}", ("app.py", *flags), surface, "/readyz")


def targets() -> dict[str, Target]:
    """The servers of the tiny model, by name."""
    model = str(the_tiny_model())
    ours = ("--model", model, *ENGINE_FLAGS)
    theirs = ("-m", "vllm.entrypoints.openai.api_server", "--model", model, *ENGINE_FLAGS, NO_LOG)
    rust = {"VLLM_USE_RUST_FRONTEND": "1", RUST_FRONT_END: os.environ.get(RUST_FRONT_END, "")}
    return {
        target.name: target
        for target in (
            tailrace("chat", *ours),
            tailrace("stream", *ours, surface="stream"),
            Target("vllm", "vllm serve, Python front end", theirs),
            Target(
                "vllm-rust",
                "vllm serve, Rust front end",
                ("-m", "bench.vllm_command", "serve", model, *ENGINE_FLAGS),
                environment=rust,
            ),
        )
    }


def why_not(name: str) -> str | None:
    """Why that target cannot be measured here; None when it can."""
    path = os.environ.get(RUST_FRONT_END, "")
    if name == "vllm-rust" and not os.access(path, os.X_OK):
        return f"vllm-rust is skipped: {RUST_FRONT_END} names no program (it is vllm/vllm-rs in the CUDA wheel of vLLM)"
    return None


@dataclass(slots=True)
class Server:
    """A running target. `pid` is the front end's, of which the CPU time is read."""

    target: Target
    process: subprocess.Popen[bytes]
    port: int
    log: Path
    pid: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def drive(
        self, num_streams: int, num_requests: int, num_tokens: int = 128, seed: int = 0, per_second: float = 0.0
    ) -> tuple[Summary, float]:
        """Let the client loose: what it saw, and how much CPU time the front end took for it, in seconds.

        Exits with the client's complaint when a stream was not what it must be; a peer is allowed a few of those.
        """
        command = [sys.executable, "-m", "bench.client", "--port", self.port, "--surface", self.target.surface]
        may_fail = 0 if self.target.is_ours else num_requests // PEER_FAILURES_IN
        command += [
            "--may-fail",
            may_fail,
            "--streams",
            num_streams,
            "--requests",
            num_requests,
            "--tokens",
            num_tokens,
            "--seed",
            seed,
            "--per-second",
            per_second,
        ]
        before_s = cpu_s(self.pid)
        done = subprocess.run([str(part) for part in command], cwd=ROOT, capture_output=True, text=True)
        taken_s = cpu_s(self.pid) - before_s
        if done.returncode:
            sys.exit(f"{self.target.name}: {done.stderr.strip()}")
        seen = Summary(**json.loads(done.stdout))
        if seen.num_failed:
            print(f"  {self.target.name}: {seen.num_failed} streams were cut, and asked for again", file=sys.stderr)
        return seen, taken_s

    def rss_bytes(self) -> int:
        return int(psutil.Process(self.pid).memory_info().rss)


@contextlib.contextmanager
def running(target: Target, log: Path | None = None) -> Iterator[Server]:
    """Start `target` and wait until it is ready; stop it at the end, and whatever it has started."""
    allow_open_files()
    port = free_port()
    log = log or embedded_model.cache_dir() / f"bench-{target.name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, *target.command, "--port", str(port)],
            cwd=ROOT,
            env=os.environ | ENVIRONMENT | dict(target.environment),
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    server = Server(target, process, port, log)
    try:
        wait_ready(process, port, target.ready_path, log)
        server.pid = _front_end(process.pid) if target.name == "vllm-rust" else process.pid
        time.sleep(SETTLE_S)
        yield server
    finally:
        stop(process)
        time.sleep(SETTLE_S)


def stop(process: subprocess.Popen[bytes]) -> None:
    """End `process`, the leader of its group: by asking, or else it and its whole group by force."""
    process.terminate()
    try:
        process.wait(STOP_LIMIT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def wait_ready(process: subprocess.Popen[bytes], port: int, path: str, log: Path | None = None) -> None:
    """Return when `path` answers 200. Exits when the server ends, or takes too long."""
    ends_s = time.monotonic() + START_LIMIT_S
    where = f"; its log is {log}" if log else ""
    while time.monotonic() < ends_s:
        if process.poll() is not None:
            sys.exit(f"the server ended before it was ready{where}")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=2):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    sys.exit(f"the server was not ready within {START_LIMIT_S:g} s{where}")


def _front_end(pid: int) -> int:
    """The Rust program among the children."""
    for child in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if child.cmdline()[:1] and "vllm-rs" in child.cmdline()[0]:
                return int(child.pid)
    sys.exit("vllm-rust: there is no front-end process")


def cpu_s(pid: int) -> float:
    """CPU time of a process, user and system, all threads, not its children's.

    From the process's CPU clock, whose number Linux makes of the pid (linux/posix-timers_types.h): in nanoseconds,
    where /proc has ticks of 10 ms.
    """
    return time.clock_gettime(~pid << 3 | 2)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def allow_open_files() -> int:
    """As many open files as this user may have, here and in what is started from here; how many that is."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return most
