"""A hundred readers at a time, of two pods behind nginx, of which one is killed: nobody loses a character.

The pods have no model, because they are started again in two seconds; `test_cut_streams` has a round with real ones.
"""

import asyncio
import logging
import os
import random
import time

import pytest

from tests.engine.redis_server import needs_redis
from tests.nginx.proxy import needs_nginx
from tests.resume.gaps import log_gaps
from tests.resume.pods import ITL_S, WORDS, Pod, Site
from tests.resume.reader import Reader, assert_whole

pytestmark = [needs_redis, needs_nginx]

logger = logging.getLogger("tests")

ROUNDS = int(os.environ.get("CHAOS_ROUNDS", "12"))
SEED = int(os.environ.get("CHAOS_SEED", "1"))
NUM_READERS = 100

# Of a whole stream. Readers begin, and the pod is killed, somewhere in it.
DURATION_S = len(WORDS) * ITL_S


async def read(reader: Reader, port: int, delay_s: float) -> int:
    """How often the reader began anew, because its pod died before it had answered."""
    await asyncio.sleep(delay_s)
    num_begun = 0
    await reader.read_to_the_end(port)
    while not reader.is_whole and reader.num_tokens == 0 and num_begun < 3:
        num_begun += 1
        reader.begin_anew()
        await reader.read_to_the_end(port)
    return num_begun


async def one_round(site: Site, victim: Pod, chance: random.Random) -> tuple[list[tuple[Reader, int]], int]:
    """The readers with the lengths of what they asked for, and how often one began anew."""
    lengths = [chance.randint(len(WORDS) // 2, len(WORDS)) for _ in range(NUM_READERS)]
    readers = [Reader(prompt="x", max_tokens=length) for length in lengths]
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(read(reader, site.proxy.port, chance.uniform(0, DURATION_S / 3))) for reader in readers
        ]
        await asyncio.sleep(chance.uniform(0.1, DURATION_S))
        await asyncio.to_thread(victim.kill)
        victim.start()
    return list(zip(readers, lengths, strict=True)), sum(task.result() for task in tasks)


@pytest.mark.timeout(120 + 15 * ROUNDS)
def test_no_character_is_lost_or_said_twice(no_model: Site) -> None:
    chance = random.Random(SEED)
    came_back: list[Reader] = []
    num_begun_anew = 0
    started_s = time.monotonic()
    for number in range(ROUNDS):
        no_model.make_ready()
        readers, num_begun = asyncio.run(one_round(no_model, no_model.pods[number % 2], chance))
        for reader, length in readers:
            assert_whole(reader, "".join(WORDS[:length]), length)
        came_back += [reader for reader, _ in readers if len(reader.statuses) > 1]
        num_begun_anew += num_begun
    logger.info(
        "seed %d: %d rounds of %d streams in %.0f s, %d of them begun anew before the first token",
        SEED, ROUNDS, NUM_READERS, time.monotonic() - started_s, num_begun_anew,
    )  # fmt: skip
    assert num_begun_anew < ROUNDS * NUM_READERS / 50
    assert len(came_back) > ROUNDS * NUM_READERS / 10
    log_gaps("a pod killed in each round", came_back)
