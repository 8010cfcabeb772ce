"""What is remembered of streams, so that a cut one is continued, on this pod or another, and never generated twice.

One small interface, `Journal`, and two implementations: `MemoryJournal` for one process, and
`engine.journal.redis_journal.RedisJournal` for many, which imports the client and so is not imported here.
"""

from engine.journal.memory import MemoryJournal
from engine.journal.records import (
    EXPIRES_IN_S,
    Ending,
    Entry,
    Journal,
    Loss,
    Opening,
    Passage,
    StreamRecord,
)

__all__ = [
    "EXPIRES_IN_S",
    "Ending",
    "Entry",
    "Journal",
    "Loss",
    "MemoryJournal",
    "Opening",
    "Passage",
    "StreamRecord",
]
