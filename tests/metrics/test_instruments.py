from prometheus_client import CollectorRegistry, generate_latest

from engine.lifecycle import State
from metrics.instruments import STATES, TABLE, Instruments


def test_every_row_of_the_table_is_registered_under_its_name() -> None:
    registry = CollectorRegistry()
    Instruments(registry)
    text = generate_latest(registry).decode()
    for row in TABLE:
        assert f"# HELP {row.name} {row.help}" in text


def test_one_state_holds_at_a_time() -> None:
    registry = CollectorRegistry()
    Instruments(registry).set_state("draining")
    values = {state: registry.get_sample_value("tailrace_state", {"state": state}) for state in STATES}
    assert values == {"starting": 0, "ready": 0, "draining": 1, "stopped": 0, "dead": 0}


def test_the_states_are_those_of_the_lifecycle() -> None:
    assert set(STATES) == set(State)
