"""Measured figures as plots. Every figure in a plot is also in a table of a page.

Bars show the tables on the page about benchmarks. Curves and the table beside them show a file that a benchmark wrote.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from attrs import frozen

from benchmarks.report import BYTES, LATENCY, REQUESTS, ROWS, Line, from_json, parts_of, run_of
from tools.drawing import FAINT, FILL, LINE, STRONG, Picture

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGE = DOCS / "benchmarks.md"
LAKE = DOCS / "figures" / "lake.json"
HEAD = "| what | how | median | ratio | also |"
LEAST_TO_COMPARE = 2
LOGARITHMIC_FROM = 30.0
"""The ratio of largest to smallest figure above which a plot is logarithmic: equal lengths mean equal factors."""

WIDE, LABELS, BARS, ROW_HEIGHT, HEAD_HEIGHT = 760.0, 380.0, 270.0, 20.0, 26.0
"""The widths of the paper, of the names on its left and of the longest bar; the heights of a row and of a heading."""


@frozen
class Figure:
    """One row of a table."""

    group: str
    compared: str
    """The name of the comparison; empty if the whole group is one."""
    name: str
    value: float
    unit: str


def figures(text: str) -> list[Figure]:
    """Return all rows of all tables of a page, in order."""
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
    """Return the comparisons of a group that a plot shows: at least two rates of one unit each."""
    rows = [row for row in figures(PAGE.read_text()) if row.group == group]
    parts: dict[tuple[str, str], list[Figure]] = {}
    for row in rows:
        parts.setdefault((row.compared, row.unit), []).append(row)
    return [part for part in parts.values() if len(part) >= LEAST_TO_COMPARE and "/" in part[0].unit]


def plotted_groups() -> list[str]:
    """Return the groups with comparisons to plot, in the page's order."""
    names = dict.fromkeys(row.group for row in figures(PAGE.read_text()))
    return [name for name in names if plotted(name)]


def draw_plot(group: str) -> str:
    """Draw one bar for each row of a group, all to one scale."""
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
    """The lengths of bars for figures."""

    def __init__(self, values: Sequence[float]) -> None:
        self._most, least = max(values), min(values)
        self.is_logarithmic = self._most / least > LOGARITHMIC_FROM
        self._begin = 10.0 ** math.floor(math.log10(least) - 0.3)
        """The figure whose bar has no length on a logarithmic scale; it is below the least, so that each has a bar."""

    def length(self, value: float) -> float:
        """Return the length of the bar for ``value``."""
        if not self.is_logarithmic:
            return BARS * value / self._most
        return BARS * math.log(value / self._begin) / math.log(self._most / self._begin)

    def ticks(self) -> list[float]:
        """Return the powers of ten on a logarithmic scale; none on a linear one."""
        if not self.is_logarithmic:
            return []
        first, last = round(math.log10(self._begin)), math.floor(math.log10(self._most))
        return [10.0**power for power in range(first, last + 1)]


# --- by the number of shards ----------------------------------------------------------------------------------------

CURVES = {"lake-rows": ROWS, "lake-latency": LATENCY, "lake-bytes": BYTES, "lake-requests": REQUESTS}
"""The unit of the figures in each plot of curves, by the plot's name."""

LAKE_HEAD = " | ".join(["Shards in the commit", "Destination", *CURVES.values()])

PLOT_HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 300.0, 70.0, 110.0, 34.0, 40.0
"""The height of the paper, and the margins around the curves: for numbers on the left, for names on the right."""

COLOURS = (LINE, STRONG, "#2e7d4f")


def lake_lines() -> list[Line]:
    """Return the measured figures of commits, by the number of their shards."""
    return from_json(LAKE.read_text(encoding="utf-8"))


def lake_run() -> str:
    """Return the command that measured these figures, with the machine and how busy it was."""
    return run_of(LAKE.read_text(encoding="utf-8"))


def lake_rows() -> list[str]:
    """Return the rows of the table of these figures, for below ``LAKE_HEAD``."""
    found: dict[tuple[str, int], dict[str, float]] = {}
    for line in lake_lines():
        found.setdefault(parts_of(line.name), {})[line.unit] = line.figure
    return [
        f"{shards:,} | {place} | " + " | ".join(_shown(figures.get(unit)) for unit in CURVES.values())
        for (place, shards), figures in found.items()
    ]


def _shown(figure: float | None) -> str:
    return "" if figure is None else f"{figure:,.0f}"


def draw_curves(name: str) -> str:
    """Draw one curve for each destination, by the number of shards, with both axes logarithmic."""
    unit = CURVES[name]
    curves: dict[str, list[tuple[int, float]]] = {}
    for line in lake_lines():
        if line.unit == unit:
            place, shards = parts_of(line.name)
            curves.setdefault(place, []).append((shards, line.figure))
    points = [point for curve in curves.values() for point in curve]
    paper = _Paper([shards for shards, _ in points], [figure for _, figure in points])
    picture = Picture(WIDE, PLOT_HEIGHT, f"{unit}, by the number of shards in a commit")
    picture.text(12, 16, unit, colour=FAINT, anchor="start")
    picture.text(WIDE / 2, PLOT_HEIGHT - 10, "shards in the commit", colour=FAINT)
    for power in range(paper.least, paper.most + 1):
        y = paper.y(10.0**power)
        picture.line([(LEFT, y), (WIDE - RIGHT, y)], colour="#d0d5dd", dashed=True)
        picture.text(LEFT - 8, y, f"{10**power:,}", anchor="end")
    for shards in sorted({shards for shards, _ in points}):
        picture.text(paper.x(shards), PLOT_HEIGHT - BOTTOM + 14, f"{shards:,}")
    for colour, (place, curve) in zip(COLOURS, curves.items(), strict=False):
        places = [(paper.x(shards), paper.y(figure)) for shards, figure in curve]
        picture.line(places, colour=colour)
        for (x, y), (_, figure) in zip(places, curve, strict=True):
            picture.box(x - 3, y - 3, 6, 6, fill=colour, line=colour)
            picture.text(x, y - 11, f"{figure:,.0f}", colour=colour)
        picture.text(places[-1][0] + 12, places[-1][1], place, colour=colour, anchor="start", bold=True)
    return picture.svg()


class _Paper:
    """The places of figures on logarithmic paper with whole decades."""

    def __init__(self, shards: Sequence[int], figures: Sequence[float]) -> None:
        self._first, self._last = math.log10(min(shards)), math.log10(max(shards))
        self.least = math.floor(math.log10(min(figures)))
        self.most = max(math.ceil(math.log10(max(figures))), self.least + 1)

    def x(self, shards: int) -> float:
        """Return the distance from the left for a number of shards. If there is a single number, it is on the left."""
        share = (math.log10(shards) - self._first) / ((self._last - self._first) or 1.0)
        return LEFT + 24 + (WIDE - RIGHT - LEFT - 48) * share

    def y(self, figure: float) -> float:
        """Return the height for a figure, as SVG counts it from the top."""
        share = (math.log10(figure) - self.least) / (self.most - self.least)
        return PLOT_HEIGHT - BOTTOM - (PLOT_HEIGHT - BOTTOM - TOP) * share
