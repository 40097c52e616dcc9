"""Plots of measured figures. Each figure in a plot is also in a table of a page.

Bars show figures of the tables on the page about benchmarks. Curves, and the tables beside them, show figures in files
that benchmarks wrote.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from attrs import frozen

from benchmarks import latency
from benchmarks.report import BYTES, LATENCY, REQUESTS, ROWS, Line, from_json, parts_of, run_of
from tools.drawing import FAINT, FILL, LINE, STRONG, Picture

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGE = DOCS / "benchmarks.md"
LAKE = DOCS / "figures" / "lake.json"
HEAD = "| what | how | median | ratio | also |"
LEAST_TO_COMPARE = 2
LOGARITHMIC_FROM = 30.0
"""The ratio of the largest to the smallest figure above which the scale of a plot is logarithmic."""

WIDE, LABELS, BARS, ROW_HEIGHT, HEAD_HEIGHT = 760.0, 380.0, 270.0, 20.0, 26.0
"""The widths of the plot, of the names on its left, and of the longest bar; the heights of a row and of a heading."""


@frozen
class Figure:
    """A figure, which is one row of a table on the page about benchmarks."""

    group: str
    compared: str
    """The name of the comparison that the figure belongs to; empty if the whole group is one comparison."""
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
    """Return the comparisons of a group that a plot shows. Each has at least two figures, all rates of one unit."""
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
    """Draw one bar for each figure of a group, all on the same scale."""
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
    """The scale of a plot, by which the length of each bar is computed."""

    def __init__(self, values: Sequence[float]) -> None:
        self._most, least = max(values), min(values)
        self.is_logarithmic = self._most / least > LOGARITHMIC_FROM
        self._begin = 10.0 ** math.floor(math.log10(least) - 0.3)
        """The figure at the beginning of a logarithmic scale. It is below the smallest one, so that each has a bar."""

    def length(self, value: float) -> float:
        """Return the length of the bar for ``value``."""
        if not self.is_logarithmic:
            return BARS * value / self._most
        return BARS * math.log(value / self._begin) / math.log(self._most / self._begin)

    def ticks(self) -> list[float]:
        """Return the powers of ten within a logarithmic scale; an empty list for a linear scale."""
        if not self.is_logarithmic:
            return []
        first, last = round(math.log10(self._begin)), math.floor(math.log10(self._most))
        return [10.0**power for power in range(first, last + 1)]


# --- by the number of shards ----------------------------------------------------------------------------------------

CURVES = {"lake-rows": ROWS, "lake-latency": LATENCY, "lake-bytes": BYTES, "lake-requests": REQUESTS}
"""The unit of the figures in each plot of curves, by the plot's name."""

LAKE_HEAD = " | ".join(["Shards in the commit", "Destination", *CURVES.values()])

PLOT_HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 300.0, 70.0, 150.0, 34.0, 40.0
"""The height of the plot, and the margins around the curves. Numbers are in the left margin, names in the right one."""

NAME_HEIGHT = 14.0

COLOURS = (LINE, STRONG, "#2e7d4f", "#8a5a00")


def lake_lines() -> list[Line]:
    """Return the measured figures of commits with different numbers of shards."""
    return from_json(LAKE.read_text(encoding="utf-8"))


def lake_run() -> str:
    """Return a text about the measurement of commits: its command, the machine, and the load of the machine."""
    return run_of(LAKE.read_text(encoding="utf-8"))


def lake_rows() -> list[str]:
    """Return the rows of the table of commits, whose head is ``LAKE_HEAD``."""
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
    curves: dict[str, list[tuple[float, float]]] = {}
    for line in lake_lines():
        if line.unit == unit:
            place, shards = parts_of(line.name)
            curves.setdefault(place, []).append((shards, line.figure))
    counts = sorted({shards for curve in curves.values() for shards, _ in curve})
    return _draw(f"{unit}, by the number of shards in a commit", unit, "shards in the commit", counts, curves)


def _draw(
    title: str,
    unit: str,
    axis: str,
    ticks: Sequence[float],
    curves: Mapping[str, Sequence[tuple[float, float]]],
    *,
    shown: Callable[[float], str] | None = _shown,
) -> str:
    """Draw curves on two logarithmic axes, with numbers at the ``ticks`` of the horizontal axis.

    ``shown`` makes the text above each point. If it is ``None``, points have no text, because the curves are too close.
    """
    points = [point for curve in curves.values() for point in curve]
    paper = _Paper([*ticks, *(x for x, _ in points)], [figure for _, figure in points])
    picture = Picture(WIDE, PLOT_HEIGHT, title)
    picture.text(12, 16, unit, colour=FAINT, anchor="start")
    picture.text(WIDE / 2, PLOT_HEIGHT - 10, axis, colour=FAINT)
    for power in range(paper.least, paper.most + 1):
        y = paper.y(10.0**power)
        picture.line([(LEFT, y), (WIDE - RIGHT, y)], colour="#d0d5dd", dashed=True)
        picture.text(LEFT - 8, y, f"{10.0**power:,g}", anchor="end")
    for tick in ticks:
        picture.text(paper.x(tick), PLOT_HEIGHT - BOTTOM + 14, f"{tick:,.0f}")
    for colour, curve in zip(COLOURS, curves.values(), strict=False):
        places = [paper.place(point) for point in curve]
        picture.line(places, colour=colour)
        for (x, y), (_, figure) in zip(places, curve, strict=True):
            picture.box(x - 3, y - 3, 6, 6, fill=colour, line=colour)
            if shown is not None:
                picture.text(x, y - 11, shown(figure), colour=colour)
    ends = {place: paper.place(curve[-1]) for place, curve in curves.items()}
    for colour, (place, y) in zip(COLOURS, _apart({place: y for place, (_, y) in ends.items()}).items(), strict=False):
        picture.text(ends[place][0] + 12, y, place, colour=colour, anchor="start", bold=True)
    return picture.svg()


def _apart(heights: Mapping[str, float]) -> dict[str, float]:
    """Return the heights of names, in the same order. A name that would cover another name is moved down."""
    found = dict(heights)
    free = -math.inf
    for name in sorted(heights, key=heights.__getitem__):
        found[name] = max(heights[name], free)
        free = found[name] + NAME_HEIGHT
    return found


class _Paper:
    """The logarithmic axes of a plot, which compute the place of each point. The vertical axis has whole decades."""

    def __init__(self, numbers: Sequence[float], figures: Sequence[float]) -> None:
        self._first, self._last = math.log10(min(numbers)), math.log10(max(numbers))
        self.least = math.floor(math.log10(min(figures)))
        self.most = max(math.ceil(math.log10(max(figures))), self.least + 1)

    def x(self, number: float) -> float:
        """Return the distance from the left edge for ``number``. A single number is at the left end of the axis."""
        share = (math.log10(number) - self._first) / ((self._last - self._first) or 1.0)
        return LEFT + 24 + (WIDE - RIGHT - LEFT - 48) * share

    def place(self, point: tuple[float, float]) -> tuple[float, float]:
        """Return the place of ``point`` in the plot."""
        return self.x(point[0]), self.y(point[1])

    def y(self, figure: float) -> float:
        """Return the distance from the upper edge for ``figure``."""
        share = (math.log10(figure) - self.least) / (self.most - self.least)
        return PLOT_HEIGHT - BOTTOM - (PLOT_HEIGHT - BOTTOM - TOP) * share


# --- latency -------------------------------------------------------------------------------------------------------

LATENCIES = DOCS / "figures" / "latency.json"

LATENCY_PLOTS = {"latency-rates": latency.P50, "latency-hour": latency.P99}
"""The unit of the figures in each plot of latency, by the plot's name."""


def latency_lines() -> list[Line]:
    """Return the measured and the simulated figures of latency."""
    return from_json(LATENCIES.read_text(encoding="utf-8"))


def latency_run() -> str:
    """Return a text about the measurement of latency: its command, the machine, and the load of the machine."""
    return run_of(LATENCIES.read_text(encoding="utf-8"))


def latency_curves(name: str) -> dict[str, list[tuple[float, float]]]:
    """Return the curves of a plot, whose horizontal axis has records per second or, for the mixed hour, requests."""
    group = latency.GROUP if name == "latency-rates" else latency.HOUR
    rows: dict[str, dict[str, float]] = {}
    for line in latency_lines():
        if line.group == group:
            rows.setdefault(line.name, {})[line.unit] = line.figure
    names = {str(traffic): traffic for traffic in latency.FULL.traffics if traffic.shards == latency.WARM.shards}
    curves: dict[str, list[tuple[float, float]]] = {}
    for row, figures in rows.items():
        before, after = latency.parts_of(row)
        if group == latency.HOUR:
            curves.setdefault(before, []).append((figures[latency.REQUESTS], figures[LATENCY_PLOTS[name]]))
        elif before in names:
            curves.setdefault(after, []).append((names[before].rate, figures[LATENCY_PLOTS[name]]))
    return {curve: sorted(points) for curve, points in curves.items()}


def draw_latency(name: str) -> str:
    """Draw one curve of latency for each consumer or law, on two logarithmic axes."""
    unit, curves = LATENCY_PLOTS[name], latency_curves(name)
    numbers = sorted({x for curve in curves.values() for x, _ in curve})
    if name == "latency-rates":
        title = "Latency by the rate of records, over 4 shards"
        return _draw(title, unit, "records per second", numbers, curves, shown=None)
    powers = range(math.floor(math.log10(numbers[0])), math.ceil(math.log10(numbers[-1])) + 1)
    title, ticks = "Latency by the requests of a mixed hour", [10.0**power for power in powers]
    return _draw(title, unit, "requests in the mixed hour", ticks, curves, shown=latency.shown)
