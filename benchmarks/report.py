"""Comparisons of candidates in rounds, the lines with their medians and targets, and the tables of results."""

from __future__ import annotations

import json
import math
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import version
from typing import Any

from attrs import asdict, evolve, field, frozen

from streamclient import ConfigurationError
from streamclient.spark import find_java

Round = Callable[[], float]
"""A function that runs a candidate once, and returns its rate or another figure."""


_WHOLE_FROM = 100.0
"""The smallest figure that is shown as a whole number. Smaller figures have decimals, so that each has three digits."""


@frozen
class Aim:
    """A figure, or a ratio of figures, with the target that it has to reach."""

    figure: float
    unit: str
    bound: float
    is_most: bool = False
    """Whether the target is an upper bound; otherwise it is a lower bound."""

    @property
    def is_missed(self) -> bool:
        """Whether the figure does not reach the target."""
        return self.figure > self.bound if self.is_most else self.figure < self.bound

    @property
    def target(self) -> str:
        """The target as text."""
        return f"{self._bound} {self.unit}"

    @property
    def reached(self) -> str:
        """The figure as text, with a mark if it misses the target."""
        return f"{self._number}, missed" if self.is_missed else self._number

    @property
    def _bound(self) -> str:
        return f"at {'most' if self.is_most else 'least'} {self.bound:,g}"

    @property
    def _number(self) -> str:
        return f"{self.figure:,.0f}" if self.figure >= _WHOLE_FROM else f"{self.figure:.3g}"

    def __str__(self) -> str:
        return f"{self._number} {self.unit} (target: {self._bound}{', missed' if self.is_missed else ''})"


@frozen
class Line:
    """One measured figure, with its ratio to the first figure of its comparison."""

    group: str
    name: str
    figure: float
    unit: str
    ratio: float
    detail: str = ""
    """More about the figure as text, for example the figure in other units."""
    spread: float = field(default=0.0, eq=False)
    """Half of the difference between the best and the worst round, as a share of the figure."""
    aims: tuple[Aim, ...] = ()

    @property
    def is_rate(self) -> bool:
        """Whether the figure is a rate. A larger rate is better; any other figure is better if it is smaller."""
        return "/s" in self.unit or "/CPU s" in self.unit

    def __str__(self) -> str:
        figure = f"{self.figure:,.0f} {self.unit}"
        also = "; ".join(filter(None, (self.detail, *map(str, self.aims))))
        return f"| {self.group} | {self.name} | {figure} | {self.ratio:.2f} | {also} |"


HEADING = "| what | how | median | ratio | also |\n|---|---|---:|---:|---|"


def seconds_of(action: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the seconds of one call of ``action``, by the wall clock or by ``clock``."""
    started = clock()
    action()
    return clock() - started


def cpu_seconds(process_id: int) -> float:
    """Return the processor seconds that all threads of another process have used. This needs Linux."""
    return time.clock_gettime((~process_id << 3) | 2)  # the clock of that process, CPUCLOCK_SCHED


def interleaved(rounds: int, candidates: dict[str, Round], *, is_warmed_up: bool = True) -> dict[str, list[float]]:
    """Run all candidates in each round, so that a busy moment of the machine slows all of them; return their rates.

    Each round begins with another candidate, because the first and the last one may find the machine in another state.
    With ``is_warmed_up`` each candidate first runs once unmeasured, for caches, connections and Java's compiler.
    """
    for name, candidate in candidates.items() if is_warmed_up else ():
        progress(f"warming up: {name}")
        candidate()
    rates: dict[str, list[float]] = {name: [] for name in candidates}
    in_turn = list(candidates.items())
    for number in range(rounds):
        first = number % len(in_turn)
        for name, candidate in in_turn[first:] + in_turn[:first]:
            progress(f"round {number + 1} of {rounds}: {name}")
            rates[name].append(candidate())
    return rates


def compare(
    group: str,
    unit: str,
    rates: dict[str, list[float]],
    detail: Callable[[str, float], str] = lambda name, figure: "",
    aims: Callable[[str, float], Iterable[Aim]] = lambda name, figure: (),
) -> list[Line]:
    """Return one line for each candidate, with its median rate and its median ratio to the first candidate.

    Ratios are between rates of the same round. ``detail`` and ``aims`` get a candidate's name and its median rate.
    """
    base = next(iter(rates.values()))
    lines = []
    for name, measured in rates.items():
        ratio = statistics.median(own / other for own, other in zip(measured, base, strict=True))
        figure = statistics.median(measured)
        spread = (max(measured) - min(measured)) / 2 / figure if figure else 0.0
        lines.append(Line(group, name, figure, unit, ratio, detail(name, figure), spread, tuple(aims(name, figure))))
    return lines


def beside(rates: Mapping[str, Sequence[float]], name: str, other: str, *, called: str) -> str:
    """Return as text the median ratio of the rate of ``name`` to the rate of ``other``; empty without ``other``."""
    ratio = _ratio(rates, name, other)
    return "" if ratio is None else f"{ratio:.1f} x {called}"


def aims_beside(
    rates: Mapping[str, Sequence[float]], name: str, other: str, least: float | None, *, called: str
) -> list[Aim]:
    """Return the aim that the ratio of ``beside`` is at least ``least``.

    The list is empty if there is no ``other``, or if ``least`` is ``None``.
    """
    ratio = _ratio(rates, name, other)
    return [] if ratio is None or least is None else [at_least(ratio, least, f"x {called}")]


def _ratio(rates: Mapping[str, Sequence[float]], name: str, other: str) -> float | None:
    if other not in rates or other == name:
        return None
    return statistics.median(own / base for own, base in zip(rates[name], rates[other], strict=True))


def at_most(figure: float, most: float, unit: str) -> Aim:
    """Return the aim that a figure is at most ``most``."""
    return Aim(figure, unit, most, is_most=True)


def at_least(figure: float, least: float, unit: str) -> Aim:
    """Return the aim that a figure is at least ``least``."""
    return Aim(figure, unit, least)


def ratio_of_at_least(least: float) -> Callable[[Line], Aim]:
    """Return a function for ``aimed``: it makes the aim that a line's ratio is at least ``least``."""
    return lambda line: at_least(line.ratio, least, "x the first")


def ratio_of_at_most(most: float) -> Callable[[Line], Aim]:
    """Return a function for ``aimed``: it makes the aim that a line's ratio is at most ``most``."""
    return lambda line: at_most(line.ratio, most, "x the first")


def aimed(lines: Sequence[Line], targets: Mapping[str, Callable[[Line], Aim]]) -> list[Line]:
    """Return ``lines``, with an aim added to each line whose name is in ``targets``.

    Raises:
        ValueError: ``targets`` names a line that does not exist.
    """
    missing = targets.keys() - {line.name for line in lines}
    if missing:
        raise ValueError(f"no line for the targets of {sorted(missing)}; there are {[line.name for line in lines]}")
    return [
        evolve(line, aims=(*line.aims, targets[line.name](line))) if line.name in targets else line for line in lines
    ]


def progress(text: str) -> None:
    """Show ``text`` about the present work on standard error, if that is a terminal."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def load() -> str:
    """Return the load average of the last minute as text. Far above the number of cores, wall times mean little."""
    return f"{os.getloadavg()[0]:.1f}"


def machine() -> str:
    """Return a text about the machine, and about the versions of the programs that are measured."""
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
    """Return the lines as a table in Markdown."""
    return "\n".join([HEADING, *map(str, lines)])


# --- by the number of shards ----------------------------------------------------------------------------------------

ROWS, LATENCY, BYTES, REQUESTS = "rows/s", "ms per commit", "bytes per commit", "requests per commit"
"""The units of the figures of commits. Figures with the same name differ by their unit."""


def name_of(place: str, shards: int) -> str:
    """Return the name of the row for a destination and a number of shards."""
    return f"{place}: {shards:,} shard{'s' if shards > 1 else ''}"


def parts_of(name: str) -> tuple[str, int]:
    """Return the destination and the number of shards in a name from ``name_of``."""
    place, _, rest = name.partition(": ")
    return place, int(rest.partition(" ")[0].replace(",", ""))


# --- several runs ---------------------------------------------------------------------------------------------------

LEAST_NOISE = 0.1
"""The share by which two runs of the same code may differ on a quiet machine, even if the rounds of one run differ
less."""


def as_json(run_as: str, lines: Sequence[Line]) -> str:
    """Return a run as a JSON document, to compare with other runs; ``run_as`` describes command, machine and load."""
    return json.dumps({"run": run_as, "lines": [asdict(line) for line in lines]}, indent=1) + "\n"


def run_of(text: str) -> str:
    """Return the description of command, machine and load in a document of ``as_json``."""
    run_as: str = json.loads(text)["run"]
    return run_as


def from_json(text: str) -> list[Line]:
    """Return the lines in a document of ``as_json``.

    Raises:
        ConfigurationError: ``text`` is not such a document.
    """
    try:
        document: dict[str, Any] = json.loads(text)
        return [
            Line(**{**line, "aims": tuple(Aim(**aim) for aim in line.get("aims", ()))}) for line in document["lines"]
        ]
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigurationError(f"expected a file written with --json, found {text[:40]!r}: {error}") from error


def regressions(before: Sequence[Line], after: Sequence[Line]) -> list[str]:
    """Return a sentence for each row that got worse by more than its rounds differ, and for each row that is missing.

    A row that is compared with another row got worse only if its ratio got worse, too. If all rows of a comparison are
    slower, the machine was slower.
    """
    found = []
    now = {_key(line): line for line in after}
    for old in before:
        new = now.get(_key(old))
        if new is None:
            found.append(f"{old.group}: {old.name}: {old.unit} are not measured any more")
        elif _loss(old, new) > max(old.spread, new.spread, LEAST_NOISE):
            ratios = "" if _is_first(old, new) else f", ratio {old.ratio:.2f} to {new.ratio:.2f}"
            found.append(f"{old.group}: {old.name}: {old.figure:,.0f} to {new.figure:,.0f} {new.unit}{ratios}")
    return found


def _is_first(old: Line, new: Line) -> bool:
    return old.ratio == new.ratio == 1.0


def _loss(old: Line, new: Line) -> float:
    """Return the share by which a row got worse. For all rows but the first, it is at most the loss of the ratio."""
    if math.isnan(old.figure) or math.isnan(new.figure):
        return 0.0
    change = new.figure / old.figure - 1
    loss = -change if new.is_rate else change
    if _is_first(old, new):
        return loss
    ratio = new.ratio / old.ratio - 1
    return min(loss, -ratio if new.is_rate else ratio)


def targets_table(runs: Sequence[Sequence[Line]]) -> str:
    """Return a table in Markdown with a row for each target of the first run, and the figures that each run reached."""
    first = runs[0]
    found = [{(*_key(line), aim.unit): aim.reached for line in run for aim in line.aims} for run in runs]
    heads = ["what", "how", "in", "target", *(f"run {number}" for number in range(1, len(runs) + 1))]
    rows = [
        (*_key(line), aim.target, *(run.get((*_key(line), aim.unit), "not measured") for run in found))
        for line in first
        for aim in line.aims
    ]
    marks = ["---"] * 4 + ["---:"] * len(runs)
    return "\n".join([f"| {' | '.join(heads)} |", f"|{'|'.join(marks)}|", *(f"| {' | '.join(row)} |" for row in rows)])


def _key(line: Line) -> tuple[str, str, str]:
    return line.group, line.name, line.unit
