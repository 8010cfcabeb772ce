"""What is fed once a step says the same as what vLLM feeds for every token."""

import random

from prometheus_client import CollectorRegistry, Histogram, generate_latest

from engine.vllm.step_stats import observe_all


def test_all_at_once_is_as_one_by_one() -> None:
    texts, pick = [], random.Random(0)
    values = [pick.choice([0.0, 0.01, 0.02, 0.025, 0.05, 0.5, 1.0, 3.0, 1e9]) for _ in range(200)]
    for at_once in (True, False):
        registry = CollectorRegistry()
        histogram = Histogram("gap", "help", ["engine"], registry=registry, buckets=(0.01, 0.02, 0.05, 1.0)).labels("0")
        if at_once:
            observe_all(histogram, values)
            observe_all(histogram, [])
        else:
            for value in values:
                histogram.observe(value)
        samples = generate_latest(registry).decode().splitlines()
        texts.append([line for line in samples if "_created" not in line])
    assert texts[0] == texts[1]
