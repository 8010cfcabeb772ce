"""Ollama's addresses: its requests become chats and completions of the same engine, its answers are lines of JSON."""

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from engine.call import Call
from engine.errors import InvalidRequest, ModelNotFound, TailraceError
from engine.interface import Delta
from engine.serving import CommonStream, ModelCard, Plain
from engine.supervisor import Supervisor
from routes import ollama_words as words
from routes.delivery import Delivery
from routes.errors import SSE_HEADERS
from routes.event_stream import DeltaStream, stream_head
from routes.ollama_words import Lines, Wanted
from routes.plain_answer import PlainAnswer
from routes.request_record import record_of
from routes.surfaces import head_of, read_json

NDJSON = "application/x-ndjson"

Read = Callable[[Mapping[str, Any], ModelCard], Wanted]


@dataclass(frozen=True, slots=True)
class OllamaRoutes:
    supervisor: Supervisor
    delivery: Delivery
    started_at: str = field(default_factory=words.now)

    async def chat(self, request: Request) -> Response:
        return await self._generate(request, words.chat_request)

    async def generate(self, request: Request) -> Response:
        return await self._generate(request, words.generate_request)

    async def _generate(self, request: Request, read: Read) -> Response:
        fields, num_bytes = await read_json(request, self.delivery)
        wanted = read(fields, self._card(fields))
        lines = Lines(str(fields.get("model") or fields.get("name")), wanted.is_chat)
        if wanted.body is None:
            return _json(lines.whole(wanted.load_word, {}))
        call = self.supervisor.call(head_of(request), num_bytes, wants_deltas=True)
        clock = Clock(record_of(request.scope).started_s)
        if wanted.streams:
            async with contextlib.AsyncExitStack() as leaving:
                await leaving.enter_async_context(call)
                stream = await self._open(wanted, call)
                leaving.pop_all()
            return LineStream(stream, lines, clock, self.delivery)

        async def whole() -> Response:
            return await _whole(await self._open(wanted, call), lines, clock)

        return PlainAnswer(call, whole, self.delivery)

    async def _open(self, wanted: Wanted, call: Call) -> CommonStream:
        assert wanted.body is not None
        answer = await self.supervisor.serving.open(wanted.surface, wanted.body, call)
        if isinstance(answer, Plain):
            error = answer.content["error"]
            row = ModelNotFound if answer.status == 404 else InvalidRequest
            raise row(words.in_ollamas_words(str(error["message"])), param=error.get("param"))
        assert isinstance(answer, CommonStream), "a call that wants deltas gets them"
        return answer

    def _card(self, fields: Mapping[str, Any]) -> ModelCard:
        """The model that a request names.

        Raises:
            InvalidRequest, ModelNotFound
        """
        cards = {card.name: card for card in self.supervisor.serving.cards()}
        name = words.name_of(fields, list(cards))
        if name not in cards:
            raise ModelNotFound(f"model '{words.shown_name(name)}' not found", param="model")
        return cards[name]

    async def tags(self, request: Request) -> Response:
        cards = self.supervisor.serving.cards()
        return _json({"models": [words.listed(card, self.started_at) for card in cards]})

    async def ps(self, request: Request) -> Response:
        cards = self.supervisor.serving.cards()
        return _json({"models": [words.running(card, self.started_at) for card in cards]})

    async def show(self, request: Request) -> Response:
        fields, _ = await read_json(request, self.delivery)
        return _json(words.shown(self._card(fields), self.started_at))

    async def version(self, request: Request) -> Response:
        return _json({"version": words.VERSION})


def _json(content: object) -> Response:
    return Response(orjson.dumps(content), media_type="application/json")


class Clock:
    """Ollama tells of durations in ns: all of it, the prompt's part, and that of the tokens."""

    def __init__(self, started_s: float) -> None:
        self._started_s = started_s
        self._first_s: float | None = None

    def on_delta(self) -> None:
        if self._first_s is None:
            self._first_s = time.perf_counter()

    def counts(self, num_prompt_tokens: int, num_output_tokens: int) -> dict[str, int]:
        now_s = time.perf_counter()
        first_s = now_s if self._first_s is None else self._first_s
        return {
            "total_duration": _ns(now_s - self._started_s),
            "load_duration": 0,
            "prompt_eval_count": num_prompt_tokens,
            "prompt_eval_duration": _ns(first_s - self._started_s),
            "eval_count": num_output_tokens,
            "eval_duration": _ns(now_s - first_s),
        }


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)


async def _whole(stream: CommonStream, lines: Lines, clock: Clock) -> Response:
    """The same as the lines of a stream, in one object."""
    content = thinking = ""
    async for delta in stream.generation:
        clock.on_delta()
        choices = stream.read(delta)
        for choice in choices:
            lines.collect(choice.message.get("tool_calls") or ())
        said, thought = words.said_in(choices)
        content, thinking = content + said, thinking + thought
    generation = stream.generation
    counts = clock.counts(generation.num_prompt_tokens, generation.num_output_tokens)
    reason = words.done_reason(generation.finish_reason)
    return _json(lines.whole(reason, counts, content, thinking))


class LineStream(DeltaStream):
    """One object a line."""

    head = stream_head({**SSE_HEADERS, "Content-Type": NDJSON})

    # White space before an object is part of its line, and means nothing. An empty line would be no object.
    keep_alive = b" "

    def __init__(self, stream: CommonStream, lines: Lines, clock: Clock, delivery: Delivery) -> None:
        super().__init__(stream.generation, delivery)
        self._stream = stream
        self._lines = lines
        self._clock = clock

    def _encode(self, delta: Delta) -> tuple[bytes, bool]:
        self._clock.on_delta()
        line = self._lines.delta(self._stream.read(delta))
        return line, bool(line)

    def _finish(self, finish_reason: str) -> None:
        generation = self.generation
        counts = self._clock.counts(generation.num_prompt_tokens, generation.num_output_tokens)
        self._write(self._lines.done(words.done_reason(finish_reason), counts))
        self._on_finished()

    def _error_block(self, error: TailraceError) -> bytes:
        return words.error_line(error.message)
