"""The world of one fleet's history: its stream, status table and sink, and the laws that observe them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import count

from attrs import define, field, frozen

from streamclient.base.times import MICROS_PER_SECOND
from streamclient.core.events import AnswerCheckpoint, Report, Severity
from streamclient.core.membership import SessionState, WorkerRow, WorkerWrite
from streamclient.core.write_rules import WorkerWriteKind, WriteKind
from streamclient.model import CheckpointPosition, Lease, Shard
from streamclient.testing.history import LawBroken
from streamclient.testing.simulation.hooks import Hooks, Laws
from streamclient.testing.simulation.kernel import Dice, Observer, PlayedHistory
from streamclient.testing.simulation.plan import Plan
from streamclient.testing.simulation.roles import ConsumerRole, ProcessRole, Request
from streamclient.testing.simulation.simulated_faults import Excuse
from streamclient.testing.simulation.simulated_stream import SimulatedShard, SimulatedStream, place_of
from streamclient.testing.simulation.simulated_table import Actor, LeaseChange, SimulatedTable
from streamclient.worker.parking.parking_memory import MemoryParkingStore

WALL_START_MICROS = 1_600_000_000_000_000
"""The time that the wall clocks show when a history begins, in microseconds since 1970."""

MOST_RECORDS_AT_ONCE = 4
"""The exclusive upper bound of the number of records that one write adds to a shard: one write adds at most three."""

ANEW_DURATIONS = 4.0
"""The time after the destruction of a row, in lease durations, in which a process may confuse the new row with the old
one. This time is longer than any freeze."""

QUIET_WRITES = frozenset({WriteKind.RENEW.value})
"""The kinds of writes that are too frequent for the trace of a history."""


@frozen
class Habits:
    """The behaviour of user code when no fault happens."""

    checkpointed_share: float = 0.8
    """The share of batches that a processor writes and checkpoints immediately. The processor keeps the records of the
    other batches, and writes them together with a later batch or at its shutdown."""
    prompt_seconds: float = 0.02
    """The duration, in seconds, of a call that has no work to do."""
    queued_share: float = 0.05
    """The share of calls that wait for a thread. The consumer can take a call back while the call waits."""


@define(eq=False)
class Sink:
    """The sink to which all workers of a history write their processed records."""

    laws: Laws
    counts: Counter[str]
    newest: dict[str, int] = field(factory=dict)
    """The greatest epoch that has written to the sink or fenced it, by lease key."""
    processed: dict[str, int] = field(factory=dict)
    """The number of the first unprocessed record of each shard, by lease key."""
    committed: dict[str, str] = field(factory=dict)
    """The end position of each shard's last transaction, by lease key. The position identifies the transaction."""
    aside: dict[str, set[int]] = field(factory=dict)
    """The numbers of each shard's records that were parked or skipped, by lease key."""

    def fence(self, consumer: ConsumerRole) -> bool:
        """Refuse epochs older than the consumer's from now on; return ``False`` if a newer epoch is already known."""
        key = consumer.lease_key
        if consumer.epoch < self.newest.get(key, 0):
            return False
        self.newest[key] = consumer.epoch
        return True

    def commit(self, consumer: ConsumerRole, rows: Sequence[tuple[int, int]], value: str) -> bool:
        """Write the record ranges ``rows`` as one transaction; return whether the sink accepted the transaction.

        The end position ``value`` identifies the transaction. A repeated transaction changes nothing.
        """
        if self.committed.get(consumer.lease_key) == value and consumer.epoch >= self.newest[consumer.lease_key]:
            return True
        if not all(self.write(consumer, start, end) for start, end in rows):
            return False
        self.committed[consumer.lease_key] = value
        return True

    def write(self, consumer: ConsumerRole, start: int, end: int) -> bool:
        """Write the records of a shard from ``start`` to before ``end``; return whether the sink accepted them."""
        key = consumer.lease_key
        if consumer.epoch < self.newest.get(key, 0):
            self.counts["refused by the sink"] += 1
            self.laws.write_refused(consumer)
            return False
        self.newest[key] = consumer.epoch
        self.laws.records_written(consumer, start, end)
        self.advance(key, start, end)
        return True

    def advance(self, lease_key: str, start: int, end: int) -> None:
        """Record that the records from ``start`` to before ``end`` were processed, or need not be processed."""
        if start <= self.processed.get(lease_key, 0) < end:
            self.processed[lease_key] = end
            self._pass_over(lease_key)

    def set_aside(self, lease_key: str, places: Iterable[int]) -> None:
        """Record that the records with the numbers ``places`` were parked or skipped."""
        self.aside.setdefault(lease_key, set()).update(places)
        self._pass_over(lease_key)

    def _pass_over(self, lease_key: str) -> None:
        place, aside = self.processed.get(lease_key, 0), self.aside.get(lease_key, set())
        while place in aside:
            place += 1
        self.processed[lease_key] = place


class SimulatedWorld(PlayedHistory):
    """All parts of one fleet's history except its processes, which a ``SimulatedFleet`` starts."""

    plan: Plan
    disturbs_pages: bool = True
    """Whether some pages are wrong or incomplete while records are written."""

    def __init__(
        self,
        plan: Plan,
        make_laws: Callable[[SimulatedWorld], Sequence[Hooks]],
        observer: Observer | None = None,
    ) -> None:
        super().__init__(plan, observer)
        self.parking = MemoryParkingStore()
        self.config = plan.config(self.parking)
        self.stream = SimulatedStream(Dice.of(plan.seed, "stream"))
        self.table = SimulatedTable(self._row_changed, self._worker_row_changed)
        self.processes: list[ProcessRole] = []
        """All processes with a Python worker that were ever started, in the order of their starts."""
        self.ended: set[str] = set()
        """The shards that were read to their ends, according to a present or former lease row."""
        self.touched: set[str] = set()
        """The shards whose rows were changed by an actor that is not a worker. Their records may be read twice."""
        self.notes: set[tuple[str, str]] = set()
        """The orders about records whose end is noted in the audit, each as lease key and request id."""
        self.losses: set[str] = set()
        """The shards for which a worker has reported a loss of records."""
        self.hangs: dict[str, float] = {}
        """The time until which the processors of a shard hang, by shard id."""
        self.failing: dict[str, float] = {}
        """The time until which the processors of a shard raise, by shard id."""
        self.dragging: dict[str, tuple[float, float]] = {}
        """The time until which the processors of a shard are slow, and the factor of their slowness, by shard id."""
        self.stale: tuple[float, float] = (0.0, 0.0)
        """The time until which the service returns outdated lists of shards, and the age of these lists in seconds."""
        self.contested: set[str] = set()
        """The shards with consumers in several processes at present."""
        self.patience_seconds = plan.duration_seconds * (1.0 - 2.0 * plan.drift) - 1e-6
        self.is_writing = True
        self.habits = Habits()
        self.asked: Counter[tuple[str, str, bool]] = Counter()
        """The number of equal checkpoint requests. The keys are values of ``Request.asked``."""
        self._consumers: dict[str, list[ConsumerRole]] = {}
        self._requests: dict[int, Request] = {}
        self._values = count(1)
        self._dismissed_at: dict[str, float] = {}
        """The time when a worker's session was last killed or removed, by the worker's name."""
        self._registered_at: dict[str, float] = {}
        self._replaced_at: dict[Actor, float] = {}
        """For each replaced process, the time when a newer process registered under its name."""
        self.born_at: dict[Actor, float] = {}
        """The time when each process started, of Python workers and of Java workers, in the order of the starts."""
        self._moved_at: dict[str, float] = {}
        self._destroyed_at: dict[str, float] = {}
        self._accepted_at: dict[tuple[Actor, str], float] = {}
        self._started_at: dict[str, int] = {}
        self._creators: dict[str, Actor] = {}
        self.laws = Laws(make_laws(self))
        self.sink = Sink(self.laws, self.counts)
        self.stream.open_first(plan.shards)
        self._write_records()

    # --- time and clocks ---------------------------------------------------------------------------------------

    def wall_micros(self) -> int:
        """Return the time of all wall clocks, in microseconds since 1970.

        The wall clocks of real machines differ, but workers do not compare them.
        """
        return WALL_START_MICROS + int(self.agenda.now * MICROS_PER_SECOND)

    def moment_of(self, wall_micros: int) -> float:
        """Return the simulated time, in seconds, at which the wall clocks show ``wall_micros``."""
        return (wall_micros - WALL_START_MICROS) / MICROS_PER_SECOND

    # --- the stream --------------------------------------------------------------------------------------------

    def listing(self) -> tuple[Shard, ...]:
        """Return the list of shards that the service returns now, which may be outdated."""
        until, age = self.stale
        return self.stream.listing(self.now - age if self.now < until else self.now)

    def _write_records(self) -> None:
        if self.is_writing:
            for name in self.stream.open_ids:
                self.stream.write(name, self.dice.randrange(MOST_RECORDS_AT_ONCE), self.now)
            self.agenda.after(self.plan.write_seconds * (0.5 + self.dice.random()), self._write_records)

    def may_be_missing(self, record: int, number: int) -> Excuse | None:
        """Return the reason why a change may be missing in the sink; ``None`` if the change must reach the sink.

        The change is given by the key ``record`` and its number.
        """
        for name, shard in self.stream.shards.items():
            if shard.low <= record < shard.high and number in shard.numbers:
                places = [p for p, n in enumerate(shard.numbers) if n == number and shard.keys[p] == record]
                if places:
                    return self._why_missing(name, shard, places[0])
        return None

    def _why_missing(self, name: str, shard: SimulatedShard, place: int) -> Excuse | None:
        is_gone = place < shard.trimmed or not shard.is_listed
        if place < self._started_at.get(name, 0):
            return Excuse.BEGINS_LATER
        if (place < shard.trimmed and shard.is_given_up) or (not shard.is_listed and name in self.losses):
            return Excuse.LOSS_GIVEN_UP
        if is_gone and name in self.touched:
            return Excuse.TOUCHED
        return Excuse.LEFT_UNSEEN if not shard.is_listed and name not in self._started_at else None

    # --- rows --------------------------------------------------------------------------------------------------

    def rest_of(self, lease_key: str) -> float:
        """Return the time, in seconds, since the counter or the owner in a lease row last changed."""
        return self.now - self._moved_at.get(lease_key, float("-inf"))

    def is_bereft(self, process: Actor, lease_key: str) -> bool:
        """Return whether a lease's row was destroyed from outside after the last accepted write of ``process``."""
        destroyed_at = self._destroyed_at.get(lease_key)
        return destroyed_at is not None and destroyed_at > self._accepted_at.get((process, lease_key), -1.0)

    def has_begun_anew(self, lease_key: str) -> bool:
        """Return whether the row of a lease was destroyed from outside a short time ago.

        The counter of the row then began anew. So a worker that was frozen meanwhile may confuse the present row with
        the former row, because both can look alike.
        """
        destroyed_at = self._destroyed_at.get(lease_key)
        return destroyed_at is not None and self.now - destroyed_at < ANEW_DURATIONS * self.plan.duration_seconds

    def excuses(self, law: str, process: Actor, lease_key: str, *candidates: Excuse) -> bool:
        """Return whether one of ``candidates`` excuses a process that would break ``law``; if so, count the excuse."""
        held = {
            Excuse.ROW_DESTROYED: lambda: self.is_bereft(process, lease_key),
            Excuse.ROW_ANEW: lambda: self.has_begun_anew(lease_key),
            Excuse.NAME_TAKEN: lambda: self.is_being_replaced(process),
            Excuse.TOUCHED: lambda: lease_key in self.touched,
        }
        found = next((each for each in candidates if held[each]()), None)
        return found is not None and self.excused.note(law, found)

    def destroyed(self, lease_key: str) -> None:
        """Record that an actor outside the fleet deletes the row of a lease, or creates the row anew."""
        self._destroyed_at[lease_key] = self.now
        self.touched.add(lease_key)

    def _row_changed(self, change: LeaseChange) -> None:
        actor, what, key, before, after = change.actor, change.what, change.lease_key, change.before, change.after
        self.counts[what if actor.is_python else f"{actor.kind} {what}"] += 1
        if what not in QUIET_WRITES:
            self.note(actor.label, what, key, (before, after))
        self.laws.row_changed(change)
        if what == WriteKind.CREATE.value and after is not None and before is None:
            self._row_created(actor, after)
        if before is None or after is None or (before.counter, before.owner) != (after.counter, after.owner):
            self._moved_at[key] = self.now
        self._accepted_at[actor, key] = self.now
        if after is not None and after.is_finished:
            self.ended.add(key)

    def _worker_row_changed(
        self, actor: Actor, write: WorkerWrite, before: WorkerRow | None, after: WorkerRow | None
    ) -> None:
        self.counts[write.kind.value] += 1
        if write.kind is not WorkerWriteKind.BEAT:
            self.note(actor.label, write.kind.value, "", (before, after))
        if write.kind in (WorkerWriteKind.KILL, WorkerWriteKind.REMOVE):
            self._dismissed_at[write.worker_id] = self.now
        if write.kind is WorkerWriteKind.REGISTER:
            self._registered_at[write.worker_id] = self.now
            for process in self.processes:
                if process.is_alive and process is not actor and process.name == actor.name:
                    self._replaced_at[process] = self.now
        self.laws.worker_row_changed(actor, write, before, after)

    def is_dismissed(self, row: Lease) -> bool:
        """Return whether the session of the row's owner has ended, and no later session of this worker took the lease.

        Such an owner cannot rely on the lease. After a hand-over to the owner, the lease counts as taken only when the
        owner takes it.
        """
        present = self.table.workers.get(row.owner)
        if row.owner not in self._dismissed_at:
            return False
        is_over = present is None or present.state is SessionState.KILLED
        return is_over or row.is_handed_over or self._moved_at[row.lease_key] < self._registered_at[row.owner]

    def was_replaced(self, process: Actor) -> bool:
        """Return whether another process has registered under the name of ``process``."""
        return process in self._replaced_at

    def is_being_replaced(self, process: Actor) -> bool:
        """Return whether another process took over the name of ``process`` less than a lease duration ago."""
        replaced_at = self._replaced_at.get(process)
        return replaced_at is not None and self.now - replaced_at < self.plan.duration_seconds

    def has_had_row(self, lease_key: str) -> bool:
        """Return whether the lease ever had a row."""
        return lease_key in self._started_at

    def start_of(self, actor: Actor) -> float:
        """Return the time when a process started, in seconds since the history began."""
        return self.born_at.get(actor, self.now)

    def creator_of(self, lease_key: str) -> Actor | None:
        """Return the process that created the first row of a lease; ``None`` if the lease never had a row."""
        return self._creators.get(lease_key)

    def _row_created(self, actor: Actor, row: Lease) -> None:
        """Record the first row of a shard. Changes before the row's position need not reach the sink."""
        key = row.lease_key
        self._creators.setdefault(key, actor)
        if key in self._started_at or row.checkpoint == CheckpointPosition.SHARD_END:
            self._started_at.setdefault(key, 0)
            return
        place = self._started_at[key] = place_of(row.checkpoint)
        self.sink.advance(key, 0, place)

    # --- consumers ---------------------------------------------------------------------------------------------

    def readers_of(self, lease_key: str) -> list[ConsumerRole]:
        """Return the consumers of a shard whose user code may run, in all processes."""
        return self._consumers.get(lease_key, [])

    def consumer_started(self, consumer: ConsumerRole) -> None:
        """Note that ``consumer``, in a worker of this package, starts to read a shard."""
        key = consumer.lease_key
        self.counts["started"] += 1
        self.note(consumer.process.label, "starts to read", key, f"{consumer.checkpoint} {consumer!r}")
        self.laws.consumer_started(consumer)
        self._consumers.setdefault(key, []).append(consumer)
        self._judge_contest(key)

    def consumer_ended(self, consumer: ConsumerRole) -> None:
        """Record that a consumer has ended. None of its user code runs from now on."""
        key = consumer.lease_key
        self.note(consumer.process.label, "ends reading", key, consumer.identifier)
        self._consumers[key].remove(consumer)
        self._judge_contest(key)

    def _judge_contest(self, key: str) -> None:
        processes = {consumer.process for consumer in self._consumers[key]}
        (self.contested.add if len(processes) > 1 else self.contested.discard)(key)

    def is_failing(self, lease_key: str) -> bool:
        """Return whether the processors of a shard raise at present; if so, count the fault."""
        if self.failing.get(lease_key, 0.0) <= self.now:
            return False
        self.injected["processor raised"] += 1
        return True

    def is_poisoned(self, lease_key: str, places: Sequence[int]) -> bool:
        """Return whether one of the records with the numbers ``places`` is a poison record."""
        poisoned = self.stream.shards[lease_key].poisoned
        return bool(poisoned) and any(place in poisoned for place in places)

    def loss_given_up(self, lease_key: str) -> None:
        """Note that a consumer has reported that unread records left the stream, and goes on after these records."""
        self.stream.shards[lease_key].is_given_up = True
        self.begins_at_oldest(lease_key)

    def begins_at_oldest(self, lease_key: str) -> None:
        """Record that a consumer reads a shard from the oldest record that the stream still has.

        The trimmed records before it need not reach the sink if their loss was reported, or if the shard's row was
        changed from outside.
        """
        shard = self.stream.shards[lease_key]
        if shard.is_given_up or lease_key in self.touched:
            self.sink.advance(lease_key, 0, shard.trimmed)

    def replay_parked(self) -> None:
        """Replay all parked records into the sink, as an operator does once the cause of their errors is mended."""
        parked = sorted(self.parking.parked(), key=lambda each: (each.generation, each.record_id))
        places = [(self.stream.shards[each.shard_id], each.record.sequence_info.row_index) for each in parked]
        self.laws.records_replayed((shard.shard.shard_id, shard.keys[at], shard.numbers[at]) for shard, at in places)
        self.parking.remove(parked)

    def drag(self, lease_key: str) -> float:
        """Return the factor by which the processors of a shard take longer than usual; 1 without the fault ``DRAG``."""
        until, factor = self.dragging.get(lease_key, (0.0, 1.0))
        return factor if self.now < until else 1.0

    # --- checkpoints -------------------------------------------------------------------------------------------

    def new_value(self, place: int) -> str:
        """Return a new text for the position of the record ``place``. Each text occurs once in a history."""
        return f"{place}:{next(self._values)}"

    def register_request(self, request: Request) -> int:
        """Register a checkpoint request; return the number that the answer to the request will have."""
        number = next(self._values)
        self._requests[number] = request
        self.asked[request.asked] += 1
        return number

    def checkpoint_answered(self, process: ProcessRole, answer: AnswerCheckpoint) -> None:
        """Hand the core's answer to a checkpoint request over to the consumer that made the request."""
        request = self._requests.pop(answer.request_id)
        key, outcome = request.consumer.lease_key, answer.outcome
        self.counts[f"checkpoint {outcome.value}"] += 1
        self.note(process.label, outcome.value, key, request.value)
        self.laws.checkpoint_answered(process, request, answer)
        request.consumer.checkpoint_answered(request, outcome)

    def reported(self, process: ProcessRole, report: Report) -> None:
        """Handle a message that a worker's core reports."""
        self.counts[f"report {report.severity.value}"] += 1
        if report.severity is not Severity.INFO:
            self.note(process.label, report.severity.value, report.lease_key, report.text)
        self.laws.reported(process, report)

    # --- workers -----------------------------------------------------------------------------------------------

    def started(self, worker: Actor) -> None:
        """Record that a process of ``worker`` starts."""
        self.born_at[worker] = self.now
        self.note(worker.label, "starts")

    def newest(self, name: str) -> ProcessRole | None:
        """Return the Python worker's process that was started last under ``name``, or ``None``."""
        return next((process for process in reversed(self.processes) if process.name == name), None)

    def java_processed(self, lease_key: str, start: int, end: int) -> None:
        """Note that a Java worker processed the records of a shard from ``start`` to before ``end``."""
        self.counts["java batches"] += 1
        self.laws.java_wrote(lease_key, start, end)
        self.sink.advance(lease_key, start, end)


class Law(Hooks):
    """A condition that must hold in every history of a fleet. A law only observes the world, and never changes it."""

    name = ""

    def __init__(self, world: SimulatedWorld) -> None:
        self.world = world

    def broken(self, lease_key: str, text: str) -> LawBroken:
        """Return the exception for a violation of this law, which the caller raises."""
        return LawBroken(self.name, lease_key, text)

    def excuses(self, process: Actor, lease_key: str, *candidates: Excuse) -> bool:
        """Return whether one of ``candidates`` excuses a process that would break this law; if so, count the excuse."""
        return self.world.excuses(self.name, process, lease_key, *candidates)
