"""The implementation of the pytest fixture ``stream_simulation``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

from attrs import evolve, frozen

from streamclient.base import checks
from streamclient.base.reasons import counted
from streamclient.config import ClientConfig
from streamclient.interfaces import IRecordProcessor
from streamclient.records import ColumnValue
from streamclient.testing.history import LawBroken
from streamclient.testing.simulation.history_document import HistoryDocument
from streamclient.testing.simulation.trials.trial import Trial
from streamclient.testing.simulation.trials.trial_settings import Fault, Run, TrialSettings
from streamclient.worker.handlers.batches import RecordProcessorFactory
from streamclient.worker.handlers.handler_processor import blocking_maker

SHOWN_LINES = 12
"""The largest number of faults that a failure report shows, and the largest number of steps. The report shows the last
faults and the last steps."""


class SimulationFailed(AssertionError):
    """The error for a broken law or a failed ``check``. Its text has the seed, and a command that repeats the seed."""

    def __init__(self, text: str, seed: int, law: str) -> None:
        super().__init__(text)
        self.seed = seed
        self.law = law


@frozen(kw_only=True)
class SimulationResult:
    """The results of a simulation, summed over all seeds."""

    seeds: int
    written: int
    """The number of changes that were written to the streams."""
    delivered: int
    """The number of changes that were handed to processors, repeats included."""
    faults: Mapping[str, int]
    """The number of injected faults, by kind."""

    def __str__(self) -> str:
        faults = ", ".join(f"{number} {name}" for name, number in self.faults.items()) or "no faults"
        runs, written = counted(self.seeds, "seed"), counted(self.written, "change")
        return f"{runs}, {written} written, {self.delivered} delivered; {faults}"


_seeds = checks.Check(
    "a whole number above 0 or a list of seeds",
    lambda value: (
        checks.positive.fits(value) or (isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping))
    ),
)


class StreamSimulation:
    """A runner of record processors in simulated fleets. The fixture ``stream_simulation`` is such a runner."""

    def __init__(
        self,
        *,
        seed: int | None = None,
        seeds: int | None = None,
        test: str = "",
        tell: Callable[[str], None] = print,
        keep_history: Callable[[HistoryDocument], str | None] | None = None,
    ) -> None:
        """Make a simulation.

        Args:
            seed: the only seed to run, whatever ``run`` asks for. ``tell`` gets each step of this seed.
            seeds: the number of seeds to run, whatever ``run`` asks for.
            test: the test's id, for the command that a failure names.
            tell: a function that gets the text of each step of ``seed``.
            keep_history: a function that gets the history of a failed seed, and may return a line for the failure.
        """
        self._seed, self._seeds, self._test, self._tell = seed, seeds, test, tell
        self._keep_history = keep_history

    @checks.explains_names
    def run(
        self,
        factory: RecordProcessorFactory,
        *,
        workers: int = 3,
        shards: int = 4,
        records: int = 500,
        keys: int = 40,
        max_records: int = 20,
        faults: Iterable[Fault] = (),
        seeds: int | Iterable[int] = 20,
        columns: Callable[[str, int], Mapping[str, ColumnValue]] | None = None,
        config: ClientConfig | None = None,
        before: Callable[[], object] | None = None,
        check: Callable[[Run], object] | None = None,
    ) -> SimulationResult:
        """Run the processor with each seed, in real workers on simulated time, under the chosen faults.

        Args:
            factory: a class or function that makes processors, as for ``Worker``.
            workers: the number of worker processes.
            shards: the number of shards at the beginning.
            records: the number of changes that the simulation writes while faults happen.
            keys: the number of rows that the changes concern; the key column is ``id``.
            max_records: the largest number of records in one batch.
            faults: the faults to inject, made by ``Faults``; none by default.
            seeds: the number of seeds, which begin at 0, or the seeds themselves. Each seed gives a different history.
            columns: a function of a key and a number n, which returns the columns of the n-th change of the key; by
                default ``{"number": n}``.
            config: the settings of the workers; by default with longer read and signal intervals, to save time.
            before: a function that is called before each seed, for example to empty your sink.
            check: a function that is called with the ``Run`` after each seed, when all workers have stopped. The check
                fails by an ``AssertionError`` or by returning ``False``.

        Raises:
            SimulationFailed: ``check`` failed with one of the seeds, or a law was broken, for example because a change
                was lost.
            ConfigurationError: an argument is invalid.
        """
        given: dict[str, Any] = {} if columns is None else {"columns": columns}
        if config is not None:
            given["config"] = config
        settings = TrialSettings(
            make_processor=_maker(factory),
            workers=workers,
            shards=shards,
            records=records,
            keys=keys,
            max_records=max_records,
            faults=faults,
            before=before,
            check=check,
            **given,
        )
        return self._run_all(settings, self._chosen(seeds))

    def _chosen(self, seeds: int | Iterable[int]) -> Sequence[int]:
        if self._seed is not None:
            return [self._seed]
        if isinstance(seeds, int):
            count = self._seeds or seeds
            _seeds.require("seeds", count if self._seeds else seeds)
            return range(count)
        return list(_seeds.require("seeds", seeds))

    def _run_all(self, settings: TrialSettings, seeds: Sequence[int]) -> SimulationResult:
        faults: Counter[str] = Counter()
        written = delivered = 0
        for seed in seeds:
            trial = Trial(settings, seed, self._tell if self._seed is not None else None)
            try:
                run = trial.run()
            except LawBroken as failed:
                text = self._explained(trial, failed, len(seeds)) + self._kept(trial, failed)
                raise SimulationFailed(text, seed, failed.law) from failed.__cause__
            written += len(run.written)
            delivered += sum(run.delivered.values())
            faults.update(run.faults)
        counts = dict(sorted(faults.items()))
        return SimulationResult(seeds=len(seeds), written=written, delivered=delivered, faults=counts)

    def _kept(self, trial: Trial, failed: LawBroken) -> str:
        if self._keep_history is None:
            return ""
        from streamclient.testing.simulation.trials.trial_history import trial_history  # noqa: PLC0415  # loads fleets

        line = self._keep_history(trial_history(trial, failed))
        return f"\n{line}" if line else ""

    def _explained(self, trial: Trial, failed: LawBroken, seeds: int) -> str:
        needed = _needed(trial.settings, trial.seed, failed.law)
        where = f"{self._test} " if self._test else ""
        return "\n".join(
            [
                f"seed {trial.seed} (of {seeds}) fails: {failed.law}: {failed.text}",
                f"the failure needs only: {', '.join(str(fault) for fault in needed) or 'no fault at all'}",
                "what was done to the fleet:",
                *(f"  {line}" for line in trial.incidents[-SHOWN_LINES:]),
                "the last steps:",
                *(f"  {line}" for line in trial.lines[-SHOWN_LINES:]),
                f"run it again, step by step: pytest {where}--simulation-seed {trial.seed} -s",
            ]
        )


def _needed(settings: TrialSettings, seed: int, law: str) -> tuple[Fault, ...]:
    """Return faults of ``settings`` that suffice to break ``law`` with ``seed``.

    A fault is left out if ``law`` is also broken without this fault.
    """
    faults = settings.faults
    for fault in settings.faults:
        fewer = tuple(other for other in faults if other is not fault)
        try:
            Trial(evolve(settings, faults=fewer), seed).run()
        except LawBroken as failed:
            if failed.law == law:
                faults = fewer
    return faults


def _maker(factory: object) -> Callable[[], IRecordProcessor]:
    """Return a function that makes processors from ``factory``, as a worker does. A factory class is instantiated."""
    is_class_of_factories = isinstance(factory, type) and hasattr(factory, "create_processor")
    made: object = cast(Callable[[], object], factory)() if is_class_of_factories else factory
    return blocking_maker("factory", made)
