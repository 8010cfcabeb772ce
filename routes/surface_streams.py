"""The responses under the streams of OpenAI's and Anthropic's surfaces."""

import asyncio
import contextlib
import re
from collections.abc import Callable

import orjson

from engine.call import Call
from engine.errors import TailraceError
from engine.interface import Delta
from engine.serving import CommonStream, RawEvents, Surface
from routes.chunks import DONE, ChunkEncoder, error_block, has_text
from routes.delivery import Delivery
from routes.errors import anthropic_error
from routes.event_stream import DeltaStream, EventStream


class ChunkStream(DeltaStream):
    """A chat or a completion whose chunks are encoded here."""

    def __init__(self, stream: CommonStream, delivery: Delivery) -> None:
        super().__init__(stream.generation, delivery)
        self._stream = stream
        self._read = stream.read
        self._encoder = ChunkEncoder(stream)
        # What opens the choices waits for the first delta, as it does in `vllm serve`.
        self._first = self._encoder.opening()

    def _encode(self, delta: Delta) -> tuple[bytes, bool]:
        choices = self._read(delta)
        if len(choices) == 1:
            block, says_something = self._encoder.chunk(choices[0]), has_text(choices[0])
        else:
            block, says_something = b"".join(map(self._encoder.chunk, choices)), any(map(has_text, choices))
        if self._first:
            block, self._first = self._first + block, b""
        return block, says_something

    def _finish(self, finish_reason: str) -> None:
        last = self._stream.last_chunk()
        self._write((b"data: %b\n\n" % orjson.dumps(last) if last else b"") + DONE)
        self._on_finished()

    def _error_block(self, error: TailraceError) -> bytes:
        return error_block(error)


class RawStream(EventStream):
    """What the engine's own serving layer writes, block by block; its clock, its reader and its errors are ours."""

    def __init__(self, surface: Surface, events: RawEvents, call: Call, delivery: Delivery) -> None:
        super().__init__(call, delivery)
        self._surface = surface
        self._events = events
        self._call = call
        self._num_blocks = 0
        self._due = asyncio.Event()

    async def _produce(self) -> None:
        carries_text = CARRIES_TEXT[self._surface]
        try:
            async with contextlib.aclosing(self._events.blocks) as blocks:  # type: ignore[type-var]
                async for block in blocks:
                    await self._connection.wait_for_room()
                    if self._call.failure is not None:  # which vLLM's layer tells of in its own words
                        break
                    has_text = carries_text(block)
                    self._num_blocks += 1
                    if not has_text:
                        self._write(block.encode())
                        continue
                    self._write_token(block.encode(), self._call.num_output_tokens)
                    if self._pace is not None:
                        await self._due.wait()
                        self._due.clear()
            if self._call.failure is not None:
                raise self._call.failure
        except Exception as error:
            # vLLM's layer stumbles over a generation that was aborted for good reason.
            if self._connection.lost_s is None:
                self._write(self._failed(self._call.failure or error))
            return
        if self._connection.lost_s is None:
            self._on_finished()

    def _on_due(self) -> None:
        self._due.set()

    def _error_block(self, error: TailraceError) -> bytes:
        if self._surface is Surface.MESSAGES:
            return b"event: error\ndata: %b\n\n" % orjson.dumps(anthropic_error(error))
        if self._surface is Surface.RESPONSES:
            fields = {
                "type": "error",
                "sequence_number": self._num_blocks,
                "code": error.code,
                "message": error.message,
                "param": error.param,
            }
            return b"event: error\ndata: %b\n\n" % orjson.dumps(fields)
        return error_block(error)


def _chunk_carries_text(block: str) -> bool:
    """A chunk with any text in it; a role, an end or a usage is no token."""
    data = block.removeprefix("data: ")
    if not data.startswith("{"):
        return False
    choices = orjson.loads(data).get("choices", ())
    deltas = (choice.get("delta", {"text": choice.get("text")}) for choice in choices)
    return any(value for delta in deltas for name, value in delta.items() if name != "role")


_RESPONSE_DELTA = re.compile(r"event: response\.\w+\.delta\n")


def _response_carries_text(block: str) -> bool:
    return _RESPONSE_DELTA.match(block) is not None


def _message_carries_text(block: str) -> bool:
    return block.startswith("event: content_block_delta\n") and '"signature_delta"' not in block


CARRIES_TEXT: dict[Surface, Callable[[str], bool]] = {
    Surface.CHAT: _chunk_carries_text,
    Surface.COMPLETIONS: _chunk_carries_text,
    Surface.RESPONSES: _response_carries_text,
    Surface.MESSAGES: _message_carries_text,
}
