"""Laws about a single consumer: its calls, parked records, operators' orders, pauses, and the position of its start."""

from __future__ import annotations

from collections.abc import Sequence

from streamclient.core.write_rules import WriteKind
from streamclient.model import Lease, ParkedRecord
from streamclient.testing.history import CALLS, Called, CallsOneByOne, ReaderBegan, ReaderOver, Returned, require
from streamclient.testing.simulation.laws.progress_laws import change_of, place
from streamclient.testing.simulation.roles import ConsumerRole
from streamclient.testing.simulation.simulated_faults import Excuse
from streamclient.testing.simulation.simulated_table import LeaseChange
from streamclient.testing.simulation.world import Law, SimulatedWorld


class CallsInOrder(Law):
    """Calls never overlap. Each processor gets one ``initialize``, then other calls, then one ``shutdown``.

    A consumer may end, or start another processor, only if its former processor was shut down or was never made.
    """

    name = CALLS

    def __init__(self, world: SimulatedWorld) -> None:
        super().__init__(world)
        self._judge = CallsOneByOne()

    def processor_started(self, consumer: ConsumerRole) -> None:
        require(ReaderBegan(consumer, consumer.process, consumer.lease_key), self._judge)

    def call_began(self, consumer: ConsumerRole, name: str) -> None:
        require(Called(consumer, consumer.lease_key, name), self._judge)

    def call_ended(self, consumer: ConsumerRole) -> None:
        require(Returned(consumer, consumer.lease_key, consumer.is_made), self._judge)

    def consumer_ended(self, consumer: ConsumerRole) -> None:
        require(ReaderOver(consumer, consumer.lease_key), self._judge)


class StoppedShardsWait(Law):
    """A shard that stopped at a failing record or at a loss gets a new processor only after an operator decides."""

    name = "stopped shards wait"

    def processor_started(self, consumer: ConsumerRole) -> None:
        if consumer.is_given_up:
            raise self.broken(consumer.lease_key, f"{consumer!r} goes on although no operator has decided that it may")


class OnlyFailuresAreParked(Law):
    """A record is parked only for one of three reasons.

    An operator has ordered it, the record has failed alone in a batch, or another record of its key was parked earlier.
    """

    name = "only failures are parked"

    def __init__(self, world: SimulatedWorld) -> None:
        super().__init__(world)
        self._refused: set[tuple[ConsumerRole, int]] = set()
        self._keys: set[int] = set()
        self._ordered: set[tuple[str, int]] = set()

    def records_ordered(self, lease_key: str, places: Sequence[int]) -> None:
        self._ordered |= {(lease_key, place) for place in places}

    def batch_refused(self, consumer: ConsumerRole, places: Sequence[int]) -> None:
        if len(places) == 1:
            self._refused.add((consumer, places[0]))

    def records_parked(self, consumer: ConsumerRole, records: Sequence[ParkedRecord]) -> None:
        for each in records:
            place, (key, number) = each.record.sequence_info.row_index, change_of(consumer, each.record)
            is_excused = (consumer, place) in self._refused if each.attempts else key in self._keys
            if not is_excused and (consumer.lease_key, place) not in self._ordered:
                raise self.broken(consumer.lease_key, f"{consumer!r} parked change {number} of key {key}: {each.error}")
            self._keys.add(key)


class ParkedKeysWait(Law):
    """While a change of a key is parked, no later change of the key is written.

    Two kinds of parked changes do not count: changes that were parked by a worker which had lost its lease, and changes
    that were parked by order under a failure policy that does not park.
    """

    name = "parked keys wait"

    def __init__(self, world: SimulatedWorld) -> None:
        super().__init__(world)
        self._first: dict[int, int] = {}
        """The number of the first parked change of each key."""

    def records_parked(self, consumer: ConsumerRole, records: Sequence[ParkedRecord]) -> None:
        if consumer.process.believes(consumer) and self.world.plan.then == "PARK":
            for each in records:
                key, number = change_of(consumer, each.record)
                self._first[key] = min(number, self._first.get(key, number))

    def records_written(self, consumer: ConsumerRole, start: int, end: int) -> None:
        if not self._first or not self.world.is_writing or not consumer.process.believes(consumer):
            return
        shard = consumer.shard
        for record, number in zip(shard.keys[start:end], shard.numbers[start:end], strict=True):
            if number > self._first.get(record, number):
                text = f"{consumer!r} wrote change {number} of key {record}, but change {self._first[record]} is parked"
                raise self.broken(consumer.lease_key, text)


class OrderedRecordsStayOut(Law):
    """An operator's order to take records out stays in the lease row until the checkpoint is after these records.

    A consumer that started with the order never writes the records. A worker notes the outcome of the order in the
    audit before it removes the order from the row. An order that has expired, or whose records were trimmed, may be
    removed earlier.
    """

    name = "ordered records stay out"

    def records_written(self, consumer: ConsumerRole, start: int, end: int) -> None:
        named = {int(record_id) for order in consumer.orders for record_id in order.record_ids}
        written = named.intersection(range(start, end))
        if written:
            raise self.broken(
                consumer.lease_key, f"{consumer!r} wrote {sorted(written)}, although an order takes them out"
            )

    def row_changed(self, change: LeaseChange) -> None:
        before, after, key = change.before, change.after, change.lease_key
        if change.what != WriteKind.END_ORDERS.value or before is None or after is None:
            return
        for order in before.orders:
            if order in after.orders:
                continue
            last = max(map(int, order.record_ids))
            is_over = self.world.wall_micros() >= order.until_micros or last < self.world.stream.shards[key].trimmed
            if place(after.checkpoint) <= last and not is_over:
                raise self.broken(key, f"{change.actor.label} ended {order} at {after}, which is before its records")
            if (key, order.request_id) not in self.world.notes:
                raise self.broken(key, f"{change.actor.label} ended {order} without a note in the audit")


class PausedShardsRest(Law):
    """Once the owner has acknowledged a pause, the shard is neither read nor processed until the pause is over."""

    name = "paused shards rest"

    def row_changed(self, change: LeaseChange) -> None:
        actor, row = change.actor, change.after
        if change.what == WriteKind.TAKE_PAUSE.value and row is not None and not self._is_over(row):
            for consumer in self.world.readers_of(row.lease_key):
                if consumer.process is actor:
                    raise self.broken(
                        row.lease_key, f"{actor.label} acknowledged the pause, but {consumer!r} reads the shard"
                    )

    def consumer_started(self, consumer: ConsumerRole) -> None:
        self._judge(consumer, "starts")

    def records_written(self, consumer: ConsumerRole, start: int, end: int) -> None:
        self._judge(consumer, "processed records")

    def _judge(self, consumer: ConsumerRole, what: str) -> None:
        row = self.world.table.rows.get(consumer.lease_key)
        if row is None or not row.is_paused_by_owner or row.owner != consumer.process.name or self._is_over(row):
            return
        if consumer.process.believes(consumer) or what == "starts":
            raise self.broken(consumer.lease_key, f"{consumer!r} {what} although {row} is paused: {row.pause}")

    def _is_over(self, row: Lease) -> bool:
        """Return whether the end time of the row's pause has passed."""
        until = None if row.pause is None else row.pause.until_micros
        return until is not None and until <= self.world.wall_micros()


class ProgramsPause(Law):
    """No consumer of a shard starts while the worker's own program pauses the shard or the whole worker."""

    name = "programs pause"

    def consumer_started(self, consumer: ConsumerRole) -> None:
        held = consumer.process.held_by_program
        if None in held or consumer.lease_key in held:
            raise self.broken(
                consumer.lease_key, f"{consumer!r} starts although the worker's own program paused the shard"
            )


class StartsWhereStored(Law):
    """A consumer starts at or before the stored checkpoint, never after it. This also holds after an operator's rewind.

    A row that was destroyed from outside excuses a later start.
    """

    name = "starts where stored"

    def consumer_started(self, consumer: ConsumerRole) -> None:
        key = consumer.lease_key
        row = self.world.table.rows.get(key)
        if row is None or row.owner != consumer.process.name:
            return
        is_after = place(consumer.checkpoint) > place(row.checkpoint)
        if is_after and not self.excuses(consumer.process, key, Excuse.ROW_DESTROYED):
            raise self.broken(
                key, f"{consumer!r} starts at {consumer.checkpoint}, which is after the stored checkpoint: {row}"
            )


class PreparedIsRemembered(Law):
    """The next consumer of a shard, on any worker, gets the checkpoint that was prepared but never completed."""

    name = "prepared is remembered"

    def consumer_started(self, consumer: ConsumerRole) -> None:
        key = consumer.lease_key
        row = self.world.table.rows.get(key)
        if row is None or row.owner != consumer.process.name or row.pending in (None, consumer.pending):
            return
        if not self.excuses(consumer.process, key, Excuse.ROW_DESTROYED):
            raise self.broken(key, f"{consumer!r} was given {consumer.pending}, but {row.pending} is stored")


class NothingIsRepeated(Law):
    """With two-phase checkpoints and a sink that remembers its commits, every change is written once.

    A shard whose row was changed from outside may be read twice, which excuses repeated writes.
    """

    name = "nothing is repeated"

    def records_written(self, consumer: ConsumerRole, start: int, end: int) -> None:
        world, key = self.world, consumer.lease_key
        is_repeated = world.plan.is_two_phase and start < world.sink.processed.get(key, 0)
        if is_repeated and not self.excuses(consumer.process, key, Excuse.TOUCHED):
            raise self.broken(key, f"{consumer!r} wrote records from {start} again")
