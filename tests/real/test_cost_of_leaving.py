"""What 200 readers that leave at random moments cost an engine with 32 streams: the budget is 2 tokens each."""

import asyncio
import logging
import random
import statistics
from typing import Any

import pytest

from engine.vllm.engine import VllmEngine
from tests.server import RunningServer, wait_until
from tests.ways import Way, way

logger = logging.getLogger("tests")

NUM_STREAMS = 32
NUM_DISCONNECTS = 200
MAX_TOKENS_EACH = 2


class Wasted:
    """Tokens that the engine made for requests that this process had already aborted."""

    def __init__(self, server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
        assert isinstance(server.engine, VllmEngine)
        assert server.engine._llm is not None
        processor = server.engine._llm.output_processor
        process_outputs = processor.process_outputs
        self.tokens: dict[str, int] = {}

        def counting(outputs: list[Any], *args: Any, **kwargs: Any) -> Any:
            for output in outputs:
                if output.request_id not in processor.request_states:
                    self.tokens[output.request_id] = self.tokens.get(output.request_id, 0) + len(output.new_token_ids)
            return process_outputs(outputs, *args, **kwargs)

        monkeypatch.setattr(processor, "process_outputs", counting)


async def leave_at_random(port: int, request: bytes) -> None:
    chance = random.Random(1)

    async def read() -> tuple[asyncio.StreamWriter, asyncio.Task[None]]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request)

        async def drop() -> None:
            while await reader.read(65536):
                pass

        return writer, asyncio.create_task(drop())

    readers = [await read() for _ in range(NUM_STREAMS)]
    for _ in range(NUM_DISCONNECTS):
        await asyncio.sleep(chance.uniform(0, 0.04))
        writer, task = readers.pop(chance.randrange(len(readers)))
        writer.transport.abort()
        await asyncio.gather(task, return_exceptions=True)
        readers.append(await read())
    for writer, task in readers:
        writer.transport.abort()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("way", [way("stream"), way("chat"), way("chat, whole"), way("ollama chat")], ids=str)
def test_readers_that_leave_cost_at_most_two_tokens_each(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch, way: Way
) -> None:
    wasted = Wasted(server, monkeypatch)
    aborts = [server.metric("tailrace_abort_seconds_bucket", le=le) for le in ("0.001", "0.005", "+Inf")]
    asyncio.run(leave_at_random(server.port, way.request("Once upon a time", 1900)))
    wait_until(lambda: server.num_in_flight == 0)
    wait_until(lambda: server.metric("vllm:num_requests_running") == 0)

    num_left = NUM_DISCONNECTS + NUM_STREAMS
    within_1_ms, within_5_ms, count = (
        server.metric("tailrace_abort_seconds_bucket", le=le) - before
        for le, before in zip(("0.001", "0.005", "+Inf"), aborts, strict=True)
    )
    tokens = list(wasted.tokens.values()) + [0] * (num_left - len(wasted.tokens))
    logger.info(
        "%s: %d readers left: abort acknowledged within 1 ms %d, 5 ms %d; tokens made in vain: mean %.2f, most %d",
        way, num_left, within_1_ms, within_5_ms, statistics.mean(tokens), max(tokens),
    )  # fmt: skip
    assert max(tokens) <= MAX_TOKENS_EACH
    assert count == num_left
