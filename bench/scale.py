"""How the cost of a token falls as streams share the engine's steps, beside `vllm serve`.

    python -m bench.scale [--streams 1,4,16,64,128,256] [--rounds 2] [--targets chat,vllm] [--chart FILE]

The chart goes to docs/cost-per-token.png where matplotlib is installed (requirements/bench.txt; `make bench` does it).
"""

import argparse
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench import table
from bench.server import ROOT, running, targets
from bench.table import Figure

STREAMS = (1, 4, 16, 64, 128, 256)
CHART = ROOT / "docs" / "cost-per-token.png"
NUM_TOKENS = 128

# Each number of streams is driven at least so often in a row, and with at least so many requests.
RUNS_PER_STREAM = 3
LEAST_REQUESTS = 24

# Series in the chart: a name to read, and a colour; the two differ in lightness too, for those who see no hues.
SERIES = {"chat": ("Tailrace", "#1b6ca8"), "vllm": ("vllm serve", "#e08e2b")}

Costs = dict[str, dict[int, float]]


def measure(names: Sequence[str], streams: Sequence[int], rounds: int) -> Costs:
    """Microseconds a token, by target and number of streams: the least of all rounds."""
    known, costs = targets(), {name: dict[int, float]() for name in names}
    for round in range(rounds):
        for name in names:
            with running(known[name]) as server:
                server.drive(8, 16, NUM_TOKENS)
                for count in streams:
                    num_requests = max(LEAST_REQUESTS, RUNS_PER_STREAM * count)
                    seen, cpu_s = server.drive(count, num_requests, NUM_TOKENS, seed=1000 * (round + 1) + count)
                    cost_us = cpu_s / seen.num_tokens * 1e6
                    costs[name][count] = min(cost_us, costs[name].get(count, cost_us))
                    print(f"  round {round + 1}, {name}, {count} streams: {cost_us:.1f} us/token", file=sys.stderr)
    return costs


def draw(costs: Mapping[str, Mapping[int, float]], file: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4), dpi=120, facecolor="white")
    for name, by_streams in costs.items():
        label, colour = SERIES[name]
        counts = sorted(by_streams)
        values = [by_streams[count] for count in counts]
        axes.plot(counts, values, marker="o", color=colour, linewidth=2, label=label)
        for count, value in zip(counts, values, strict=True):
            axes.annotate(
                f"{value:.0f}",
                (count, value),
                (3, 6),
                textcoords="offset points",
                color=colour,
                fontsize=9,
            )
    axes.set_xscale("log", base=2)
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.set_ylim(0)
    axes.set_xlabel("streams at once")
    axes.set_ylabel("CPU of the front end, µs per token")
    axes.grid(axis="y", color="#e6e6e6")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(file)
    pyplot.close(figure)


def run(
    names: Sequence[str] = tuple(SERIES), streams: Sequence[int] = STREAMS, rounds: int = 2, chart: Path | None = CHART
) -> list[Figure]:
    """Measure, print the table, and draw the chart if there is a file for it."""
    costs = measure(names, streams, rounds)
    rows = [[str(count), *(costs[name][count] for name in names)] for count in streams]
    print(f"CPU of the front end, us/token, least of {rounds}\n{table.render(['streams', *names], rows)}")
    if chart and importlib.util.find_spec("matplotlib") is None:
        print("no chart: matplotlib is not installed (requirements/bench.txt)")
    elif chart:
        draw(costs, chart)
        print(f"the chart is in {chart}")
    return [
        Figure(f"CPU of the front end, {count} streams", "us/token", {name: costs[name][count] for name in names})
        for count in streams
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.scale")
    parser.add_argument("--targets", default=list(SERIES), type=lambda text: text.split(","))
    parser.add_argument("--streams", default=STREAMS, type=lambda text: [int(count) for count in text.split(",")])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--chart", type=Path, default=CHART)
    args = parser.parse_args()
    run(args.targets, args.streams, args.rounds, args.chart)


if __name__ == "__main__":
    main()
