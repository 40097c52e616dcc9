"""The simulated operator, who pauses, rewinds, releases and moves leases, and gives orders to park or skip records.

The operator sends the same conditional writes as the commands for operators. Before the operator changes a lease that
may be in use, the lease's owner must acknowledge a pause. An order about records needs no pause.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from streamclient.base.times import MICROS_PER_SECOND
from streamclient.core import leases
from streamclient.model import Lease, Pause, RecordOrder
from streamclient.testing.simulation.simulated_stream import place_of
from streamclient.testing.simulation.simulated_table import Outsider
from streamclient.testing.simulation.world import SimulatedWorld

LOOK_SECONDS = 1.0
"""The interval, in seconds, at which the operator checks whether an owner has acknowledged a pause."""

ORDER_SECONDS = 100_000.0
"""The time, in seconds, for which an operator's order to skip or park records is valid. Real orders are valid for
the retention, which is longer than a simulated history. So this time is longer, too."""

Change = Callable[[Lease], object]


class Operator(Outsider):
    """The operator of one simulated fleet, whose requests never get lost."""

    def __init__(self, world: SimulatedWorld) -> None:
        super().__init__("operator", "operator", "operator")
        self._world = world
        self._orders = 0
        self.is_off_duty = False
        self.has_parked = False
        """Whether the operator has given at least one order to park a record."""

    def pause(self, key: str, seconds: float, *, ends_itself: bool) -> bool:
        """Pause a shard for ``seconds``; return whether the pause was stored in the lease row.

        With ``ends_itself``, the pause has an end time. Otherwise the operator resumes the shard after ``seconds``.
        """
        until = self._world.wall_micros() + int(seconds * MICROS_PER_SECOND) if ends_itself else None
        is_paused = self._order_pause(key, until)
        if is_paused and not ends_itself:
            self._world.agenda.after(seconds, self.resume, key)
        return is_paused

    def resume(self, key: str) -> None:
        """End the operator's pause of a shard, if the shard is paused."""
        row = self._world.table.rows.get(key)
        if row is not None and row.pause is not None:
            self._world.table.land(self, leases.set_pause(row, None))

    def rewind(self, key: str, seconds: float, share: float) -> bool:
        """Pause a shard, rewind its checkpoint, and resume the shard; return whether the pause was stored.

        The share ``share`` of the records before the old checkpoint is before the new one: 0.25 keeps the first quarter
        of them. The operator rewinds once the owner obeys the pause, and gives up after ``seconds``. A finished shard
        is not rewound, because its children may have been read.
        """

        def change(row: Lease) -> None:
            if not row.is_finished:
                place = int(place_of(row.checkpoint) * share)
                self._world.touched.add(key)
                self._world.table.land(self, leases.rewind(row, self._world.new_value(place)))

        return self._change_paused(key, seconds, change)

    def release(self, key: str, seconds: float) -> bool:
        """Pause a shard, release its lease if the owner obeys within ``seconds``, and resume the shard.

        Return whether the pause was stored in the lease row.
        """
        return self._change_paused(key, seconds, lambda row: self._world.table.land(self, leases.release(row)))

    def move(self, key: str, receiver: str) -> bool:
        """Mark a lease in the name of the worker ``receiver``, as if that worker had asked for the lease.

        Return whether the mark was stored. The operator does not mark a free lease, or a lease that ``receiver`` owns.
        """
        row = self._world.table.rows.get(key)
        if row is None or row.owner in ("", receiver):
            return False
        return self._world.table.land(self, leases.steal(row, receiver))

    def take_out(self, key: str, *, is_skip: bool) -> bool:
        """Add an order to park one record of a shard; with ``is_skip``, add an order to skip this record.

        The record is the next poison record or, without a poison record, the next record to read. Return whether the
        order was stored in the lease row.
        """
        world, row = self._world, self._world.table.rows.get(key)
        if row is None or row.is_finished or self.is_off_duty:
            return False
        shard, first = world.stream.shards[key], place_of(row.checkpoint)
        ordered = {int(record_id) for order in row.orders for record_id in order.record_ids}
        poisoned = sorted(place for place in shard.poisoned if place not in ordered)
        place = next((place for place in poisoned if first <= place < shard.size), first)
        if place >= shard.size or place in ordered:
            return False
        return self._order(row, (place,), is_skip=is_skip)

    def drop_parked(self, key: str) -> bool:
        """Add an order to skip the records that earlier orders park; return whether this order was stored.

        The last order about a record counts, so the records are not parked any more.
        """
        row = self._world.table.rows.get(key)
        orders = () if row is None else row.orders
        dropped = {record_id for order in orders if order.is_skip for record_id in order.record_ids}
        parked = {record_id for order in orders for record_id in order.record_ids} - dropped
        return bool(parked) and row is not None and self._order(row, sorted(map(int, parked)), is_skip=True)

    # --- inside ------------------------------------------------------------------------------------------------

    def _order_pause(self, key: str, until_micros: int | None) -> bool:
        row = self._world.table.rows.get(key)
        if row is None or row.pause is not None or self.is_off_duty:
            return False
        self._orders += 1
        pause = Pause(f"order-{self._orders}", "operator", "maintenance", until_micros)
        return self._world.table.land(self, leases.set_pause(row, pause))

    def _change_paused(self, key: str, seconds: float, change: Change) -> bool:
        if not self._order_pause(key, None):
            return False
        self._world.agenda.after(LOOK_SECONDS, self._look, key, self._world.now + seconds, change)
        return True

    def _look(self, key: str, limit: float, change: Change) -> None:
        row = self._world.table.rows.get(key)
        if row is None or row.pause is None:
            return
        if row.is_paused_by_owner:
            change(row)
            self.resume(key)
        elif self._world.now >= limit:
            self.resume(key)
        else:
            self._world.agenda.after(LOOK_SECONDS, self._look, key, limit, change)

    def _order(self, row: Lease, places: Sequence[int], *, is_skip: bool) -> bool:
        world, key = self._world, row.lease_key
        self._orders += 1
        now, until = world.wall_micros(), world.wall_micros() + int(ORDER_SECONDS * MICROS_PER_SECOND)
        ids, table = tuple(f"{place:010d}" for place in places), "" if is_skip else "parked"
        order = RecordOrder(f"order-{self._orders}", "operator", "bad", now, until, ids, table)
        if not world.table.land(self, leases.set_orders(row, (*row.orders, order))):
            return False
        self.has_parked |= not is_skip
        world.laws.records_ordered(key, places)
        if is_skip:
            world.sink.set_aside(key, places)
        return True
