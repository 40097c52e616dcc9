"""``python -m tests.rounds``: rounds, or one long soak, a line each; non-zero at the first that is not clean.

Each of ``--rounds`` has a fleet and a table of its own; ``--minutes`` plays lap after lap with one fleet and one table.
The processes of a fleet are of several ways, which the seed deals out; ``--ways loop,async`` chooses among them.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Generator
from contextlib import closing
from pathlib import Path

from tests.drill_kit import chosen_ways, directory_of, options, told_ways
from tests.rounds.lap import Lap, play, soak
from tests.rounds.plan import WAYS


def laps(given: argparse.Namespace, directory: Path) -> Generator[Lap, None, None]:
    ways = chosen_ways(given.ways, WAYS)
    if given.minutes:
        yield from soak(given.seed, directory, given.minutes, ways)
        return
    for seed in range(given.seed, given.seed + given.rounds):
        yield play(seed, directory / str(seed), ways=ways)


def main() -> None:
    given = options(rounds=20, minutes=0.0, seed=1, ways=",".join(WAYS))
    told: list[Lap] = []
    with directory_of("rounds") as directory, closing(laps(given, directory)) as played:
        for lap in played:
            told.append(lap)
            print(lap, flush=True)
            assert not lap.problems, "\n".join(lap.problems[:20])
    print(
        f"rounds: ok {len(told)} from seed {given.seed} {told_ways(sum((lap.ways for lap in told), Counter()))} "
        f"changes={sum(lap.delivered.changes for lap in told)} "
        f"refused_by_table={sum(lap.refused_by_table for lap in told)} "
        f"refused_by_sink={sum(lap.refused_by_sink for lap in told)} "
        f"slowest_recovery={max(lap.slowest_recovery_seconds for lap in told):.1f}"
    )


if __name__ == "__main__":
    main()
