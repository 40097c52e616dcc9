"""The page of differences: every test that it names exists, and every row names one or says why not."""

from __future__ import annotations

from tests.named_tests import NAMED, ROOT, missing, silent, table_rows

PAGE = ROOT / "docs" / "differences.md"


def test_every_test_that_the_page_names_exists() -> None:
    text = PAGE.read_text(encoding="utf-8")

    assert missing(text) == []
    assert text.count("::test_") == len(NAMED.findall(text)) > 10


def test_every_difference_names_a_test_or_says_why_not() -> None:
    found = table_rows(PAGE.read_text(encoding="utf-8"), ("Service",))

    assert {len(row) for row in found} == {3}
    assert silent(found) == []
