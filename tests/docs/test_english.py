"""The checker of English finds each forbidden turn and passes over its allowed neighbours."""

from __future__ import annotations

import pytest

from tools import english

FORBIDDEN = {
    '"""Rows after it.\n\nThe rows behind\nthe position."""': (3, "behind"),
    "# It stands in\n# front of the others.": (1, "in front of"),
    "x = 1  # nobody reads it": (1, "nobody"),
    'raise ValueError(f"{x} is no " f"{kind} of {y}")': (1, "is no X"),
    'log("the owner of %s is none of them", x)': (1, "is none"),
    'LIMIT = 1\n"""Seconds that a page waits; so many rows are read."""': (2, "so many"),
    "# It ends. Of two rows one is kept.": (1, "Of"),
    '"""Yes.\n\n* What the page holds.\n"""': (3, "What"),
    'x = f"{y}: That the row is gone is known."': (1, "That the"),
    'LIMIT = 1\n"""Where the page begins."""': (2, "Where"),
    'def f():\n    """Whether it is there."""': (2, "Whether"),
    'def f():\n    """Each row of a page."""': (2, "Each"),
    'class A:\n    def f(self):\n        """Until it is there."""': (3, "Until"),
}

ALLOWED = [
    '"""The rows after the position, whatever they hold."""',
    "behind = nobody = 1",
    '# There is no table. It is no longer there, so long as nothing is "None" or x is None.',
    "# It has so many rows that one page is too few, so long pauses do no harm; there must be no row.",
    '# Who owns it?  What does a take compare?\n# "That" is why.',
    'LIMIT = 1\n"""Whether it is there."""',
    'class A:\n    @property\n    def f(self):\n        """The rows of a page."""',
    'def f():\n    """Return the rows of a page, where they are."""',
]


@pytest.mark.parametrize("source", FORBIDDEN)
def test_a_forbidden_turn_is_found_at_its_line(source: str) -> None:
    assert [(line, words) for line, words, _ in english.findings(source)] == [FORBIDDEN[source]]


@pytest.mark.parametrize("source", ALLOWED)
def test_allowed_neighbours_are_passed_over(source: str) -> None:
    assert english.findings(source) == []


def test_words_with_a_reason_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(english, "ALLOWED", {"The table is none of yours": "the service answers so"})

    assert english.findings('error("The table is none of yours.")') == []
    assert len(english.findings('error("The table is none of ours, and behind.")')) == 2
