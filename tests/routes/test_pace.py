"""Events that are held back go out together, and never too early."""

import asyncio
import time

from routes.pace import SLOTS_PER_INTERVAL, Pace

INTERVAL_S = 0.04
NUM_STREAMS = 64


def test_streams_are_woken_in_few_turns_and_none_too_early() -> None:
    num_turns = 0

    async def main() -> list[tuple[float, float]]:
        """When each was due, and when it was woken."""
        pace, woken, start_s = Pace(INTERVAL_S), list[tuple[float, float]](), time.perf_counter()
        done, ended = asyncio.Event(), [True]

        def wake(due_s: float) -> None:
            nonlocal num_turns
            woken.append((due_s, time.perf_counter()))
            if ended:
                ended.clear()
                num_turns += 1
                asyncio.get_running_loop().call_soon(ended.append, True)
            if len(woken) == NUM_STREAMS:
                done.set()

        for index in range(NUM_STREAMS):  # over one interval, evenly
            last_s = start_s + index / NUM_STREAMS * INTERVAL_S
            pace.call_when_due(last_s, lambda due_s=last_s + INTERVAL_S: wake(due_s))  # type: ignore[misc]
        await asyncio.wait_for(done.wait(), 5)
        assert not pace._waiting
        return woken

    woken = asyncio.run(main())
    assert all(at_s >= due_s for due_s, at_s in woken)
    assert num_turns <= SLOTS_PER_INTERVAL + 1


def test_who_comes_too_late_is_woken_at_once() -> None:
    async def main() -> None:
        woken = asyncio.Event()
        Pace(INTERVAL_S).call_when_due(time.perf_counter() - 1, woken.set)
        await asyncio.wait_for(woken.wait(), 1)

    asyncio.run(main())
