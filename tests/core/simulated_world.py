"""A deterministic world for several ``Holdings``: one table, one toy stream, delays, faults, and laws that must hold.

Everything that happens is an entry (time, sequence, action) of one heap. A command is carried out after a delay drawn
from the world's own random numbers, and its answer arrives after another. One seed decides everything.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from functools import partial
from random import Random

from attrs import define, field, frozen
from simulated_java import JavaWorker
from simulated_stream import SHARD_END_TEXT, SimulatedStream

from streamclient.config import ClientConfig
from streamclient.core import events, leases
from streamclient.core.events import CheckpointOutcome, ConsumerEnd
from streamclient.core.holdings import Holdings
from streamclient.core.leases import LeaseWrite, WriteKind, WriteOutcome
from streamclient.model import InitialPosition, Lease, ShardInfo, ShutdownReason

STREAM_ID = "stream"
READ_SECONDS = 0.7
"""One read, process and checkpoint round of a simulated consumer."""
CLOCK_DRIFT = 0.002
"""Largest difference of a worker's clock from true time, as a share: twenty times that of poor hardware."""


@frozen
class Faults:
    """Probabilities of what may go wrong with one call."""

    lost_answer: float = 0.0
    """The write was applied, the answer says UNCERTAIN."""
    lost_request: float = 0.0
    """The write was not applied, the answer says UNCERTAIN."""
    late_request: float = 0.0
    """The answer says UNCERTAIN, the write lands afterwards."""
    false_refusal: float = 0.0
    """The write was applied by a first try, its retry says REFUSED."""
    unreadable: float = 0.0
    delay_seconds: float = 0.2
    """Mean of each way."""


CALM = Faults(delay_seconds=0.01)


@define(eq=False)
class SimulatedConsumer:
    """Reads a shard, asks for a checkpoint after each round, and obeys ``StopConsumer``."""

    lease_key: str
    identifier: str
    position: int
    stop: ShutdownReason | None = None
    asked: int | None = None
    """The request under way."""


@define(eq=False)
class SimulatedWorker:
    """One process: a ``Holdings``, its consumers, its clock."""

    name: str
    holdings: Holdings
    clock_offset: float
    clock_rate: float
    consumers: dict[str, SimulatedConsumer] = field(factory=dict)
    is_alive: bool = True
    is_stopping: bool = False
    paused_until: float = 0.0
    tick_at: float | None = None

    def local(self, now: float) -> float:
        return self.clock_offset + now * self.clock_rate


@define(eq=False)
class World:
    """Call ``run_until`` to advance. ``broken`` laws raise ``AssertionError`` at the event that breaks them."""

    seed: int
    config: ClientConfig = field(factory=ClientConfig)
    faults: Faults = CALM
    initial_position: InitialPosition = field(factory=InitialPosition.oldest)
    has_worker_rows: bool = False
    is_table_reachable: bool = True
    is_vandalised: bool = False
    """Rows were deleted or reset from outside: progress may be repeated, so the laws about progress are off."""
    now: float = 0.0
    rng: Random = field(init=False)
    stream: SimulatedStream = field(factory=SimulatedStream)
    table: dict[str, Lease] = field(factory=dict)
    workers: dict[str, SimulatedWorker] = field(factory=dict)
    epochs: dict[str, int] = field(factory=dict)
    """The last one drawn by shard."""
    started_epochs: dict[str, tuple[int, str]] = field(factory=dict)
    """The greatest one that a consumer was started with, and at which worker, by shard."""
    reached: dict[str, int] = field(factory=dict)
    """Furthest stored position by shard."""
    stored_values: set[str] = field(factory=set)
    values: dict[int, str] = field(factory=dict)
    """Requested checkpoint by request id."""
    javas: dict[str, JavaWorker] = field(factory=dict)
    reports: list[events.Report] = field(factory=list)
    history: list[str] = field(factory=list)
    identifiers: int = 0
    _heap: list[tuple[float, int, Callable[[], None]]] = field(factory=list)
    _sequence: int = 0
    _requests: int = 0

    def __attrs_post_init__(self) -> None:
        self.rng = Random(self.seed)

    # --- time --------------------------------------------------------------------------------------------------

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (self.now + seconds, self._sequence, action))

    def run_until(self, time: float) -> None:
        while self._heap and self._heap[0][0] <= time:
            self.now, _, action = heapq.heappop(self._heap)
            action()
        self.now = time

    def delay(self) -> float:
        return self.rng.expovariate(1 / self.faults.delay_seconds)

    def chance(self, probability: float) -> bool:
        return probability > 0 and self.rng.random() < probability

    # --- workers -----------------------------------------------------------------------------------------------

    def start_worker(self, name: str) -> SimulatedWorker:
        holdings = Holdings(
            name,
            STREAM_ID,
            self.config,
            self.initial_position,
            Random(self.rng.random()),
            new_identifier=self._new_identifier,
            wall_start_micros=int(self.now * 1_000_000) + 1,
            has_worker_rows=self.has_worker_rows,
        )
        rate = 1 + self.rng.uniform(-CLOCK_DRIFT, CLOCK_DRIFT)
        worker = SimulatedWorker(name, holdings, self.rng.uniform(0, 1000), rate)
        self.workers[name] = worker
        for event, interval in (
            (events.TakeDue(), self.config.taker_interval_millis),
            (events.RenewDue(), self.config.renewer_interval_millis),
            (events.SyncDue(), self.config.sync_shard_interval_millis),
        ):
            self._every(worker, event, interval / 1000)
        return worker

    def start_java_worker(self, name: str) -> JavaWorker:
        self.javas[name] = JavaWorker(self, name)
        return self.javas[name].start()

    def _every(self, worker: SimulatedWorker, event: events.Event, seconds: float) -> None:
        if worker.is_alive:
            self.deliver(worker, event)
            self.after(seconds, partial(self._every, worker, event, seconds))

    def _new_identifier(self) -> str:
        self.identifiers += 1
        return f"t{self.identifiers}"

    def crash(self, worker: SimulatedWorker) -> None:
        worker.is_alive = False
        worker.consumers.clear()

    def stop(self, worker: SimulatedWorker) -> None:
        worker.is_stopping = True
        self.deliver(worker, events.StopRequested())

    def pause(self, worker: SimulatedWorker, seconds: float) -> None:
        worker.paused_until = self.now + seconds

    def deliver(self, worker: SimulatedWorker, event: events.Event) -> None:
        if not worker.is_alive:
            return
        if worker.paused_until > self.now:
            self.after(worker.paused_until - self.now, partial(self.deliver, worker, event))
            return
        commands = worker.holdings.handle(event, worker.local(self.now))
        for command in commands:
            self._execute(worker, command)
        self._schedule_tick(worker)
        self.check_laws()
        if worker.is_stopping and worker.holdings.is_drained:
            worker.is_alive = False

    def _schedule_tick(self, worker: SimulatedWorker) -> None:
        deadline = worker.holdings.next_deadline(worker.local(self.now))
        if deadline is None:
            return
        at = max((deadline - worker.clock_offset) / worker.clock_rate, self.now) + 1e-6
        if worker.tick_at is None or at < worker.tick_at:
            worker.tick_at = at
            self.after(at - self.now, partial(self._tick, worker, at))

    def _tick(self, worker: SimulatedWorker, at: float) -> None:
        if worker.tick_at == at:
            worker.tick_at = None
            self.deliver(worker, events.Tick())

    # --- commands ----------------------------------------------------------------------------------------------

    def _execute(self, worker: SimulatedWorker, command: events.Command) -> None:
        handlers: dict[type, Callable[[SimulatedWorker, events.Command], None]] = {
            events.ReadRows: self._read_rows,
            events.ReadRow: self._read_row,
            events.ListShards: self._list_shards,
            events.WriteLease: self._write,
            events.ResolveAndCreate: self._resolve_and_create,
            events.DrawEpoch: self._draw_epoch,
            events.ForgetEpoch: lambda _, command: None,
            events.StartConsumer: self._start_consumer,
            events.StopConsumer: self._stop_consumer,
            events.AnswerCheckpoint: self._answer_checkpoint,
            events.Report: lambda _, report: self.reports.append(report),
            **self.more_handlers(),
        }
        handlers[type(command)](worker, command)

    def more_handlers(self) -> dict[type, Callable[[SimulatedWorker, events.Command], None]]:
        return {}

    def scanned(self, worker: SimulatedWorker, rows: tuple[Lease, ...]) -> None:
        """The last row of a scan was read."""
        self.after(self.delay(), partial(self.deliver, worker, events.RowsRead(rows)))

    def _read_rows(self, worker: SimulatedWorker, command: events.ReadRows) -> None:
        if not self.is_table_reachable or self.chance(self.faults.unreadable):
            error = events.RowsUnreadable(ConnectionError("scan failed"))
            self.after(self.delay(), partial(self.deliver, worker, error))
            return
        half: list[Lease] = []
        self.after(self.delay(), partial(self._scan_first_half, worker, half))

    def _scan_first_half(self, worker: SimulatedWorker, half: list[Lease]) -> None:
        """A scan is no snapshot: the two halves of the key range are read at different times."""
        keys = sorted(self.table)
        middle = keys[len(keys) // 2] if keys else ""
        half.extend(self.table[key] for key in keys if key < middle)
        self.after(self.delay() / 2, partial(self._scan_second_half, worker, half, middle))

    def _scan_second_half(self, worker: SimulatedWorker, half: list[Lease], middle: str) -> None:
        rows = (*half, *(self.table[key] for key in sorted(self.table) if key >= middle))
        self.scanned(worker, rows)

    def _read_row(self, worker: SimulatedWorker, command: events.ReadRow) -> None:
        if not self.is_table_reachable or self.chance(self.faults.unreadable):
            error = events.RowUnreadable(command.lease_key, ConnectionError("read failed"))
            self.after(self.delay(), partial(self.deliver, worker, error))
        else:
            self.after(self.delay(), partial(self._look_up, worker, command.lease_key))

    def _look_up(self, worker: SimulatedWorker, lease_key: str) -> None:
        answer = events.RowReadBack(lease_key, self.table.get(lease_key))
        self.after(self.delay(), partial(self.deliver, worker, answer))

    def _draw_epoch(self, worker: SimulatedWorker, command: events.DrawEpoch) -> None:
        if not self.is_table_reachable or self.chance(self.faults.lost_request):
            self._epoch_lost(worker, command.lease_key)
        else:
            self.after(self.delay(), partial(self._next_epoch, worker, command.lease_key))

    def _next_epoch(self, worker: SimulatedWorker, lease_key: str) -> None:
        self.epochs[lease_key] = epoch = self.epochs.get(lease_key, 0) + 1
        if self.chance(self.faults.lost_answer):
            self._epoch_lost(worker, lease_key)
        else:
            self.after(self.delay(), partial(self.deliver, worker, events.EpochDrawn(lease_key, epoch)))

    def _epoch_lost(self, worker: SimulatedWorker, lease_key: str) -> None:
        undrawn = events.EpochUndrawn(lease_key, TimeoutError("no answer"))
        self.after(self.delay(), partial(self.deliver, worker, undrawn))

    def _list_shards(self, worker: SimulatedWorker, command: events.ListShards) -> None:
        self.after(self.delay(), partial(self._describe, worker))

    def _describe(self, worker: SimulatedWorker) -> None:
        answer: events.Event = events.ShardsListed(self.stream.listing())
        if self.chance(self.faults.unreadable):
            answer = events.ShardsUnlistable(ConnectionError("listing failed"))
        self.after(self.delay(), partial(self.deliver, worker, answer))

    def _resolve_and_create(self, worker: SimulatedWorker, command: events.ResolveAndCreate) -> None:
        lease = Lease(
            command.lease.lease_key,
            command.lease.stream_id,
            checkpoint="0:resolved",
            parent_shard_ids=command.lease.parent_shard_ids,
        )
        self._write(worker, events.WriteLease(leases.create(lease)))

    def _write(self, worker: SimulatedWorker, command: events.WriteLease) -> None:
        write, sent_at = command.write, worker.local(self.now)
        uncertain = events.WriteAnswered(write, WriteOutcome.UNCERTAIN, sent_at, TimeoutError("no answer"))
        if not self.is_table_reachable or self.chance(self.faults.lost_request):
            self.after(self.delay() + self.delay(), partial(self.deliver, worker, uncertain))
        elif self.chance(self.faults.late_request):
            answer_after = self.delay()
            self.after(answer_after, partial(self.deliver, worker, uncertain))
            self.after(answer_after + 10 * self.delay(), partial(self._land, worker, write))
        else:
            self.after(self.delay(), partial(self._land_and_answer, worker, write, sent_at))

    def _land_and_answer(self, worker: SimulatedWorker, write: LeaseWrite, sent_at: float) -> None:
        outcome = WriteOutcome.ACCEPTED if self._land(worker, write) else WriteOutcome.REFUSED
        error = None
        if self.chance(self.faults.lost_answer):
            outcome, error = WriteOutcome.UNCERTAIN, TimeoutError("no answer")
        elif self.chance(self.faults.false_refusal):
            outcome = WriteOutcome.REFUSED
        self.after(self.delay(), partial(self.deliver, worker, events.WriteAnswered(write, outcome, sent_at, error)))

    def _land(self, worker: SimulatedWorker, write: LeaseWrite) -> bool:
        row = self.table.get(write.lease_key)
        if not leases.permits(row, write):
            return False
        after = leases.apply_write(row, write)
        self.history.append(f"{self.now:.3f} {worker.name} {write.kind.value} {row} -> {after}")
        if after is None:
            self.table.pop(write.lease_key, None)
        else:
            self.table[write.lease_key] = after
            self._record_progress(write, after)
        return True

    # --- consumers ---------------------------------------------------------------------------------------------

    def _start_consumer(self, worker: SimulatedWorker, command: events.StartConsumer) -> None:
        info = command.shard_info
        running = [c for c in worker.consumers.values() if c.lease_key == info.shard_id]
        assert not running, f"{worker.name} starts {info} beside {running}"
        assert info.lease_identifier not in worker.consumers
        self._check_parents(info.shard_id)
        self._check_epoch(worker, info)
        consumer = SimulatedConsumer(info.shard_id, info.lease_identifier, position_of(command.checkpoint))
        worker.consumers[consumer.identifier] = consumer
        self._next_round(worker, consumer)

    def _stop_consumer(self, worker: SimulatedWorker, command: events.StopConsumer) -> None:
        consumer = worker.consumers.get(command.lease_identifier)
        if consumer is not None:
            consumer.stop = command.reason

    def _next_round(self, worker: SimulatedWorker, consumer: SimulatedConsumer) -> None:
        self.after(self.rng.uniform(0.5, 1.5) * READ_SECONDS, partial(self._round, worker, consumer))

    def _round(self, worker: SimulatedWorker, consumer: SimulatedConsumer) -> None:
        if consumer.identifier not in worker.consumers or not worker.is_alive:
            return
        if worker.paused_until > self.now:
            self._next_round(worker, consumer)
            return
        if consumer.stop is ShutdownReason.ZOMBIE:
            self._end_consumer(worker, consumer, ConsumerEnd.STOPPED)
            return
        shard = self.stream.shards[consumer.lease_key]
        consumer.position = min(consumer.position + self.rng.randint(1, 5), shard.records)
        is_end = not shard.is_open and consumer.position == shard.records
        self._request_checkpoint(worker, consumer, is_end=is_end)

    def _request_checkpoint(self, worker: SimulatedWorker, consumer: SimulatedConsumer, *, is_end: bool) -> None:
        self._requests += 1
        consumer.asked = self._requests
        value = SHARD_END_TEXT if is_end else f"{consumer.position}:{self._requests}"
        self.values[self._requests] = value
        request = events.CheckpointRequested(self._requests, consumer.lease_key, consumer.identifier, value)
        self.deliver(worker, request)

    def _answer_checkpoint(self, worker: SimulatedWorker, command: events.AnswerCheckpoint) -> None:
        self.after(0.0, partial(self._checkpoint_answered, worker, command))

    def _checkpoint_answered(self, worker: SimulatedWorker, command: events.AnswerCheckpoint) -> None:
        value = self.values.pop(command.request_id)
        if value != SHARD_END_TEXT and not self.is_vandalised:
            stored = value in self.stored_values
            assert command.outcome is not CheckpointOutcome.STORED or stored, f"{value} answered as stored, is not"
            assert command.outcome is not CheckpointOutcome.LEASE_LOST or not stored, f"{value} stored, answered lost"
        consumer = next((c for c in worker.consumers.values() if c.asked == command.request_id), None)
        if consumer is None:
            return
        if command.outcome is CheckpointOutcome.STORED and value == SHARD_END_TEXT:
            self._end_consumer(worker, consumer, ConsumerEnd.SHARD_END)
        elif command.outcome is not CheckpointOutcome.STORED or consumer.stop is not None:
            self._end_consumer(worker, consumer, ConsumerEnd.STOPPED)
        else:
            self._next_round(worker, consumer)

    def _end_consumer(self, worker: SimulatedWorker, consumer: SimulatedConsumer, end: ConsumerEnd) -> None:
        del worker.consumers[consumer.identifier]
        self.deliver(worker, events.ConsumerStopped(consumer.lease_key, consumer.identifier, end))

    # --- laws --------------------------------------------------------------------------------------------------

    def check_laws(self) -> None:
        if not self.is_vandalised:
            self._check_single_reader()

    def java_reads(self, java: JavaWorker, lease_key: str) -> None:
        """A Java worker processes a batch: nobody else may be reading under a lease it may rely on."""
        self._check_parents(lease_key)
        readers = self._check_single_reader()
        assert lease_key not in readers, f"{lease_key} is read by {java.name} and {readers[lease_key]}"

    @staticmethod
    def position(row: Lease) -> int:
        return position_of(row.checkpoint)

    def _check_single_reader(self) -> dict[str, str]:
        """No two workers run a consumer of one shard under leases that both may rely on."""
        readers: dict[str, str] = {}
        for worker in self.workers.values():
            if not worker.is_alive or not worker.consumers:
                continue
            local = worker.local(self.now)
            held = worker.holdings.held
            for consumer in worker.consumers.values():
                lease = held.get(consumer.lease_key)
                if lease is None or lease.identifier != consumer.identifier:
                    continue
                if min(lease.valid_until, worker.holdings.session_valid_until) <= local:
                    continue
                other = readers.setdefault(consumer.lease_key, worker.name)
                assert other == worker.name, f"{consumer.lease_key} is read by {other} and {worker.name}"
        return readers

    def _check_epoch(self, worker: SimulatedWorker, info: ShardInfo) -> None:
        """Later acquisitions have greater epochs; only consumers of one acquisition share one."""
        last, name = self.started_epochs.get(info.shard_id, (0, worker.name))
        assert info.epoch > last or (info.epoch, worker.name) == (last, name), f"{worker.name} starts {info}: {last}"
        self.started_epochs[info.shard_id] = info.epoch, worker.name

    def _check_parents(self, shard_id: str) -> None:
        """No child starts before its parents ended."""
        for parent in self.stream.parents(shard_id):
            row = self.table.get(parent)
            is_gone = row is None and not self.stream.shards[parent].is_listed
            assert is_gone or (row is not None and row.is_finished) or self.is_vandalised, f"{shard_id} before {parent}"

    def _record_progress(self, write: LeaseWrite, row: Lease) -> None:
        """A stored checkpoint never goes back."""
        if write.kind is WriteKind.CHECKPOINT:
            self.stored_values.add(row.checkpoint)
        end = self.stream.shards[row.lease_key].records + 1
        position = end if row.is_finished else position_of(row.checkpoint)
        if not self.is_vandalised:
            before = self.reached.get(row.lease_key, 0)
            assert position >= min(before, end), f"{row} goes back from {before}"
        self.reached[row.lease_key] = max(self.reached.get(row.lease_key, 0), position)

    def moves(self) -> list[str]:
        """The entries of the history that are neither renewals nor checkpoints."""
        return [line for line in self.history if " renew " not in line and " checkpoint " not in line]

    def unsettled(self) -> list[str]:
        """Why the fleet has not converged yet; empty once every shard is held once, evenly, and read to its end."""
        live = {name: worker for name, worker in self.workers.items() if worker.is_alive}
        reasons = [f"{shard_id} has no row" for shard_id in self.stream.shards if shard_id not in self.table]
        held = {name: set(worker.holdings.held) for name, worker in live.items()}
        held |= {name: set(java.owned) for name, java in self.javas.items() if java.is_alive}
        for key, row in sorted(self.table.items()):
            holders = [name for name in held if key in held[name]]
            if holders != [row.owner] or row.stealer:
                reasons.append(f"{row} is held by {holders}")
            shard = self.stream.shards[key]
            if not shard.is_open and not row.is_finished:
                reasons.append(f"{row} is closed and not finished")
            if shard.is_open and position_of(row.checkpoint) < shard.records:
                reasons.append(f"{row} is behind {shard.records}")
        return reasons + self._unevenness(held)

    def _unevenness(self, held: dict[str, set[str]]) -> list[str]:
        """Work is even among the workers that tell finished leases from unfinished ones; counts are even too.

        Java may leave too many finished leases with one worker, and never gives any. And whoever has no lease is seen
        by nobody, and may stay without if there is no work for it.
        """
        finished = {key for key, row in self.table.items() if row.is_finished}
        has_java = any(java.is_alive for java in self.javas.values())
        counts = {name: len(keys) for name, keys in held.items() if keys or not finished}
        unread = {name: len(keys - finished) for name, keys in held.items() if name not in self.javas}
        reasons = []
        if not (has_java and finished) and _spread(counts) > 1:
            reasons.append(f"uneven in leases: {counts}")
        if _spread(unread) > 1:
            reasons.append(f"uneven in work: {unread}")
        return reasons


def _spread(numbers: dict[str, int]) -> int:
    return max(numbers.values(), default=0) - min(numbers.values(), default=0)


def position_of(checkpoint: str) -> int:
    """Number of the next record."""
    if checkpoint == SHARD_END_TEXT:
        return 10**9
    return 0 if checkpoint == "TRIM_HORIZON" else int(checkpoint.split(":", maxsplit=1)[0])
