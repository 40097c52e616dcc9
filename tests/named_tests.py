"""Tests that documentation names as `path::test_name`, and whether they exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NAMED = re.compile(r"`([\w/.]+\.py)::(\w+)`")


def table_rows(text: str, heads: tuple[str, ...]) -> list[list[str]]:
    """Cells of each row of the tables of a page, without rulers and rows that begin with one of ``heads``."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in rows if row[0] not in heads and set(row[0]) != {"-"}]


def silent(rows: list[list[str]]) -> list[str]:
    """First cells of the rows that neither name a test nor say why there is none."""
    return [row[0] for row in rows if not NAMED.search(row[-1]) and not row[-1].startswith("No test: ")]


def missing(text: str) -> list[str]:
    """Tests that a text names and that do not exist."""
    return [
        f"{path}::{name}"
        for path, name in NAMED.findall(text)
        if not (ROOT / path).is_file() or name not in defined_tests(ROOT / path)
    ]


@cache
def defined_tests(path: Path) -> frozenset[str]:
    """Names of the test functions that a file defines."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(
        node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    )
