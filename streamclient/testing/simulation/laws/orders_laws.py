"""Laws about orders of operators and programs, and about the state that one consumer leaves to the next."""

from __future__ import annotations

from streamclient.core.leases import LeaseWrite
from streamclient.core.write_rules import WriteKind
from streamclient.model import Lease
from streamclient.testing.simulation.laws.base import Law
from streamclient.testing.simulation.laws.progress_laws import place
from streamclient.testing.simulation.roles import ConsumerRole
from streamclient.testing.simulation.simulated_faults import Excuse
from streamclient.testing.simulation.simulated_table import Actor


class PausedShardsRest(Law):
    """Once the owner has acknowledged a pause, nothing of the shard is read or processed until the pause is over."""

    name = "paused shards rest"

    def row_changed(
        self, actor: Actor, what: str, before: Lease | None, after: Lease | None, write: LeaseWrite | None
    ) -> None:
        if what == WriteKind.TAKE_PAUSE.value and after is not None and not self._is_over(after):
            for consumer in self.world.readers_of(after.lease_key):
                if consumer.process is actor:
                    raise self.broken(after.lease_key, f"{actor.label} says it rests, but {consumer!r} reads it")

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
        """Return whether the time of the pause is over by the clock."""
        until = None if row.pause is None else row.pause.until_micros
        return until is not None and until <= self.world.wall_micros()


class ProgramsPause(Law):
    """No consumer starts while the worker's own program holds its shard, or the whole worker."""

    name = "programs pause"

    def consumer_started(self, consumer: ConsumerRole) -> None:
        held = consumer.process.held_by_program
        if None in held or consumer.lease_key in held:
            raise self.broken(consumer.lease_key, f"{consumer!r} starts although its program holds it")


class StartsWhereStored(Law):
    """A consumer starts at or before the stored checkpoint; so after an operator's rewind, never after it."""

    name = "starts where stored"

    def consumer_started(self, consumer: ConsumerRole) -> None:
        key = consumer.lease_key
        row = self.world.table.rows.get(key)
        if row is None or row.owner != consumer.process.name:
            return
        is_behind = place(consumer.checkpoint) > place(row.checkpoint)
        if is_behind and not self.excuses(consumer.process, key, Excuse.ROW_DESTROYED):
            raise self.broken(key, f"{consumer!r} starts at {consumer.checkpoint}, behind what is stored: {row}")


class PreparedIsRemembered(Law):
    """A checkpoint that was prepared but never completed is given to the next processor, on whichever worker."""

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

    A shard whose row was changed from outside is read again, and is excused.
    """

    name = "nothing is repeated"

    def records_written(self, consumer: ConsumerRole, start: int, end: int) -> None:
        world, key = self.world, consumer.lease_key
        is_repeated = world.plan.is_two_phase and start < world.sink.processed.get(key, 0)
        if is_repeated and not self.excuses(consumer.process, key, Excuse.TOUCHED):
            raise self.broken(key, f"{consumer!r} wrote records from {start} again")
