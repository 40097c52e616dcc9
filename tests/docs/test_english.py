"""The checker of English finds each forbidden turn and passes over its allowed neighbours."""

from __future__ import annotations

import pytest

from streamclient.base.reasons import counted
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
    'say(f"paused {x} shard(s) of them")': (1, "shard(s)"),
    "# The branch(es) of it.": (1, "branch(es)"),
    'LIMIT = 1\n"""Where the page begins."""': (2, "Where"),
    'def f():\n    """Whether it is there."""': (2, "Whether"),
    'def f():\n    """Each row of a page."""': (2, "Each"),
    'class A:\n    def f(self):\n        """Until it is there."""': (3, "Until"),
    '"""Errors are those of the page."""': (1, "are those of"),
    "# The name must be that of the lease.": (1, "be that of"),
    'raise ValueError("the worker was shut down before")': (1, "shut down before"),
    'def f():\n    """Return names.\n\n    Raises:\n        E: it was closed before.\n    """': (5, "closed before"),
    'def f():\n    """Return the keys of the rows, sorted."""': (2, ", sorted."),
    'def f():\n    """Return the time that is left, in words."""': (2, ", in words."),
    "# A judgement takes milliseconds.": (1, "judgement"),
    'LIMIT = 1\n"""How often a page is read."""': (2, "How"),
    'LIMIT = 1\n"""Most rows of a page."""': (2, "Most r"),
    'def f():\n    """Have the row read."""': (2, "Have the"),
    'def f():\n    """Have ``wake`` called at the end."""': (2, "Have ``wake``"),
    'class A:\n    def f(self):\n        """See ``Store``."""': (3, "See ``Store``."),
    'def f():\n    """Return the module ``pyarrow``."""': (2, "Return the module ``pyarrow``."),
}

ALLOWED = [
    '"""The rows after the position, whatever they hold."""',
    "behind = nobody = 1",
    'error("endpoint must be http(s)://HOST")\nwait(s)',
    '# There is no table. It is no longer there, so long as nothing is "None" or x is None.',
    "# It has so many rows that one page is too few, so long pauses do no harm; there must be no row.",
    '# Who owns it?  What does a take compare?\n# "That" is why.',
    'LIMIT = 1\n"""Whether it is there."""',
    'class A:\n    @property\n    def f(self):\n        """The rows of a page."""',
    'def f():\n    """Return the rows of a page, where they are."""',
    'def f():\n    """Read what was closed before the end, as in that of ``g``.\n\n    See ``Store.f``.\n    """',
    'LIMIT = 1\n"""Most important is the sorted page: it shows in words how often it was read."""',
    '"""The rows are sorted. Have you read these? How?"""',
    'def f():\n    """Return the class ``Page`` of a row that has no name."""',
]


@pytest.mark.parametrize("source", FORBIDDEN)
def test_a_forbidden_turn_is_found_at_its_line(source: str) -> None:
    assert [(line, words) for line, words, _ in english.findings(source)] == [FORBIDDEN[source]]


def test_a_number_has_the_plural_that_it_needs() -> None:
    numbers = [0, 1, 2, "no"]

    assert [counted(number, "row") for number in numbers] == ["0 rows", "1 row", "2 rows", "no rows"]
    assert [counted(number, "log entry") for number in (1, 2)] == ["1 log entry", "2 log entries"]
    assert [counted(number, "day") for number in (1, 2)] == ["1 day", "2 days"]


@pytest.mark.parametrize("source", ALLOWED)
def test_allowed_neighbours_are_passed_over(source: str) -> None:
    assert english.findings(source) == []


def test_words_with_a_reason_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(english, "ALLOWED", {"The table is none of yours": "the service answers so"})

    assert english.findings('error("The table is none of yours.")') == []
    assert len(english.findings('error("The table is none of ours, and behind.")')) == 2
