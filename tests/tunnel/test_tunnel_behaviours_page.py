"""The page of behaviours: every test that it names exists, and every row names one or says why not."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "decisions" / "tunnel-behaviours.md"
NAMED = re.compile(r"`([\w/.]+\.py)::(\w+)`")
HEADS = ("Behaviour", "Rule")
ROWS_AT_LEAST = 80


def rows(text: str) -> list[list[str]]:
    """Cells of each row of the tables, without heads and rulers."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in cells if row[0] not in HEADS and set(row[0]) != {"-"}]


@cache
def defined_tests(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(
        node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    )


def missing(text: str) -> list[str]:
    """Tests that a text names and that do not exist."""
    return [
        f"{path}::{name}"
        for path, name in NAMED.findall(text)
        if not (ROOT / path).is_file() or name not in defined_tests(ROOT / path)
    ]


def silent(text: str) -> list[str]:
    """Rows that neither name a test nor say why there is none."""
    return [row[0] for row in rows(text) if not NAMED.search(row[-1]) and not row[-1].startswith("No test: ")]


def test_every_test_that_the_page_names_exists() -> None:
    text = PAGE.read_text(encoding="utf-8")

    assert missing(text) == []
    assert text.count("::test_") == len(NAMED.findall(text))


def test_every_behaviour_names_a_test_or_says_why_not() -> None:
    text = PAGE.read_text(encoding="utf-8")

    assert silent(text) == []
    assert len(rows(text)) >= ROWS_AT_LEAST
    assert all(len(row) == 3 for row in rows(text))


def test_what_is_missing_would_be_found() -> None:
    """The checks themselves can fail."""
    unknown = [
        "tests/tunnel/test_tunnel_behaviours_page.py::test_that_nobody_wrote",
        "tests/tunnel/nowhere.py::test_every_test_that_the_page_names_exists",
    ]
    page = "| Rule | Ours | Test |\n|---|---|---|\n| a | b | |\n| c | d | No test: because |\n"

    assert missing(" ".join(f"`{name}`" for name in unknown)) == unknown
    assert silent(page) == ["a"]
