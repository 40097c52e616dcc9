"""A campaign: many simulated histories, run in several processes, and a report of their violations and totals."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from hashlib import sha256
from multiprocessing import active_children, get_context
from typing import Any

from attrs import define, field

from streamclient.base.interrupts import ending_signals_held_back, ignore_ending_signals
from streamclient.base.reasons import counted
from streamclient.testing.simulation.drawing import Size, draw_plan, size_of
from streamclient.testing.simulation.runner import HistoryVerdict, run_plan

SEEDS_PER_TASK = 20
"""The number of seeds in one task of the process pool. A task takes seconds, so that its transfer to a process costs
little and progress is visible."""

Judged = tuple[HistoryVerdict, float]
"""The verdict on a history, and the processor time in seconds that the history took."""


@define(eq=False)
class Summary:
    """The totals of a campaign: sums over the verdicts of its histories, in the order of their seeds."""

    histories: Counter[str] = field(factory=Counter)
    """The number of histories, by size of the fleet."""
    injected: Counter[str] = field(factory=Counter)
    counts: Counter[str] = field(factory=Counter)
    excused: Counter[str] = field(factory=Counter)
    """The number of violations that each excuse allowed. A key has the form ``LAW: EXCUSE``."""
    simulated_seconds: float = 0.0
    work_seconds: Counter[str] = field(factory=Counter)
    """The processor time, in seconds, by size of the fleet."""
    events: int = 0
    slowest_recovery_durations: float = 0.0
    violations: dict[int, str] = field(factory=dict)
    """The name of the broken law, by seed."""
    _digests: list[str] = field(factory=list)

    def add(self, verdict: HistoryVerdict, work_seconds: float) -> None:
        """Add the verdict on one history, whose run took ``work_seconds`` of processor time."""
        plan, size = verdict.plan, size_of(verdict.plan).value
        self.histories[size] += 1
        self.injected.update(verdict.injected)
        self.counts.update(verdict.counts)
        self.excused.update(verdict.excused)
        self.simulated_seconds += verdict.seconds
        self.work_seconds[size] += work_seconds  # type: ignore[assignment]  # Counter of floats
        self.events += verdict.events
        self._digests.append(verdict.digest)
        if verdict.recovery_seconds is not None:
            durations = verdict.recovery_seconds / plan.duration_seconds
            self.slowest_recovery_durations = max(self.slowest_recovery_durations, durations)
        if verdict.violation is not None:
            self.violations[plan.seed] = verdict.violation.law

    @property
    def digest(self) -> str:
        """A digest of the digests of all histories. Campaigns with equal histories have equal digests."""
        return sha256("".join(self._digests).encode()).hexdigest()[:16]

    def per_minute(self, size: str) -> float:
        """Return the number of histories of ``size`` that one core runs in a minute."""
        seconds = self.work_seconds[size]
        return 60.0 * self.histories[size] / seconds if seconds else 0.0

    def as_json(self) -> dict[str, Any]:
        """Return the whole summary as JSON values, for programs."""
        return {
            "histories": dict(self.histories),
            "violations": {str(seed): law for seed, law in self.violations.items()},
            "digest": self.digest,
            "histories_per_minute_and_core": {size: round(self.per_minute(size), 1) for size in self.histories},
            "simulated_hours": round(self.simulated_seconds / 3_600, 2),
            "events": self.events,
            "slowest_recovery_durations": round(self.slowest_recovery_durations, 2),
            "injected": dict(sorted(self.injected.items())),
            "excused": dict(sorted(self.excused.items())),
            "counts": dict(sorted(self.counts.items())),
        }

    def lines(self) -> Iterable[str]:
        """Yield the lines of the summary, for people."""
        total = sum(self.histories.values())
        violations = counted(len(self.violations), "violation")
        yield f"{counted(total, 'history')}, {violations}, digest {self.digest}"
        sizes = ", ".join(
            f"{self.histories[size.value]} {size.value} ({self.per_minute(size.value):.0f} per minute and core)"
            for size in Size
            if self.histories[size.value]
        )
        yield f"by size: {sizes}"
        yield f"{self.simulated_seconds / 3_600:.1f} simulated hours, {self.events} events"
        yield f"slowest recovery: {self.slowest_recovery_durations:.1f} lease durations after the last fault"
        yield f"injected: {_listed(self.injected)}"
        yield f"excused: {_listed(self.excused) or 'nothing'}"
        yield f"seen: {_listed(self.counts)}"


def violation_lines(verdict: HistoryVerdict) -> Iterable[str]:
    """Yield lines about the violation of a verdict, if it has one, and about the events that led to the violation."""
    found = verdict.violation
    if found is None:
        return
    where = f" of {found.lease_key}" if found.lease_key else ""
    yield f"seed {verdict.plan.seed} breaks the law {found.law!r}{where} after {found.at:.3f} s: {found.text}"
    yield from (f"  {line}" for line in found.lines)


def _listed(numbers: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {name}" for name, number in sorted(numbers.items(), key=lambda item: -item[1]))


def run_seeds(seeds: Sequence[int], size: Size | None = None) -> list[Judged]:
    """Run the histories of ``seeds`` in this process; return their verdicts. ``size`` replaces the drawn sizes."""
    judged = []
    for seed in seeds:
        began = time.process_time()
        verdict = run_plan(draw_plan(seed, size))
        judged.append((verdict, time.process_time() - began))
    return judged


def run_campaign(
    seeds: range,
    *,
    processes: int = 0,
    size: Size | None = None,
    progress: Callable[[Summary, HistoryVerdict], None] | None = None,
) -> tuple[Summary, list[HistoryVerdict]]:
    """Run the histories of ``seeds``; return the summary, and the verdicts with a violation in the order of the seeds.

    ``processes=0`` uses one process per core. ``size`` replaces the drawn sizes. The campaign calls ``progress`` after
    each history, in the order of the seeds.
    """
    summary, broken = Summary(), []
    for verdict, seconds in _all(seeds, processes or os.cpu_count() or 1, size):
        summary.add(verdict, seconds)
        if verdict.violation is not None:
            broken.append(verdict)
        if progress is not None:
            progress(summary, verdict)
    return summary, broken


def _all(seeds: range, processes: int, size: Size | None) -> Iterator[Judged]:
    tasks = [seeds[start : start + SEEDS_PER_TASK] for start in range(0, len(seeds), SEEDS_PER_TASK)]
    if processes == 1 or len(tasks) == 1:
        for task in tasks:
            for seed in task:
                yield from run_seeds([seed], size)
        return
    with pool_of(processes) as pool:
        with ending_signals_held_back():
            histories = pool.map(run_seeds, tasks, [size] * len(tasks))
        for judged in histories:
            yield from judged


@contextmanager
def pool_of(processes: int) -> Iterator[ProcessPoolExecutor]:
    """Lend a pool of processes for a ``with`` block. An exception, Ctrl-C or SIGTERM ends the processes immediately.

    A bare ``ProcessPoolExecutor`` would first wait for running tasks, which may take a minute.
    """
    before = {child.pid for child in active_children()}
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn"), initializer=ignore_ending_signals) as pool:
        try:
            yield pool
        except BaseException:
            for child in active_children():
                if child.pid not in before:
                    child.kill()  # a process of the pool ignores other signals, and has no cleanup
            raise
