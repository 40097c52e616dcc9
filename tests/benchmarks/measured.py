"""A group of benchmarks at the smallest sizes."""

from __future__ import annotations

from benchmarks.__main__ import GROUPS
from benchmarks.report import Line
from benchmarks.settings import QUICK
from benchmarks.stage import Stage


def target_of(line: Line) -> str:
    """What it has to reach; whether it does is not asked."""
    return ", ".join(aim.target for aim in line.aims)


def lines_of(stage: Stage, group: str) -> list[Line]:
    lines = GROUPS[group](stage, QUICK)

    measured = [line for line in lines if "not here" not in line.name]
    assert all(line.group == group and line.ratio > 0 for line in measured), lines
    # Memory need not grow by so little: a test before may have left enough of it free.
    assert all(line.figure > 0 for line in measured if line.unit != "MB"), lines
    return lines
