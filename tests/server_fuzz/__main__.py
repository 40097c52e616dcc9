"""``python -m tests.server_fuzz``: strange requests for a while; at the first finding, it and a non-zero end."""

from __future__ import annotations

import argparse
import logging
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.server_fuzz.world import World

STEPS = 2_000
"""Requests to one server; then a new one, as tables and pools grow."""


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1, help="equal seeds make equal choices")
    options = parser.parse_args()
    logging.basicConfig(level=logging.CRITICAL)
    deadline = time.monotonic() + options.seconds
    statuses: Counter[int] = Counter()
    number = 0
    while time.monotonic() < deadline:
        statuses += play(options.seed, number, STEPS, deadline).statuses
        number += 1
    counted = ", ".join(f"{status}: {count}" for status, count in sorted(statuses.items()))
    print(f"{statuses.total()} requests to {number} servers, none with a finding; by status {counted}")
    return 0


def play(seed: int, number: int, steps: int, deadline: float = float("inf")) -> World:
    """One server from its start, after its end.

    Raises:
        Finding: something that must not be; what was asked last goes to standard error.
    """
    dice = random.Random(f"{seed}/{number}")
    with tempfile.TemporaryDirectory() as name, World(dice, Path(name) if number % 2 else None).open() as world:
        for step in range(steps):
            if time.monotonic() > deadline:
                break
            try:
                world.step()
            except BaseException:
                print(f"seed {seed}, server {number}, step {step}: {world.last}", file=sys.stderr)
                raise
        return world


if __name__ == "__main__":
    sys.exit(main())
