"""Real streams that are cut, in whatever way, say with their rest exactly what they would have said uncut."""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Sequence

import pytest

from tests.engine.redis_server import needs_redis
from tests.nginx.proxy import needs_nginx
from tests.resume.faults import cutting
from tests.resume.gaps import log_gaps
from tests.resume.pods import Pod, Site
from tests.resume.reader import Reader, assert_whole, until
from tests.server import wait_until

pytestmark = [needs_redis, needs_nginx, pytest.mark.timeout(400)]

logger = logging.getLogger("tests")

PROMPTS = {
    "korean": "대한민국의 수도는 서울이고, 일본의 수도는",
    "korean question": "안녕하세요. 오늘 날씨는 어떻습니까? 저는",
    "emoji": "🙂🙃🎉 🎊🎈🎁 🙂🙃🎉 🎊🎈🎁 🙂🙃🎉",
    "story": "Once upon a time, in a small village by the sea, there lived",
    "list": "The planets of the solar system, from the sun outwards, are:",
}
NUM_TOKENS = 100
CUTS = (1, 7, 30, 77)

# What the prefix cache keeps on the CPU: whole blocks of so many tokens.
BLOCK_TOKENS = 128

SEED = 7


def ask(name: str) -> Reader:
    return Reader(prompt=PROMPTS[name], max_tokens=NUM_TOKENS, ignore_eos="true", temperature=0)


def read_all(readers: Sequence[Reader], port: int) -> None:
    async def read() -> None:
        await asyncio.gather(*(reader.read_to_the_end(port) for reader in readers))

    asyncio.run(read())


@pytest.fixture(scope="module")
def uncut(real_site: Site) -> dict[str, str]:
    readers = {name: ask(name) for name in PROMPTS}
    read_all(list(readers.values()), real_site.pods[0].port)
    for reader in readers.values():
        assert_whole(reader, reader.text, NUM_TOKENS)
        assert reader.statuses == [200]
    return {name: reader.text for name, reader in readers.items()}


async def close(reader: Reader, port: int, num_tokens: int) -> None:
    """The reader itself closes its connection."""
    await reader.read(port, stop_at=num_tokens)


async def drop(reader: Reader, port: int, num_tokens: int) -> None:
    """A proxy drops what comes after the first byte of an event's text, which may be in the middle of a character."""
    async with cutting(port, num_tokens) as proxy_port:
        await reader.read(proxy_port)


@pytest.mark.parametrize("cut", [close, drop])
def test_the_other_pod_goes_on_where_the_reader_was(
    real: Site, uncut: dict[str, str], cut: Callable[[Reader, int, int], Awaitable[None]]
) -> None:
    async def cut_and_come_back(name: str, num_tokens: int, here: Pod, there: Pod) -> None:
        reader = ask(name)
        await cut(reader, here.port, num_tokens)
        assert reader.num_tokens < NUM_TOKENS, reader
        await reader.read(there.port)
        assert reader.statuses == [200, 200], reader
        assert_whole(reader, uncut[name], NUM_TOKENS)

    async def run() -> None:
        cases = [(name, num_tokens) for name in PROMPTS for num_tokens in CUTS]
        await asyncio.gather(
            *(
                cut_and_come_back(name, num_tokens, *real.pods[:: (1, -1)[number % 2]])
                for number, (name, num_tokens) in enumerate(cases)
            )
        )

    continued = real.metric("tailrace_resumes_total", outcome="continued")
    asyncio.run(run())
    assert real.metric("tailrace_resumes_total", outcome="continued") == continued + len(PROMPTS) * len(CUTS)


def test_nothing_is_made_for_nobody_and_the_return_is_served_by_the_prefix_cache(real: Site) -> None:
    pod = real.pods[0]
    prompt = "One two three four five six seven eight nine ten. " * 20

    def made() -> float:
        return pod.metric("vllm:generation_tokens_total")

    def stands_still() -> bool:
        before = made()
        time.sleep(0.5)  # many steps of this engine
        return made() == before

    def new_reader() -> Reader:
        return Reader(prompt=prompt, max_tokens=120, ignore_eos="true", temperature=0)

    uncut = new_reader()
    read_all([uncut], pod.port)
    before = made()
    reader = new_reader()
    asyncio.run(reader.read(pod.port, stop_at=60))
    told = reader.num_tokens
    wait_until(lambda: pod.num_in_flight == 0, 5, "the abort")
    wait_until(stands_still, 5, "an engine at rest")
    made_in_vain = made() - before - told
    time.sleep(2)
    assert made() == before + told + made_in_vain
    assert made_in_vain <= 3

    asked, cached = (pod.metric(f"vllm:prefix_cache_{name}_total") for name in ("queries", "hits"))
    asyncio.run(reader.read(pod.port))
    assert_whole(reader, uncut.text, 120)
    num_asked, num_cached = (
        pod.metric(f"vllm:prefix_cache_{name}_total") - earlier
        for name, earlier in (("queries", asked), ("hits", cached))
    )
    logger.info(
        "cut after %d tokens, %d made in vain; the return asked for %d tokens, of which %d were cached",
        told, made_in_vain, num_asked, num_cached,
    )  # fmt: skip
    assert num_asked == uncut.usage["prompt_tokens"] + told > 2 * BLOCK_TOKENS
    assert num_cached == (num_asked - 1) // BLOCK_TOKENS * BLOCK_TOKENS


def test_a_pod_that_is_killed_loses_nothing(real: Site, uncut: dict[str, str]) -> None:
    chance = random.Random(SEED)
    names = list(PROMPTS) * 6
    readers = [ask(name) for name in names]

    async def begin(reader: Reader) -> None:
        await asyncio.sleep(chance.uniform(0, 0.5))
        await reader.read_to_the_end(real.proxy.port)

    async def run() -> int:
        async with asyncio.TaskGroup() as group:
            for reader in readers:
                group.create_task(begin(reader))
            await until(lambda: sum(reader.num_tokens > 5 for reader in readers) > len(readers) // 2)
            victim = await asyncio.to_thread(lambda: real.busier)
            num_on_it = await asyncio.to_thread(lambda: victim.num_in_flight)
            await asyncio.to_thread(victim.kill)
            victim.start()
        return num_on_it

    num_on_it = asyncio.run(run())
    assert num_on_it >= 5
    for name, reader in zip(names, readers, strict=True):
        assert_whole(reader, uncut[name], NUM_TOKENS)
    cut = [reader for reader in readers if len(reader.statuses) > 1]
    assert len(cut) >= num_on_it
    log_gaps(f"killed with {num_on_it} of {len(readers)} streams", cut)


def test_streams_outlive_their_journal(real_site: Site, uncut: dict[str, str]) -> None:
    """Redis is killed in the middle of streams of the pod that is left; afterwards new ones can be resumed."""
    pod = next(pod for pod in real_site.pods if pod.program.status("/readyz") == 200)
    redis = real_site.redis
    names = list(PROMPTS) * 2
    readers = [ask(name) for name in names]

    async def run() -> None:
        async with asyncio.TaskGroup() as group:
            for reader in readers:
                group.create_task(reader.read_to_the_end(pod.port))
            await until(lambda: all(reader.num_tokens > 20 for reader in readers))
            await asyncio.to_thread(redis.kill)

    unresumable = pod.metric("tailrace_unresumable_streams_total")
    asyncio.run(run())
    for name, reader in zip(names, readers, strict=True):
        assert_whole(reader, uncut[name], NUM_TOKENS)
        assert reader.statuses == [200]
    assert pod.metric("tailrace_unresumable_streams_total") == unresumable + len(readers)
    assert pod.metric("tailrace_journal_available") == 0
    logger.info("the longest gap without a journal was %.2f s", max(reader.longest_gap_s for reader in readers))
    redis.start()
    wait_until(lambda: pod.metric("tailrace_journal_available") == 1, 10, "a journal again")
    again = ask("korean")
    asyncio.run(again.read(pod.port, stop_at=10))
    read_all([again], pod.port)
    assert_whole(again, uncut["korean"], NUM_TOKENS)


def test_a_pod_that_is_told_to_go_hands_its_streams_over(real: Site, uncut: dict[str, str]) -> None:
    names = list(PROMPTS) * 2
    readers = [ask(name) for name in names]

    async def run() -> tuple[Pod, float]:
        async with asyncio.TaskGroup() as group:
            for reader in readers:
                group.create_task(reader.read_to_the_end(real.proxy.port))
            await until(lambda: sum(reader.num_tokens > 10 for reader in readers) > len(readers) // 2)
            leaving = await asyncio.to_thread(lambda: real.busier)
            started_s = time.monotonic()
            leaving.program.process.terminate()
            assert await asyncio.to_thread(leaving.program.wait, 30) == 0
            return leaving, time.monotonic() - started_s

    leaving, gone_after_s = asyncio.run(run())
    leaving.start()
    for name, reader in zip(names, readers, strict=True):
        assert_whole(reader, uncut[name], NUM_TOKENS)
    moved = [reader for reader in readers if len(reader.statuses) > 1]
    assert len(moved) >= len(PROMPTS) - 1
    assert all(set(reader.errors) == {"draining"} for reader in moved)
    log_gaps(f"handed over, and gone after {gone_after_s:.1f} s", moved)
