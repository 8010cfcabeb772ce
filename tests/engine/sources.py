"""Reading a bare source, as a generation does."""

import asyncio

from engine.interface import Delta, TokenSource


async def next_of(source: TokenSource) -> Delta:
    """The next delta, waited for."""
    woken = asyncio.Event()
    source.listen(woken.set)
    while (delta := source.take()) is None:
        await woken.wait()
        woken.clear()
    return delta
