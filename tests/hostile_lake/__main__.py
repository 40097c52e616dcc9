"""``python -m tests.hostile_lake``: the table played, one line a case, then failures by trouble and place."""

from __future__ import annotations

import sys
from itertools import product

from tests.hostile.cases import Table
from tests.hostile_lake.places import Servers
from tests.hostile_lake.play import play
from tests.hostile_lake.table import MIRROR, TROUBLES, Case, ConsumerKind, PlaceKind, all_cases, singles


def column(place: PlaceKind, consumer: ConsumerKind) -> str:
    """Of the summary."""
    return place.name.lower() + (" mirror" if consumer is MIRROR else "")


def cell(case: Case) -> tuple[str, str]:
    """Where a case stands in the summary."""
    return case.trouble.name, column(case.place, case.consumer)


if __name__ == "__main__":
    with Servers() as servers:
        table = Table(
            "tests.hostile_lake",
            all_cases,
            singles,
            lambda case, seed, patience: play(case, servers, patience=patience),
            [trouble.name for trouble in TROUBLES],
            [column(*pair) for pair in product(PlaceKind, ConsumerKind)],
            cell,
        )
        code = table.main()
    sys.exit(code)
