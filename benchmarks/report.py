"""Rounds, medians and the table."""

from __future__ import annotations

import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version

from attrs import frozen

from streamclient.errors import ConfigurationError
from streamclient.spark.java import find_java

Round = Callable[[], float]
"""Runs a candidate once and returns its rate."""


@frozen
class Line:
    """One figure, and its ratio to the first one of its comparison."""

    group: str
    name: str
    figure: float
    unit: str
    ratio: float
    detail: str = ""
    """The same figure in other units, or where it comes from."""

    def __str__(self) -> str:
        figure = f"{self.figure:,.0f} {self.unit}"
        return f"| {self.group} | {self.name} | {figure} | {self.ratio:.2f} | {self.detail} |"


HEADING = "| what | how | median | ratio | also |\n|---|---|---:|---:|---|"


def seconds_of(action: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """Time of one call, by the wall unless another clock is given."""
    started = clock()
    action()
    return clock() - started


def interleaved(rounds: int, candidates: dict[str, Round], *, is_warmed_up: bool = True) -> dict[str, list[float]]:
    """Rates of candidates that run in turn, round after round, so that a busy moment meets them all.

    Each runs once before, unmeasured: caches, connections and Java's compiler are warm afterwards.
    """
    for name, candidate in candidates.items() if is_warmed_up else ():
        progress(f"warming up: {name}")
        candidate()
    rates: dict[str, list[float]] = {name: [] for name in candidates}
    for number in range(rounds):
        for name, candidate in candidates.items():
            progress(f"round {number + 1} of {rounds}: {name}")
            rates[name].append(candidate())
    return rates


def compare(
    group: str,
    unit: str,
    rates: dict[str, list[float]],
    detail: Callable[[str, float], str] = lambda name, figure: "",
) -> list[Line]:
    """One line per candidate: its median rate, and the median of its ratios to the first one in the same round."""
    base = next(iter(rates.values()))
    lines = []
    for name, measured in rates.items():
        ratio = statistics.median(own / other for own, other in zip(measured, base, strict=True))
        figure = statistics.median(measured)
        lines.append(Line(group, name, figure, unit, ratio, detail(name, figure)))
    return lines


def progress(text: str) -> None:
    """Say on standard error what is running, if somebody is looking."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def load() -> str:
    """Load average of the last minute: well above the number of cores, wall times say little."""
    return f"{os.getloadavg()[0]:.1f}"


def machine() -> str:
    """What the figures were measured on."""
    return (
        f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, "
        f"Python {platform.python_version()}, tablestore {version('tablestore')}, {_spark()}"
    )


def _spark() -> str:
    try:
        return f"pyspark {version('pyspark')}, pyarrow {version('pyarrow')}, Java {find_java().version}"
    except (ImportError, ConfigurationError) as error:
        return f"no Spark ({error})"


def table(lines: Sequence[Line]) -> str:
    """The figures as Markdown."""
    return "\n".join([HEADING, *map(str, lines)])
