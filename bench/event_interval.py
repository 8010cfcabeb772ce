"""What fewer, larger events save: the curve of `--min-event-interval-ms`.

    python -m bench.event_interval [--intervals 0,5,10,20,50] [--streams 64] [--requests 256]

The first token is never held back: TTFT must not move. That shows at a steady load; a closed loop asks in waves, whose
height changes with the time at which streams end.
"""

import argparse
from collections.abc import Sequence

from bench import table
from bench.server import ENGINE_FLAGS, running, tailrace, the_tiny_model
from bench.table import Figure
from settings import OWN_FLAGS

FLAG = "min-event-interval-ms"
INTERVALS_MS = (0, 5, 10, 20, 50)
DRIVES = 2

# Requests a second at the steady load, about half of what the loop of all streams does.
STEADY_PER_SECOND = 35.0


def run(intervals_ms: Sequence[int] = INTERVALS_MS, num_streams: int = 64, num_requests: int = 256) -> list[Figure]:
    """Measure, and print the curve."""
    if FLAG not in {flag.name for flag in OWN_FLAGS}:
        print(f"event_interval is skipped: app.py has no --{FLAG}")
        return []
    rows, lines = [], []
    for interval_ms in intervals_ms:
        flags = ("--model", str(the_tiny_model()), *ENGINE_FLAGS, f"--{FLAG}", str(interval_ms))
        with running(tailrace("interval", *flags)) as server:
            server.drive(8, 16)
            drives = [server.drive(num_streams, num_requests, seed=seed) for seed in range(1, DRIVES + 1)]
            steady, _ = server.drive(num_streams, num_requests, seed=DRIVES + 1, per_second=STEADY_PER_SECOND)
        seen, cpu_s = min(drives, key=lambda drive: drive[1])
        cost_us = cpu_s / seen.num_tokens * 1e6
        row = (seen.num_events / seen.num_tokens, seen.num_events / seen.seconds, seen.num_tokens / seen.seconds)
        rows.append([str(interval_ms), *row, cost_us, seen.itl_p99_s * 1e3, steady.ttft_p50_s * 1e3])
        lines.append(Figure(f"CPU of the front end, events {interval_ms} ms apart", "us/token", {"chat": cost_us}))
        steady_ms = {"chat": steady.ttft_p50_s * 1e3}
        lines.append(Figure(f"TTFT p50 at steady load, events {interval_ms} ms apart", "ms", steady_ms))
    names = ["interval ms", "events/token", "events/s", "tokens/s", "us/token", "ITL p99 ms", "steady TTFT p50 ms"]
    print(
        f"{num_streams} streams, {num_requests} requests, the cheaper of {DRIVES} drives\n{table.render(names, rows)}"
    )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.event_interval")
    parser.add_argument("--intervals", default=INTERVALS_MS, type=lambda text: [int(part) for part in text.split(",")])
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--requests", type=int, default=256)
    args = parser.parse_args()
    run(args.intervals, args.streams, args.requests)


if __name__ == "__main__":
    main()
