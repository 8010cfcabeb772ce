"""`--min-event-interval-ms`: fewer and larger events, and nothing else."""

import time

import pytest

from engine.scripted import Script, ScriptedEngine
from routes.application import HttpSettings
from tests.server import running, wait_until
from tests.ways import SCRIPTED_WAYS, Way, answer, asked

WORDS = [f" {number}" for number in range(100)]
INTERVAL_S = 0.05


@pytest.mark.parametrize("way", [way for way in SCRIPTED_WAYS if way.streams], ids=str)
def test_events_keep_their_distance_and_no_text_is_lost(way: Way) -> None:
    settings = HttpSettings(access_log=False, min_event_interval_s=INTERVAL_S)
    with running(ScriptedEngine(Script(WORDS, 0.01, 0.004)), settings) as server:
        started_s = time.monotonic()
        with asked(server.port, way.request("x", model="scripted")) as sock:
            got = answer(sock)
        took_s = time.monotonic() - started_s
        assert way.text(got.body) == "".join(WORDS)
        assert way.is_whole(got.body)
        labels = {"route": way.path, "model": "scripted"}
        num_gaps = server.metric("tailrace_inter_token_latency_seconds_count", **labels)
        assert 3 <= num_gaps <= took_s / INTERVAL_S + 1
        # The bucket below the interval, with room for a timer's coarseness.
        assert server.metric("tailrace_inter_token_latency_seconds_bucket", **labels, le="0.025") == 0
        assert server.metric("tailrace_output_tokens_total", **labels) == len(WORDS)


def test_the_first_token_is_never_held_back() -> None:
    settings = HttpSettings(access_log=False, min_event_interval_s=5)
    with running(ScriptedEngine(Script(WORDS[:1], 0.01, 0)), settings) as server:
        with asked(server.port, SCRIPTED_WAYS[0].request("x", model="scripted")) as sock:
            answer(sock)
        assert server.metric("tailrace_time_to_first_token_seconds_bucket", le="0.5") == 1


def test_a_reader_that_leaves_while_an_event_is_held_back_stops_the_engine() -> None:
    engine = ScriptedEngine(Script(WORDS * 100, 0, 0.001))
    with running(engine, HttpSettings(access_log=False, min_event_interval_s=30)) as server:
        with asked(server.port, SCRIPTED_WAYS[0].request("x", 9000, model="scripted")) as sock:
            while b'"token"' not in sock.recv(2048):
                pass
        wait_until(lambda: server.num_in_flight == 0, 2, "the abort")
        assert not engine.running
