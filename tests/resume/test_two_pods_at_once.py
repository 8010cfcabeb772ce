"""Readers who ask both pods for one stream at the same moment: one generation runs, and one reader has all of it."""

import asyncio
import logging
import time
from pathlib import Path

import httpx

from tests.engine.redis_server import needs_redis
from tests.nginx.proxy import needs_nginx
from tests.resume.pods import ITL_S, WORDS, Site, scripted, two_pods
from tests.resume.reader import Reader, assert_whole, until
from tests.server import wait_until

pytestmark = [needs_redis, needs_nginx]

logger = logging.getLogger("tests")

TEXT = "".join(WORDS)

# For how long two may run at once until the one that has lost hears of it.
OVERLAP_S = 0.5


def num_made(site: Site) -> int:
    return int(site.metric("tailrace_scripted_tokens_total"))


def copy_of(reader: Reader) -> Reader:
    """Another one that has heard the same."""
    copied = Reader(prompt="x")
    copied.events, copied.came_s = reader.events.copy(), reader.came_s.copy()
    copied.last_id, copied.statuses = reader.last_id, reader.statuses.copy()
    return copied


def has_lost(reader: Reader) -> bool:
    return reader.statuses[-1] == 410 or reader.errors == ["stream_gone"]


def test_of_two_readers_one_gets_the_stream(no_model: Site) -> None:
    num_tokens = 20
    extra: list[int] = []

    async def read_later(reader: Reader, port: int, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        await reader.read(port)

    async def run(delay_s: float) -> tuple[Reader, Reader]:
        one = Reader(prompt="x", max_tokens=num_tokens)
        await one.read(no_model.pods[0].port, stop_at=5)
        readers = one, copy_of(one)
        ports = [pod.port for pod in no_model.pods]
        await asyncio.gather(read_later(one, ports[0], 0), read_later(readers[1], ports[1], delay_s))
        return readers

    for number in range(20):
        before = num_made(no_model)
        # At the same moment, or when the first one is being read again.
        readers = asyncio.run(run(number % 2 * number * 0.015))
        winners = [reader for reader in readers if reader.is_whole]
        losers = [reader for reader in readers if has_lost(reader)]
        assert (len(winners), len(losers)) == (1, 1), readers
        assert_whole(winners[0], "".join(WORDS[:num_tokens]), num_tokens)
        assert TEXT.startswith(losers[0].text)
        extra.append(num_made(no_model) - before - num_tokens)
    logger.info("20 times two readers at once: tokens made in vain: %s", sorted(extra))
    assert max(extra) <= OVERLAP_S / ITL_S


def test_of_many_readers_of_a_kept_request_one_gets_it(no_model: Site) -> None:
    here, there = no_model.pods
    kept = httpx.post(f"{here.url}/v1/streams", json={"prompt": "x"}).json()
    reader = Reader(kept["url"])
    asyncio.run(reader.read(there.port))
    assert_whole(reader, TEXT, len(WORDS))

    before = num_made(no_model)
    kept = httpx.post(f"{here.url}/v1/streams", json={"prompt": "x"}).json()
    readers = [Reader(kept["url"]) for _ in range(20)]

    async def run() -> None:
        await asyncio.gather(*(one.read(no_model.pods[number % 2].port) for number, one in enumerate(readers)))

    asyncio.run(run())
    [winner] = [one for one in readers if one.is_whole]
    assert winner.text == TEXT
    assert all(has_lost(one) for one in readers if one is not winner), readers
    made = num_made(no_model) - before
    logger.info("20 readers of one request: %d tokens made for a text of %d", made, len(WORDS))
    assert made <= len(WORDS) + OVERLAP_S / ITL_S


def stop_from_another_pod(port: int, other_url: str, num_tokens: int) -> tuple[Reader, float]:
    """A reader that was told of `num_tokens` when its stream is deleted, and how long it took until it knew."""

    async def run() -> tuple[Reader, float]:
        reader = Reader(prompt="x")
        reading = asyncio.create_task(reader.read(port))
        await until(lambda: bool(reader.events) and reader.num_tokens >= num_tokens)
        started_s = time.monotonic()
        async with httpx.AsyncClient() as client:
            assert (await client.delete(f"{other_url}/v1/streams/{reader.stream_id}")).status_code == 204
        await reading
        return reader, time.monotonic() - started_s

    reader, duration_s = asyncio.run(run())
    logger.info("stopped from another pod after %d tokens: %.3f s", reader.num_tokens, duration_s)
    assert reader.finish_reason == "cancelled"
    return reader, duration_s


def test_a_stream_is_stopped_from_another_pod(no_model: Site) -> None:
    here, there = no_model.pods
    reader, duration_s = stop_from_another_pod(here.port, there.url, 10)
    assert duration_s < 1
    assert TEXT.startswith(reader.text)
    wait_until(lambda: here.num_in_flight == 0, 2, "the end of the stream")


def test_a_silent_stream_is_stopped_from_another_pod(no_model: Site, tmp_path: Path) -> None:
    with two_pods(no_model.redis.url, *scripted(tmp_path, ttft_ms=30_000)) as (here, there):
        reader, duration_s = stop_from_another_pod(here.port, there.url, 0)
        assert duration_s < 1
        assert reader.text == ""
        wait_until(lambda: here.num_in_flight == 0, 2, "the end of the stream")
