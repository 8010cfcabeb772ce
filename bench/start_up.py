"""Where the start goes with the embedded model: from the command to an open port, and from there to readiness.

    python -m bench.start_up [flags of app.py]

The phases end with lines of the log, and are timed by when those lines come. What is imported before the port opens is
timed in a process of its own, by `python -X importtime`, which makes it a little slower.
"""

import contextlib
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Sequence

from bench import table
from bench.server import ENVIRONMENT, ROOT, free_port, stop
from bench.table import Figure
from engine import embedded_model

# Each phase ends with a line of the log; in order.
PHASES = (
    ("this process: imports, settings, the port", r"the port is open already"),
    ("the engine core's process, and its imports", r"Initializing a V1 LLM engine"),
    ("the worker, and its imports", r"Starting to load model"),
    ("the model's layers and weights", r"Loading weights took"),
    ("KV cache, profile, warm-up", r"init engine .* took"),
    ("the rest of the engine, the serving layer", r"is ready on"),
)

# What the program imports until it can open its port, and until it can load.
IMPORTS = "import app; import engine.vllm.engine"

# As many packages as are told apart; the others are summed up.
NUM_PACKAGES = 8

IMPORT_LINE = re.compile(r"import time:\s+(\d+) \|\s+\d+ \|\s+([\w.]+)")


def phases(*flags: str) -> list[tuple[str, float]]:
    """How long each phase took, in seconds. Exits when the server ends before it is ready."""
    embedded_model.prepare()  # which only the very first start needs
    port, took, before_s, log = free_port(), list[tuple[str, float]](), 0.0, list[str]()
    started_s = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "app.py", *flags, "--port", str(port)],
        cwd=ROOT,
        env=os.environ | ENVIRONMENT | {"VLLM_LOGGING_LEVEL": "INFO"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            text = line.decode(errors="replace")
            log.append(text)
            name, mark = PHASES[len(took)]
            if re.search(mark, text):
                now_s = time.perf_counter() - started_s
                took.append((name, now_s - before_s))
                before_s = now_s
            if len(took) == len(PHASES):
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=10):
                    return took
        sys.exit(f"the server ended before it was ready:\n{''.join(log[-10:])}")
    finally:
        with contextlib.suppress(ProcessLookupError):
            stop(process)


def imports() -> list[tuple[str, float]]:
    """The packages that take the longest to import, in seconds, each without what it imports of others."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", IMPORTS],
        cwd=ROOT,
        env=os.environ | ENVIRONMENT,
        capture_output=True,
        text=True,
        check=True,
    )
    by_package: Counter[str] = Counter()
    for own_us, name in IMPORT_LINE.findall(done.stderr):
        root = name.partition(".")[0]
        by_package["the standard library" if root.lstrip("_") in stdlib_names() else root] += int(own_us)
    shown = by_package.most_common(NUM_PACKAGES)
    others_us = by_package.total() - sum(own_us for _, own_us in shown)
    return [(name, own_us / 1e6) for name, own_us in [*shown, ("others", others_us)]]


def stdlib_names() -> frozenset[str]:
    return frozenset(name.lstrip("_") for name in sys.stdlib_module_names)


def run(flags: Sequence[str] = ()) -> list[Figure]:
    """Measure, and print the tables."""
    took = phases(*flags)
    ready_s = sum(seconds for _, seconds in took)
    rows = [[name, seconds, 100 * seconds / ready_s] for name, seconds in [*took, ("until it is ready", ready_s)]]
    print(f"the start, with the embedded model\n{table.render(['', 's', '%'], rows)}\n")
    imported = imports()
    total_s = sum(seconds for _, seconds in imported)
    rows = [[name, seconds, 100 * seconds / total_s] for name, seconds in [*imported, ("all imports", total_s)]]
    print(f"what this process imports\n{table.render(['', 's', '%'], rows)}")
    return [
        Figure("start until the port is open", "s", {"chat": took[0][1]}),
        Figure("start until it is ready", "s", {"chat": ready_s}),
    ]


if __name__ == "__main__":
    run(sys.argv[1:])
