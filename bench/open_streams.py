"""What many open streams cost a process that only has to keep them: memory, CPU, and whether it still answers.

    python -m bench.open_streams [--streams 5000] [--window-s 20]

With the scripted engine, so that all of it is Tailrace's. First streams that wait for their first token; then streams
that get one token every two seconds each.
"""

import argparse
import select
import socket
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench import table
from bench.server import Server, allow_open_files, cpu_s, running, tailrace
from bench.table import Figure

NUM_STREAMS = 5000
WINDOW_S = 20.0
SLOW_TOKEN_S = 2.0

# Beside the streams: the interpreter's, the libraries', the probe's.
OTHER_FILES = 200

# Opened in groups: a listening socket holds back only so many connections that wait to be accepted.
GROUP = 200

PROBE_INTERVAL_S = 0.5
REQUEST = b"GET /v1/stream?prompt=a HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
FIRST_EVENT = b"event: start"


@dataclass(frozen=True, slots=True)
class Seen:
    """Of one window. CPU is a share of one core; `events_s` counts events with a token, of all streams, each second."""

    open_s: float
    rss_per_stream: float
    cpu_share: float
    events_s: float
    slowest_probe_s: float


class Crowd:
    """The readers: they take what comes, and count it."""

    def __init__(self) -> None:
        self._poll = select.epoll()
        self._socks: dict[int, socket.socket] = {}
        self._num_started = 0
        self.num_events = 0

    def open(self, port: int, count: int) -> None:
        """`count` more readers, each of whom has its stream's first event when this returns."""
        wanted = len(self._socks) + count
        while len(self._socks) < wanted:
            for _ in range(min(GROUP, wanted - len(self._socks))):
                sock = socket.create_connection(("127.0.0.1", port))
                sock.sendall(REQUEST)
                sock.setblocking(False)
                self._socks[sock.fileno()] = sock
                self._poll.register(sock, select.EPOLLIN)
            self.read_until(lambda: self._num_started >= len(self._socks), 60)

    def read_until(self, is_over: Callable[[], bool], limit_s: float) -> None:
        """Read until `is_over`; exits when that takes longer than `limit_s`, or when the server closes a stream."""
        ends_s = time.monotonic() + limit_s
        while not is_over():
            if time.monotonic() > ends_s:
                sys.exit(f"{self._num_started} of {len(self._socks)} streams had begun after {limit_s:g} s")
            for number, _ in self._poll.poll(0.05):
                data = self._socks[number].recv(65536)
                if not data:
                    sys.exit("the server closed a stream")
                self._num_started += data.count(FIRST_EVENT)
                self.num_events += data.count(b'{"token":')

    def close(self) -> None:
        self._poll.close()
        for sock in self._socks.values():
            sock.close()


def watch(server: Server, num_streams: int, window_s: float) -> Seen:
    """Open the streams, let them run for `window_s`, and probe meanwhile."""
    crowd = Crowd()
    try:
        crowd.open(server.port, 20)  # what the first streams make the process load is not the streams'
        rss, started_s = server.rss_bytes(), time.perf_counter()
        crowd.open(server.port, num_streams)
        open_s = time.perf_counter() - started_s
        settled_s = time.monotonic() + 2 * SLOW_TOKEN_S
        crowd.read_until(lambda: time.monotonic() >= settled_s, window_s + 60)
        used_s, started_s, num_events, probes = cpu_s(server.pid), time.perf_counter(), crowd.num_events, []
        while (left_s := started_s + window_s - time.perf_counter()) > 0:
            next_s = time.perf_counter() + min(left_s, PROBE_INTERVAL_S)
            crowd.read_until(lambda at=next_s: time.perf_counter() >= at, 60)  # type: ignore[misc]
            probes.append(probe(server))
        seconds = time.perf_counter() - started_s
        return Seen(
            open_s,
            (server.rss_bytes() - rss) / num_streams,
            (cpu_s(server.pid) - used_s) / seconds,
            (crowd.num_events - num_events) / seconds,
            max(probes),
        )
    finally:
        crowd.close()


def probe(server: Server) -> float:
    """How long `/healthz` takes to answer 200, in seconds."""
    started_s = time.perf_counter()
    with urllib.request.urlopen(f"{server.url}/healthz", timeout=30) as response:
        response.read()
    return time.perf_counter() - started_s


def run(num_streams: int = NUM_STREAMS, window_s: float = WINDOW_S) -> list[Figure]:
    """Measure, and print the table."""
    most = allow_open_files() - OTHER_FILES
    if num_streams > most:
        print(f"only {most} streams: this user may have no more open files (ulimit -Hn)")
        num_streams = most
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "script.txt"
        script.write_text(" word" * 1000)
        common = ("--engine", "scripted", "--scripted-text", str(script), "--disable-uvicorn-access-log")
        pace = f"a token every {SLOW_TOKEN_S:g} s"
        seen = {
            name: watch_one(num_streams, window_s, *common, *flags)
            for name, flags in (
                ("waiting for the first token", ("--scripted-ttft-ms", "3600000")),
                (pace, ("--scripted-ttft-ms", "100", "--scripted-itl-ms", str(SLOW_TOKEN_S * 1e3))),
            )
        }
    names = ["", "KiB/stream", "CPU % of a core", "events/s", "/healthz ms", "opened in s"]
    rows = [
        [name, one.rss_per_stream / 1024, one.cpu_share * 100, one.events_s, one.slowest_probe_s * 1e3, one.open_s]
        for name, one in seen.items()
    ]
    print(f"{num_streams} open streams of the scripted engine, {window_s:g} s\n{table.render(names, rows)}")
    idle, slow = seen.values()
    figures = [
        ("memory of an idle stream", "KiB", idle.rss_per_stream / 1024),
        (f"CPU, {num_streams} idle streams", "% of a core", idle.cpu_share * 100),
        (f"CPU, {num_streams} streams, {pace}", "% of a core", slow.cpu_share * 100),
        (f"slowest /healthz, {num_streams} streams", "ms", max(idle.slowest_probe_s, slow.slowest_probe_s) * 1e3),
    ]
    return [Figure(name, unit, {"chat": value}) for name, unit, value in figures]


def watch_one(num_streams: int, window_s: float, *flags: str) -> Seen:
    with running(tailrace("open", *flags)) as server:
        return watch(server, num_streams, window_s)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.open_streams")
    parser.add_argument("--streams", type=int, default=NUM_STREAMS)
    parser.add_argument("--window-s", type=float, default=WINDOW_S)
    args = parser.parse_args()
    run(args.streams, args.window_s)


if __name__ == "__main__":
    main()
