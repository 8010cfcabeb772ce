"""The numbers of docs/scaling.md follow from the one that was measured, and its flags are vLLM's."""

import importlib.util
import math
import re
from pathlib import Path

import pytest

from tests.deploy.conftest import ROOT

PAGE = (ROOT / "docs" / "scaling.md").read_text()
COST_US = float(re.findall(r"^    COST_US = ([\d.]+)$", PAGE, re.MULTILINE)[0])
TOKENS_PER_SECOND = 0.7 * 1e6 / COST_US


def test_the_table_of_streams_follows_from_the_cost() -> None:
    rows = re.findall(r"^\| (\d+) \| (\d+) \|$", PAGE, re.MULTILINE)
    assert len(rows) == 4
    for pace, streams in rows:
        assert int(streams) == int(TOKENS_PER_SECOND / int(pace))
    assert f"that is {int(TOKENS_PER_SECOND)} tokens a second" in PAGE


def test_the_example_follows_from_the_cost() -> None:
    streams = 10_000 / 60 * 300 / 25
    assert streams == pytest.approx(2_000)
    tokens = streams * 25
    assert (
        f"| **event loops** | 50,000 / {int(TOKENS_PER_SECOND)} | **{math.ceil(tokens / TOKENS_PER_SECOND)}** |" in PAGE
    )
    assert f"busy for {tokens / 20 * COST_US / 1e6:.0%} of a core".replace("%", " %") in PAGE
    assert tokens / 5 < TOKENS_PER_SECOND < 2 * tokens / 5
    assert f"{math.ceil(250_000 / TOKENS_PER_SECOND)} event loops" in PAGE


def test_the_flags_exist() -> None:
    vllm = importlib.util.find_spec("vllm")
    if vllm is None or vllm.origin is None:
        pytest.skip("needs vllm, for its flags")
    folder = Path(vllm.origin).parent
    texts = [(folder / path).read_text() for path in ("engine/arg_utils.py", "entrypoints/launchers/cli_args.py")]
    known = {flag for text in texts for flag in re.findall(r'"(--[a-z-]+)"', text)}
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", PAGE)) - {"--entrypoint"}
    assert len(named) > 15
    assert named <= known
