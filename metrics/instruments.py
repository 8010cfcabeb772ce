"""Every instrument of Tailrace, in one flat table; `docs/metrics.md` lists the same rows, and a test compares them.

Names do not start with `vllm:`, because vLLM unregisters those. Labels never hold text from a client: `route` is a
route's template, `model` a served name, `outcome` a word of the error table or of the four ways a stream ends.
"""

from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

# Supersets of the boundaries that OpenTelemetry's semantic conventions for generative AI give for these two.
TTFT_BUCKETS_S = (.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)  # fmt: skip
TPOT_BUCKETS_S = (
    .001, .0025, .005, .01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10
)  # fmt: skip

# An abort is a call in this process and a message to the engine: microseconds, unless the event loop is late.
ABORT_BUCKETS_S = (.00005, .0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1)  # fmt: skip

STATES = ("starting", "ready", "draining", "stopped", "dead")


@dataclass(frozen=True, slots=True)
class Instrument:
    name: str
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


TTFT = Instrument(
    "tailrace_time_to_first_token_seconds",
    "Request read to first event with text handed to the socket.",
    ("route", "model"),
    TTFT_BUCKETS_S,
)
TPOT = Instrument(
    "tailrace_time_per_output_token_seconds",
    "Time between the first and the last token write, by tokens less one; once a request.",
    ("route", "model"),
    TPOT_BUCKETS_S,
)
REQUESTS = Instrument(
    "tailrace_requests_total", "Requests by how they ended, each once.", ("route", "model", "outcome")
)
OUTPUT_TOKENS = Instrument(
    "tailrace_output_tokens_total", "Output tokens handed to clients' sockets.", ("route", "model")
)
ABORT = Instrument("tailrace_abort_seconds", "A reader's close visible to abort acknowledged.", buckets=ABORT_BUCKETS_S)
IN_FLIGHT = Instrument("tailrace_streams_in_flight", "Open responses.", ("route",))
STATE = Instrument("tailrace_state", "1 for the state that the process is in.", ("state",))
SCRIPTED_TOKENS = Instrument("tailrace_scripted_tokens_total", "Tokens made by the scripted engine.")

TABLE = (TTFT, TPOT, REQUESTS, OUTPUT_TOKENS, ABORT, IN_FLIGHT, STATE, SCRIPTED_TOKENS)


class Instruments:
    """The table, registered in `registry`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self.ttft = Histogram(TTFT.name, TTFT.help, TTFT.labels, registry=registry, buckets=TTFT.buckets)
        self.tpot = Histogram(TPOT.name, TPOT.help, TPOT.labels, registry=registry, buckets=TPOT.buckets)
        self.requests = Counter(REQUESTS.name, REQUESTS.help, REQUESTS.labels, registry=registry)
        self.output_tokens = Counter(OUTPUT_TOKENS.name, OUTPUT_TOKENS.help, OUTPUT_TOKENS.labels, registry=registry)
        self.abort = Histogram(ABORT.name, ABORT.help, registry=registry, buckets=ABORT.buckets)
        self.in_flight = Gauge(IN_FLIGHT.name, IN_FLIGHT.help, IN_FLIGHT.labels, registry=registry)
        self.state = Gauge(STATE.name, STATE.help, STATE.labels, registry=registry)
        self.scripted_tokens = Counter(SCRIPTED_TOKENS.name, SCRIPTED_TOKENS.help, registry=registry)

    def set_state(self, state: str) -> None:
        for name in STATES:
            self.state.labels(name).set(name == state)
