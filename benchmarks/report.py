"""Timing and the table."""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable

from attrs import frozen

ROUNDS = 5
"""Interleaved repetitions of each candidate; medians are reported, so one disturbed round does not count."""


@frozen
class Line:
    """One measured figure, and its ratio to the first candidate of its group."""

    group: str
    name: str
    figure: float
    unit: str
    ratio: float | None = None

    def __str__(self) -> str:
        ratio = "" if self.ratio is None else f"{self.ratio:.2f}"
        return f"| {self.group} | {self.name} | {self.figure:,.0f} {self.unit} | {ratio} |"


def seconds_of(action: Callable[[], object]) -> float:
    """Wall time of one call."""
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def side_by_side(group: str, unit: str, amount: int, candidates: dict[str, Callable[[], object]]) -> list[Line]:
    """Rates of candidates that each handle ``amount`` things per call, run in turn, round after round."""
    rates: dict[str, list[float]] = {name: [] for name in candidates}
    for action in candidates.values():
        action()
    for _ in range(ROUNDS):
        for name, action in candidates.items():
            rates[name].append(amount / seconds_of(action))
    first = next(iter(candidates))
    lines = []
    for name, measured in rates.items():
        ratio = statistics.median(own / base for own, base in zip(measured, rates[first], strict=True))
        lines.append(Line(group, name, statistics.median(measured), unit, ratio))
    return lines


def heading() -> str:
    """What the figures were measured on, and the head of the table."""
    machine = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
    return f"{machine}\n\n| what | how | median | ratio |\n|---|---|---:|---:|"
