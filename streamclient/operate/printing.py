"""Output: JSON for programs, tables for people: with ``rich`` on a terminal where it is installed, else plain text."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any


def print_json(document: Any) -> None:
    """One JSON document, keys in the order of the documentation."""
    print(json.dumps(document, ensure_ascii=False, indent=2))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], empty: str) -> None:
    """A table; ``empty`` in its place if there are no rows."""
    if not rows:
        print(empty)
    elif sys.stdout.isatty() and has_rich():
        _print_rich(columns, rows)
    else:
        print(plain_table(columns, rows))


def has_rich() -> bool:
    """Whether ``rich`` is installed."""
    return find_spec("rich") is not None


def plain_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their widest cell, two spaces apart; nothing is cut."""
    lines = [columns, *rows]
    widths = [max(len(line[place]) for line in lines) for place in range(len(columns))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def _print_rich(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    Console().print(table)
