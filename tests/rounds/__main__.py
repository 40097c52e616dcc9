"""``python -m tests.rounds``: rounds, or one long soak, a line each; non-zero at the first that is not clean.

Each of ``--rounds`` has a fleet and a table of its own; ``--minutes`` plays lap after lap with one fleet and one table.
"""

from __future__ import annotations

import argparse
from collections.abc import Generator
from contextlib import closing
from pathlib import Path

from tests.drill_kit import directory_of, options
from tests.rounds.lap import Lap, play, soak


def laps(given: argparse.Namespace, directory: Path) -> Generator[Lap, None, None]:
    if given.minutes:
        yield from soak(given.seed, directory, given.minutes)
        return
    for seed in range(given.seed, given.seed + given.rounds):
        yield play(seed, directory / str(seed))


def main() -> None:
    given = options(rounds=20, minutes=0.0, seed=1)
    told: list[Lap] = []
    with directory_of("rounds") as directory, closing(laps(given, directory)) as played:
        for lap in played:
            told.append(lap)
            print(lap, flush=True)
            assert not lap.problems, "\n".join(lap.problems[:20])
    print(
        f"rounds: ok {len(told)} from seed {given.seed} changes={sum(lap.delivered.changes for lap in told)} "
        f"refused_by_table={sum(lap.refused_by_table for lap in told)} "
        f"refused_by_sink={sum(lap.refused_by_sink for lap in told)} "
        f"slowest_recovery={max(lap.slowest_recovery_seconds for lap in told):.1f}"
    )


if __name__ == "__main__":
    main()
