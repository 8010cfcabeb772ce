"""The program as a user starts it: a process of its own, its output, its signals, its exit code."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

from tests.server import wait_until

ROOT = Path(__file__).parents[2]
EMPTY: Mapping[str, str] = {}


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@dataclass
class Program:
    process: subprocess.Popen[bytes]
    output: Path
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def text(self) -> str:
        return self.output.read_text()

    def status(self, path: str) -> int:
        """The status that `path` answers now; 0 when nothing answers."""
        try:
            return httpx.get(self.url + path, timeout=5).status_code
        except httpx.TransportError:
            return 0

    def wait_ready(self) -> None:
        wait_until(lambda: self.status("/readyz") == 200 or self.process.poll() is not None, 100, "readiness")
        assert self.process.poll() is None, self.text

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def child(self, title: str) -> psutil.Process | None:
        """The child with `title` in its command line; processes come and go while one looks."""
        for child in self.children():
            with contextlib.suppress(psutil.NoSuchProcess):
                if title in " ".join(child.cmdline()):
                    return child
        return None

    def kill_child(self, title: str) -> None:
        child = self.child(title)
        assert child is not None, f"there is no process {title}"
        child.kill()

    def signal_group(self, number: signal.Signals) -> None:
        """What a terminal does on Ctrl-C: to the program and all that is still in its process group."""
        os.killpg(self.process.pid, number)

    def wait(self, timeout_s: float) -> int:
        return self.process.wait(timeout_s)


@contextlib.contextmanager
def started(*command: str, port: int = 0, env: Mapping[str, str] = EMPTY) -> Iterator[Program]:
    """Start `python *command` in a process group of its own; kill whatever is left at the end."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "output"
        with output.open("wb") as stream:
            process = subprocess.Popen(
                [sys.executable, *command],
                cwd=ROOT,
                env=os.environ | dict(env),
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        program = Program(process, output, port)
        try:
            yield program
        finally:
            children = program.children() if process.poll() is None else []
            for child in [*children, psutil.Process(process.pid)] if process.poll() is None else children:
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()
            process.wait(10)


@contextlib.contextmanager
def serving(*flags: str) -> Iterator[Program]:
    """`python app.py` with `flags`, on a free port."""
    port = free_port()
    with started("app.py", "--port", str(port), *flags, port=port) as program:
        yield program
