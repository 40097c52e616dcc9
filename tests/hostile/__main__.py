"""``python -m tests.hostile``: the table played, one line a case, then failures by answer and consumer."""

from __future__ import annotations

import argparse
import sys
from collections import Counter

from tests.hostile.play import Outcome, play
from tests.hostile.table import ANSWERS, CONSUMERS, Case, all_cases, chosen

PATIENCE_SECONDS = 60.0
"""Fifty times what the longest wait of an unhurried case takes."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hostile")
    parser.add_argument("--all", action="store_true", help="all pairs of values; by default the cases of `make test`")
    parser.add_argument("--every", action="store_true", help="the whole table, which takes hours")
    parser.add_argument(
        "--only",
        default="",
        metavar="TEXT",
        help="cases with this text in their names; may be parts, separated by |, all of which must be there",
    )
    parser.add_argument("--seed", type=int, default=1, help="which cases show the pairs, and where bytes are cut")
    parser.add_argument("--patience", type=float, default=PATIENCE_SECONDS, metavar="SECONDS")
    parser.add_argument("--list", action="store_true", help="name the cases, and play none")
    options = parser.parse_args()
    cases = list(all_cases()) if options.every else chosen(all_cases(), options.seed, is_short=not options.all)
    cases = [case for case in cases if all(part in str(case) for part in options.only.split("|"))]
    if options.list:
        print(*cases, f"{len(cases)} cases", sep="\n")
        return 0
    outcomes = []
    for case in cases:
        outcomes.append(played(case, options.seed, options.patience))
        print(outcomes[-1], flush=True)
    print(summary(outcomes))
    return 1 if not outcomes or any(outcome.findings for outcome in outcomes) else 0


def played(case: Case, seed: int, patience: float) -> Outcome:
    """One case; what goes wrong with the harness is a finding, too, so that the others are played."""
    try:
        return play(case, seed, patience=patience)
    except Exception as error:
        return Outcome(case, [f"the harness itself: {error!r}"], "", 0, 0.0)


def summary(outcomes: list[Outcome]) -> str:
    """A table of answer by consumer: cases, and how many of them failed."""
    cases = Counter((one.case.answer.name, one.case.consumer.name) for one in outcomes)
    failed = Counter((one.case.answer.name, one.case.consumer.name) for one in outcomes if one.findings)
    names = [consumer.name for consumer in CONSUMERS]
    width = max(len(answer.name) for answer in ANSWERS)
    wide = max(map(len, names)) + 2
    lines = ["", " " * width + "".join(f"{name:>{wide}}" for name in names)]
    for answer in ANSWERS:
        cells = [_cell(cases[answer.name, name], failed[answer.name, name]) for name in names]
        lines.append(f"{answer.name:<{width}}" + "".join(f"{cell:>{wide}}" for cell in cells))
    seconds = sum(one.seconds for one in outcomes)
    return "\n".join([*lines, "", f"{len(outcomes)} cases, {failed.total()} failed, {seconds:.0f} s"])


def _cell(played: int, failed: int) -> str:
    if not played:
        return "."
    return f"{failed} of {played}" if failed else f"{played}"


if __name__ == "__main__":
    sys.exit(main())
