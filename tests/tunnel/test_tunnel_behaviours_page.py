"""The page of behaviours: every test that it names exists, and every row names one or says why not."""

from __future__ import annotations

from tests.named_tests import NAMED, ROOT, missing, silent, table_rows

PAGE = ROOT / "docs" / "decisions" / "tunnel-behaviours.md"
HEADS = ("Behaviour", "Rule")
ROWS_AT_LEAST = 80


def test_every_test_that_the_page_names_exists() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert missing(text) == []
    assert text.count("::test_") == len(NAMED.findall(text))


def test_every_behaviour_names_a_test_or_says_why_not() -> None:
    rows = table_rows(PAGE.read_text(encoding="utf-8"), HEADS)

    assert silent(rows) == []
    assert len(rows) >= ROWS_AT_LEAST
    assert {len(row) for row in rows} == {3}
