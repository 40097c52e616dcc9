"""The operator: pauses, rewinds, releases and moves leases as the commands for operators do, by conditional writes.

A lease that may be in use is changed only after its owner has acknowledged a pause.
"""

from __future__ import annotations

from collections.abc import Callable

from streamclient.base.times import MICROS_PER_SECOND
from streamclient.core import leases
from streamclient.model import Lease, Pause
from streamclient.testing.simulation.simulated_stream import place_of
from streamclient.testing.simulation.simulated_table import Outsider
from streamclient.testing.simulation.world import SimulatedWorld

LOOK_SECONDS = 1.0
"""Interval at which the operator checks for the acknowledgement of a pause."""

Change = Callable[[Lease], object]


class Operator(Outsider):
    """Acts on the rows of one world. Requests of the operator never get lost."""

    def __init__(self, world: SimulatedWorld) -> None:
        super().__init__("operator", "operator", "operator")
        self._world = world
        self._orders = 0
        self.is_off_duty = False

    def pause(self, key: str, seconds: float, *, ends_itself: bool) -> bool:
        """Hold a shard for a while. With ``ends_itself`` the pause has an end time; otherwise an order ends it."""
        until = self._world.wall_micros() + int(seconds * MICROS_PER_SECOND) if ends_itself else None
        is_paused = self._order_pause(key, until)
        if is_paused and not ends_itself:
            self._world.agenda.after(seconds, self.resume, key)
        return is_paused

    def resume(self, key: str) -> None:
        """End an operator's pause, if there is one."""
        row = self._world.table.rows.get(key)
        if row is not None and row.pause is not None:
            self._world.table.land(self, leases.set_pause(row, None))

    def rewind(self, key: str, seconds: float, share: float) -> bool:
        """Set an unfinished shard back to a share of its processed records, once its owner obeys a pause; then resume.

        A finished shard's children may have been read, so it is left alone.
        """

        def change(row: Lease) -> None:
            if not row.is_finished:
                place = int(place_of(row.checkpoint) * share)
                self._world.touched.add(key)
                self._world.table.land(self, leases.rewind(row, self._world.new_value(place)))

        return self._change_paused(key, seconds, change)

    def release(self, key: str, seconds: float) -> bool:
        """Take a lease from its owner, once the owner obeys a pause; then resume."""
        return self._change_paused(key, seconds, lambda row: self._world.table.land(self, leases.release(row)))

    def move(self, key: str, receiver: str) -> bool:
        """Request a lease in the name of a worker."""
        row = self._world.table.rows.get(key)
        if row is None or row.owner in ("", receiver):
            return False
        return self._world.table.land(self, leases.steal(row, receiver))

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
