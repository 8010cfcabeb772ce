"""The real redis-server, as a process of its own, that keeps nothing on disk."""

import contextlib
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator

import pytest
from redis import Redis
from redis.exceptions import RedisError

from tests.process.program import free_port
from tests.server import wait_until

# Debian's, or Valkey's under its own name.
SERVER = shutil.which("redis-server") or shutil.which("valkey-server")

needs_redis = pytest.mark.skipif(SERVER is None, reason="needs Debian's package redis-server")


class RedisServer:
    """Can be killed, and started again on the same port, empty."""

    def __init__(self, folder: str) -> None:
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}"
        self.client = Redis.from_url(self.url)
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        assert SERVER
        options = {"port": str(self.port), "bind": "127.0.0.1", "dir": self._folder, "save": "", "appendonly": "no"}
        words = [word for name, value in options.items() for word in (f"--{name}", value)]
        self._process = subprocess.Popen([SERVER, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until(self.answers, 20, "an answer of redis-server")

    def freeze(self, is_frozen: bool = True) -> None:
        """It takes connections and commands and does nothing with them, until it is let go on."""
        assert self._process
        self._process.send_signal(signal.SIGSTOP if is_frozen else signal.SIGCONT)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def answers(self) -> bool:
        try:
            return bool(self.client.ping())
        except RedisError:
            return False


@contextlib.contextmanager
def redis_server() -> Iterator[RedisServer]:
    with tempfile.TemporaryDirectory() as folder:
        server = RedisServer(folder)
        try:
            server.start()
            yield server
        finally:
            server.kill()
            server.client.close()
