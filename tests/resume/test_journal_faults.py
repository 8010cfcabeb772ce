"""Redis dies, freezes, fills up, forgets or is slow while streams run: all of them say everything, and it is known what
can be resumed. Afterwards everything can be again."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from pathlib import Path

import httpx
import psutil
import pytest

from tests.engine.redis_server import RedisServer, needs_redis
from tests.nginx.proxy import needs_nginx
from tests.resume.faults import slow_link
from tests.resume.pods import WORDS, Pod, Site, scripted, two_pods
from tests.resume.reader import Reader, assert_whole, until
from tests.server import wait_until

pytestmark = [needs_redis, needs_nginx]

logger = logging.getLogger("tests")

NUM_READERS = 20
TEXT = "".join(WORDS)

Undo = Callable[[], object]


def stop(redis: RedisServer) -> Undo:
    redis.kill()
    return redis.start


def freeze(redis: RedisServer) -> Undo:
    process = psutil.Process(redis.client.info()["process_id"])
    process.suspend()
    return process.resume


def fill(redis: RedisServer) -> Undo:
    redis.client.config_set("maxmemory-policy", "noeviction")
    redis.client.config_set("maxmemory", "1mb")
    return lambda: redis.client.config_set("maxmemory", 0)


def forget(redis: RedisServer) -> Undo:
    """It is started again, empty."""
    redis.kill()
    redis.start()
    return lambda: None


def lines(pod: Pod, word: str) -> int:
    return sum(word in line for line in pod.program.text.splitlines())


def read_while(pod: Pod, happens: Callable[[], object]) -> list[Reader]:
    """Readers of whole streams, in the middle of which `happens` is called."""
    readers = [Reader(prompt="x") for _ in range(NUM_READERS)]

    async def run() -> None:
        async with asyncio.TaskGroup() as group:
            for reader in readers:
                group.create_task(reader.read_to_the_end(pod.port))
            await until(lambda: all(reader.num_tokens > 5 for reader in readers))
            await asyncio.to_thread(happens)

    asyncio.run(run())
    return readers


def assert_resumable(pods: tuple[Pod, Pod]) -> None:
    """What is cut on one pod goes on on the other."""
    reader = Reader(prompt="x")

    async def run() -> None:
        await reader.read(pods[0].port, stop_at=10)
        await reader.read(pods[1].port)

    asyncio.run(run())
    assert_whole(reader, TEXT, len(WORDS))


@pytest.mark.parametrize("fault", [stop, freeze, fill, forget])
def test_streams_go_on_without_a_journal(no_model: Site, fault: Callable[[RedisServer], Undo]) -> None:
    pod, other = no_model.pods
    lost = pod.metric("tailrace_unresumable_streams_total")
    num_warnings = lines(pod, "WARNING")
    with contextlib.ExitStack() as stack:
        readers = read_while(pod, lambda: stack.callback(fault(no_model.redis)))
        for reader in readers:
            assert_whole(reader, TEXT, len(WORDS))
            assert reader.statuses == [200]
        longest_s = max(reader.longest_gap_s for reader in readers)
        logger.info("%s: without text for %.2f s at most", fault.__name__, longest_s)
        assert longest_s < 2.5
        assert pod.metric("tailrace_unresumable_streams_total") == lost + NUM_READERS
        if fault is not forget:  # which may be over before anybody asks
            assert pod.metric("tailrace_journal_available") == 0
            assert lines(pod, "WARNING") == num_warnings + 1
    wait_until(lambda: no_model.metric("tailrace_journal_available") == 2, 10, "a journal again")
    # What was in the journal is not continued: there is a gap after it.
    late = Reader(prompt="x")
    late.last_id = f"{readers[0].stream_id}:5"
    asyncio.run(late.read(other.port))
    assert late.statuses == [410]
    assert_resumable(no_model.pods)


def test_who_comes_back_while_there_is_no_journal_is_told_to_come_again(no_model: Site) -> None:
    pod, other = no_model.pods
    kept = httpx.post(f"{pod.url}/v1/streams", json={"prompt": "x"}).json()
    reader, beginner = Reader(prompt="x"), Reader(kept["url"])
    asyncio.run(reader.read(pod.port, stop_at=10))
    record = f"tailrace:stream:{reader.stream_id}"
    wait_until(lambda: no_model.redis.client.lindex(record, 1) == b"left", 10, "the journal to hear of the cut")
    num_told = reader.num_tokens
    undo = freeze(no_model.redis)
    try:
        for one in (reader, beginner):  # the first finds out, the second is refused at once
            asyncio.run(one.read(other.port))
            assert one.errors == ["overloaded"]
            assert not one.has_ended
        assert reader.num_tokens == num_told
        refused = httpx.delete(f"{other.url}/v1/streams/{reader.stream_id}")
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "overloaded")
        assert refused.headers["retry-after"]
    finally:
        undo()
    wait_until(lambda: no_model.metric("tailrace_journal_available") == 2, 10, "a journal again")
    for one in (reader, beginner):
        asyncio.run(one.read_to_the_end(other.port))
        assert_whole(one, TEXT, len(WORDS))


def test_a_slow_journal_costs_time_and_nothing_else(no_model: Site, tmp_path: Path) -> None:
    with (
        slow_link(no_model.redis.port) as link,
        two_pods(f"redis://127.0.0.1:{link.port}", *scripted(tmp_path)) as pods,
    ):
        readers = read_while(pods[0], lambda: setattr(link, "delay_s", 0.2))
        for reader in readers:
            assert_whole(reader, TEXT, len(WORDS))
        logger.info("200 ms: without text for %.2f s at most", max(reader.longest_gap_s for reader in readers))
        assert pods[0].metric("tailrace_unresumable_streams_total") == 0
        assert [pod.metric("tailrace_journal_available") for pod in pods] == [1, 1]
        assert_resumable(pods)
        # Slower than streams wait for.
        readers = read_while(pods[0], lambda: setattr(link, "delay_s", 3))
        for reader in readers:
            assert_whole(reader, TEXT, len(WORDS))
        longest_s = max(reader.longest_gap_s for reader in readers)
        logger.info("3 s: without text for %.2f s at most", longest_s)
        assert longest_s < 2
        assert pods[0].metric("tailrace_unresumable_streams_total") == NUM_READERS
        link.delay_s = 0
        wait_until(lambda: all(pod.metric("tailrace_journal_available") == 1 for pod in pods), 20, "a journal again")
        assert_resumable(pods)
