"""Starts the engine, watches it, admits requests to it, drains it and stops it.

Invariant: every request that the engine works on is in `in_flight`, and every change of the process's state that has to
do with the engine is made here.
"""

import asyncio
import logging
import secrets
from collections.abc import Iterable, Mapping

from engine.call import Call
from engine.errors import Draining, Internal, TailraceError
from engine.generation import Generation
from engine.interface import AnyRequest, Engine, GenerationRequest
from engine.lifecycle import Lifecycle, State
from engine.serving import Serving

logger = logging.getLogger("tailrace.engine")

# How often a silent engine is asked whether it lives. An engine with streams in flight tells of its death by itself;
# this bounds how long an idle one stays unnoticed (at most 2 s are promised).
WATCH_INTERVAL_S = 0.5

# How long streams that were given an error may take to write it before the process goes on without them.
FAREWELL_S = 2.0


class Supervisor:
    """The engine's life, in the order of its methods: `start`, `watch`, `admit`, `drain`, `stop`."""

    in_flight: set[Generation]

    def __init__(self, engine: Engine, lifecycle: Lifecycle) -> None:
        self._engine = engine
        self._lifecycle = lifecycle
        self._idle = asyncio.Event()
        self._idle.set()
        self.in_flight = set()

    @property
    def state(self) -> State:
        return self._lifecycle.state

    @property
    def is_alive(self) -> bool:
        return self._lifecycle.is_alive

    @property
    def model(self) -> str:
        return self._engine.model

    async def start(self) -> None:
        """Load the model, then be ready.

        Raises whatever the engine raised; the state is `dead` then.
        """
        try:
            await self._engine.start()
        except Exception:
            self._lifecycle.advance(State.DEAD)
            raise
        if self.state is State.STARTING:
            self._lifecycle.advance(State.READY)

    async def watch(self) -> None:
        """Return when the engine has died; the state is `dead` then. Never returns otherwise."""
        while not self._engine.is_dead():  # noqa: ASYNC110  # vLLM has a flag for it and no event
            await asyncio.sleep(WATCH_INTERVAL_S)
        logger.error("the engine has died with %d streams in flight", len(self.in_flight))
        self._lifecycle.advance(State.DEAD)

    @property
    def serving(self) -> Serving:
        """The engine's OpenAI and Anthropic surfaces.

        Raises:
            TailraceError: the engine is not ready; what serving needs is not there yet, or not any more.
        """
        self._lifecycle.require_ready()
        return self._engine.serving

    async def serving_when_started(self) -> Serving:
        """The same for what needs the model, and not the engine: while the model is loaded, it is waited for.

        Raises:
            TailraceError: as `serving`, but not `Starting`.
        """
        while self.state is State.STARTING:  # noqa: ASYNC110  # rare, and nobody is late for it
            await asyncio.sleep(0.1)
        return self.serving

    def call(self, headers: Mapping[str, str], num_bytes: int, wants_deltas: bool = False) -> Call:
        """A call of which every generation will be admitted here. The caller owns it and must leave it."""
        return Call(self._engine.model, self.admit, headers, num_bytes, wants_deltas)

    async def check(self, request: GenerationRequest) -> None:
        """Whether the engine would take `request`, but for its load; starts nothing.

        Raises:
            TailraceError: it would not.
        """
        self._lifecycle.require_ready()
        await self._engine.check(request)

    async def cancel(self, id: str) -> bool:
        """Stop the generation with that id; its readers are told that it was cancelled. False when there is none."""
        for generation in self._of(id):
            await generation.cancel()
            return True
        return False

    async def end(self, id: str, error: TailraceError) -> None:
        """Stop whatever runs here for the stream with that id; its reader is told of `error`."""
        for generation in self._of(id):
            await generation.abort(error)

    def _of(self, id: str) -> list[Generation]:
        return [generation for generation in self.in_flight if generation.id == id]

    async def admit(self, request: AnyRequest, id: str | None = None) -> Generation:
        """Hand `request` to the engine. The caller owns the generation and must enter it as a context manager.

        Raises:
            TailraceError: refused; nothing was started.
        """
        self._lifecycle.require_ready()
        # 128 random bits: the id is also the capability to read and stop the stream (docs/protocol.md).
        request_id = id or secrets.token_urlsafe(16)
        try:
            source = await self._engine.submit(request, request_id)
        except Internal:
            self._lifecycle.require_ready()  # an engine that is being stopped fails, for a reason that has a name
            raise
        if self.state is not State.READY:  # the drain began, or the engine died, while the prompt was tokenised
            await source.abort()
            self._lifecycle.require_ready()
        generation = Generation(request_id, self._engine.model, source, on_close=self._forget)
        self.in_flight.add(generation)
        self._idle.clear()
        return generation

    def _forget(self, generation: Generation) -> None:
        self.in_flight.discard(generation)
        if not self.in_flight:
            self._idle.set()

    async def drain(self, timeout_s: float, skip: asyncio.Event, hands_over: bool = False) -> None:
        """Refuse new requests, let those in flight finish for `timeout_s` or until `skip` is set, then end the rest.

        With `hands_over`, streams that another process can go on with are ended at once; they go on there.
        """
        self._lifecycle.advance(State.DRAINING)
        logger.info("draining: %d streams in flight, at most %g s", len(self.in_flight), timeout_s)
        if hands_over:
            movable = [generation for generation in self.in_flight if generation.is_movable]
            await self._end_all(movable, "this process is shutting down; the stream goes on in another one")
        if self.in_flight:
            waits = [asyncio.ensure_future(event.wait()) for event in (self._idle, skip)]
            await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()
        await self._end_all(self.in_flight, "this process is shutting down; the stream was not finished")
        await self._farewell()

    async def _end_all(self, generations: Iterable[Generation], message: str) -> None:
        for generation in list(generations):
            await generation.abort(Draining(message))

    async def _farewell(self) -> None:
        try:
            await asyncio.wait_for(self._idle.wait(), FAREWELL_S)
        except TimeoutError:
            logger.warning("%d streams did not take their last event", len(self.in_flight))

    async def stop(self) -> None:
        """End the engine. Streams in flight were ended by `drain`, or hear of the engine's death from the engine."""
        if self.state is State.DEAD:
            await self._farewell()
        await self._engine.stop()
        if self.state is State.DRAINING:
            self._lifecycle.advance(State.STOPPED)
        logger.info("the engine is stopped")
