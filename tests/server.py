"""A Tailrace on a free port, in a thread of the test process: real uvicorn, real sockets, any engine.

Tests talk to it over HTTP, and can look at the engine that it owns.
"""

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

import httpx
import uvicorn
import uvloop
from prometheus_client import CollectorRegistry

from engine.interface import Engine
from engine.journal import Journal, MemoryJournal
from engine.lifecycle import Lifecycle
from engine.supervisor import Supervisor
from metrics.instruments import Instruments
from metrics.loop_lag import measure_loop_lag
from routes import server
from routes.application import HttpSettings, build_application

T = TypeVar("T")


def wait_until(condition: Callable[[], bool], timeout_s: float = 2.0, what: str = "the condition") -> float:
    """Poll until `condition` holds; how long that took. Fails after `timeout_s`."""
    started_s = time.monotonic()
    while not condition():
        if time.monotonic() - started_s > timeout_s:
            raise AssertionError(f"{what} did not hold within {timeout_s} s")
        threading.Event().wait(0.01)
    return time.monotonic() - started_s


class RunningServer:
    """The address, the engine, and a way to run coroutines on the server's loop."""

    def __init__(self, engine: Engine, supervisor: Supervisor, loop: asyncio.AbstractEventLoop, port: int) -> None:
        self.engine = engine
        self.supervisor = supervisor
        self.loop = loop
        self.port = port
        self.url = f"http://127.0.0.1:{port}"

    def client(self, **options: Any) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=60, **options)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(60)

    def metric(self, name: str, **labels: str) -> float:
        """The sum of all samples of that name and those labels, as `/metrics` shows them."""
        with self.client() as client:
            lines = client.get("/metrics").text.splitlines()
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        values = [
            float(line.rpartition(" ")[2])
            for line in lines
            if line.partition("{")[0].partition(" ")[0] == name and all(label in line for label in wanted)
        ]
        return sum(values)

    @property
    def num_in_flight(self) -> int:
        return len(self.supervisor.in_flight)


@contextlib.contextmanager
def running(
    engine: Engine,
    settings: HttpSettings | None = None,
    instruments: Instruments | None = None,
    journal: Journal | None = None,
    resume_window_s: float = 120,
) -> Iterator[RunningServer]:
    """Start `engine` and a server over it; stop both at the end."""
    instruments = instruments or Instruments(CollectorRegistry())
    lifecycle = Lifecycle(on_change=instruments.set_state)
    ready = threading.Event()
    made: list[RunningServer] = []
    stops: list[Callable[[], object]] = []

    async def main() -> None:
        supervisor = Supervisor(engine, lifecycle)
        kept = journal or MemoryJournal(time.monotonic, resume_window_s)
        await kept.start()
        application = build_application(supervisor, kept, instruments, settings or HttpSettings(access_log=False))
        config = server.config_for(application, host="127.0.0.1", port=0, log_level="warning")
        sock = socket.create_server(("127.0.0.1", 0))
        http = uvicorn.Server(config)
        serving = asyncio.create_task(http.serve(sockets=[sock]))
        lag = asyncio.create_task(measure_loop_lag(instruments.loop_lag))
        await supervisor.start()
        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        stops.append(lambda: loop.call_soon_threadsafe(stop.set))
        made.append(RunningServer(engine, supervisor, loop, sock.getsockname()[1]))
        ready.set()
        await stop.wait()
        if supervisor.is_alive:
            await supervisor.drain(0, asyncio.Event())
        await supervisor.stop()
        lag.cancel()
        http.should_exit = True
        await serving
        config.outbox.close()
        await kept.close()

    thread = threading.Thread(target=lambda: uvloop.run(main()), name="server", daemon=True)
    thread.start()
    try:
        wait_until(lambda: ready.is_set() or not thread.is_alive(), 90, "the start of the server")
        assert made, "the server could not start"
        yield made[0]
    finally:
        for stop in stops:
            stop()
        thread.join(30)
