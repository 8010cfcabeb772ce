"""What the measurements print: tables with a line of names over right-aligned numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table of `make bench`; `values` has a number for each column that it was measured for."""

    name: str
    unit: str
    values: Mapping[str, float]


# What a figure can be of: this server, its chats where surfaces differ; and what stands beside it.
COLUMNS = {
    "chat": "Tailrace",
    "stream": "/v1/stream",
    "vllm": "vllm serve",
    "vllm-rust": "its Rust one",
    "raw": "AsyncLLM",
}


def render(names: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Columns as wide as they need; the first one is text, the others are numbers, or None."""
    lines = [list(names), *([_text(cell) for cell in row] for row in rows)]
    widths = [max(len(line[index]) for line in lines) for index in range(len(names))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if index == 0 else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def _text(cell: object) -> str:
    if cell is None:
        return "-"
    if not isinstance(cell, int | float):
        return str(cell)
    return f"{cell:.0f}" if abs(cell) >= 1000 else f"{cell:.1f}" if abs(cell) >= 10 else f"{cell:.2f}"


def of_figures(figures: Sequence[Figure]) -> str:
    """The one table: a line for each figure, a column for each target that has any, and the ratio to `vllm serve`."""
    used = [column for column in COLUMNS if any(column in figure.values for figure in figures)]
    rows = []
    for figure in figures:
        ours, theirs = figure.values.get("chat"), figure.values.get("vllm")
        ratio = ours / theirs if ours is not None and theirs else None
        rows.append([figure.name, figure.unit, *(figure.values.get(column) for column in used), ratio])
    return render(["", "unit", *(COLUMNS[column] for column in used), "of vllm"], rows)
