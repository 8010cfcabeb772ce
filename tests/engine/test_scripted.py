import asyncio
from pathlib import Path

import pytest

from engine.errors import ContextLength, EngineDead, ModelNotFound
from engine.interface import Delta, GenerationRequest, Sampling
from engine.scripted import DEFAULT_TEXT, Script, ScriptedEngine, load_tokens, split_words
from tests.engine.sources import next_of


def collect(script: Script, max_tokens: int | None = None) -> list[Delta]:
    async def run() -> list[Delta]:
        source = await ScriptedEngine(script).submit(
            GenerationRequest(prompt="a b", sampling=Sampling(max_tokens=max_tokens)), "id"
        )
        deltas = [await next_of(source)]
        while deltas[-1].finish_reason is None:
            deltas.append(await next_of(source))
        return deltas

    return asyncio.run(asyncio.wait_for(run(), 5))


@pytest.mark.parametrize("text", [DEFAULT_TEXT, " a  b\nc ", "", "\n", "한국어 🙂"])
def test_the_pieces_joined_are_the_text(text: str) -> None:
    assert "".join(split_words(text)) == text


def test_a_json_script_gives_its_tokens_as_they_are(tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text('["a", "", "\\n\\n"]')
    assert load_tokens(script) == ["a", "", "\n\n"]
    script.write_text('{"a": 1}')
    with pytest.raises(ValueError, match="list of strings"):
        load_tokens(script)


def test_a_script_is_said_to_its_end_or_to_the_limit() -> None:
    tokens = ["a", "b", "c"]
    assert [delta.text for delta in collect(Script(tokens, 0, 0))] == tokens
    assert collect(Script(tokens, 0, 0))[-1].finish_reason == "stop"
    assert collect(Script(tokens, 0, 0), 2)[-1] == Delta("b", range(1, 2), "length")


def test_several_tokens_come_in_one_delta() -> None:
    deltas = collect(Script(["a", "b", "c", "d", "e"], 0, 0, tokens_per_delta=2))
    assert [(delta.text, len(delta.token_ids)) for delta in deltas] == [("ab", 2), ("cd", 2), ("e", 1)]


def test_a_reader_that_comes_late_gets_all_that_is_due() -> None:
    async def run() -> tuple[Delta, Delta]:
        source = await ScriptedEngine(Script(["a"] * 100, 0, 0.01)).submit(GenerationRequest(prompt=""), "id")
        first = await next_of(source)
        await asyncio.sleep(0.1)
        return first, await next_of(source)

    first, second = asyncio.run(run())
    assert len(first.token_ids) == 1
    assert 5 <= len(second.token_ids) <= 30


def test_it_dies_on_cue_and_takes_no_more_requests() -> None:
    async def run() -> None:
        engine = ScriptedEngine(Script(["a", "b"], 0, 0.001, die_after=1))
        source = await engine.submit(GenerationRequest(prompt="x"), "id")
        assert (await next_of(source)).text == "a"
        with pytest.raises(EngineDead):
            await next_of(source)
        with pytest.raises(EngineDead):
            await engine.submit(GenerationRequest(prompt="x"), "id")
        assert engine.is_dead()

    asyncio.run(asyncio.wait_for(run(), 5))


def test_it_refuses_what_the_real_engine_refuses() -> None:
    async def run() -> None:
        engine = ScriptedEngine(Script(["a"], max_model_len=4))
        with pytest.raises(ContextLength):
            await engine.submit(GenerationRequest(prompt=[1, 2, 3, 4]), "id")
        with pytest.raises(ModelNotFound):
            await engine.submit(GenerationRequest(prompt="x", model="other"), "id")

    asyncio.run(run())
