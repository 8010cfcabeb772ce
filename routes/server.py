"""The process from its first socket to its exit code: uvicorn, signals, drain. The functions stand in life order.

Two defaults are taken over here on purpose. uvicorn closes its port on SIGTERM and waits; here the port stays open
while streams drain, so that probes and refused requests get an answer. sse-starlette cuts every stream half a second
after SIGTERM; it is told to leave that to the drain.
"""

import asyncio
import contextlib
import logging
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn
from prometheus_client import Histogram
from sse_starlette.sse import AppStatus
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from engine.lifecycle import State
from engine.supervisor import Supervisor
from metrics.loop_lag import measure_loop_lag
from routes.connection import EXTENSION, Connection
from routes.errors import error_body
from routes.outbox import Outbox
from routes.parameters import query_too_long

logger = logging.getLogger("tailrace")

# How long uvicorn waits for connections to close once every stream has ended; then it cuts them.
CLOSE_TIMEOUT_S = 2

# How long a connection may be idle between two requests. Longer than the proxies keep theirs to us, which is 60 s in
# nginx and in AWS's load balancers: the side that sends the requests has to close first. uvicorn's 5 s end some
# connections at the moment in which a proxy sends the next request on them, which its client sees as a 502.
IDLE_TIMEOUT_S = 75

# httptools keeps an address's length in 16 bits.
MAX_URL_BYTES = 65_535

# Proxies allow 8 to 32 KiB of headers. Unbounded, one client could fill the memory with them.
MAX_HEADER_BYTES = 64 << 10


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers, which would close the port before the drain."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Config(uvicorn.Config):
    """uvicorn's settings, and what the connections of a server share."""

    def __init__(self, app: ASGIApp, **options: Any) -> None:
        super().__init__(app, **options)
        self.outbox = Outbox()


class _Protocol(HttpToolsProtocol):
    """uvicorn's HTTP/1.1, and beside it: the connection in each request's scope, and bounds on address and headers.

    uvicorn bounds neither, and answers an address that is longer than its parser can take with a bare 400.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        assert isinstance(self.config, Config)
        self.connection = Connection(transport, self.config.outbox)

    def connection_lost(self, exc: Exception | None) -> None:
        self.connection.mark_lost()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self.connection.mark_full(True)

    def resume_writing(self) -> None:
        super().resume_writing()
        self.connection.mark_full(False)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {EXTENSION: self.connection}  # type: ignore[dict-item]  # uvicorn knows its own only
        self.num_header_bytes = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        self.num_header_bytes += len(name) + len(value)
        if self.num_header_bytes > MAX_HEADER_BYTES:
            raise ValueError("the headers are too long")
        super().on_header(name, value)

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        if len(self.url) > MAX_URL_BYTES:
            raise ValueError("the address is too long")  # ends the parsing; `send_400_response` is called next

    def on_headers_complete(self) -> None:
        # uvicorn puts the prefix of --root-path before every address, for proxies that have cut it off. For the others
        # it is cut off here, so that every route is found behind both, as it is with `vllm serve`.
        if self.root_path and self.url.startswith(self.root_path.encode() + b"/"):
            self.url = self.url[len(self.root_path) :]
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        if len(self.url) <= MAX_URL_BYTES:
            super().send_400_response(msg)
            return
        error = query_too_long()
        body = error_body("", error)
        head = "HTTP/1.1 %d URI Too Long\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close"
        self.transport.write((head % (error.status, len(body))).encode() + b"\r\n\r\n" + body)
        self.transport.close()


def bind(config: uvicorn.Config) -> socket.socket:
    """Take the port before anything slow is done. Exits with a message when it cannot be had."""
    try:
        sock = config.bind_socket()
    except OverflowError:
        sys.exit(f"there is no port {config.port}; it must be from 0 to 65535")
    sock.listen(config.backlog)
    return sock


async def serve(
    config: Config,
    sock: socket.socket,
    supervisor: Supervisor,
    shutdown_timeout_s: float,
    hands_over: bool,
    on_ready: Callable[[], None],
    loop_lag: Histogram,
) -> int:
    """Serve until a signal or the engine's death. Returns the exit code of the process: 1 after a death, else 0.

    The port answers from the first moment; the model loads meanwhile. Cancelling it ends the engine too.
    """
    AppStatus.enable_automatic_graceful_drain = False
    stop_asked, skip_drain = _listen_to_signals()
    server = _Server(config)
    http = asyncio.create_task(server.serve(sockets=[sock]), name="http")
    stop = asyncio.create_task(stop_asked.wait(), name="stop")
    life = asyncio.create_task(_engine_life(supervisor, on_ready), name="engine")
    lag = asyncio.create_task(measure_loop_lag(loop_lag), name="loop lag")
    try:
        await asyncio.wait([stop, life], return_when=asyncio.FIRST_COMPLETED)
        if not life.done():
            await supervisor.drain(shutdown_timeout_s, skip_drain, hands_over)
        for task in (stop, life, lag):
            task.cancel()
        await supervisor.stop()
    finally:
        server.should_exit = True
        await http
        config.outbox.close()
    return 1 if supervisor.state is State.DEAD else 0


async def _engine_life(supervisor: Supervisor, on_ready: Callable[[], None]) -> None:
    """Ends when the engine has died or could not start; the state is `dead` then."""
    try:
        await supervisor.start()
    except Exception as error:
        logger.error("the engine could not start: %s", error)
        return
    if supervisor.state is State.READY:
        on_ready()
    await supervisor.watch()


def config_for(app: ASGIApp, **options: object) -> Config:
    """uvicorn's settings; `options` are the ones that the command line decides."""
    return Config(
        app,
        http=_Protocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=IDLE_TIMEOUT_S,
        timeout_graceful_shutdown=CLOSE_TIMEOUT_S,
        **options,
    )


def _listen_to_signals() -> tuple[asyncio.Event, asyncio.Event]:
    """The first SIGTERM or SIGINT sets the first event; each further one the second."""
    stop_asked, skip_drain = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        (skip_drain if stop_asked.is_set() else stop_asked).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, on_signal)
    return stop_asked, skip_drain
