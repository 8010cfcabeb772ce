"""A generation that was cut and goes on says, byte for byte, what it would have said."""

from dataclasses import replace
from typing import Any

import pytest

from engine.errors import StreamGone
from engine.interface import GenerationRequest, Sampling
from engine.vllm.engine import VllmEngine
from tests.real.cutting import Told, assert_goes_on, assert_same, tell, tell_part
from tests.server import RunningServer

PROMPTS = {
    "plain": "Once upon a time, in a small village by the sea, there lived",
    "korean": "대한민국의 수도는 서울이고, 일본의 수도는",
    "korean question": "안녕하세요. 오늘 날씨는 어떻습니까? 저는",
    "emoji": "🙂🙃🎉 🎊🎈🎁 🙂🙃🎉 🎊🎈🎁 🙂🙃🎉",
}

GREEDY = Sampling(temperature=0, max_tokens=120, ignore_eos=True)

# Of the embedded model: what it ends its answers with.
END_OF_TURN = 2

# What the prefix cache keeps on the CPU: whole blocks of this many tokens.
BLOCK_TOKENS = 128


@pytest.fixture(scope="module")
def uncut(exact: RunningServer) -> dict[str, Told]:
    wholes = tell(exact, *(ask(name) for name in PROMPTS))
    return dict(zip(PROMPTS, wholes, strict=True))


def ask(name: str, **sampling: Any) -> GenerationRequest:
    return GenerationRequest(prompt=PROMPTS[name], sampling=replace(GREEDY, **sampling))


def chat(**sampling: Any) -> GenerationRequest:
    message = {"role": "user", "content": "Is water wet? Answer in a few words."}
    return GenerationRequest(messages=[message], sampling=Sampling(temperature=0, **sampling))


@pytest.mark.parametrize("name", PROMPTS)
def test_it_goes_on_as_if_it_had_not_been_cut(exact: RunningServer, uncut: dict[str, Told], name: str) -> None:
    whole = uncut[name]
    assert (whole.finish_reason, whole.num_output_tokens) == ("length", 120)
    assert_goes_on(exact, whole, [whole.cut_at(num_tokens) for num_tokens in (1, 7, 30, 77)])


def test_it_goes_on_after_every_event_of_a_text_full_of_split_characters(
    exact: RunningServer, uncut: dict[str, Told]
) -> None:
    # So many that the last one completes a character.
    max_tokens = sum(map(len, uncut["emoji"].pieces[:20]))
    [whole] = tell(exact, ask("emoji", max_tokens=max_tokens))
    assert len(whole.text) < max_tokens, "no character was split over tokens"
    rests = assert_goes_on(exact, whole, whole.all_cuts)
    assert rests[-1].num_cached_tokens is None, "the engine was asked for a generation that had ended"


def test_tokens_that_had_no_text_yet_may_be_before_the_cut_too(exact: RunningServer, uncut: dict[str, Told]) -> None:
    whole = uncut["emoji"]
    cut = next(
        cut
        for cut, (piece, (_, text)) in enumerate(zip(whole.pieces, whole.events, strict=True))
        if len(piece) > len(text) == 1
    )
    halves = [whole.pieces[cut][:num_tokens] for num_tokens in range(1, len(whole.pieces[cut]))]
    requests = [replace(whole.rest(cut), made_before=[*whole.pieces[:cut], half]) for half in halves]
    for rest in tell(exact, *requests):
        assert_same(whole, cut, rest)


def test_a_stop_string_may_straddle_the_cut_at_any_of_its_characters(
    exact: RunningServer, uncut: dict[str, Told]
) -> None:
    text, length = uncut["plain"].text, 9
    # A window of the text slides over the ends of tokens, so that each end is once at each of its characters.
    first = next(
        at for at in range(100, len(text)) if all(text.index(text[i : i + length]) == i for i in range(at, at + length))
    )
    places = range(first, first + length)
    wholes = tell(exact, *(ask("plain", stop=(text[at : at + length],)) for at in places))
    for at, whole in zip(places, wholes, strict=True):
        assert (whole.text, whole.finish_reason) == (text[:at], "stop")
        assert_goes_on(exact, whole, whole.all_cuts[-6:])


def test_a_stop_string_of_split_characters_is_found_wherever_the_cut_is(
    exact: RunningServer, uncut: dict[str, Told]
) -> None:
    text = uncut["korean"].text
    at = max(at for at in range(80) if text.index(text[at : at + 4]) == at)
    [whole] = tell(exact, ask("korean", stop=("never said", text[at : at + 4])))
    assert (whole.text, whole.finish_reason) == (text[:at], "stop")
    assert_goes_on(exact, whole, whole.all_cuts)


def test_it_had_ended_with_a_stop_string_when_it_was_cut(exact: RunningServer, uncut: dict[str, Told]) -> None:
    word = uncut["plain"].text.split()[1]
    [whole] = tell(exact, ask("plain", stop=(word[1:],)))
    assert whole.text.endswith(word[0])
    assert sum(map(len, whole.pieces)) == whole.num_output_tokens, "the stop string came without text before it"
    [rest] = assert_goes_on(exact, whole, [len(whole.pieces)])
    assert (rest.finish_reason, rest.num_cached_tokens) == ("stop", None)


def test_a_stop_string_before_min_tokens_is_text(exact: RunningServer, uncut: dict[str, Told]) -> None:
    text = uncut["plain"].text
    word = next(word for word in text[:60].split() if word in text[160:])
    [whole] = tell(exact, ask("plain", stop=(word,), min_tokens=25))
    assert word in whole.text
    assert whole.finish_reason == "stop"
    assert_goes_on(exact, whole, whole.all_cuts)


def test_a_chat_ends_where_it_would_have_ended(exact: RunningServer) -> None:
    [whole, longer] = tell(exact, chat(), chat(min_tokens=20))
    assert (whole.finish_reason, longer.finish_reason) == ("stop", "stop")
    assert whole.num_output_tokens < 20 < longer.num_output_tokens
    assert_goes_on(exact, whole, whole.all_cuts)
    assert_goes_on(exact, longer, longer.all_cuts)


def test_it_had_ended_of_itself_when_it_was_cut(exact: RunningServer) -> None:
    [whole] = tell(exact, chat())
    num_untold = whole.num_output_tokens - sum(map(len, whole.pieces))
    request = whole.rest(len(whole.pieces))
    [rest] = tell(exact, replace(request, made_before=[*request.made_before, [END_OF_TURN] * num_untold]))
    assert (rest.text, rest.finish_reason, rest.num_cached_tokens) == ("", "stop", None)
    assert rest.num_output_tokens == whole.num_output_tokens


def test_no_token_is_told_twice_where_the_engine_tells_of_several_at_once(
    exact: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = exact.engine
    assert isinstance(engine, VllmEngine)
    assert engine._llm is not None
    monkeypatch.setattr(engine._llm.output_processor, "stream_interval", 4)
    [whole] = tell(exact, ask("plain", max_tokens=30))
    assert len(whole.pieces[1]) >= 4
    assert_goes_on(exact, whole, whole.all_cuts)


def test_a_seed_goes_on_the_same_every_time(exact: RunningServer) -> None:
    [whole] = tell(exact, ask("plain", temperature=1.0, seed=7, max_tokens=40))
    cut = whole.cut_at(10)
    made = [token_id for piece in whole.pieces[:cut] for token_id in piece]
    anew = ask("plain", temperature=1.0, seed=7, max_tokens=40 - len(made))
    one, other, with_the_same_draws = tell(
        exact, whole.rest(cut), whole.rest(cut), replace(anew, prompt=[*whole.prompt_token_ids, *made])
    )
    assert one.text == other.text != with_the_same_draws.text
    assert one.num_output_tokens == 40


def test_the_prefix_cache_serves_the_return_of_a_reader_who_left(exact: RunningServer) -> None:
    prompt = "The lighthouse keeper counted the ships. " * 12
    request = GenerationRequest(prompt=prompt, sampling=GREEDY)
    part = tell_part(exact, request, 60)
    assert part.num_cached_tokens == 0
    assert part.num_prompt_tokens < BLOCK_TOKENS < part.num_prompt_tokens + 60, "or no output was cached"
    [rest] = tell(exact, part.rest(len(part.pieces)))
    assert rest.num_cached_tokens == BLOCK_TOKENS
    [whole] = tell(exact, request)
    assert part.text + rest.text == whole.text


def test_a_penalty_that_looks_at_the_output_alone_is_refused(exact: RunningServer) -> None:
    for penalty in ("presence_penalty", "frequency_penalty"):
        request = ask("plain", **{penalty: 0.5})
        with pytest.raises(StreamGone):
            tell(exact, replace(request, prompt=[1, 2], made_before=[[3]]))


def test_a_repetition_penalty_is_for_the_output_before_the_cut_too(exact: RunningServer) -> None:
    [whole] = tell(exact, ask("plain", repetition_penalty=1.3, max_tokens=60))
    assert_goes_on(exact, whole, [whole.cut_at(num_tokens) for num_tokens in (1, 7, 30)])
