"""Generations that are cut and go on, compared with the same ones uncut."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from engine.interface import GenerationRequest
from tests.server import RunningServer


@dataclass(frozen=True)
class Told:
    """What the reader of one generation was told: the events, and the token ids of each."""

    request: GenerationRequest
    prompt_token_ids: Sequence[int]
    max_tokens: int
    events: Sequence[tuple[str, str]]  # what a reasoning model thought, and text
    pieces: Sequence[Sequence[int]]
    finish_reason: str | None
    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int | None

    @property
    def text(self) -> str:
        return joined(self.events)[1]

    @property
    def all_cuts(self) -> range:
        """After how many events it can be cut."""
        return range(len(self.pieces) + 1)

    def cut_at(self, num_tokens: int) -> int:
        """After how many events the reader had been told of `num_tokens` or more."""
        return next(cut for cut in self.all_cuts if sum(map(len, self.pieces[:cut])) >= num_tokens)

    def rest(self, cut: int) -> GenerationRequest:
        """The request that goes on after the first `cut` events."""
        return replace(
            self.request,
            prompt=self.prompt_token_ids,
            messages=None,
            is_chat=self.request.messages is not None,
            sampling=replace(self.request.sampling, max_tokens=self.max_tokens),
            made_before=self.pieces[:cut],
        )


def tell(server: RunningServer, *requests: GenerationRequest) -> list[Told]:
    """Run all of `requests` at once, each to its end."""

    async def run() -> list[Told]:
        return await asyncio.gather(*(_tell(server, request) for request in requests))

    return server.run(run())


def tell_part(server: RunningServer, request: GenerationRequest, num_tokens: int) -> Told:
    """Leave when the reader was told of `num_tokens` or more."""
    return server.run(_tell(server, request, num_tokens))


async def _tell(server: RunningServer, request: GenerationRequest, num_tokens: int | None = None) -> Told:
    events: list[tuple[str, str]] = []
    pieces: list[list[int]] = []
    untold: list[int] = []
    async with await server.supervisor.admit(request) as generation:
        num_before = generation.num_tokens_before
        assert generation.num_output_tokens == num_before == sum(map(len, request.made_before))
        async for delta in generation:
            untold += delta.token_ids
            if delta.text or delta.reasoning:
                events.append((delta.reasoning, delta.text))
                pieces.append(untold)
                untold = []
                if num_tokens is not None and generation.num_output_tokens >= num_tokens:
                    break
    assert generation.num_output_tokens == num_before + sum(map(len, pieces)) + len(untold)
    return Told(
        request,
        list(generation.prompt_token_ids),
        generation.max_tokens,
        events,
        pieces,
        generation.finish_reason,
        generation.num_prompt_tokens,
        generation.num_output_tokens,
        generation.num_cached_tokens,
    )


def joined(events: Sequence[tuple[str, str]]) -> tuple[str, str]:
    return "".join(reasoning for reasoning, _ in events), "".join(text for _, text in events)


def assert_goes_on(server: RunningServer, whole: Told, cuts: Sequence[int]) -> list[Told]:
    """After each of `cuts`, the rest makes it `whole` again; the rests."""
    rests = tell(server, *(whole.rest(cut) for cut in cuts))
    for cut, rest in zip(cuts, rests, strict=True):
        assert_same(whole, cut, rest)
    return rests


def assert_same(whole: Told, cut: int, rest: Told) -> None:
    where = f"cut after {cut} of {len(whole.pieces)} events"
    assert joined([*whole.events[:cut], *rest.events]) == joined(whole.events), where
    assert (rest.finish_reason, rest.num_output_tokens) == (whole.finish_reason, whole.num_output_tokens), where
    assert (rest.num_prompt_tokens, rest.max_tokens) == (whole.num_prompt_tokens, whole.max_tokens), where
    assert rest.prompt_token_ids == whole.prompt_token_ids, where
