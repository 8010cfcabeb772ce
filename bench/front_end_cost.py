"""What one streamed token costs the serving process, beside its peers, in one run.

    python -m bench.front_end_cost [--targets raw,chat,stream,vllm,vllm-rust] [--rounds 3] [--streams 64]
                                   [--requests 512] [--json FILE]

Every target serves the same tiny model on the same engine, greedy, 128 tokens a request, to the same client
(`bench.client`). The cost is the CPU time of the front-end process, user and system, all threads, its engine's
processes left out, by output tokens. It moves less with the machine's load than a throughput does; still, only ratios
within one run mean something. Noise only adds: the cost given is the least of all drives, the rest are medians.

Each round starts every target in turn, and drives it twice; then it asks as many questions as there are streams, at
once; then one after the other, at three quarters of the rate that the drives had: a steady load.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench import table
from bench.server import ENVIRONMENT, ROOT, Server, running, targets, the_tiny_model, why_not
from bench.table import Figure

NAMES = ("raw", "chat", "stream", "vllm", "vllm-rust")
NUM_TOKENS = 128
DRIVES_PER_START = 2
STEADY_SHARE = 0.75

# What is measured: the heading of its column, its name and its unit in the table of all, and how many of its own make
# one of these.
COST, RATE, EVENTS = "us/token", "tokens/s", "events/token"
MEASURES = {
    COST: ("CPU of the front end", "us/token", 1e6),
    RATE: ("throughput", "tokens/s", 1.0),
    EVENTS: ("events with text", "each token", 1.0),
    "TTFT p50": ("TTFT p50", "ms", 1e3),
    "TTFT p99": ("TTFT p99", "ms", 1e3),
    "TPOT p50": ("TPOT p50", "ms", 1e3),
    "ITL p99": ("ITL p99", "ms", 1e3),
    "burst": ("last first token of a burst", "ms", 1e3),
    "steady TTFT p50": ("TTFT p50 at steady load", "ms", 1e3),
}

Measured = dict[str, float]


def measure_raw(num_streams: int, num_requests: int) -> list[Measured]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "drives.json"
        command = [sys.executable, "-m", "bench.raw_engine", str(the_tiny_model()), str(file)]
        command += ["--streams", str(num_streams), "--requests", str(num_requests), "--drives", str(DRIVES_PER_START)]
        done = subprocess.run(command, cwd=ROOT, env=os.environ | ENVIRONMENT, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"raw: {done.stderr[-2000:]}")
        drives = json.loads(file.read_text())
    return [
        {
            COST: drive["cpu_s"] / drive["num_tokens"],
            RATE: drive["num_tokens"] / drive["seconds"],
            "TTFT p50": drive["ttft_p50_s"],
        }
        for drive in drives
    ]


def measure_server(server: Server, num_streams: int, num_requests: int, seed: int) -> list[Measured]:
    """One start's drives; the last of them also has what the burst and the steady load showed."""
    server.drive(8, 16, NUM_TOKENS, seed)
    measured = []
    for drive in range(DRIVES_PER_START):
        seen, cpu_s = server.drive(num_streams, num_requests, NUM_TOKENS, seed + 1 + drive)
        measured.append(
            {
                COST: cpu_s / seen.num_tokens,
                RATE: seen.num_tokens / seen.seconds,
                EVENTS: seen.num_events / seen.num_tokens,
                "TTFT p50": seen.ttft_p50_s,
                "TTFT p99": seen.ttft_p99_s,
                "TPOT p50": seen.tpot_p50_s,
                "ITL p99": seen.itl_p99_s,
            }
        )
    seed += 1 + DRIVES_PER_START
    burst, _ = server.drive(num_streams, num_streams, NUM_TOKENS, seed)
    measured[-1]["burst"] = burst.last_first_token_s
    per_second = STEADY_SHARE * statistics.median(drive[RATE] for drive in measured) / NUM_TOKENS
    steady, _ = server.drive(num_streams, num_requests, NUM_TOKENS, seed + 1, per_second)
    measured[-1]["steady TTFT p50"] = steady.ttft_p50_s
    return measured


def measure(names: Sequence[str], rounds: int, num_streams: int, num_requests: int) -> dict[str, Measured]:
    """By target; costs in seconds a token, times in seconds."""
    known, found = targets(), {name: list[Measured]() for name in names}
    for round in range(rounds):
        for name in names:
            if name == "raw":
                found[name] += measure_raw(num_streams, num_requests)
            else:
                with running(known[name]) as server:
                    found[name] += measure_server(server, num_streams, num_requests, seed=100 * (round + 1))
            last = found[name][-1]
            print(
                f"  round {round + 1}, {name}: {last[COST] * 1e6:.1f} us/token, {last[RATE]:.0f} tokens/s",
                file=sys.stderr,
            )
    return {
        name: {key: summed_up(key, drives) for key in MEASURES if key in drives[-1]} for name, drives in found.items()
    }


def summed_up(key: str, drives: Sequence[Measured]) -> float:
    values = [drive[key] for drive in drives if key in drive]
    return min(values) if key == COST else statistics.median(values)


def report(measured: dict[str, Measured]) -> str:
    base = measured.get("vllm", {}).get(COST)
    rows = []
    for name, values in measured.items():
        ratio = values[COST] / base if base else None
        rest = (values[key] * MEASURES[key][2] if key in values else None for key in MEASURES if key != COST)
        rows.append([name, values[COST] * 1e6, ratio, *rest])
    names = [f"{key} ms" if unit == "ms" else key for key, (_, unit, _) in MEASURES.items() if key != COST]
    return table.render(["", COST, "of vllm", *names], rows)


def figures(measured: dict[str, Measured]) -> list[Figure]:
    lines = []
    for key, (name, unit, factor) in MEASURES.items():
        values = {target: values[key] * factor for target, values in measured.items() if key in values}
        if values:
            lines.append(Figure(name, unit, values))
    return lines


def run(names: Sequence[str] = NAMES, rounds: int = 3, num_streams: int = 64, num_requests: int = 512) -> list[Figure]:
    """Measure, and print the table."""
    for reason in filter(None, map(why_not, names)):
        print(reason)
    measured = measure([name for name in names if why_not(name) is None], rounds, num_streams, num_requests)
    load = f"{num_streams} streams, {num_requests} requests of {NUM_TOKENS} tokens, {rounds} rounds"
    print(f"{load}: least cost, medians of the rest\n{report(measured)}")
    return figures(measured)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.front_end_cost")
    parser.add_argument("--targets", default=",".join(NAMES), type=lambda text: text.split(","))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--requests", type=int, default=512)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if unknown := set(args.targets) - set(NAMES):
        parser.error(f"there is no target {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    lines = run(args.targets, args.rounds, args.streams, args.requests)
    if args.json:
        args.json.write_text(json.dumps({line.name: dict(line.values) for line in lines}, indent=1) + "\n")


if __name__ == "__main__":
    main()
