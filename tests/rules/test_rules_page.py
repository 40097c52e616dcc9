"""The page of known weaknesses: every test that it names exists, and every rule names a test or says why not."""

from __future__ import annotations

from pathlib import Path

from tests.named_tests import NAMED, ROOT, defined_tests, missing, silent, table_rows

PAGE = ROOT / "docs" / "decisions" / "java-client-defects.md"
RULES = 65


def test_every_test_that_the_page_names_exists() -> None:
    text = PAGE.read_text(encoding="utf-8")

    assert missing(text) == []
    assert text.count("::test_") == len(NAMED.findall(text)) > RULES


def test_what_is_missing_would_be_found() -> None:
    """The checks themselves can fail."""
    unknown = [
        "tests/rules/test_rules_page.py::test_that_nobody_wrote",
        "tests/rules/nowhere.py::test_every_test_that_the_page_names_exists",
    ]
    page = "| Rule | Ours | Test |\n|---|---|---|\n| a | b | |\n| c | d | No test: because |\n"

    assert missing(" ".join(f"`{name}`" for name in unknown)) == unknown
    assert silent(table_rows(page, ("Rule",))) == ["a"]


def test_every_rule_names_a_test_or_says_why_not() -> None:
    found = table_rows(PAGE.read_text(encoding="utf-8"), ("Rule",))

    assert {len(row) for row in found} == {3}
    assert len(found) == RULES
    assert silent(found) == []


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
