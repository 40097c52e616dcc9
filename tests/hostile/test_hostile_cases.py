"""Consumers among hostile answers: each answer, place and connection of the table once.

Most of these cases are played only by ``make test-long``.
"""

from __future__ import annotations

import pytest

from tests.hostile.play import play, play_honest
from tests.hostile.table import CONSUMERS, CUT, ENDLESS, Case, short_cases
from tests.rings import every

CASES = [case for consumer in CONSUMERS for case in short_cases(consumer)]
BYTES = [case for case in CASES if case.answer in (*CUT, *ENDLESS)]
"""Half of them, so that the cases of a consumer are played in two parts."""


@pytest.mark.parametrize("case", [short_cases(consumer)[0] for consumer in CONSUMERS], ids=str)
def test_nothing_is_found_among_honest_answers(case: Case) -> None:
    assert play_honest(case).findings == []


@pytest.mark.slow
@pytest.mark.parametrize("case", every(4, BYTES), ids=str)
def test_nothing_is_lost_doubled_or_left_unsaid_as_bytes_are_cut_or_have_no_end(case: Case) -> None:
    outcome = play(case)

    assert outcome.findings == [], str(outcome)


@pytest.mark.slow
@pytest.mark.parametrize("case", every(2, (case for case in CASES if case not in BYTES)), ids=str)
def test_nothing_is_lost_doubled_or_left_unsaid_as_answers_refuse_or_mistake(case: Case) -> None:
    outcome = play(case)

    assert outcome.findings == [], str(outcome)
