"""A generation that goes on after another's output, over the scripted engine."""

import asyncio
from collections.abc import Sequence

import pytest

from engine.errors import StreamGone
from engine.generation import Generation
from engine.interface import GenerationRequest, Sampling, can_continue
from engine.lifecycle import Lifecycle
from engine.scripted import Script, ScriptedEngine
from engine.supervisor import Supervisor

WORDS = [f" {number}" for number in range(20)]


def read(
    made_before: Sequence[Sequence[int]] = (), made: list[int] | None = None, max_tokens: int | None = 12
) -> tuple[str, Generation]:
    """The text that is told after `made_before`, and the generation that told it."""
    request = GenerationRequest(prompt=[7, 8, 9], sampling=Sampling(max_tokens=max_tokens), made_before=made_before)

    async def run() -> tuple[str, Generation]:
        supervisor = Supervisor(
            ScriptedEngine(Script(WORDS, 0, 0), on_tokens=(made if made is not None else []).append), Lifecycle()
        )
        await supervisor.start()
        async with await supervisor.admit(request) as generation:
            assert generation.phase == "prefill"
            return "".join([delta.text async for delta in generation]), generation

    return asyncio.run(asyncio.wait_for(run(), 5))


@pytest.mark.parametrize(
    ("max_tokens", "num_tokens", "finish_reason"), [(12, 12, "length"), (20, 20, "stop"), (None, 20, "stop")]
)
def test_it_goes_on_where_the_other_was_cut(max_tokens: int | None, num_tokens: int, finish_reason: str) -> None:
    for cut in range(num_tokens + 1):
        made: list[int] = []
        pieces = [range(cut // 2), range(cut // 2, cut)]
        text, generation = read(pieces, made, max_tokens)
        assert text == "".join(WORDS[cut:num_tokens])
        assert (generation.num_tokens_before, generation.num_output_tokens) == (cut, num_tokens)
        assert generation.finish_reason == finish_reason
        assert sum(made) == num_tokens - cut


def test_it_has_the_prompt_and_the_limit_of_the_first() -> None:
    for pieces in ((), [range(5)]):
        _, generation = read(pieces)
        assert (generation.num_prompt_tokens, list(generation.prompt_token_ids)) == (3, [7, 8, 9])
        assert (generation.max_tokens, generation.can_continue) == (12, True)


@pytest.mark.parametrize("sampling", [Sampling(presence_penalty=0.5), Sampling(frequency_penalty=-0.5)])
def test_what_counts_the_output_alone_cannot_go_on(sampling: Sampling) -> None:
    assert not can_continue(sampling)
    engine = ScriptedEngine(Script(WORDS))
    with pytest.raises(StreamGone):
        asyncio.run(engine.submit(GenerationRequest(prompt=[1], sampling=sampling, made_before=[[0]]), "id"))


def test_everything_else_can_go_on() -> None:
    sampling = Sampling(
        max_tokens=5, temperature=0.5, top_p=0.9, top_k=5, min_p=0.1, seed=1, stop=("a",), repetition_penalty=1.2,
        min_tokens=2, ignore_eos=True, presence_penalty=0.0, frequency_penalty=0.0,
    )  # fmt: skip
    assert can_continue(sampling)
