"""An engine without a model: a deterministic source of tokens with the same borders as the real one.

For people who build a client, a dashboard or a proxy without a model (`--engine scripted`), and for tests of what a
real engine cannot be made to do on demand.
"""

import asyncio
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.errors import ContextLength, EngineDead, InvalidRequest, ModelNotFound, StreamGone
from engine.interface import AnyRequest, Delta, GenerationRequest, Terms, can_continue
from engine.scripted_serving import ScriptedServing
from engine.serving import Serving

DEFAULT_TEXT = (
    "This text comes from the scripted engine. There is no model behind it: every token is known beforehand, "
    "and each takes its time, so that a client can be built and watched. 한국어도 한 토큰씩 나옵니다 🙂. "
    "Close the stream and the counter of made tokens stands still."
)


@dataclass(frozen=True, slots=True)
class Script:
    """What the engine says and when.

    `die_after` and `hang_after` count tokens of one request: there the engine dies, or falls silent.
    """

    tokens: Sequence[str]
    ttft_s: float = 0.05
    itl_s: float = 0.02
    tokens_per_delta: int = 1
    max_model_len: int = 8192
    die_after: int | None = None
    hang_after: int | None = None


def load_tokens(path: Path) -> list[str]:
    """The tokens of a script: a JSON file holds a list of strings, one a token; any other text is cut after each word.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is neither UTF-8 text nor such a list, or holds no token.
    """
    text = path.read_text(encoding="utf-8")
    tokens = json.loads(text) if path.suffix == ".json" else split_words(text)
    if not tokens or not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        raise ValueError("a script must be a text, or a JSON list of strings, with at least one token")
    return tokens


def split_words(text: str) -> list[str]:
    """Cut before each run of white space, as most tokenizers do, so that the pieces joined are the text again."""
    return re.findall(r"\s*\S+|\s+$", text)


class ScriptedSource:
    """One request: a clock and a position in the script. Makes nothing ahead of time, so an abort stops it at once."""

    num_cached_tokens = None

    def __init__(self, script: Script, terms: Terms, engine: "ScriptedEngine") -> None:
        self._script = script
        self.terms = terms
        self._limit = min(terms.max_tokens, len(script.tokens))
        self._finish_reason = "length" if terms.max_tokens < len(script.tokens) else "stop"
        self._position = terms.num_tokens_before
        self._engine = engine
        self._aborted = False
        self._loop = asyncio.get_running_loop()
        self._due_s = self._loop.time() + script.ttft_s
        self._timer: asyncio.Handle | None = None
        self._on_output: Callable[[], None] = lambda: None
        engine.running.add(self)
        self._wait()

    @property
    def phase(self) -> str:
        return "decode" if self._position > self.terms.num_tokens_before else "prefill"

    def listen(self, on_output: Callable[[], None]) -> None:
        self._on_output = on_output

    def take(self) -> Delta | None:
        """The token that is due, with all others that have become due meanwhile."""
        if self._position == self._script.die_after and self._is_due:
            self._engine.die()
        if self._engine.is_dead():
            raise EngineDead("the engine has died")
        if self._aborted:
            return Delta("", (), "abort")
        if not self._is_due:
            return None
        count = self._take()
        token_ids = range(self._position, self._position + count)
        text = "".join(self._script.tokens[index] for index in token_ids)
        self._position += count
        self._engine.on_tokens(count)
        finished = self._position >= self._limit
        if finished:
            self._engine.running.discard(self)
        else:
            self._wait()
        return Delta(text, token_ids, self._finish_reason if finished else None)

    @property
    def _is_due(self) -> bool:
        # A timer of an event loop may fire a clock's tick early.
        return self._position != self._script.hang_after and self._loop.time() >= self._due_s - 0.001

    def _wait(self) -> None:
        """Tell the listener when the next token is due; what has not been taken then is due together later."""
        if self._position != self._script.hang_after:
            self._timer = self._loop.call_at(self._due_s, lambda: self._on_output())

    def _take(self) -> int:
        """How many tokens are due now; at least one. Moves the clock on."""
        now_s, itl_s = asyncio.get_running_loop().time(), self._script.itl_s
        late = int((now_s - self._due_s) / itl_s) if itl_s > 0 else 0
        count = max(self._script.tokens_per_delta, 1 + late)
        for stop_at in (self._script.die_after, self._script.hang_after):
            if stop_at is not None and stop_at > self._position:
                count = min(count, stop_at - self._position)
        count = min(count, max(0, self._limit - self._position))
        self._due_s = max(self._due_s, now_s - itl_s) + itl_s * count
        return count

    def take_rest(self) -> int:
        return 0

    def interrupt(self) -> None:
        """Tell the listener of what is not a token."""
        if self._timer is not None:
            self._timer.cancel()
        self._loop.call_soon(lambda: self._on_output())

    async def abort(self) -> None:
        self._aborted = True
        self._engine.running.discard(self)
        self.interrupt()


class ScriptedEngine:
    """`on_tokens` hears of every token made: the counter that shows that generation stops when the reader leaves."""

    def __init__(
        self, script: Script, model: str = "scripted", on_tokens: Callable[[int], None] = lambda count: None
    ) -> None:
        self._script = script
        self._model = model
        self._dead = False
        self.on_tokens = on_tokens
        self.running: set[ScriptedSource] = set()

    @property
    def model(self) -> str:
        return self._model

    async def start(self) -> None:
        return None

    @property
    def serving(self) -> Serving:
        return ScriptedServing(self._model, self._script.max_model_len)

    async def check(self, request: GenerationRequest) -> None:
        self._measure(request)

    async def submit(self, request: AnyRequest, request_id: str) -> ScriptedSource:
        assert isinstance(request, GenerationRequest), "only vLLM prepares requests"
        return ScriptedSource(self._script, self._measure(request), self)

    def _measure(self, request: GenerationRequest) -> Terms:
        """How long the prompt is, and how long the answer may be.

        Raises:
            EngineDead, ModelNotFound, ContextLength, InvalidRequest, StreamGone
        """
        if self._dead:
            raise EngineDead("the engine has died")
        if request.model not in (None, self._model):
            raise ModelNotFound("this server does not serve that model", param="model")
        if request.made_before and not can_continue(request.sampling):
            raise StreamGone("this stream cannot be continued")
        prompt_token_ids = _prompt_token_ids(request)
        num_prompt_tokens = len(prompt_token_ids)
        room = self._script.max_model_len - num_prompt_tokens
        if room < 1:
            raise ContextLength("the prompt leaves no room for an answer", param=request.prompt_field)
        max_tokens = request.sampling.max_tokens
        if max_tokens is not None and max_tokens < 1:
            raise InvalidRequest("max_tokens must be at least 1", param="max_tokens")
        return Terms(
            num_prompt_tokens,
            prompt_token_ids,
            max_tokens=min(room, max_tokens or room),
            num_tokens_before=sum(map(len, request.made_before)),
            can_continue=can_continue(request.sampling),
        )

    def die(self) -> None:
        """Stop working for good, as an engine does whose process was killed; every running request hears of it."""
        self._dead = True
        for source in self.running:
            source.interrupt()

    def is_dead(self) -> bool:
        return self._dead

    async def stop(self) -> None:
        for source in list(self.running):
            await source.abort()


def _prompt_token_ids(request: GenerationRequest) -> Sequence[int]:
    """One token a word; a list of ids is taken as it is."""
    if request.messages is not None:
        texts = [str(message.get("content", "")) for message in request.messages]
        return range(sum(len(text.split()) for text in texts))
    prompt = request.prompt
    return range(len(prompt.split())) if isinstance(prompt, str) else prompt or ()
