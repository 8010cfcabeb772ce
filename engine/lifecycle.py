"""The states of the process. This is the only place that changes them, and only along `TRANSITIONS`.

    starting ──> ready ──> draining ──> stopped
        │          │           │
        └──────────┴───────────┴──> dead

`starting` may also go to `draining`: a process that is told to stop while its model loads serves nobody on its way out.
"""

from collections.abc import Callable
from enum import StrEnum

from engine.errors import Draining, EngineDead, Starting, TailraceError


class State(StrEnum):
    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    STOPPED = "stopped"
    DEAD = "dead"


TRANSITIONS: dict[State, frozenset[State]] = {
    State.STARTING: frozenset({State.READY, State.DRAINING, State.DEAD}),
    State.READY: frozenset({State.DRAINING, State.DEAD}),
    State.DRAINING: frozenset({State.STOPPED, State.DEAD}),
    State.STOPPED: frozenset(),
    State.DEAD: frozenset(),
}

REFUSALS: dict[State, type[TailraceError]] = {
    State.STARTING: Starting,
    State.DRAINING: Draining,
    State.STOPPED: Draining,
    State.DEAD: EngineDead,
}

REFUSAL_MESSAGES: dict[State, str] = {
    State.STARTING: "the model is still loading",
    State.DRAINING: "this process is shutting down; another one can take the request",
    State.STOPPED: "this process is shutting down; another one can take the request",
    State.DEAD: "the engine has died; this process is about to be restarted",
}


class Lifecycle:
    """Holds the state and tells `on_change` of every new one."""

    def __init__(self, on_change: Callable[[State], None] = lambda state: None) -> None:
        self._state = State.STARTING
        self._on_change = on_change
        on_change(self._state)

    def __repr__(self) -> str:
        return f"<Lifecycle {self._state}>"

    @property
    def state(self) -> State:
        return self._state

    def advance(self, to: State) -> None:
        """Move to `to`; staying where one is does nothing.

        Raises:
            ValueError: there is no such transition.
        """
        if to is self._state:
            return
        if to not in TRANSITIONS[self._state]:
            raise ValueError(f"no transition from {self._state} to {to}")
        self._state = to
        self._on_change(to)

    def require_ready(self) -> None:
        """Raise the error with which a new generation request is refused now, or return when it may run."""
        if self._state is not State.READY:
            raise REFUSALS[self._state](REFUSAL_MESSAGES[self._state])

    @property
    def is_alive(self) -> bool:
        """Liveness: false only when a restart is what would help."""
        return self._state is not State.DEAD
