"""The process from its first socket to its exit code: uvicorn, signals, drain. The functions stand in life order.

Two defaults are taken over here on purpose. uvicorn closes its port on SIGTERM and waits; here the port stays open while
streams drain, so that probes and refused requests get an answer. sse-starlette cuts every stream half a second after
SIGTERM; it is told to leave that to the drain.
"""

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Callable, Iterator

import uvicorn
from sse_starlette.sse import AppStatus
from starlette.types import ASGIApp

from engine.lifecycle import State
from engine.supervisor import Supervisor

logger = logging.getLogger("tailrace")

# How long uvicorn waits for connections to close once every stream has ended; then it cuts them.
CLOSE_TIMEOUT_S = 2


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers, which would close the port before the drain."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def bind(config: uvicorn.Config) -> socket.socket:
    """Take the port before anything slow is done. Exits with a message when it is in use."""
    sock = config.bind_socket()
    sock.listen(config.backlog)
    return sock


async def serve(
    config: uvicorn.Config,
    sock: socket.socket,
    supervisor: Supervisor,
    shutdown_timeout_s: float,
    on_ready: Callable[[], None],
) -> int:
    """Serve until a signal or the engine's death; the exit code of the process.

    The port answers from the first moment; the model loads meanwhile. Cancelling it ends the engine too.
    """
    AppStatus.disable_automatic_graceful_drain()
    stop_asked, skip_drain = _listen_to_signals()
    server = _Server(config)
    http = asyncio.create_task(server.serve(sockets=[sock]), name="http")
    try:
        died = await _run_engine(supervisor, stop_asked, on_ready)
        if not died:
            await supervisor.drain(shutdown_timeout_s, skip_drain)
        await supervisor.stop()
    finally:
        server.should_exit = True
        await http
    return 1 if died else 0


def config_for(app: ASGIApp, **options: object) -> uvicorn.Config:
    """uvicorn's settings; `options` are the ones that the command line decides."""
    return uvicorn.Config(
        app,
        http="httptools",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=CLOSE_TIMEOUT_S,
        **options,  # type: ignore[arg-type]
    )


def _listen_to_signals() -> tuple[asyncio.Event, asyncio.Event]:
    """The first SIGTERM or SIGINT sets the first event; each further one the second."""
    stop_asked, skip_drain = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        (skip_drain if stop_asked.is_set() else stop_asked).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, on_signal)
    return stop_asked, skip_drain


async def _run_engine(supervisor: Supervisor, stop_asked: asyncio.Event, on_ready: Callable[[], None]) -> bool:
    """Start the engine and watch it. True when it died or could not start, false when a signal asked to stop."""
    stop = asyncio.create_task(stop_asked.wait(), name="stop")
    life = asyncio.create_task(_engine_life(supervisor, on_ready), name="engine")
    await asyncio.wait([stop, life], return_when=asyncio.FIRST_COMPLETED)
    died = life.done()
    for task in (stop, life):
        task.cancel()
    if died and (error := life.exception()):
        logger.error("the engine could not start: %s", error, exc_info=error)
    return died


async def _engine_life(supervisor: Supervisor, on_ready: Callable[[], None]) -> None:
    await supervisor.start()
    if supervisor.state is State.READY:
        on_ready()
    await supervisor.watch()
