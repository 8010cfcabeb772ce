"""Which process, and which of its answers, a stream belongs to: the last that asked for it.

A reader that comes back takes its stream over, wherever it ran and however alive its old connection looks.
"""

import asyncio

from engine.errors import StreamGone
from engine.generation import Generation
from engine.journal import Loss


class Ownership:
    """One answer's hold on a stream: when the journal says that it is lost, the generation ends at once."""

    def __init__(self) -> None:
        self._generation: Generation | None = None
        self._loss: Loss | None = None
        self._ending: asyncio.Future[None] | None = None

    @property
    def is_lost(self) -> bool:
        return self._loss is not None

    def bind(self, generation: Generation) -> None:
        """What runs for the stream from now on; the hold may have been lost before there was anything."""
        self._generation = generation
        if self._loss is not None:
            self._end()

    def lose(self, loss: Loss) -> None:
        """What the journal calls, once."""
        self._loss = loss
        if self._generation is not None:
            self._end()

    def _end(self) -> None:
        assert self._generation is not None
        if self._loss is Loss.CANCELLED:
            ending = self._generation.cancel()
        else:
            ending = self._generation.abort(taken_over())
        self._ending = asyncio.ensure_future(ending)


def taken_over() -> StreamGone:
    return StreamGone("another reader has taken this stream over")
