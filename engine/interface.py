"""What crosses the border between an engine and the rest: requests in, deltas out.

Two engines exist behind it: `VllmEngine`, and `ScriptedEngine` for people and tests without a model.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Protocol

from engine.serving import Serving

JsonObject = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to choose tokens. `None` leaves a value to the model's generation config, as `vllm serve` does."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None


def can_continue(sampling: Sampling) -> bool:
    """Whether a generation that was cut can go on as if it had not been, by what its caller asked for.

    The engine has the output so far as a part of the prompt then. Presence and frequency penalties look at the output
    alone, and would no longer hold for it. The others do not tell the two apart (a repetition penalty is for the tokens
    of both), or are counted on: `max_tokens`, `min_tokens`, and `stop`, which looks at all text from the beginning.
    With a `seed` the rest is the same every time for the same cut; whether it is also the same as without the cut is up
    to the engine.

    What an engine makes of absent values and of the prompt may forbid it, too: see `Terms.can_continue`.
    """
    return not sampling.presence_penalty and not sampling.frequency_penalty


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One prompt to continue. Exactly one of `prompt` and `messages` is set.

    `prompt` is text or token ids, continued as it is; `messages` go through the model's chat template.
    `made_before` is output of an earlier generation that this one goes on after, in the pieces in which its reader was
    told of it: the token ids of one event are one piece. The prompt is the earlier one's then, as token ids, `sampling`
    is the earlier one's with the `max_tokens` of its `Terms`, and `is_chat` says whether the prompt was made of
    messages.
    `prompt_field` is what the caller named that field, for errors; `num_bytes` is how large the whole request was when
    it came, by which an engine tells what it must not prepare on the event loop. `trace_headers` are W3C's, by which a
    trace goes on in the engine.
    """

    prompt: str | Sequence[int] | None = None
    messages: Sequence[JsonObject] | None = None
    prompt_field: str = "prompt"
    model: str | None = None
    priority: int | None = None
    sampling: Sampling = field(default_factory=Sampling)
    num_bytes: int = 0
    trace_headers: Mapping[str, str] = field(default_factory=dict)
    made_before: Sequence[Sequence[int]] = ()
    is_chat: bool = False


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A request that the engine's own serving layer has validated, templated and tokenised. Opaque to everyone else.

    With `needs_raw` each delta has the engine's own output, else the first and the last.
    """

    prompt: Any
    params: Any
    options: Mapping[str, Any]
    needs_raw: bool = True


AnyRequest = GenerationRequest | PreparedRequest


@dataclass(frozen=True, slots=True)
class Terms:
    """What a request came to when the engine took it.

    Of one that goes on after earlier output they are the earlier one's, but for `num_tokens_before`: how long that
    output is. `max_tokens` is what was asked for, or what the context leaves. `can_continue` is whether another request
    can go on after this one, with its prompt's token ids, the output's and the same sampling.
    """

    num_prompt_tokens: int = 0
    prompt_token_ids: Sequence[int] = ()
    max_tokens: int = 0
    num_tokens_before: int = 0
    can_continue: bool = False


@dataclass(slots=True)  # not frozen: that triples what making one costs, and one is made for every token
class Delta:
    """What one output of the engine adds: new text, and the ids of the tokens that were made for it.

    The two need not match one to one: text that may become a stop string or is half a character comes with a later
    token. `reasoning` is text that a reasoning model thinks before it answers. `finish_reason` is set on the last delta
    only. `raw` is the engine's own output, for its serving layer; there, of several choices all may be in one delta. It
    is on the first and the last delta at least, and on all that say more than text and ids.
    """

    text: str
    token_ids: Sequence[int]
    finish_reason: str | None = None
    reasoning: str = ""
    raw: Any = None


class TokenSource(Protocol):
    """One request inside an engine."""

    @property
    def terms(self) -> Terms: ...

    @property
    def num_cached_tokens(self) -> int | None:
        """How much of the prompt, in tokens, the engine still had; None until its first output, or when unknown."""
        ...

    @property
    def phase(self) -> str:
        """What the engine does: `queued`, `prefill` or `decode`."""
        ...

    def listen(self, on_output: Callable[[], None]) -> None:
        """Call `on_output` whenever there may be something to `take`: once an engine step, on the event loop, and after
        `abort` or a failure. It must neither block nor raise."""
        ...

    def take(self) -> Delta | None:
        """Everything made since the last call, in one delta; None when there is nothing yet.

        Raises:
            TailraceError: the engine cannot go on with this request; what it had made was taken before.
        """
        ...

    def take_rest(self) -> int:
        """Drop the output that nobody has taken; how many tokens it was."""
        ...

    async def abort(self) -> None:
        """Remove the request from the engine, wherever it is there. Must not raise when it has already left."""
        ...


class Work(Protocol):
    """What one answer has running in the engine: a `Generation`, or a `Call`. Leaving its `async with` ends it."""

    @property
    def model(self) -> str: ...

    @property
    def num_prompt_tokens(self) -> int: ...

    @property
    def num_tokens_before(self) -> int:
        """How many of the output tokens an earlier generation made, after which this one goes on."""
        ...

    @property
    def num_output_tokens(self) -> int:
        """Of the whole answer, those made before included."""
        ...

    @property
    def num_untaken_tokens(self) -> int:
        """Tokens that were made and that nobody will take; known once the work has ended."""
        ...

    @property
    def phase(self) -> str:
        """`queued`, `prefill` or `decode`."""
        ...

    async def abort(self) -> None:
        """Stop the engine's work on it at once."""
        ...

    async def __aenter__(self) -> object: ...

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None: ...


class Engine(Protocol):
    """Something that continues prompts."""

    @property
    def model(self) -> str:
        """The served name of the model."""
        ...

    async def start(self) -> None:
        """Load the model. Runs beside the event loop's other work, takes as long as it takes, raises when it fails."""
        ...

    @property
    def serving(self) -> Serving:
        """The OpenAI and Anthropic surfaces. Asked for after `start` only."""
        ...

    async def check(self, request: GenerationRequest) -> None:
        """Validate, tokenise and check the length, as `submit` does, and start nothing.

        Raises:
            InvalidRequest, ContextLength, ModelNotFound, EngineDead
        """
        ...

    async def submit(self, request: AnyRequest, request_id: str) -> TokenSource:
        """Validate, tokenise, check the length and hand the request to the engine; does not wait for a token.

        Raises:
            InvalidRequest, ContextLength, ModelNotFound, Overloaded, EngineDead: nothing was started.
            StreamGone: nor can this request go on after `made_before` as if it had not been cut.
        """
        ...

    def is_dead(self) -> bool:
        """Whether the engine has stopped working without being told to."""
        ...

    async def stop(self) -> None:
        """End the engine and its processes, also while `start` still runs. Never raises; a second call does nothing."""
        ...
