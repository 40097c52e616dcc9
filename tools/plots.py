"""The tables of the page about benchmarks as plots; a figure that is not in a table cannot be in a plot."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from attrs import frozen

from tools.drawing import FAINT, FILL, LINE, Picture

PAGE = Path(__file__).resolve().parent.parent / "docs" / "benchmarks.md"
HEAD = "| what | how | median | ratio | also |"
LEAST_TO_COMPARE = 2
LOGARITHMIC_FROM = 30.0
"""Largest figure over the smallest beyond which equal lengths mean equal factors."""

WIDE, LABELS, BARS, ROW_HEIGHT, HEAD_HEIGHT = 760.0, 380.0, 270.0, 20.0, 26.0
"""Of the paper, of the names on its left, of the longest bar, and of what stands above each other."""


@frozen
class Figure:
    """One row of a table."""

    group: str
    compared: str
    """What is compared; empty where the whole group is."""
    name: str
    value: float
    unit: str


def figures(text: str) -> list[Figure]:
    """All rows of all tables of the page, in order."""
    found = []
    for table in text.split(HEAD)[1:]:
        for line in table.splitlines()[2:]:
            if not line.startswith("| "):
                break
            group, how, median = (cell.strip() for cell in line.split("|")[1:4])
            number, _, unit = median.partition(" ")
            compared, _, name = how.rpartition(": ")
            found.append(Figure(group, compared, name, float(number.replace(",", "")), unit))
    return found


def plotted(group: str) -> list[list[Figure]]:
    """The comparisons of a group that a plot shows: rates with something beside them, of one unit."""
    rows = [row for row in figures(PAGE.read_text()) if row.group == group]
    parts: dict[tuple[str, str], list[Figure]] = {}
    for row in rows:
        parts.setdefault((row.compared, row.unit), []).append(row)
    return [part for part in parts.values() if len(part) >= LEAST_TO_COMPARE and "/" in part[0].unit]


def plotted_groups() -> list[str]:
    """Groups with something to plot, in the page's order."""
    names = dict.fromkeys(row.group for row in figures(PAGE.read_text()))
    return [name for name in names if plotted(name)]


def draw_plot(group: str) -> str:
    """One bar for each row; bars of one plot are to one scale."""
    parts = plotted(group)
    units = list(dict.fromkeys(part[0].unit for part in parts))
    rows = sum(len(part) for part in parts)
    height = 30 + rows * ROW_HEIGHT + len(parts) * HEAD_HEIGHT
    scale = _Scale([row.value for part in parts for row in part])
    picture = Picture(WIDE, height, f"Benchmarks: {group}")
    note = "; from line to line ten times" if scale.is_logarithmic else ""
    picture.text(LABELS, 14, f"{' and '.join(units)}{note}", colour=FAINT, anchor="start")
    for tick in scale.ticks():
        x = LABELS + scale.length(tick)
        picture.line([(x, 26), (x, height - 6)], colour="#d0d5dd", dashed=True)
    y = 24.0
    for part in parts:
        picture.text(12, y + HEAD_HEIGHT / 2, part[0].compared or group, anchor="start", bold=True)
        y += HEAD_HEIGHT
        for row in part:
            length = scale.length(row.value)
            picture.text(LABELS - 10, y + ROW_HEIGHT / 2, row.name, anchor="end")
            picture.box(LABELS, y + 3, length, ROW_HEIGHT - 6, fill=FILL, line=LINE)
            picture.text(LABELS + length + 6, y + ROW_HEIGHT / 2, f"{row.value:,.0f}", anchor="start")
            y += ROW_HEIGHT
    return picture.svg()


class _Scale:
    """From figures to lengths."""

    def __init__(self, values: Sequence[float]) -> None:
        self._most, least = max(values), min(values)
        self.is_logarithmic = self._most / least > LOGARITHMIC_FROM
        self._begin = 10.0 ** math.floor(math.log10(least) - 0.3)
        """Where a bar has no length; on a logarithmic scale below the least figure, so that each has a bar."""

    def length(self, value: float) -> float:
        """Of the bar."""
        if not self.is_logarithmic:
            return BARS * value / self._most
        return BARS * math.log(value / self._begin) / math.log(self._most / self._begin)

    def ticks(self) -> list[float]:
        """Powers of ten, on a logarithmic scale."""
        if not self.is_logarithmic:
            return []
        first, last = round(math.log10(self._begin)), math.floor(math.log10(self._most))
        return [10.0**power for power in range(first, last + 1)]
