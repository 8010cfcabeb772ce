import pytest

from engine.errors import Draining, EngineDead, Starting, TailraceError
from engine.lifecycle import TRANSITIONS, Lifecycle, State


def lifecycle_in(state: State) -> Lifecycle:
    paths = {
        State.STARTING: (),
        State.READY: (State.READY,),
        State.DRAINING: (State.READY, State.DRAINING),
        State.STOPPED: (State.READY, State.DRAINING, State.STOPPED),
        State.DEAD: (State.DEAD,),
    }
    lifecycle = Lifecycle()
    for step in paths[state]:
        lifecycle.advance(step)
    return lifecycle


@pytest.mark.parametrize("start", State)
@pytest.mark.parametrize("to", State)
def test_only_the_transitions_of_the_table_are_possible(start: State, to: State) -> None:
    lifecycle = lifecycle_in(start)
    if to is start or to in TRANSITIONS[start]:
        lifecycle.advance(to)
        assert lifecycle.state is to
    else:
        with pytest.raises(ValueError, match="no transition"):
            lifecycle.advance(to)
        assert lifecycle.state is start


def test_death_is_possible_from_every_state_that_still_runs() -> None:
    for state in (State.STARTING, State.READY, State.DRAINING):
        assert State.DEAD in TRANSITIONS[state]


@pytest.mark.parametrize(
    ("state", "refusal"),
    [(State.STARTING, Starting), (State.DRAINING, Draining), (State.STOPPED, Draining), (State.DEAD, EngineDead)],
)
def test_each_state_refuses_in_its_own_words(state: State, refusal: type[TailraceError]) -> None:
    with pytest.raises(refusal) as caught:
        lifecycle_in(state).require_ready()
    assert caught.value.status == 503
    assert caught.value.retryable
    assert caught.value.retry_after_s


def test_ready_refuses_nothing_and_listeners_hear_of_each_state() -> None:
    heard: list[State] = []
    lifecycle = Lifecycle(heard.append)
    lifecycle.advance(State.READY)
    lifecycle.advance(State.READY)
    lifecycle.require_ready()
    assert heard == [State.STARTING, State.READY]
    assert lifecycle.is_alive
    assert repr(lifecycle) == "<Lifecycle ready>"
