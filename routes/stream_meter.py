"""One stream's share of the metrics: what is recorded on every token, and what is summed up when it has ended."""

from collections.abc import Iterator
from contextlib import contextmanager

from engine.generation import Generation
from metrics.instruments import Instruments
from metrics.timing import StreamTiming
from routes.request_record import RequestRecord


class StreamMeter:
    """Looks its label values up once, so that a token costs about a microsecond (`bench/token_recording.py`)."""

    def __init__(self, instruments: Instruments, route: str, generation: Generation, timing: StreamTiming) -> None:
        labels = (route, generation.model)
        self._instruments = instruments
        self._generation = generation
        self._timing = timing
        self._itl = instruments.itl.labels(*labels)
        self._output_tokens = instruments.output_tokens.labels(*labels)
        self._in_flight = instruments.in_flight.labels(route)
        self._num_delivered = 0
        instruments.prompt_tokens.labels(*labels).inc(generation.num_prompt_tokens)

    @contextmanager
    def open(self) -> Iterator[None]:
        self._in_flight.inc()
        try:
            yield
        finally:
            self._in_flight.dec()

    def on_token_written(self, now_s: float, num_tokens: int) -> None:
        """An event with text went out; the stream has had `num_tokens` with it."""
        if (gap_s := self._timing.on_write(now_s, num_tokens)) is not None:
            self._itl.observe(gap_s)
        self._deliver(num_tokens)

    def on_all_delivered(self) -> None:
        """The reader has the last event, and so knows of tokens that had no text, too."""
        self._deliver(self._generation.num_output_tokens)

    def _deliver(self, num_tokens: int) -> None:
        self._output_tokens.inc(num_tokens - self._num_delivered)
        self._num_delivered = num_tokens

    def close(self, record: RequestRecord) -> None:
        """After the generation was left: what of it was in vain, and the times for the record."""
        generation = self._generation
        num_made = generation.num_output_tokens + generation.num_untaken_tokens
        if num_made > self._num_delivered:
            self._instruments.discarded.labels(record.outcome).inc(num_made - self._num_delivered)
        record.num_prompt_tokens = generation.num_prompt_tokens
        record.num_output_tokens = self._num_delivered
        record.ttft_s, record.tpot_s = self._timing.ttft_s, self._timing.tpot_s
