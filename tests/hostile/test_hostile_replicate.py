"""A replication among hostile answers: the part of the table that every run of the tests plays."""

from __future__ import annotations

import pytest

from tests.hostile.play import play, play_honest
from tests.hostile.table import REPLICATE, Case, short_cases

CASES = short_cases(REPLICATE)


def test_nothing_is_found_among_honest_answers() -> None:
    assert play_honest(CASES[0]).findings == []


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=str)
def test_nothing_is_lost_doubled_or_left_unsaid(case: Case) -> None:
    outcome = play(case)

    assert outcome.findings == [], str(outcome)
