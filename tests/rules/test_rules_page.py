"""The page of known weaknesses: every test that it names exists, and every rule names a test or says why not."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "decisions" / "java-client-defects.md"
NAMED = re.compile(r"`([\w/.]+\.py)::(\w+)`")
RULES = 65


def rules() -> list[list[str]]:
    """Cells of each row of the page's tables, without heads and rulers."""
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in rows if row[0] != "Rule" and set(row[0]) != {"-"}]


@cache
def defined_tests(path: Path) -> frozenset[str]:
    """Names of the test functions that a file defines."""
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


def test_every_test_that_the_page_names_exists() -> None:
    text = PAGE.read_text(encoding="utf-8")

    assert missing(text) == []
    assert text.count("::test_") == len(NAMED.findall(text)) > RULES


def test_a_test_that_does_not_exist_would_be_found() -> None:
    """The check itself can fail."""
    unknown = [
        "tests/rules/test_rules_page.py::test_that_nobody_wrote",
        "tests/rules/nowhere.py::test_every_test_that_the_page_names_exists",
    ]

    assert missing(" ".join(f"`{name}`" for name in unknown)) == unknown


def test_every_rule_names_a_test_or_says_why_not() -> None:
    found = rules()
    silent = [row[0] for row in found if not NAMED.search(row[-1]) and not row[-1].startswith("No test: ")]

    assert {len(row) for row in found} == {3}
    assert len(found) == RULES
    assert silent == []


def test_every_test_of_rules_stands_on_the_page() -> None:
    """A rule with a test and without a row would be known to nobody."""
    text = PAGE.read_text(encoding="utf-8")
    files = [path for path in sorted(Path(__file__).parent.glob("test_rules_*.py")) if path != Path(__file__)]
    named = {(path, name) for path, name in NAMED.findall(text)}
    unnamed = [
        name
        for path in files
        for name in sorted(defined_tests(path))
        if (str(path.relative_to(ROOT)), name) not in named
    ]

    assert unnamed == []
