"""What the journal's tests write, and who writes it."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from engine.interface import GenerationRequest, Sampling
from engine.journal import Ending, Entry, Journal, Loss, Opening, Passage

OPENING = Opening(
    model="m",
    prompt_token_ids=[1, 2, 300_000],
    is_chat=True,
    sampling=Sampling(max_tokens=9, temperature=0.0, stop=("\n", "끝"), seed=-1),
    priority=None,
    created_s=1_790_000_000,
    holder="",
    can_continue=True,
)
ENDING = Ending("stop", 3, 41.25, None)
REQUEST = GenerationRequest(
    messages=[{"role": "user", "content": "안녕 🙂\n"}],
    sampling=Sampling(stop=("a", "b"), top_p=0.5),
    num_bytes=10,
    trace_headers={"traceparent": "00-1-2-01"},
    priority=-3,
)


def passage(num_tokens: int, text: str = "a") -> Passage:
    return Passage(num_tokens, text, "", [num_tokens])


@dataclass
class Owner:
    """Somebody who runs a stream, with all that the journal has told them, in order: numbers of tokens, and losses."""

    heard: list[object] = field(default_factory=list)
    entry: Entry = field(init=False)

    def open(self, journal: Journal, id: str, **fields: Any) -> "Owner":
        self.entry = journal.open(id, replace(OPENING, **fields), self.heard.append)
        return self

    async def claim(self, journal: Journal, id: str) -> "Owner":
        """Of a stream that is known: None is that somebody else was later."""
        claimed = await journal.claim(id, self.heard.append)
        if claimed is None:
            self.heard.append(Loss.TAKEN)
        else:
            _, self.entry = claimed
        return self

    def write(self, num_tokens: int, text: str = "a") -> None:
        self.entry.write(passage(num_tokens, text), lambda: self.heard.append(num_tokens))

    def end(self) -> None:
        self.entry.end(ENDING, lambda: self.heard.append("end"))

    @property
    def loss(self) -> Loss | None:
        return next((heard for heard in self.heard if isinstance(heard, Loss)), None)


async def until(condition: Callable[[], object], timeout_s: float = 5.0) -> None:
    """Let the event loop run until `condition` holds."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110  # it is any condition
            await asyncio.sleep(0.002)


async def texts(journal: Journal, id: str) -> list[str] | None:
    """What is known of the stream."""
    record = await journal.find(id)
    return None if record is None else [passage.text for passage in record.passages]
