"""One run of ``stream_simulation`` with one seed: real workers with the user's processor on simulated time."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial

from attrs import define, field

from streamclient.base.reasons import counted, times
from streamclient.base.times import MICROS_PER_SECOND
from streamclient.config import StreamConfig
from streamclient.model import Lease
from streamclient.records import ColumnOperation, RecordColumn, RecordType, SequenceInfo, StreamRecord
from streamclient.testing.fakes import FakeStream
from streamclient.testing.history import LOST, LawBroken
from streamclient.testing.simulation.kernel import Dice, Entry
from streamclient.testing.simulation.simulated_faults import Do, Fate
from streamclient.testing.simulation.trials.trial_leases import READ_FAILED, TrialLeases
from streamclient.testing.simulation.trials.trial_settings import Change, Run, TrialSettings, said
from streamclient.testing.simulation.trials.witness import Life, Witness, WitnessedProcessor
from streamclient.testing.simulation.workers import STARTED_AT_SECONDS, SimulatedWorker, Simulation
from streamclient.worker import Worker
from streamclient.worker.handlers.batches import RecordProcessorFactory

STORM_DURATIONS = 12.0
"""The length of the storm, in lease durations. In this time records are written and faults happen."""

RECOVERY_DURATIONS = 20.0
"""The time limit for the delivery of all changes, in lease durations after the last fault."""

QUIET_SHARE = 0.1
"""The share of the storm, at its beginning, in which only single calls fail. Other faults begin later, when the fleet
has distributed the shards."""


@define(eq=False)
class Trial:
    """One run with one seed, with its workers, stream, leases, faults and witness."""

    settings: TrialSettings
    seed: int
    tell: Callable[[str], None] | None = None
    """A function that the trial calls with the text of each step, so that a person can follow the run."""
    lines: list[str] = field(factory=list)
    """The texts of all steps of the run, in order."""
    incidents: list[str] = field(factory=list)
    """The texts of the steps that come from outside the fleet, such as faults."""
    entries: list[Entry] = field(factory=list)
    """All steps and all changes of lease rows, as entries of a trace."""
    injected: Counter[Do | Fate] = field(factory=Counter)
    simulation: Simulation = field(init=False)
    dice: Dice = field(init=False)
    stream: FakeStream = field(init=False)
    leases: TrialLeases = field(init=False)
    witness: Witness = field(init=False)
    fleet: list[Life] = field(factory=list)
    """All processes that were ever started, in the order of their starts."""
    keys_of: dict[str, list[str]] = field(factory=dict)
    """The keys that each open shard holds, by shard id."""
    changes_of: dict[str, list[Change]] = field(factory=dict)
    """The changes that were written to each shard, by shard id. A shard without changes has no entry."""
    opened: dict[str, float] = field(factory=dict)
    """By shard id, the time when the shard was opened, in seconds since the run began."""
    written_at: dict[str, list[float]] = field(factory=dict)
    """By shard id, the times of the shard's changes, in seconds since the run began."""
    _reading_dice: Dice = field(init=False)
    _created: int = 0
    _written_micros: int = 0

    def __attrs_post_init__(self) -> None:
        settings, shares = self.settings, {fault.kind: fault.share for fault in self.settings.faults}
        self.simulation = Simulation(Dice.of(self.seed, "order").getrandbits(32))
        self.dice = Dice.of(self.seed, "trial")
        self._reading_dice = Dice.of(self.seed, "reads")
        names = [self._new_shard() for _ in range(settings.shards)]
        self.stream = FakeStream("simulated", names)
        self.stream.before_read = self._before_read
        self.witness = self._make_witness()
        self.witness.parents.update(dict.fromkeys(names, ()))
        calls = Dice.of(self.seed, "calls")
        self.leases = TrialLeases(self.stream.stream_id, calls, shares, self.injected, self._row_changed)
        keys = [f"key-{number:03d}" for number in range(max(settings.keys, settings.shards))]
        self.keys_of = {name: keys[place :: settings.shards] for place, name in enumerate(names)}

    # --- the run -----------------------------------------------------------------------------------------------

    def run(self) -> Run:
        """Run the trial to its end, and return the ``Run`` that describes it.

        Raises:
            LawBroken: a law is broken, or the user's ``check`` failed.
        """
        with quiet_logs(), closing(self.simulation):
            return self._run()

    def _run(self) -> Run:
        settings = self.settings
        if settings.before is not None:
            settings.before()
        self._start_workers()
        for moment, act in self._schedule():
            self._advance(moment - self.elapsed)
            act()
        self._calm()
        self._until(self._is_caught_up, self._recovery_text)
        self._stop_all()
        self._until(lambda: not self._living(), lambda: f"these workers did not stop: {self._names()}")
        return self._judged_by_user()

    def _make_witness(self) -> Witness:
        return Witness(self.note, self._finished)

    def _schedule(self) -> Iterator[tuple[float, Callable[[], None]]]:
        """Yield the time and the function of each write and each fault of the run, in the order of the times.

        The faults begin after a quiet time. Faults of single calls are not included, because they have no set times.
        """
        seconds = STORM_DURATIONS * self._duration
        acts: list[tuple[float, Callable[[], None]]] = []
        for _ in range(self.settings.records):
            acts.append((seconds * self.dice.random(), self._write))
        for fault in self.settings.faults:
            dice = Dice.of(self.seed, "fault", said(fault.kind))
            for _ in range(fault.times):
                moment = seconds * (QUIET_SHARE + (1.0 - QUIET_SHARE) * dice.random())
                acts.append((moment, partial(self._befall, fault.kind, dice)))
        return iter(sorted(acts, key=lambda act: act[0]))

    def _judged_by_user(self) -> Run:
        faults = dict(sorted((said(kind), number) for kind, number in self.injected.items()))
        witness = self.witness
        run = Run(self.seed, tuple(witness.written), witness.accepted, dict(witness.newest), faults)
        if self.settings.check is not None:
            try:
                verdict = self.settings.check(run)
            except AssertionError as error:
                raise LawBroken("check", "", str(error).strip() or "an assertion failed") from error
            if verdict is False:
                raise LawBroken("check", "", "it returned False")
        return run

    # --- time --------------------------------------------------------------------------------------------------

    @property
    def _duration(self) -> float:
        return self.settings.config.lease_duration_millis / 1_000

    @property
    def elapsed(self) -> float:
        """The time since the run began, in seconds."""
        return self.simulation.now - STARTED_AT_SECONDS

    def _advance(self, seconds: float, condition: Callable[[], bool] = lambda: False) -> None:
        """Let at most ``seconds`` pass until ``condition`` returns true; raise the first violation of a law."""
        witness = self.witness
        self.simulation.until(lambda: witness.failed is not None or condition(), max(0.0, seconds), required=False)
        if witness.failed is not None:
            raise witness.failed

    def _until(self, condition: Callable[[], bool], problem: Callable[[], str]) -> None:
        self._advance(RECOVERY_DURATIONS * self._duration, condition)
        if not condition():
            raise LawBroken(LOST, "", problem())

    def _is_caught_up(self) -> bool:
        """Return whether all changes were accepted, and each unfinished shard is read to its end by a living reader."""
        return not self.witness.missing() and not self._unread_shards()

    def _finished(self) -> set[str]:
        return self.leases.finished()

    def _unread_shards(self) -> list[str]:
        ended = self._finished()
        return [
            shard_id
            for shard_id, changes in self.changes_of.items()
            if shard_id not in ended and not self.witness.is_read(shard_id, changes[-1], f"{shard_id}@{len(changes)}")
        ]

    def _recovery_text(self) -> str:
        missing = self.witness.missing()
        if not missing:
            return f"{', '.join(self._unread_shards())}: no processor reads on from the stored checkpoint to the end"
        were = "was" if len(missing) == 1 else "were"
        text = f"{counted(len(missing), 'change')} {were} not accepted within {RECOVERY_DURATIONS:g} lease durations"
        text += f" after the last fault, the first is {missing[0]}"
        errors = [f"{times(number)} {error}" for error, number in self.witness.errors.most_common(3)]
        return text + (f"; processors raised {'; '.join(errors)}" if errors else "")

    # --- workers -----------------------------------------------------------------------------------------------

    def _start_workers(self) -> None:
        for number in range(self.settings.workers):
            self._start_worker(f"w{number + 1}")

    def _start_worker(self, name: str) -> None:
        settings, life = self.settings, Life(name, started=self.elapsed)
        worker = self._make_worker(name, lambda: WitnessedProcessor(self.witness, life, settings.make_processor))
        self.report(name, "starts")
        life.worker = SimulatedWorker(self.simulation, worker)
        self.fleet.append(life)

    def _make_worker(self, name: str, processors: RecordProcessorFactory) -> Worker:
        settings = self.settings
        return Worker(
            name,
            settings.config,
            StreamConfig(
                client=None,
                data_table_name="simulated",
                status_table_name="simulated_status",
                max_records=settings.max_records,
            ),
            processors,
            lease_manager=self.leases,
            stream_api=self.stream,
            runtime=self.simulation.runtime(),
        )

    def _stop_all(self) -> None:
        for worker in self._living():
            worker.stop()

    def _living(self) -> list[SimulatedWorker]:
        return [life.worker for life in self.fleet if life.worker is not None and not life.worker.is_over]

    def _names(self) -> list[str]:
        return [worker.name for worker in self._living()]

    # --- faults ------------------------------------------------------------------------------------------------

    def _befall(self, kind: Do | Fate, dice: Dice) -> None:
        if self.leases.is_calm:
            return  # the fault was postponed past the end of all faults
        needs_a_worker = kind in (Do.CRASH, Do.STOP, Do.FREEZE)
        if needs_a_worker and not self._living():
            # No worker is alive, so the fault waits for the next worker.
            self.simulation.agenda.after(1.0, self._befall, kind, dice)
            return
        acts: Mapping[Do | Fate, Callable[[Dice], bool]] = {
            Do.CRASH: self._crash,
            Do.STOP: self._stop,
            Do.FREEZE: self._freeze,
            Do.CUT: self._cut_off,
            Do.SPLIT: self._split,
            Do.MERGE: self._merge,
        }
        if acts[kind](dice):
            self.injected[kind] += 1

    def _crash(self, dice: Dice) -> bool:
        worker = dice.choice(self._living())
        self.report(worker.name, "is killed")
        worker.kill()
        self._replace(worker.name, dice)
        return True

    def _stop(self, dice: Dice) -> bool:
        worker = dice.choice(self._living())
        self.report(worker.name, "is asked to stop")
        worker.stop()
        self._replace(f"{worker.name}b", dice)
        return True

    def _replace(self, name: str, dice: Dice) -> None:
        """Start a worker under ``name`` after a random time, before or after the old worker's leases have expired."""
        self.simulation.agenda.after(1.5 * self._duration * dice.random(), self._start_worker, name)

    def _freeze(self, dice: Dice) -> bool:
        worker = dice.choice(self._living())
        seconds = self._duration * (1.1 + dice.random())
        self.report(worker.name, "stands still", f"for {seconds:.1f} s")
        worker.freeze(seconds)
        return True

    def _cut_off(self, dice: Dice) -> bool:
        seconds = 2.0 * self._duration * dice.random()
        self.report("network", "the status table is unreachable", f"for {seconds:.1f} s")
        self.leases.is_unreachable = True
        self.simulation.agenda.after(seconds, self._reconnect)
        return True

    def _reconnect(self) -> None:
        self.leases.is_unreachable = False

    def _calm(self) -> None:
        self.report("network", "nothing goes wrong any more")
        self.leases.is_calm, self.leases.is_unreachable = True, False
        self.stream.before_read = None
        if not self._living():
            self._start_worker("last")

    def _before_read(self, shard_id: str) -> None:
        share = next((fault.share for fault in self.settings.faults if fault.kind is Fate.FAILING_READ), 0.0)
        if self._reading_dice.chance(share):
            self.injected[Fate.FAILING_READ] += 1
            raise READ_FAILED.with_traceback(None)  # the traceback of a shared error would grow with each raise

    # --- the stream --------------------------------------------------------------------------------------------

    def _write(self) -> None:
        """Write one change of a random row. No two changes have the same time, so key and time identify a change."""
        shard_id = self.dice.choice(sorted(name for name, keys in self.keys_of.items() if keys))
        self._written_micros = max(self._written_micros + 1, int(self.simulation.now * MICROS_PER_SECOND))
        change = self.witness.write(self.dice.choice(self.keys_of[shard_id]), self._written_micros)
        columns = self.settings.columns(change.key, change.number)
        millis = self._written_micros // 1_000
        cells = tuple(RecordColumn(name, ColumnOperation.PUT, value, millis) for name, value in columns.items())
        place = SequenceInfo(1, self._written_micros, 0)
        self.stream.append(shard_id, StreamRecord(RecordType.PUT, (("id", change.key),), cells, place))
        self.written_at.setdefault(shard_id, []).append(self.elapsed)
        changes = self.changes_of.setdefault(shard_id, [])
        self.witness.places[change] = (shard_id, len(changes))
        changes.append(change)

    def _split(self, dice: Dice) -> bool:
        parent = dice.choice(sorted(name for name, keys in self.keys_of.items() if len(keys) > 1) or [""])
        if not parent:
            return False
        keys = self.keys_of.pop(parent)
        children = (self._new_shard(), self._new_shard())
        self.report("stream", "split", f"{parent} into {' and '.join(children)}")
        self.stream.split(parent, *children)
        self.witness.parents.update(dict.fromkeys(children, (parent,)))
        self.keys_of.update({children[0]: keys[::2], children[1]: keys[1::2]})
        return True

    def _merge(self, dice: Dice) -> bool:
        if len(self.keys_of) < 2:
            return False
        first, second = dice.sample(sorted(self.keys_of), 2)
        child = self._new_shard()
        self.report("stream", "merge", f"{first} and {second} into {child}")
        self.stream.merge(first, second, child)
        self.witness.parents[child] = (first, second)
        self.keys_of[child] = self.keys_of.pop(first) + self.keys_of.pop(second)
        return True

    def _new_shard(self) -> str:
        self._created += 1
        name = f"shard-{self._created:02d}"
        self.opened[name] = self.elapsed
        return name

    # --- steps -------------------------------------------------------------------------------------------------

    def report(self, who: str, what: str, detail: str = "") -> None:
        """Record a step that comes from outside the fleet, such as a fault."""
        self.note(who, what, detail)
        self.incidents.append(self.lines[-1])

    def note(self, who: str, what: str, detail: str) -> None:
        """Record one step of the run: its actor, the event, and further detail."""
        line = " ".join(part for part in (f"{self.elapsed:9.3f} s  {who:8}", what, detail) if part)
        self.lines.append(line)
        words = [word for word in what.split() if word not in self.opened]
        shard = next((word for word in what.split() if word in self.opened), "")
        self.entries.append((self.elapsed, who, " ".join(words), shard, detail))
        if self.tell is not None:
            self.tell(line)

    def _row_changed(self, before: Lease | None, after: Lease) -> None:
        self.entries.append((self.elapsed, after.owner, "row", after.lease_key, (before, after)))
        if before is not None and before.checkpoint != after.checkpoint:
            self.witness.stored(after.lease_key, after.checkpoint)


@contextmanager
def quiet_logs() -> Iterator[None]:
    """Silence the logs of workers in the ``with`` block, because they would list every deliberate fault."""
    logger = logging.getLogger("streamclient")
    was_disabled, logger.disabled = logger.disabled, True
    previous = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(previous)
        logger.disabled = was_disabled
