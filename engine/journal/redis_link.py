"""Redis, reached or not.

Invariant: nobody waits for Redis for longer than `timeout_s`, and while it is known to be down nobody waits at all. It
is tried again every second; one line is logged when it goes down and one when it is back.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

from redis.asyncio.client import PubSub
from redis.exceptions import NoScriptError, OutOfMemoryError

from engine.journal.address import connect_to
from engine.journal.scripts import PROBE, PROBE_KEYS, Script
from engine.time_limit import time_limit

logger = logging.getLogger("tailrace.journal")

# How often a Redis that failed is tried again.
RETRY_S = 1.0

Argument = bytes | int | str


class Unreachable(Exception):
    """Redis has not done what it was asked, or is not known to have."""


class RedisLink:
    """`on_change` hears whether Redis can be written to: first when the link has started, then at each change."""

    def __init__(self, url: str, timeout_s: float, on_change: Callable[[bool], None]) -> None:
        """
        Raises:
            ValueError: as `connect_to`.
        """
        self.is_available = True
        self._redis = connect_to(url, timeout_s)
        self._timeout_s = timeout_s
        self._on_change = on_change
        self._recovery: asyncio.Task[None] | None = None

    async def start(self) -> None:
        try:
            await self._probe()
        except Exception as failure:
            self.go_down(describe(failure))
        else:
            self._on_change(True)

    async def close(self) -> None:
        if self._recovery is not None:
            self._recovery.cancel()
            await asyncio.gather(self._recovery, return_exceptions=True)
        with contextlib.suppress(Exception):
            await self._redis.connection_pool.disconnect()

    def pubsub(self) -> PubSub:
        return self._redis.pubsub()

    async def call(self, script: Script, keys: Sequence[bytes], args: Sequence[Argument]) -> Any:
        """Run a script by its digest, and by its text where the server does not know it, which is after its start.

        Raises:
            Unreachable: as `execute`.
        """
        try:
            return await self.execute("EVALSHA", script.sha, len(keys), *keys, *args)
        except NoScriptError:
            return await self.execute("EVAL", script.text, len(keys), *keys, *args)

    async def execute(self, *command: Argument) -> Any:
        """
        Raises:
            Unreachable: at once while Redis is down; else it is down from now on.
        """
        if not self.is_available:
            raise Unreachable
        try:
            return await self._try(*command)
        except NoScriptError:
            raise
        except Exception as failure:  # redis-py lets through more than its own errors when a connection breaks
            self.go_down(describe(failure))
            raise Unreachable from failure

    def go_down(self, reason: str) -> None:
        if not self.is_available:
            return
        self.is_available = False
        logger.warning("the journal is down: %s; streams go on, and cannot be resumed if they write meanwhile", reason)
        self._recovery = asyncio.create_task(self._recover())
        self._on_change(False)

    async def _recover(self) -> None:
        started_s = time.monotonic()
        while not self.is_available:
            await asyncio.sleep(RETRY_S)
            with contextlib.suppress(Exception):
                # The connections may lead to a server that is not the right one any more.
                await self._redis.connection_pool.disconnect()
                await self._probe()
                self.is_available = True
        logger.info("the journal is back after %.1f s", time.monotonic() - started_s)
        self._on_change(True)

    async def _probe(self) -> None:
        await self._try("EVAL", PROBE.text, len(PROBE_KEYS), *PROBE_KEYS, round(1000 * RETRY_S))

    async def _try(self, *command: Argument) -> Any:
        async with time_limit(self._timeout_s):
            return await self._redis.execute_command(*command)  # type: ignore[no-untyped-call]


def describe(failure: Exception) -> str:
    """In words, and without what the URL says of users and passwords."""
    if isinstance(failure, OutOfMemoryError):
        return "it is full"
    if isinstance(failure, TimeoutError):
        return "it does not answer in time"
    return str(failure)
