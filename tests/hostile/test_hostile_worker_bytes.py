"""A worker on leases among hostile answers that are cut or have no end; see the other files for the rest."""

from __future__ import annotations

import pytest

from tests.hostile.play import play
from tests.hostile.table import CUT, ENDLESS, WORKER, Case, short_cases

CASES = [case for case in short_cases(WORKER) if case.answer in (*CUT, *ENDLESS)]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=str)
def test_nothing_is_lost_doubled_or_left_unsaid(case: Case) -> None:
    outcome = play(case)

    assert outcome.findings == [], str(outcome)
