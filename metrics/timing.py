"""The times of one stream, as arithmetic on time stamps of a monotonic clock, in seconds.

- **TTFT**, time to first token: request read → first event with text handed to the socket.
- **ITL**, inter-token latency: the gap between two successive token writes. An event that carries several tokens ends
  one gap, as its reader sees it.
- **TPOT**, time per output token: (last − first token write) / (tokens − 1). Defined from two tokens up. Tokens are
  counted from the engine's token ids, so an event that carries several counts as several.

The definitions are those of vLLM's own benchmark client, taken at the server's side of the socket.
"""

from dataclasses import dataclass


@dataclass(slots=True)
class StreamTiming:
    """Time stamps of one stream; `started_s` is when the request's head had been read."""

    started_s: float
    first_token_s: float | None = None
    last_token_s: float | None = None
    num_tokens: int = 0

    def on_write(self, now_s: float, num_tokens: int) -> float | None:
        """An event with text, the stream's tokens up to `num_tokens`, was handed to the socket at `now_s`.

        Returns the ITL; None for the first token.
        """
        previous_s = self.last_token_s
        self.last_token_s = now_s
        self.num_tokens = num_tokens
        if previous_s is None:
            self.first_token_s = now_s
            return None
        return now_s - previous_s

    @property
    def ttft_s(self) -> float | None:
        return None if self.first_token_s is None else self.first_token_s - self.started_s

    @property
    def tpot_s(self) -> float | None:
        if self.first_token_s is None or self.last_token_s is None or self.num_tokens < 2:
            return None
        return (self.last_token_s - self.first_token_s) / (self.num_tokens - 1)


def milliseconds(seconds: float | None) -> float | None:
    """As people and events are told of a time: to a tenth; None stays None."""
    return None if seconds is None else round(seconds * 1000, 1)
