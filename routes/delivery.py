"""How answers reach their readers, whatever they say: what is the same for every route that generates."""

from dataclasses import dataclass

from metrics.instruments import Instruments
from routes.pace import Pace


@dataclass(frozen=True, slots=True)
class Delivery:
    """Times in seconds. 0 turns the keep-alive off, and lets a reader stall for ever."""

    instruments: Instruments
    keep_alive_s: float
    stall_timeout_s: float
    max_body_bytes: int
    pace: Pace
