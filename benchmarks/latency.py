"""``python -m benchmarks.latency`` (``make bench-latency``): the time from a put to ``process_records``, and its price.

The consumers follow the same traffic, one after the other, each in a process of its own. Then the program simulates an
hour of mixed traffic. ``docs/benchmarks.md`` says what the figures mean.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path

from attrs import evolve, frozen

from benchmarks import mixed_hour
from benchmarks.following import TUNNEL, WORKER, start_process, status_table_of
from benchmarks.java import JavaMissingError, RoundsProcess, java_rounds
from benchmarks.mixed_hour import FixedPause, ReadingLaw, WorkerPauses
from benchmarks.report import Aim, Line, as_json, at_most, load, machine, progress, targets_table
from benchmarks.stage import Stage
from streamclient import ClientConfig
from streamclient.server import DEFAULT_ACCESS_KEY_ID, DEFAULT_ACCESS_KEY_SECRET, DEFAULT_INSTANCE

LOW_LATENCY: Mapping[str, int] = {"worker_idle_time_millis": 5}
"""The only setting of ``ClientConfig`` that differs from its default for low latency."""

MOST_BY_DEFAULT, MOST_LOW = 1.0, 0.5
"""The largest accepted latency with default settings and with ``LOW_LATENCY``, as multiples of the Java client's."""

MOST_FIRST_MILLIS = 1_000.0
"""The longest accepted wait of the first record after ten minutes without records, in milliseconds."""

P50, P99 = "ms p50", "ms p99"
READS, CALLS, CPU = "reads per second", "other calls per second", "ms of CPU per second"
RECORDS, LATE = "records", "ms late p99"
REQUESTS, FIRST = "requests in the hour", "ms of the first record after a silence"
"""The units, which distinguish the figures in one row of a table. No figure is better if it is larger."""

MEASURED = {
    P50: "p50, ms",
    P99: "p99, ms",
    READS: "stream reads/s",
    CALLS: "other calls/s",
    CPU: "CPU, ms/s",
    RECORDS: "Records",
    LATE: "Puts late by, p99, ms",
}
SIMULATED = {REQUESTS: "Requests", P50: "p50, ms", P99: "p99, ms", FIRST: "First after 10 min of silence, ms at most"}
"""The heads of the columns, by unit, in the tables of measured and of simulated figures."""

GROUP, HOUR = "latency", "hour"
"""The names of the group of measured lines and of the group of simulated lines."""

JAVA = "Java stream client"
LOW = f"{WORKER}, low latency"

FLOOR = "a put and one read: nothing else runs"

_READ_OPERATIONS = ("GetStreamRecord", "tunnel/readrecords")
_MILLI = 1_000.0
_NANOS_PER_MILLI = 1e6
_TENTHS_BELOW = 100.0

_numbers = itertools.count()


@frozen
class Traffic:
    """Traffic: a steady rate of records, and the number of shards over which random keys spread the records."""

    rate: int
    shards: int

    def __str__(self) -> str:
        return f"{self.rate:,}/s over {self.shards} shards"


@frozen(kw_only=True)
class Sizes:
    """The sizes of one run of this benchmark."""

    traffics: tuple[Traffic, ...]
    seconds: float
    """The seconds for which each consumer is measured with each traffic."""
    least_records: int
    """The smallest number of records for one figure, so that its p99 has a meaning. A low rate needs more time."""
    settle_seconds: float
    """The seconds for which the same traffic first flows without being measured."""
    warm_seconds: float
    """The seconds for which each consumer warms up caches, connections and Java's compiler before all measurements."""
    floor_records: int

    def records(self, traffic: Traffic) -> int:
        """Return the number of records that are measured with ``traffic``."""
        return max(self.least_records, round(traffic.rate * self.seconds))


WARM = Traffic(300, 4)

FULL = Sizes(
    traffics=(Traffic(1, 4), Traffic(10, 4), Traffic(100, 4), Traffic(1_000, 4), Traffic(100, 64)),
    seconds=40.0,
    least_records=120,
    settle_seconds=5.0,
    warm_seconds=20.0,
    floor_records=2_000,
)
QUICK = Sizes(
    traffics=(Traffic(100, 4),), seconds=0.5, least_records=20, settle_seconds=0.1, warm_seconds=0.1, floor_records=20
)


# --- measured ------------------------------------------------------------------------------------------------------


@frozen
class Consumer:
    """A consumer, with the process that runs it and the arguments by which it begins."""

    name: str
    process: Callable[[], RoundsProcess]
    words: Callable[[str, str, int], Sequence[object]]
    """The function that returns the arguments of the command ``begin`` for an endpoint, a table and its shard count."""


@cache
def _python() -> RoundsProcess:
    return start_process()


@cache
def _writer() -> RoundsProcess:
    return start_process()


def _java_words(endpoint: str, table: str, shards: int) -> Sequence[object]:
    keys = (DEFAULT_ACCESS_KEY_ID, DEFAULT_ACCESS_KEY_SECRET, DEFAULT_INSTANCE)
    return (endpoint, *keys, table, status_table_of(table), shards)


def _words(kind: str, settings: Mapping[str, int], endpoint: str, table: str, shards: int) -> Sequence[object]:
    return (endpoint, table, shards, kind, json.dumps(settings))


def consumers() -> list[Consumer]:
    """Return the consumers. The Java client comes first, if it can run on this machine."""
    ours = [
        Consumer(WORKER, _python, partial(_words, WORKER, {})),
        Consumer(LOW, _python, partial(_words, WORKER, LOW_LATENCY)),
        Consumer(TUNNEL, _python, partial(_words, TUNNEL, {})),
    ]
    try:
        java_rounds()
    except JavaMissingError:
        return ours
    return [Consumer(JAVA, java_rounds, _java_words), *ours]


def measure(stage: Stage, sizes: Sizes) -> list[Line]:
    """Measure every traffic with every consumer, one after the other; then the latency that no consumer can avoid."""
    candidates = consumers()
    lines: list[Line] = []
    warm = evolve(sizes, seconds=sizes.warm_seconds, settle_seconds=0.0)
    for consumer in candidates:
        progress(f"warming up: {consumer.name}")
        _follow(stage, consumer, WARM, warm)
    for traffic in sizes.traffics:
        found: dict[str, dict[str, float]] = {}
        for consumer in candidates:
            progress(f"{traffic}: {consumer.name}")
            found[consumer.name] = _follow(stage, consumer, traffic, sizes)
        lines += _lines(traffic, found)
    nanos = _writer().run("floor", stage.endpoint, "latency_floor", sizes.floor_records)["nanos"]
    floor = {P50: _percentile(nanos, 50), P99: _percentile(nanos, 99), RECORDS: float(len(nanos))}
    return [*lines, *(Line(GROUP, FLOOR, figure, unit, 1.0) for unit, figure in floor.items())]


def _follow(stage: Stage, consumer: Consumer, traffic: Traffic, sizes: Sizes) -> dict[str, float]:
    """Let a consumer follow a new table from its beginning; return the figures by unit."""
    table, process = f"latency_{next(_numbers)}", consumer.process()
    stage.make_table(table, traffic.shards)
    process.run("begin", *consumer.words(stage.endpoint, table, traffic.shards))
    writing = ("write", stage.endpoint, table, traffic.rate)
    _writer().run(*writing, math.ceil(traffic.rate * sizes.settle_seconds), "false")
    stage.reset_requests()
    cpu, started = process.cpu_seconds(), time.perf_counter()
    late = _writer().run(*writing, sizes.records(traffic), "true")["late_nanos"]
    seconds, cpu = time.perf_counter() - started, process.cpu_seconds() - cpu
    requests, puts = stage.requests(), stage.requests(table)["PutRow"]
    nanos = process.run("end", sizes.records(traffic))["nanos"]
    for name in {table, status_table_of(table)} & set(stage.client().list_table()):
        stage.client().delete_table(name)
    reads, calls = split(requests, puts)
    return {
        P50: _percentile(nanos, 50),
        P99: _percentile(nanos, 99),
        READS: reads / seconds,
        CALLS: calls / seconds,
        CPU: cpu / seconds * _MILLI,
        RECORDS: float(len(nanos)),
        LATE: _percentile(late, 99),
    }


def split(requests: Mapping[str, int], puts: int) -> tuple[int, int]:
    """Return the number of the consumer's reads, and of its other calls, without the writer's ``puts``."""
    reads = sum(requests.get(operation, 0) for operation in _READ_OPERATIONS)
    return reads, sum(requests.values()) - puts - reads


def _percentile(nanos: Sequence[float], percent: int) -> float:
    """Return the smallest duration that ``percent`` of 100 durations do not exceed, in milliseconds."""
    return sorted(nanos)[math.ceil(len(nanos) * percent / 100) - 1] / _NANOS_PER_MILLI


def _lines(traffic: Traffic, found: Mapping[str, Mapping[str, float]]) -> Iterable[Line]:
    base = found.get(JAVA)
    for (consumer, figures), unit in itertools.product(found.items(), MEASURED):
        ratio = figures[unit] / base[unit] if base and base[unit] else math.nan
        aims = _aims(traffic, consumer, unit, ratio) if base else ()
        yield Line(GROUP, f"{traffic}: {consumer}", figures[unit], unit, ratio, aims=aims)


def _aims(traffic: Traffic, consumer: str, unit: str, ratio: float) -> tuple[Aim, ...]:
    most = {WORKER: MOST_BY_DEFAULT, LOW: MOST_LOW}.get(consumer)
    if most is None or unit not in (P50, P99) or traffic.shards != WARM.shards:
        return ()
    return (at_most(ratio, most, f"x {JAVA}"),)


# --- simulated -----------------------------------------------------------------------------------------------------

PAUSES_MILLIS = (20, 50, 100, 200, 500)
"""The fixed pauses, and the values of ``worker_idle_time_millis``, for which the hour is simulated. The first value is
the Java client's pause."""


def fixed_name(millis: int) -> str:
    """Return the name of the table's row for a fixed pause."""
    return f"fixed pause: {millis} ms"


def worker_name(millis: int) -> str:
    """Return the name of the table's row for the worker with a value of ``worker_idle_time_millis``."""
    return f"{WORKER}: {millis} ms"


def simulate() -> list[Line]:
    """Simulate the mixed hour for fixed pauses and for the worker's law of pauses, each with several settings."""
    laws: dict[str, Callable[[], ReadingLaw]] = {
        fixed_name(millis): partial(FixedPause, millis / _MILLI) for millis in PAUSES_MILLIS
    }
    default, low = ClientConfig().worker_idle_time_millis, LOW_LATENCY["worker_idle_time_millis"]
    settings = sorted({*PAUSES_MILLIS, default, low})
    laws |= {worker_name(millis): partial(_worker_law, millis) for millis in settings}
    found = {name: _hour(name, law) for name, law in laws.items()}
    for name in (worker_name(millis) for millis in (default, low)):
        progress(f"silences of ten minutes: {name}")
        longest = max(mixed_hour.first_waits(laws[name]))
        found[name][FIRST] = longest * _MILLI, f"the longest of {mixed_hour.TRIALS} waits"
    base = found[fixed_name(PAUSES_MILLIS[0])]
    lines = []
    for name, figures in found.items():
        for unit, (figure, detail) in figures.items():
            ratio = figure / base[unit][0] if unit in base else 1.0
            aims = _hour_aims(unit, figure, ratio) if name == worker_name(default) else ()
            lines.append(Line(HOUR, name, figure, unit, ratio, detail, aims=aims))
    return lines


def _worker_law(millis: int) -> ReadingLaw:
    return WorkerPauses(ClientConfig(worker_idle_time_millis=millis))


def _hour(name: str, law: Callable[[], ReadingLaw]) -> dict[str, tuple[float, str]]:
    """Return the figures of the mixed hour for one law of pauses, by unit, each with a detail as text."""
    progress(f"an hour of mixed traffic: {name}")
    course = mixed_hour.play(law(), mixed_hour.arrivals_of_the_hour())
    parts = {part: [wait * 1e9 for wait in waits] for part, waits in course.waits_by_part().items()}
    every = [nanos for own in parts.values() for nanos in own]
    found = {REQUESTS: (float(course.requests), "")}
    for unit, percent in ((P50, 50), (P99, 99)):
        detail = ", ".join(f"{part} {_percentile(own, percent):,.0f}" for part, own in parts.items())
        found[unit] = _percentile(every, percent), detail
    return found


def _hour_aims(unit: str, figure: float, ratio: float) -> tuple[Aim, ...]:
    if unit == REQUESTS:
        return (at_most(ratio, 1.0, f"x {JAVA}'s pause"),)
    return (at_most(figure, MOST_FIRST_MILLIS, "ms"),) if unit == FIRST else ()


# --- tables --------------------------------------------------------------------------------------------------------


def columns_of(group: str) -> Mapping[str, str]:
    """Return the heads of the columns of a group's table, by unit."""
    return MEASURED if group == GROUP else SIMULATED


def head_of(group: str) -> str:
    """Return the head of a group's table as text, with bars between the cells."""
    first = ["Traffic", "Consumer"] if group == GROUP else ["Law", "Setting"]
    return " | ".join([*first, *columns_of(group).values()])


def rows_of(lines: Sequence[Line], group: str) -> list[str]:
    """Return the rows of a group's table, whose head is ``head_of``: one row for each name of ``lines``."""
    found: dict[str, dict[str, float]] = {}
    for line in lines:
        if line.group == group:
            found.setdefault(line.name, {})[line.unit] = line.figure
    return [
        " | ".join([*parts_of(name), *(shown(figures.get(unit)) for unit in columns_of(group))])
        for name, figures in found.items()
    ]


def parts_of(name: str) -> tuple[str, str]:
    """Return the two parts of a row's name."""
    before, _, after = name.partition(": ")
    return before, after


def shown(figure: float | None) -> str:
    """Return a figure as text, with one decimal if it is small and not whole."""
    if figure is None:
        return ""
    return f"{figure:,.1f}" if figure < _TENTHS_BELOW and not figure.is_integer() else f"{figure:,.0f}"


def table(lines: Sequence[Line], group: str) -> str:
    """Return a group's table as Markdown."""
    head, rows = head_of(group), rows_of(lines, group)
    return "\n".join([f"| {head} |", "---".join("|" * (head.count("|") + 2)), *(f"| {row} |" for row in rows)])


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command with ``arguments``, by default those of this process."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.latency", description="Print tables of latency.")
    parser.add_argument("--quick", action="store_true", help="measure the smallest sizes: a test that everything runs")
    parser.add_argument("--simulated", action="store_true", help="measure nothing: only simulate the mixed hour")
    parser.add_argument(
        "--seconds", type=float, default=FULL.seconds, help="the time of one measurement (default: %(default)s)"
    )
    parser.add_argument(
        "--records", type=int, default=FULL.least_records, help="the least records of one (default: %(default)s)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to this file")
    given = sys.argv[1:] if arguments is None else list(arguments)
    options = parser.parse_args(given)
    sizes = QUICK if options.quick else evolve(FULL, seconds=options.seconds, least_records=options.records)
    started, load_before, lines = time.monotonic(), load(), []
    if not options.simulated:
        with Stage() as stage:
            lines += measure(stage, sizes)
    lines += simulate()
    progress("")
    run_as = (
        f"`{' '.join(['python -m benchmarks.latency', *given])}` on {machine()}.\n"
        f"It took {time.monotonic() - started:.0f} s; load average {load_before} before, {load()} after."
    )
    print(run_as)
    for group in (GROUP, HOUR)[options.simulated :]:
        print(f"\n{table(lines, group)}")
    print(f"\n{targets_table([lines])}")
    if options.json is not None:
        options.json.write_text(as_json(run_as, lines), encoding="utf-8")


if __name__ == "__main__":
    main()
