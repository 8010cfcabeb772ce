"""What stands between two programs and spoils the connection: one that cuts it inside an event, one that is slow."""

import asyncio
import contextlib
import re
import threading
from collections.abc import AsyncIterator, Iterator

# An event with text, up to the first byte of it.
SAID = re.compile(rb'id: [\w-]{22}:(\d+)\ndata: \{"token":".', re.DOTALL)


@contextlib.asynccontextmanager
async def cutting(port: int, num_tokens: int) -> AsyncIterator[int]:
    """A proxy before `port` that passes on the first byte of the text that comes after `num_tokens` tokens, or some
    more, and closes then. Gives its own port."""

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        pod_reader, pod_writer = await asyncio.open_connection("127.0.0.1", port)
        pod_writer.write(await reader.readuntil(b"\r\n\r\n"))
        data, end = b"", None
        while end is None and (piece := await pod_reader.read(65536)):
            data += piece
            end = next((match.end() for match in SAID.finditer(data) if int(match[1]) > num_tokens), None)
            writer.write(data[len(data) - len(piece) : end])
        for one in (writer, pod_writer):
            one.close()

    server = await asyncio.start_server(pass_on, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


class SlowLink:
    """A proxy before `to_port` that holds each answer back for `delay_s`."""

    def __init__(self, to_port: int) -> None:
        self.delay_s = 0.0
        self.port = 0
        self._to_port = to_port

    async def serve(self, is_open: threading.Event, enough: asyncio.Event) -> None:
        server = await asyncio.start_server(self._pass_on, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        is_open.set()
        async with server:
            await enough.wait()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._to_port)
        await asyncio.gather(self._pump(reader, far_writer, False), self._pump(far_reader, writer, True))

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, is_answer: bool) -> None:
        with contextlib.suppress(OSError):
            while piece := await source.read(65536):
                if is_answer and self.delay_s:
                    await asyncio.sleep(self.delay_s)
                sink.write(piece)
        sink.close()


@contextlib.contextmanager
def slow_link(to_port: int) -> Iterator[SlowLink]:
    """A `SlowLink` that is open, in a thread of its own."""
    link = SlowLink(to_port)
    is_open, enough = threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_until_complete, args=(link.serve(is_open, enough),), daemon=True)
    thread.start()
    try:
        assert is_open.wait(10)
        yield link
    finally:
        loop.call_soon_threadsafe(enough.set)
        thread.join(10)
        loop.close()
