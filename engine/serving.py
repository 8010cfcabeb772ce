"""The surfaces of other people's APIs, as an engine answers them: bodies in, whole answers or streams out.

The words of those APIs are JSON and Server-Sent Events, but nothing here knows a connection.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from engine.call import Call
    from engine.generation import Generation
    from engine.interface import Delta

Json = Mapping[str, Any]


class Surface(StrEnum):
    CHAT = "chat"
    COMPLETIONS = "completions"
    RESPONSES = "responses"
    MESSAGES = "messages"
    COUNT_TOKENS = "count_tokens"
    TOKENIZE = "tokenize"
    DETOKENIZE = "detokenize"


@dataclass(frozen=True, slots=True)
class Plain:
    """A whole answer, or a refusal in the surface's own words: a status and a JSON body."""

    status: int
    content: Json


@dataclass(frozen=True, slots=True)
class RawEvents:
    """A stream of whole SSE blocks, as the engine's own serving layer writes them."""

    blocks: AsyncIterator[str]


@dataclass(slots=True)  # as `Delta`: one is made for every token
class ChoiceDelta:
    """What one chunk says of one choice; `message` has OpenAI's words for it: `content`, `reasoning`, `tool_calls`."""

    index: int
    message: Json
    finish_reason: str | None = None
    stop_reason: int | str | None = None


@dataclass(frozen=True, slots=True)
class CommonStream:
    """A streamed chat or completion that asked for nothing out of the ordinary; its chunks are encoded by whoever sends
    them.

    `role` opens each choice of a chat and is None for completions. `read` says what a delta of `generation` means;
    `last_chunk` is the one with the usage, when that was asked for. `fingerprint` goes on each choice's last chunk.
    """

    id: str
    model: str
    created_s: int
    role: str | None
    num_choices: int
    generation: "Generation"
    read: Callable[["Delta"], Sequence[ChoiceDelta]]
    last_chunk: Callable[[], Json | None]
    fingerprint: str | None = None


Answer = Plain | RawEvents | CommonStream


@dataclass(frozen=True, slots=True)
class ModelCard:
    """What is known of a model that is served; a LoRA adapter has a `parent`."""

    name: str
    family: str
    dtype: str
    max_model_len: int
    num_bytes: int = 0
    parent: str | None = None
    thinks: bool = False
    calls_tools: bool = False


class Serving(Protocol):
    """What an engine can say on other people's surfaces."""

    async def open(self, surface: Surface, body: Json, call: "Call") -> Answer:
        """Validate, tokenise and check the length. What is streamed is in the engine when this returns; what is not is
        finished.

        Raises:
            TailraceError: refused, or failed; `call` has to be left all the same.

        Cancelling it is safe once `call` is left.
        """
        ...

    async def list_models(self) -> Json:
        """The body of `/v1/models`."""
        ...

    def cards(self) -> Sequence[ModelCard]:
        """Every model that is served, the base model first."""
        ...
