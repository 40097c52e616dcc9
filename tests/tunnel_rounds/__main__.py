"""``python -m tests.tunnel_rounds``: many rounds, one line each; ends with non-zero at the first that is not clean."""

from __future__ import annotations

from tests.drill_kit import directory_of, options
from tests.tunnel_rounds.scene import play


def main() -> None:
    given = options(rounds=20, seed=1, rows=100_000)
    with directory_of("tunnel-rounds") as directory:
        for seed in range(given.seed, given.seed + given.rounds):
            shown = play(seed, directory / str(seed), given.rows)
            print(shown, flush=True)
            assert not shown.problems, shown.problems[:10]
    print(f"tunnel rounds: ok {given.rounds} from seed {given.seed}")


if __name__ == "__main__":
    main()
