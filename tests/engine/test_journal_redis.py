"""What the shared journal promises of two pods, and of a Redis that fails, against a real one."""

import asyncio
import contextlib
import logging
import time
import traceback
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any

import pytest

from engine.errors import Overloaded
from engine.journal import Loss, StreamRecord
from engine.journal.address import connect_to
from engine.journal.redis_journal import SLACK_S, RedisJournal
from tests.engine.owners import OPENING, REQUEST, Owner, passage, texts, until
from tests.engine.redis_server import RedisServer, needs_redis, redis_server

pytestmark = needs_redis

PASSWORD = "correct-horse"


@pytest.fixture(scope="module")
def shared_server() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


@pytest.fixture
def server(shared_server: RedisServer) -> RedisServer:
    """Empty, and as it was when it started."""
    shared_server.client.flushall()
    return shared_server


@pytest.fixture
def own_server() -> Iterator[RedisServer]:
    """One that the test may end."""
    with redis_server() as server:
        yield server


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 60))


def deaf(server: RedisServer, port: int) -> str:
    """An address for a pod that may not listen, and so hears of a loss only when it writes."""
    server.client.acl_setuser(
        "deaf", enabled=True, passwords=f"+{PASSWORD}", keys=["*"], commands=["+@all"], reset_channels=True
    )
    return f"redis://deaf:{PASSWORD}@127.0.0.1:{port}"


class Pod:
    """A journal as a pod has it, with what it has told: whether it is available, and how many streams it gave up."""

    def __init__(self, url: str, **options: Any) -> None:
        self.available: list[bool] = []
        self.num_unresumed = 0
        self.journal = RedisJournal(
            url, on_available=self.available.append, on_unresumed=self._count_unresumed, **options
        )

    def _count_unresumed(self) -> None:
        self.num_unresumed += 1


@contextlib.asynccontextmanager
async def pod(url: str, timeout_s: float = 10.0, **options: Any) -> AsyncIterator[Pod]:
    """The time limit is one that a busy machine does not reach, where a test is not about it."""
    pod = Pod(url, timeout_s=timeout_s, **options)
    await pod.journal.start()
    try:
        yield pod
    finally:
        await pod.journal.close()


async def stream_of(pod: Pod, id: str, num_tokens: int = 1) -> Owner:
    """A running stream, of which that many tokens are safe."""
    owner = Owner().open(pod.journal, id)
    for n in range(1, num_tokens + 1):
        owner.write(n)
    await until(lambda: len(owner.heard) == num_tokens)
    return owner


def test_another_pod_takes_a_silent_stream_over(server: RedisServer) -> None:
    async def behaviour() -> None:
        async with pod(server.url) as a, pod(server.url) as b:
            first = await stream_of(a, "x")
            second = await Owner().claim(b.journal, "x")
            # Nothing is written, and what renews a stream's expiry has not run yet: it was told.
            await until(lambda: first.loss is Loss.TAKEN)
            first.write(2, "x")
            second.write(2, "b")
            await until(lambda: second.heard == [2])
            assert await texts(a.journal, "x") == ["a", "b"]

    run(behaviour())


def test_another_pod_cancels_a_silent_stream(server: RedisServer) -> None:
    async def behaviour() -> None:
        async with pod(server.url) as a, pod(server.url) as b:
            first = await stream_of(a, "x")
            assert await b.journal.cancel("x")
            await until(lambda: first.loss is Loss.CANCELLED)
            assert await a.journal.find("x") is None

    run(behaviour())


@pytest.mark.parametrize("loss", list(Loss))
def test_a_pod_that_cannot_be_told_is_refused(server: RedisServer, loss: Loss) -> None:
    async def behaviour() -> None:
        async with pod(deaf(server, server.port), timeout_s=1.0) as a, pod(server.url) as b:
            first = await stream_of(a, "x")
            if loss is Loss.TAKEN:
                await Owner().claim(b.journal, "x")
            else:
                assert await b.journal.cancel("x")
            first.write(2)
            await until(lambda: first.loss is loss)
            assert first.heard == ([1, loss] if loss is Loss.TAKEN else [1, 2, loss])
            assert await texts(b.journal, "x") == (["a"] if loss is Loss.TAKEN else None)

    run(behaviour())


def test_what_was_said_while_nobody_listened_is_heard(server: RedisServer) -> None:
    async def behaviour() -> None:
        async with pod(server.url) as a, pod(server.url) as b:
            first = await stream_of(a, "x")
            server.client.client_kill_filter(_type="pubsub")
            await Owner().claim(b.journal, "x")
            await until(lambda: first.loss is Loss.TAKEN)

    run(behaviour())


def test_of_claims_on_two_pods_one_stays(server: RedisServer) -> None:
    async def behaviour() -> None:
        async with pod(server.url) as a, pod(server.url) as b:
            first = await stream_of(a, "x")
            pods = [a, b] * 25
            owners = await asyncio.gather(*(Owner().claim(pod.journal, "x") for pod in pods))
            await until(lambda: sum(owner.loss is Loss.TAKEN for owner in (first, *owners)) == 50)
            [last] = [owner for owner in owners if owner.loss is None]
            last.write(2)
            await until(lambda: last.heard == [2])

    run(behaviour())


def test_a_request_is_run_on_one_pod(server: RedisServer) -> None:
    async def behaviour() -> None:
        async with pod(server.url) as a, pod(server.url) as b:
            await a.journal.keep("x", REQUEST)
            taken = await asyncio.gather(*(pod.journal.take("x") for pod in [a, b] * 25))
            assert [request for request in taken if request is not None] == [REQUEST]

    run(behaviour())


def test_another_pod_continues_what_a_dead_one_ran(server: RedisServer) -> None:
    async def behaviour() -> None:
        async with pod(server.url) as b:
            async with pod(server.url) as a:
                await stream_of(a, "x", 3)
            claimed = await b.journal.claim("x", lambda loss: None)
            assert claimed and claimed[0] == StreamRecord("x", OPENING, [passage(n) for n in (1, 2, 3)])

    run(behaviour())


def test_one_turn_of_the_event_loop_is_one_batch(server: RedisServer) -> None:
    def num_calls() -> int:
        return int(server.client.info("commandstats")["cmdstat_evalsha"]["calls"])

    async def behaviour() -> None:
        async with pod(server.url) as a:
            owners = [await stream_of(a, str(n)) for n in range(64)]
            before, calls_before = a.journal.num_batches, num_calls()
            for owner in owners:
                owner.write(2)
                owner.write(3)
            await until(lambda: all(owner.heard == [1, 2, 3] for owner in owners))
            assert a.journal.num_batches == before + 1
            assert num_calls() == calls_before + 1

    run(behaviour())


def test_closing_writes_what_was_not_written_yet(server: RedisServer) -> None:
    async def behaviour() -> None:
        async with pod(server.url) as b:
            async with pod(server.url) as a:
                owner = Owner().open(a.journal, "x")
                owner.write(1)
                owner.entry.leave()
            assert await texts(b.journal, "x") == ["a"]

    run(behaviour())


def test_every_key_expires(server: RedisServer) -> None:
    async def behaviour() -> None:
        async with pod(server.url, window_s=50) as a:
            running = await stream_of(a, "running")
            (await stream_of(a, "cut")).entry.leave()
            (await stream_of(a, "ended")).end()
            await stream_of(a, "taken")
            claimed = await Owner().claim(a.journal, "taken")
            await stream_of(a, "cancelled")
            await a.journal.cancel("cancelled")
            await a.journal.keep("x", REQUEST)
            running.write(2)
            claimed.write(2)
            await until(lambda: running.heard == [1, 2] and claimed.heard == [2])
        left_s = {key.decode().split(":", 1)[1]: server.client.ttl(key) for key in server.client.scan_iter()}
        limits_s = {
            "stream:running": 50 + SLACK_S,
            "stream:cut": 50,
            "stream:ended": 50,
            "stream:taken": 50 + SLACK_S,
            "stream:cancelled": 50 + SLACK_S,
            "request:x": 120,
        }
        assert left_s.keys() - {"probe:1", "probe:2"} == limits_s.keys()
        assert all(limit_s - 20 < left_s[key] <= limit_s for key, limit_s in limits_s.items()), left_s
        assert all(left > 0 for left in left_s.values())

    run(behaviour())


def test_what_another_version_wrote_is_unknown(server: RedisServer) -> None:
    async def behaviour() -> None:
        async with pod(server.url) as a:
            await stream_of(a, "x")
            server.client.lset("tailrace:stream:x", 0, "2")
            assert await a.journal.find("x") is None
            assert await a.journal.claim("x", lambda loss: None) is None
            assert not await a.journal.cancel("y")
            server.client.set("tailrace:request:x", b'{"version":2,"request":{"other":1}}')
            assert await a.journal.take("x") is None
            for nonsense in ("{", "{}", '{"model":1}', "7"):
                server.client.rpush("tailrace:stream:z", 1, "left", nonsense)
                assert await a.journal.find("z") is None
                server.client.delete("tailrace:stream:z")
            assert a.available == [True]

    run(behaviour())


@pytest.mark.parametrize("damage", ["evicted", "shortened"])
def test_a_stream_whose_record_was_lost_goes_on_unresumed(server: RedisServer, damage: str) -> None:
    async def behaviour() -> None:
        async with pod(server.url) as a:
            owner = await stream_of(a, "x", 2)
            if damage == "evicted":
                server.client.delete("tailrace:stream:x")
            else:
                server.client.rpop("tailrace:stream:x")
            for n in (3, 4):
                owner.write(n)
                await until(lambda n=n: owner.heard[-1] == n)  # type: ignore[misc]
            owner.end()
            assert owner.heard == [1, 2, 3, 4, "end"]
            assert await a.journal.find("x") is None
            assert a.num_unresumed == 1

    run(behaviour())


def test_a_stream_that_is_too_large_goes_on_unresumed(server: RedisServer) -> None:
    async def behaviour() -> None:
        async with pod(server.url, max_stream_bytes=2000) as a:
            owner = await stream_of(a, "x")
            owner.write(2, "long" * 1000)
            owner.write(3)
            await until(lambda: owner.heard == [1, 2, 3])
            await until(lambda: not server.client.exists("tailrace:stream:x"))
            assert a.num_unresumed == 1
            assert await a.journal.cancel("x")
            assert owner.heard == [1, 2, 3, Loss.CANCELLED]

    run(behaviour())


def test_streams_go_on_when_redis_dies_and_new_ones_are_kept_when_it_is_back(
    own_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tailrace.journal")

    async def behaviour() -> None:
        async with pod(own_server.url, timeout_s=1.0) as a:
            owners = [await stream_of(a, str(n)) for n in range(8)]
            silent = await stream_of(a, "silent")
            own_server.kill()
            started_s = time.monotonic()
            for owner in owners:
                owner.write(2)
            await until(lambda: all(owner.heard == [1, 2] for owner in owners))
            assert time.monotonic() - started_s < 1.2
            assert a.available == [True, False]
            assert a.num_unresumed == 8
            for owner in owners:
                owner.write(3)
                owner.end()
                assert owner.heard == [1, 2, 3, "end"]  # at once
            # What is known of these cannot be told now.
            for asked in (
                a.journal.find("0"),
                a.journal.claim("0", owners[0].heard.append),
                a.journal.cancel("0"),
                a.journal.take("x"),
                a.journal.keep("x", REQUEST),
            ):
                with pytest.raises(Overloaded):
                    await asked
            late = Owner().open(a.journal, "late")
            late.write(1)
            assert late.heard == [1]
            assert await a.journal.cancel("late")

            await asyncio.to_thread(own_server.start)
            await until(lambda: a.available == [True, False, True], 20)
            assert await texts(a.journal, "0") is None
            await stream_of(a, "new")
            assert await texts(a.journal, "new") == ["a"]
            silent.write(2)  # it has missed nothing, but Redis has forgotten it
            await until(lambda: silent.heard == [1, 2])
            assert a.num_unresumed == 8 + 2

    run(behaviour())
    assert [record.message.split(":")[0][:19] for record in caplog.records] == [
        "the journal is down",
        "the journal is back",
    ]


def test_a_stale_record_is_never_continued(own_server: RedisServer) -> None:
    async def behaviour() -> None:
        async with pod(own_server.url, timeout_s=1.0) as a:
            owner, silent = await stream_of(a, "x"), await stream_of(a, "silent")
            own_server.freeze()
            owner.write(2)
            await until(lambda: owner.heard == [1, 2])
            assert a.available == [True, False]
            owner.write(3)
            own_server.freeze(False)
            await until(lambda: a.available == [True, False, True], 20)
            await until(lambda: not own_server.client.exists("tailrace:stream:x"))
            owner.write(4)
            assert owner.heard == [1, 2, 3, 4]
            silent.write(2)
            await until(lambda: silent.heard == [1, 2])
            assert await texts(a.journal, "silent") == ["a", "a"]
            assert a.num_unresumed == 1

    run(behaviour())


def test_a_stream_that_was_taken_while_redis_was_out_of_reach_is_lost(own_server: RedisServer) -> None:
    async def behaviour() -> None:
        async with proxy(own_server.port) as line, pod(own_server.url) as b:
            async with pod(deaf(own_server, line.port), timeout_s=1.0) as a:
                first = await stream_of(a, "x")
                line.delay_s = 60
                first.write(2)
                await until(lambda: first.heard == [1, 2])
                second = await Owner().claim(b.journal, "x")
                line.delay_s = 0
                await until(lambda: first.loss is Loss.TAKEN, 20)
                second.write(2)
                await until(lambda: second.heard == [2])

    run(behaviour())


def test_a_full_redis_is_one_that_is_down(server: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    async def behaviour() -> None:
        async with pod(server.url) as a:
            owner = await stream_of(a, "x")
            server.client.config_set("maxmemory", "1mb")
            try:
                owner.write(2)
                await until(lambda: owner.heard == [1, 2])
                assert a.available == [True, False]
                with pytest.raises(Overloaded):
                    await a.journal.keep("y", REQUEST)
                # It answers, but a journal that cannot write is not back.
                await asyncio.sleep(1.5)
                assert a.available == [True, False]
            finally:
                server.client.config_set("maxmemory", "0")
            await until(lambda: a.available == [True, False, True], 20)
            await until(lambda: not server.client.exists("tailrace:stream:x"))
            await stream_of(a, "new")

    run(behaviour())
    assert "it is full" in caplog.text


def test_a_slow_redis_makes_larger_batches_and_loses_nothing(server: RedisServer) -> None:
    async def behaviour() -> None:
        async with proxy(server.port) as line, pod(f"redis://127.0.0.1:{line.port}") as a:
            owner = await stream_of(a, "x")
            before, line.delay_s = a.journal.num_batches, 0.2
            for n in range(2, 52):
                owner.write(n)
                await asyncio.sleep(0)
            owner.end()
            await until(lambda: owner.heard == [*range(1, 52), "end"])
            assert a.journal.num_batches - before <= 10
            assert await texts(a.journal, "x") == ["a"] * 51
            assert a.available == [True]

    run(behaviour())


def test_a_process_that_was_kept_from_its_core_does_not_take_redis_for_down(server: RedisServer) -> None:
    async def behaviour() -> None:
        async with pod(server.url, timeout_s=0.5) as a:
            owner = await stream_of(a, "x")
            owner.write(2)
            await asyncio.sleep(0)  # the batch is on its way
            time.sleep(1.0)  # noqa: ASYNC251  nobody looks
            await until(lambda: owner.heard == [1, 2])
            assert a.available == [True]
            assert await texts(a.journal, "x") == ["a"] * 2

    run(behaviour())


def test_a_journal_that_is_out_of_reach_at_the_start_is_tried_again(own_server: RedisServer) -> None:
    own_server.kill()

    async def behaviour() -> None:
        async with pod(own_server.url, timeout_s=1.0) as a:
            assert a.available == [False]
            await asyncio.to_thread(own_server.start)
            await until(lambda: a.available == [False, True], 20)
            await stream_of(a, "x")

    run(behaviour())


def test_a_wrong_password_is_logged_without_it(server: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    async def behaviour() -> None:
        async with pod(server.url.replace("://", f"://nobody:{PASSWORD}@")) as a:
            assert a.available == [False]

    run(behaviour())
    assert "the journal is down" in caplog.text
    assert PASSWORD not in caplog.text


@pytest.mark.parametrize(
    "url",
    [
        "",
        "redis",
        "localhost:6379",
        "http://:{}@localhost",
        "redis://",
        "redis://:{}@",
        "redis://:{}/x@localhost:6379",
        "redis://:{}@localhost:port",
        "redis://:{}@localhost:99999",
        "redis://:{}@localhost/name",
        "redis://:{}@localhost/0?colour=red",
        "redis://:{}@[::1/0",
        "redis://:{}@localhost?max_connections=many",
        "unix://",
    ],
)
def test_what_is_no_address_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(ValueError, match="the journal's URL") as failure:
        RedisJournal(url.format(PASSWORD))
    assert PASSWORD not in "".join(traceback.format_exception(failure.value)).replace(repr(url), "")


def test_addresses_name_the_host_the_database_and_the_password() -> None:
    def options(url: str) -> dict[str, object]:
        pool = connect_to(url, 1).connection_pool
        wanted = ("host", "port", "db", "username", "password", "path")
        given = {name: pool.connection_kwargs[name] for name in wanted if name in pool.connection_kwargs}
        return {"class": pool.connection_class.__name__, **given}

    assert options("valkey://:p%40ss@h:7000/3") == {
        "class": "Connection",
        "host": "h",
        "port": 7000,
        "db": 3,
        "password": "p@ss",
    }
    assert options("valkeys://u:p@h") == {"class": "SSLConnection", "host": "h", "username": "u", "password": "p"}
    assert options("redis://[::1]:1")["host"] == "::1"
    assert options("unix://:p@/run/redis.sock?db=2") == {
        "class": "UnixDomainSocketConnection",
        "path": "/run/redis.sock",
        "db": 2,
        "password": "p",
    }


class Line:
    """What a proxy does to the bytes on their way: `delay_s` is how late the server's answers are."""

    port = 0
    delay_s = 0.0


@contextlib.asynccontextmanager
async def proxy(port: int) -> AsyncIterator[Line]:
    line = Line()
    tasks: set[asyncio.Task[None]] = set()

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay: Callable[[], float]) -> None:
        with contextlib.closing(writer):
            while data := await reader.read(1 << 16):
                await asyncio.sleep(delay())
                writer.write(data)

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_connection("127.0.0.1", port)
        tasks.add(asyncio.create_task(pass_on(reader, to_server, lambda: 0.0)))
        tasks.add(asyncio.create_task(pass_on(from_server, writer, lambda: line.delay_s)))

    server = await asyncio.start_server(connect, "127.0.0.1", 0)
    line.port = server.sockets[0].getsockname()[1]
    try:
        yield line
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
