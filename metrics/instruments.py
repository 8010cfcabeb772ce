"""Every instrument of Tailrace, in one flat table; `docs/metrics.md` lists the same rows, and a test compares them.

Names do not start with `vllm:`, because vLLM unregisters those. Labels never hold text from a client: `route` is a
route's template, `model` a served name, and the others are words of this code.
"""

from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from metrics.token_counter import TokenCounter
from metrics.token_histogram import TokenHistogram

# Supersets of the boundaries that OpenTelemetry's semantic conventions for generative AI give for these two.
TTFT_BUCKETS_S = (.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)  # fmt: skip
TPOT_BUCKETS_S = (
    .001, .0025, .005, .01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10
)  # fmt: skip

# From a refusal to the longest of answers.
DURATION_BUCKETS_S = (.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320)  # fmt: skip

# An abort is a call in this process and a message to the engine: microseconds, unless the event loop is late.
ABORT_BUCKETS_S = (.00005, .0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1)  # fmt: skip
LAG_BUCKETS_S = (.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5)  # fmt: skip

STATES = ("starting", "ready", "draining", "stopped", "dead")


@dataclass(frozen=True, slots=True)
class Instrument:
    name: str
    type: str
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


ROUTE_MODEL = ("route", "model")

TTFT = Instrument(
    "tailrace_time_to_first_token_seconds", "histogram",
    "Request read to first event with text handed to the socket.", ROUTE_MODEL, TTFT_BUCKETS_S,
)  # fmt: skip
TPOT = Instrument(
    "tailrace_time_per_output_token_seconds", "histogram",
    "Time between the first and the last token write, by tokens less one; once a request.", ROUTE_MODEL, TPOT_BUCKETS_S,
)  # fmt: skip
ITL = Instrument(
    "tailrace_inter_token_latency_seconds", "histogram",
    "Gap between successive token writes.", ROUTE_MODEL, TPOT_BUCKETS_S,
)  # fmt: skip
DURATION = Instrument(
    "tailrace_request_duration_seconds", "histogram", "Request read to last byte.", ROUTE_MODEL, DURATION_BUCKETS_S
)
REQUESTS = Instrument(
    "tailrace_requests_total", "counter", "Requests by how they ended, each once.", (*ROUTE_MODEL, "outcome")
)
IN_FLIGHT = Instrument("tailrace_streams_in_flight", "gauge", "Open responses.", ("route",))
OUTPUT_TOKENS = Instrument("tailrace_output_tokens_total", "counter", "Output tokens delivered.", ROUTE_MODEL)
PROMPT_TOKENS = Instrument("tailrace_prompt_tokens_total", "counter", "Prompt tokens accepted.", ROUTE_MODEL)
DISCARDED = Instrument(
    "tailrace_discarded_tokens_total", "counter", "Tokens the engine made and no client received.", ("reason",)
)
DISCONNECTS = Instrument(
    "tailrace_disconnects_total", "counter", "Readers that left, by what their request was doing.", ("phase",)
)
ABORT = Instrument(
    "tailrace_abort_seconds", "histogram", "Close visible to abort acknowledged.", buckets=ABORT_BUCKETS_S
)
RESUMES = Instrument(
    "tailrace_resumes_total", "counter", "Readers that came back, by what they got.", ("outcome",)
)  # fmt: skip
JOURNAL_AVAILABLE = Instrument(
    "tailrace_journal_available", "gauge", "1 while the journal takes what is written into it."
)
UNRESUMABLE = Instrument(
    "tailrace_unresumable_streams_total", "counter", "Streams in flight that the journal lost; they cannot be resumed."
)
LOOP_LAG = Instrument(
    "tailrace_event_loop_lag_seconds", "histogram", "How late a 100 ms timer fires.", buckets=LAG_BUCKETS_S
)
STATE = Instrument("tailrace_state", "gauge", "1 for the state that the process is in.", ("state",))
SCRIPTED_TOKENS = Instrument("tailrace_scripted_tokens_total", "counter", "Tokens made by the scripted engine.")

TABLE = (
    TTFT, TPOT, ITL, DURATION, REQUESTS, IN_FLIGHT, OUTPUT_TOKENS, PROMPT_TOKENS, DISCARDED, DISCONNECTS, ABORT,
    RESUMES, JOURNAL_AVAILABLE, UNRESUMABLE, LOOP_LAG, STATE, SCRIPTED_TOKENS,
)  # fmt: skip


class Instruments:
    """The table, registered in `registry`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self.ttft = self._histogram(TTFT)
        self.tpot = self._histogram(TPOT)
        self.itl = TokenHistogram(ITL.name, ITL.help, ITL.labels, ITL.buckets, registry)
        self.duration = self._histogram(DURATION)
        self.requests = self._counter(REQUESTS)
        self.in_flight = Gauge(IN_FLIGHT.name, IN_FLIGHT.help, IN_FLIGHT.labels, registry=registry)
        self.output_tokens = TokenCounter(OUTPUT_TOKENS.name, OUTPUT_TOKENS.help, OUTPUT_TOKENS.labels, registry)
        self.prompt_tokens = self._counter(PROMPT_TOKENS)
        self.discarded = self._counter(DISCARDED)
        self.disconnects = self._counter(DISCONNECTS)
        self.abort = self._histogram(ABORT)
        self.resumes = self._counter(RESUMES)
        self.journal_available = Gauge(JOURNAL_AVAILABLE.name, JOURNAL_AVAILABLE.help, registry=registry)
        self.journal_available.set(1)
        self.unresumable = self._counter(UNRESUMABLE)
        self.loop_lag = self._histogram(LOOP_LAG)
        self.state = Gauge(STATE.name, STATE.help, STATE.labels, registry=registry)
        self.scripted_tokens = self._counter(SCRIPTED_TOKENS)

    def _histogram(self, row: Instrument) -> Histogram:
        return Histogram(row.name, row.help, row.labels, registry=self.registry, buckets=row.buckets)

    def _counter(self, row: Instrument) -> Counter:
        return Counter(row.name, row.help, row.labels, registry=self.registry)

    def set_state(self, state: str) -> None:
        for name in STATES:
            self.state.labels(name).set(name == state)
