"""``python -m tests.rounds``: rounds, or one long soak, a line each; non-zero at the first that is not clean."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.rounds.lap import Lap, play, soak


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=20, help="each with a fleet and a table of its own")
    parser.add_argument("--minutes", type=float, help="instead: one fleet and one table for so long")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def laps(options: argparse.Namespace, directory: Path) -> Iterator[Lap]:
    if options.minutes is not None:
        yield from soak(options.seed, directory, options.minutes)
        return
    for seed in range(options.seed, options.seed + options.rounds):
        yield play(seed, directory / str(seed))


def main() -> int:
    options = parse_arguments()
    directory = Path(tempfile.mkdtemp(prefix="streamclient-rounds-"))
    told: list[Lap] = []
    for lap in laps(options, directory):
        told.append(lap)
        print(lap, flush=True)
        if lap.problems:
            print("\n".join(["not clean:", *lap.problems[:20], f"files in {directory}"]), file=sys.stderr)
            return 1
    shutil.rmtree(directory)
    print(
        f"rounds: ok {len(told)} from seed {options.seed} changes={sum(lap.delivered.changes for lap in told)} "
        f"refused_by_table={sum(lap.refused_by_table for lap in told)} "
        f"refused_by_sink={sum(lap.refused_by_sink for lap in told)} "
        f"slowest_recovery={max(lap.slowest_recovery_seconds for lap in told):.1f}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
