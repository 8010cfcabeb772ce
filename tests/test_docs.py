"""What the documents name exists, and what exists is documented."""

import importlib
import re
from pathlib import Path

import pytest

from engine.errors import ERROR_TABLE
from engine.lifecycle import State
from metrics.instruments import TABLE
from routes.parameters import BODY_NAMES, QUERY_NAMES
from settings import CHANGED_FLAGS, OWN_FLAGS

ROOT = Path(__file__).parents[1]
DOCS = {path.name: path.read_text() for path in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]}
SYMBOLS = sorted(
    {name for text in DOCS.values() for name in re.findall(r"`((?:engine|routes|metrics)\.[A-Za-z_.]+)`", text)}
)


@pytest.mark.parametrize("symbol", SYMBOLS)
def test_every_symbol_that_is_named_exists(symbol: str) -> None:
    parts = symbol.split(".")
    found: object = None
    for count in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        break
    for name in parts[count:]:
        declared = name in getattr(found, "__annotations__", {})
        assert declared or hasattr(found, name), f"{symbol} does not exist"
        found = getattr(found, name, None)


def test_the_path_of_one_token_names_symbols() -> None:
    assert len([symbol for symbol in SYMBOLS if symbol in DOCS["architecture.md"]]) > 25


@pytest.mark.parametrize("error", ERROR_TABLE)
def test_every_error_is_in_the_table_of_the_protocol(error: type) -> None:
    row = f"| `{error.code}` | {error.status} | {'yes' if error.retryable else 'no'} |"  # type: ignore[attr-defined]
    assert row in DOCS["protocol.md"]


def test_no_error_is_documented_that_does_not_exist() -> None:
    documented = re.findall(r"^\| `(\w+)` \| \d{3} \|", DOCS["protocol.md"], re.MULTILINE)
    assert sorted(documented) == sorted(error.code for error in ERROR_TABLE)


def test_every_metric_is_documented_and_no_other() -> None:
    documented = re.findall(r"^\| `(tailrace_\w+)` \|", DOCS["metrics.md"], re.MULTILINE)
    assert sorted(documented) == sorted(row.name for row in TABLE)
    for row in TABLE:
        assert re.search(rf"`{row.name}` \| \w+ \| {', '.join(row.labels)}", DOCS["metrics.md"])


@pytest.mark.parametrize("flag", [*OWN_FLAGS, *CHANGED_FLAGS], ids=lambda flag: flag.name)
def test_every_flag_and_its_variable_are_documented(flag: object) -> None:
    assert f"`--{flag.name}`" in DOCS["configuration.md"]  # type: ignore[attr-defined]
    assert f"`{flag.variable}`" in DOCS["configuration.md"]  # type: ignore[attr-defined]


def test_every_parameter_and_state_is_documented() -> None:
    for name in (QUERY_NAMES | BODY_NAMES) - {"lastEventId"}:
        assert re.search(rf"`{name}`|[?&]{name}=|`{name}=", DOCS["protocol.md"]), name
    for state in State:
        assert f"`{state}`" in DOCS["protocol.md"]


def test_links_lead_somewhere() -> None:
    for name, text in DOCS.items():
        folder = ROOT if name == "README.md" else ROOT / "docs"
        for target in re.findall(r"\]\(([^)#:]+)\)", text):
            assert (folder / target).exists(), f"{name}: {target}"
