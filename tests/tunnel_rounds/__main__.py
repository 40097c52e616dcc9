"""``python -m tests.tunnel_rounds``: many rounds, one line each; ends with non-zero at the first that is not clean."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.tunnel_rounds.scene import play


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rows", type=int, default=100_000)
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="streamclient-tunnel-rounds-"))
    for seed in range(options.seed, options.seed + options.rounds):
        shown = play(seed, directory / str(seed), options.rows)
        print(shown, flush=True)
        if not shown.is_clean:
            print(f"not clean: {shown.problems[:10]}; files in {directory / str(seed)}", file=sys.stderr)
            return 1
    print(f"tunnel rounds: ok {options.rounds} from seed {options.seed}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
