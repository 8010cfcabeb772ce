"""All measurements, one after the other, and one table of what they found.

    python -m bench [--quick] [--json FILE] [--only scale,start_up]

Each prints its own table as it ends. All of it takes about half an hour on two cores; `--quick` takes a few minutes and
is good for telling whether something broke, not for comparing two versions.
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from bench import (
    event_interval,
    front_end_cost,
    latency,
    open_streams,
    scale,
    start_up,
    steady_load,
    table,
    token_path,
    token_recording,
)
from bench.table import Figure

Measurement = Callable[[], list[Figure]]

ALL: dict[str, Measurement] = {
    "token_path": token_path.run,
    "token_recording": token_recording.run,
    "open_streams": open_streams.run,
    "start_up": start_up.run,
    "latency": latency.run,
    "front_end_cost": front_end_cost.run,
    "scale": scale.run,
    "event_interval": event_interval.run,
    "steady_load": steady_load.run,
}

# The same with fewer streams, requests and rounds. The chart is of the long run only.
QUICK: dict[str, Measurement] = ALL | {
    "open_streams": lambda: open_streams.run(num_streams=1000, window_s=6.0),
    "front_end_cost": lambda: front_end_cost.run(rounds=1, num_requests=128),
    "scale": lambda: scale.run(streams=(1, 16, 256), rounds=1, chart=None),
    "event_interval": lambda: event_interval.run(intervals_ms=(20,), num_requests=128),
    "steady_load": lambda: steady_load.run(shares=(0.5,), requests_share=0.3),
}


def run(measurements: dict[str, Measurement], names: Sequence[str]) -> list[Figure]:
    figures = []
    for name in names:
        started_s = time.monotonic()
        print(f"== {name}", flush=True)
        figures += measurements[name]()
        print(f"   {time.monotonic() - started_s:.0f} s\n", flush=True)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default=list(ALL), type=lambda text: text.split(","), help=", ".join(ALL))
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if unknown := set(args.only) - set(ALL):
        parser.error(f"there is no measurement {', '.join(sorted(unknown))}")
    figures = run(QUICK if args.quick else ALL, args.only)
    print(table.of_figures(figures))
    if args.json:
        lines = [{"name": line.name, "unit": line.unit, **line.values} for line in figures]
        args.json.write_text(json.dumps(lines, indent=1) + "\n")


if __name__ == "__main__":
    main()
