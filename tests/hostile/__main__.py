"""``python -m tests.hostile``: the table played, one line a case, then failures by answer and consumer."""

from __future__ import annotations

import sys

from tests.hostile.cases import Table
from tests.hostile.play import play
from tests.hostile.table import ANSWERS, CONSUMERS, all_cases, singles

TABLE = Table(
    "tests.hostile",
    all_cases,
    singles,
    lambda case, seed, patience: play(case, seed, patience=patience),
    [answer.name for answer in ANSWERS],
    [consumer.name for consumer in CONSUMERS],
    lambda case: (case.answer.name, case.consumer.name),
)

if __name__ == "__main__":
    sys.exit(TABLE.main())
