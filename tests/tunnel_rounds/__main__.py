"""``python -m tests.tunnel_rounds``: many rounds, one line each; ends with non-zero at the first that is not clean.

The processes are of several ways, which the seed deals out; ``--ways loop,async`` chooses among them.
"""

from __future__ import annotations

from collections import Counter

from tests.drill_kit import chosen_ways, directory_of, options, told_ways
from tests.tunnel_rounds.scene import play
from tests.tunnel_rounds.worker import WAYS


def main() -> None:
    given = options(rounds=20, seed=1, rows=100_000, ways=",".join(WAYS))
    ways, started = chosen_ways(given.ways, WAYS), Counter[str]()
    with directory_of("tunnel-rounds") as directory:
        for seed in range(given.seed, given.seed + given.rounds):
            shown = play(seed, directory / str(seed), given.rows, ways)
            started += shown.ways
            print(shown, flush=True)
            assert not shown.problems, shown.problems[:10]
    print(f"tunnel rounds: ok {given.rounds} from seed {given.seed} {told_ways(started)}")


if __name__ == "__main__":
    main()
