"""Destinations and mirrors among hostile databases, stores and catalogs: each trouble and place of the table once.

Two of three cases are played only by ``make test-long``.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.hostile.cases import chosen
from tests.hostile_lake.places import Servers
from tests.hostile_lake.play import play
from tests.hostile_lake.table import Case, all_cases, singles
from tests.rings import every

SHORT_SEED = 1


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    with Servers() as started:
        yield started


@pytest.mark.slow
@pytest.mark.parametrize("case", every(3, chosen(all_cases(), SHORT_SEED, singles)), ids=str)
def test_nothing_is_lost_changed_or_left_unsaid(case: Case, servers: Servers) -> None:
    outcome = play(case, servers)

    assert outcome.findings == [], str(outcome)
