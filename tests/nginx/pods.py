"""Pods that are no Tailrace: they count what comes, and answer nothing, or what came."""

import contextlib
import socket
import threading
from collections.abc import Iterator

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nConnection: close\r\nContent-Length: "


class Pod:
    """Reads each whole request, then closes; with `echoes`, after it has answered with the request itself."""

    def __init__(self, listener: socket.socket, echoes: bool) -> None:
        self._listener = listener
        self._echoes = echoes
        self.port: int = listener.getsockname()[1]
        self.requests: list[bytes] = []

    def serve(self) -> None:
        """Until the listener is shut down."""
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            with sock:
                sock.settimeout(10)
                request = _read_request(sock)
                self.requests.append(request)
                if self._echoes:
                    sock.sendall(HEAD + str(len(request)).encode() + b"\r\n\r\n" + request)


def _read_request(sock: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        data += sock.recv(65536)
    head, _, body = data.partition(b"\r\n\r\n")
    lengths = [int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    missing = sum(lengths) - len(body)
    while missing > 0:
        piece = sock.recv(65536)
        data += piece
        missing -= len(piece)
    return data


@contextlib.contextmanager
def pod(echoes: bool) -> Iterator[Pod]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        made = Pod(listener, echoes)
        thread = threading.Thread(target=made.serve, daemon=True)
        thread.start()
        yield made
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(10)
