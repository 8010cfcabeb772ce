"""Deltas to the bytes of OpenAI's streams, without I/O: the chunks of chats and of completions.

A chunk says what `vllm serve` says in its place, with the same keys, null ones included. What does not change within a
stream is encoded once.
"""

import orjson

from engine.errors import TailraceError
from engine.serving import ChoiceDelta, CommonStream

DONE = b"data: [DONE]\n\n"


class ChunkEncoder:
    """The chunks of one stream."""

    def __init__(self, stream: CommonStream) -> None:
        self._is_chat = stream.role is not None
        kind = "chat.completion.chunk" if self._is_chat else "text_completion"
        head = {"id": stream.id, "object": kind, "created": stream.created_s, "model": stream.model}
        self._prefix = b"data: " + orjson.dumps(head)[:-1] + b',"choices":[{"index":'
        self._fingerprint = stream.fingerprint
        self._num_choices = stream.num_choices if self._is_chat else 0
        self._role = stream.role

    def opening(self) -> bytes:
        """A chat opens each of its choices with a role; a completion opens nothing."""
        if not self._num_choices:
            return b""
        delta = orjson.dumps({"role": self._role, "content": ""})
        tail = (
            b',"delta":%b,"logprobs":null,"finish_reason":null}],"prompt_token_ids":null,"prompt_text":null}\n\n'
            % delta
        )
        return b"".join(self._prefix + b"%d" % index + tail for index in range(self._num_choices))

    def chunk(self, choice: ChoiceDelta) -> bytes:
        """The chunk that tells of `choice`."""
        if choice.finish_reason is not None:
            return self._last(choice)
        if self._is_chat:
            return (
                b'%b%d,"delta":%b,"logprobs":null,"finish_reason":null,"token_ids":null}]}\n\n'
                % (self._prefix, choice.index, orjson.dumps(choice.message))
            )  # fmt: skip
        return (
            b'%b%d,"text":%b,"logprobs":null,"finish_reason":null,"stop_reason":null,"prompt_token_ids":null,'
            b'"token_ids":null}]}\n\n' % (self._prefix, choice.index, orjson.dumps(choice.message["content"]))
        )  # fmt: skip

    def _last(self, choice: ChoiceDelta) -> bytes:
        fields: dict[str, object]
        if self._is_chat:
            fields = {"delta": choice.message}
        else:
            fields = {"text": choice.message["content"], "prompt_token_ids": None}
        fields |= {
            "logprobs": None,
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
            "token_ids": None,
        }
        end = b"}]}\n\n"
        if self._fingerprint is not None:
            end = b'}],"system_fingerprint":%b}\n\n' % orjson.dumps(self._fingerprint)
        return self._prefix + b"%d," % choice.index + orjson.dumps(fields)[1:-1] + end


def has_text(choice: ChoiceDelta) -> bool:
    """Whether a chunk tells its reader anything: a role, or an end alone, is no token."""
    return any(choice.message.values())


def error_block(error: TailraceError) -> bytes:
    """How a stream of OpenAI's ends that cannot be finished; nothing comes after it."""
    return b"data: %b\n\n" % orjson.dumps({"error": openai_error(error)})


def openai_error(error: TailraceError) -> dict[str, object]:
    return {"message": error.message, "type": error.code, "param": error.param, "code": error.status}
