"""One answer's share of the metrics: what is recorded on every token, and what is summed up when it has ended."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from engine.interface import Work
from metrics.instruments import Instruments
from metrics.timing import StreamTiming
from routes.connection import Connection
from routes.request_record import RequestRecord


class Meter:
    """Looks its label values up once, so that a token costs about a microsecond (`bench/token_recording.py`)."""

    def __init__(self, instruments: Instruments, route: str, work: Work, timing: StreamTiming) -> None:
        labels = (route, work.model)
        self._instruments = instruments
        self._work = work
        self._timing = timing
        self._itl = instruments.itl.labels(*labels)
        self._output_tokens = instruments.output_tokens.labels(*labels)
        self._in_flight = instruments.in_flight.labels(route)
        self._prompt_tokens = instruments.prompt_tokens.labels(*labels)
        self._num_before = work.num_tokens_before
        self._num_delivered = self._num_before
        # A prompt that comes again with what was made of it was accepted before.
        self._num_accepted = work.num_prompt_tokens if self._num_before else 0
        self._accept()

    def _accept(self) -> None:
        """Count prompt tokens that became known: of a stream at once, of a whole answer when it is there."""
        num_tokens = self._work.num_prompt_tokens
        self._prompt_tokens.inc(num_tokens - self._num_accepted)
        self._num_accepted = num_tokens

    @contextmanager
    def open(self) -> Iterator[None]:
        self._in_flight.inc()
        try:
            yield
        finally:
            self._in_flight.dec()

    def on_token_written(self, now_s: float, num_tokens: int) -> None:
        """An event with text went out; the stream has had `num_tokens` with it."""
        if (gap_s := self._timing.on_write(now_s, num_tokens - self._num_before)) is not None:
            self._itl.observe(gap_s)
        self._output_tokens.value += num_tokens - self._num_delivered
        self._num_delivered = num_tokens

    def on_all_delivered(self) -> None:
        """The reader has the last event, and so knows of tokens that had no text, too."""
        num_tokens = self._work.num_output_tokens
        self._output_tokens.value += num_tokens - self._num_delivered
        self._num_delivered = num_tokens

    async def on_reader_gone(self, connection: Connection, record: RequestRecord) -> None:
        """Abort at once, and say how long that took, and what the request was doing."""
        phase = self._work.phase
        visible_s = time.perf_counter()
        if connection.lost_s is not None:
            visible_s = connection.lost_s
        await self._work.abort()
        self._instruments.abort.observe(time.perf_counter() - visible_s)
        if record.outcome == "disconnected":
            self._instruments.disconnects.labels(phase).inc()

    def close(self, record: RequestRecord) -> None:
        """After the work was left: what of it was in vain, and the times for the record."""
        work = self._work
        self._accept()
        num_made = work.num_output_tokens + work.num_untaken_tokens
        if num_made > self._num_delivered:
            self._instruments.discarded.labels(record.outcome).inc(num_made - self._num_delivered)
        record.num_prompt_tokens = work.num_prompt_tokens
        record.num_output_tokens = self._num_delivered
        record.ttft_s, record.tpot_s = self._timing.ttft_s, self._timing.tpot_s
