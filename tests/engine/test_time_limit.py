"""What came while this process did not look is seen, and what does not come is not waited for."""

import asyncio
import socket
import time

import pytest
import uvloop

from engine.time_limit import time_limit

LOOPS = pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])


@LOOPS
def test_what_came_while_nobody_looked_counts(new_loop: type) -> None:
    async def read() -> bytes:
        here, there = socket.socketpair()
        with here, there:
            here.setblocking(False)
            reading = asyncio.create_task(receive(here))
            await asyncio.sleep(0.01)
            there.send(b"x")
            time.sleep(0.3)  # noqa: ASYNC251  nobody looks
            return await reading

    async def receive(here: socket.socket) -> bytes:
        async with time_limit(0.2):
            return await asyncio.get_running_loop().sock_recv(here, 1)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert runner.run(read()) == b"x"


@LOOPS
def test_what_does_not_come_is_not_waited_for(new_loop: type) -> None:
    async def wait() -> float:
        started_s = time.monotonic()
        with pytest.raises(TimeoutError):
            async with time_limit(0.2):
                await asyncio.sleep(60)
        return time.monotonic() - started_s

    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert 0.19 < runner.run(wait()) < 10


def test_a_limit_that_was_kept_is_over() -> None:
    async def wait() -> str:
        async with time_limit(0.05):
            pass
        await asyncio.sleep(0.1)
        async with time_limit(None):
            await asyncio.sleep(0.01)
        return "nothing was cut"

    assert asyncio.run(wait()) == "nothing was cut"
