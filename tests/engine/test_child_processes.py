"""How the engine's processes are made, whatever they compute on."""

from multiprocessing import spawn

import pytest
from vllm.utils.system_utils import get_mp_context

from engine.child_processes import CHILD_MAIN, START_METHOD, set_main_of_children


@pytest.fixture(autouse=True)
def unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spawn, "get_preparation_data", spawn.get_preparation_data)
    monkeypatch.setenv(START_METHOD, "fork")


def test_they_are_new_ones_on_a_gpu_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(START_METHOD)
    set_main_of_children(on_cpu=False)
    assert get_mp_context().get_start_method() == "spawn"
    assert spawn.get_preparation_data("any")["init_main_from_name"] == CHILD_MAIN


def test_who_asks_for_forks_has_forks() -> None:
    set_main_of_children(on_cpu=False)
    assert get_mp_context().get_start_method() == "fork"
