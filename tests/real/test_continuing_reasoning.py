"""A reasoning model that was cut goes on with its thought, or with its answer, as it would have.

An engine of its own: the model that thinks.
"""

from collections.abc import Iterator
from typing import Any

import pytest

import settings
from engine import quiet
from engine.interface import GenerationRequest, Sampling
from engine.vllm.engine import VllmEngine
from tests import parrot_model
from tests.real.cutting import assert_goes_on, joined, tell
from tests.server import RunningServer, running


@pytest.fixture(scope="module")
def thinking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    quiet.hold_back()
    model = parrot_model.build(tmp_path_factory.mktemp("model") / "parrot")
    with running(VllmEngine(settings.load([str(model), *parrot_model.FLAGS]).args)) as server:
        yield server


def ask(**sampling: Any) -> GenerationRequest:
    message = {"role": "user", "content": "What is two plus three?"}
    return GenerationRequest(messages=[message], sampling=Sampling(temperature=0, max_tokens=60, **sampling))


def test_it_goes_on_after_every_event(thinking: RunningServer) -> None:
    [whole] = tell(thinking, ask())
    assert joined(whole.events) == (parrot_model.REASONING, parrot_model.ANSWER)
    assert whole.finish_reason == "stop"
    assert_goes_on(thinking, whole, whole.all_cuts)


def test_text_that_may_be_a_stop_string_is_told_as_what_it_would_have_been_told(thinking: RunningServer) -> None:
    [whole] = tell(thinking, ask(stop=("equals 5",)))
    assert joined(whole.events)[1].endswith("It ")
    assert_goes_on(thinking, whole, whole.all_cuts)
