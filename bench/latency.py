"""What streaming moves, and what it does not: the first token, and not the last.

    python -m bench.latency [MODEL] [flags of vllm serve]      (make bench-latency MODEL=…)

Starts Tailrace with MODEL (else the embedded one) and asks the same question in two ways: for the whole answer at once,
and for a stream of it. Temperature 0, a fixed number of tokens, the
median of 5 after a warm-up; beside it what the server's own histograms say.
"""

import http.client
import json
import re
import socket
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request

NUM_TOKENS = 100
NUM_RUNS = 5
START_LIMIT_S = 900.0

QUESTION = {
    "messages": [{"role": "user", "content": "Tell me about rivers."}],
    "max_tokens": NUM_TOKENS,
    "temperature": 0,
    "ignore_eos": True,
    "stream": False,
}


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def wait_ready(process: subprocess.Popen[bytes], port: int) -> None:
    ends_s = time.monotonic() + START_LIMIT_S
    while time.monotonic() < ends_s:
        if process.poll() is not None:
            sys.exit("the server ended before it was ready")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=2):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    sys.exit(f"the server was not ready within {START_LIMIT_S:g} s")


def ask(port: int, streamed: bool) -> tuple[float, float]:
    """Ask once: when the reader sees the first text, and when it has all of it; in ms."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    started_s = time.perf_counter()
    body = json.dumps(QUESTION | {"stream": streamed})
    connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    first_s = None
    while line := response.readline():
        if streamed and first_s is None and b'"content":"' in line and b'"role"' not in line:
            first_s = time.perf_counter()
    ended_s = time.perf_counter()
    connection.close()
    return ((first_s or ended_s) - started_s) * 1e3, (ended_s - started_s) * 1e3


def mean_ms(port: int, name: str) -> float:
    """The mean of one of the server's histograms."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as response:
        text = response.read().decode()
    total, count = (
        sum(
            float(value)
            for value in re.findall(rf"^{name}_{part}{{[^}}]*/v1/chat/completions[^}}]*}} (\S+)$", text, re.MULTILINE)
        )
        for part in ("sum", "count")
    )
    return total / count * 1e3


def main() -> None:
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "app.py", *sys.argv[1:], "--port", str(port)], stderr=subprocess.DEVNULL
    )
    try:
        wait_ready(process, port)
        ask(port, True)
        rows = {}
        for name, streamed in (("one answer at once", False), ("streamed", True)):
            times = [ask(port, streamed) for _ in range(NUM_RUNS)]
            rows[name] = [statistics.median(values) for values in zip(*times, strict=True)]
        print(f"{NUM_TOKENS} tokens, median of {NUM_RUNS}, as the reader sees it")
        print(f"{'':<20} {'TTFT ms':>9} {'E2E ms':>9}")
        for name, (ttft_ms, e2e_ms) in rows.items():
            print(f"{name:<20} {ttft_ms:>9.1f} {e2e_ms:>9.1f}")
        means = [mean_ms(port, f"tailrace_{name}_seconds") for name in ("time_to_first_token", "request_duration")]
        print(f"{'server, mean of all':<20} {means[0]:>9.1f} {means[1]:>9.1f}")
    finally:
        process.terminate()
        process.wait(60)


if __name__ == "__main__":
    main()
