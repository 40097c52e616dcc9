"""The laws for the time after all faults: the fleet recovers within a time limit, and afterwards no lease moves.

The limits are in lease durations, so they fit every configuration whose intervals are in proportion to the lease
duration.
"""

from __future__ import annotations

from streamclient.core.shards import ABSENCE_SECONDS
from streamclient.core.write_rules import WriteKind
from streamclient.model import CheckpointPosition
from streamclient.testing.history import LawBroken
from streamclient.testing.simulation.simulated_faults import Excuse
from streamclient.testing.simulation.simulated_stream import place_of
from streamclient.testing.simulation.storm import SimulatedFleet

RECOVERY_DURATIONS = 20.0
"""The time limit for the recovery, in lease durations after the end of all faults. By then all shards must be held,
evenly distributed and read. This time covers two expiries of leases, passes of balancing that each move a third of the
needed leases, and the reading of the backlog."""

LEVEL_DURATIONS = 3.0
"""The length of a time after the recovery, in lease durations. In this time workers may carry out moves that they have
already decided."""

QUIET_DURATIONS = 2.0
"""The length of the time of rest after ``LEVEL_DURATIONS``, in lease durations. In this time no lease may move."""

LOOK_DURATIONS = 0.25
"""The interval between two checks of the recovery, in lease durations."""

MOVES = (WriteKind.TAKE.value, WriteKind.STEAL.value, WriteKind.TRANSFER.value, WriteKind.CREATE.value)


class Settling:
    """The judge of two laws about the time after all faults, "recovery" and "rest".

    By "recovery", every shard has one owner within the time limit, all records are delivered, and the numbers of leases
    and of unread shards per worker differ by at most one. Shards that a Java worker reads are excused.

    By "rest", no lease moves after the recovery. When a Java worker reaches the end of a shard, the child shards begin
    and the work is uneven. So the time of rest begins anew.
    """

    def __init__(self, fleet: SimulatedFleet) -> None:
        self.world, self.fleet = fleet.world, fleet

    def run(self) -> None:
        """Wait for the recovery of the fleet, and then require that no lease moves.

        Raises:
            LawBroken: the fleet does not recover in time, or a lease moves afterwards.
        """
        world, duration = self.world, self.world.plan.duration_seconds
        began = world.now
        reasons = self._wait(RECOVERY_DURATIONS + self._absence_seconds() / duration)
        if reasons:
            raise LawBroken("recovery", reasons[0][0], "; ".join(text for _, text in reasons[:5]))
        world.recovery_seconds = world.now - began
        ended = self._finished()
        while unrest := self._unrest():
            newly_ended = self._finished() - ended
            if not newly_ended or not self.fleet.living_javas():
                raise LawBroken("rest", *unrest)
            world.excused.note("rest", Excuse.JAVA)
            ended |= newly_ended
        world.laws.recovered(self._excused())

    def _unrest(self) -> tuple[str, str] | None:
        """Let the time of rest pass; return the lease key and the reason of a disturbance, or ``None``."""
        world, duration = self.world, self.world.plan.duration_seconds
        world.agenda.run_until(world.now + LEVEL_DURATIONS * duration)
        before = self._moves()
        world.agenda.run_until(world.now + QUIET_DURATIONS * duration)
        moved = self._moves() - before
        if moved and world.plan.balance_by == "count":
            return "", f"{moved} moves although nothing happened for {LEVEL_DURATIONS:g} durations"
        if world.plan.balance_by != "count":
            # The loads of the shards still change, so a move of a lease may be under way.
            self._wait(LEVEL_DURATIONS)
        reasons = self.unsettled()
        return (reasons[0][0], "; ".join(text for _, text in reasons[:5])) if reasons else None

    def _finished(self) -> set[str]:
        return {key for key, row in self.world.table.rows.items() if row.is_finished}

    def _wait(self, durations: float) -> list[tuple[str, str]]:
        """Wait for the recovery, at most ``durations`` lease durations; return the last result of ``unsettled``."""
        duration = self.world.plan.duration_seconds
        return self.world.agenda.wait(self.unsettled, durations * duration, LOOK_DURATIONS * duration)

    def _moves(self) -> int:
        return sum(self.world.counts[kind] for kind in MOVES)

    def _absence_seconds(self) -> float:
        """Return the time, in seconds, for which child shards wait for a parent that has left the stream.

        After this time the loss of the parent is certain. The time is 0 if no shard has left the stream.
        """
        gone = any(not shard.is_listed for shard in self.world.stream.shards.values())
        return ABSENCE_SECONDS + 2 * self.world.plan.duration_seconds if gone else 0.0

    # --- the parts of a recovery -------------------------------------------------------------------------------

    def unsettled(self) -> list[tuple[str, str]]:
        """Return the reasons why the recovery is incomplete, each as a pair of a lease key and a text.

        The result is empty once the fleet has recovered. A reason that concerns the whole fleet has an empty lease key.
        """
        rows, shards = self.world.table.rows, self.world.stream.shards
        reasons = [(key, f"{key} has no row") for key in shards if key not in rows and shards[key].is_listed]
        held, excused = self._held(), self._excused()
        for key in self.world.table.sorted_keys():
            row = rows[key]
            holders = [name for name, keys in held.items() if key in keys]
            if key in excused:
                continue
            if holders != [row.owner] or row.stealer:
                reasons.append((key, f"{row} is held by {holders}"))
            if not shards[key].is_listed:
                reasons.append((key, f"{row} is still there, but its shard has left the stream"))
            elif not self._is_read(key, row.checkpoint):
                reasons.append((key, f"{row} is not read to the end of {shards[key].size} records"))
        return reasons + ([] if reasons else self._unevenness(held))

    def _excused(self) -> set[str]:
        """Return the keys of leases whose shards may stay unread.

        These are the leases of living Java workers, and the leases of shards that wait for shards of these workers.
        """
        javas, rows = {java.name for java in self.fleet.living_javas()}, self.world.table.rows
        if not javas:
            return set()
        theirs = {key for key, row in rows.items() if row.owner in javas}
        open_ones = {key for key in theirs if not rows[key].is_finished}
        return theirs | {key for key in rows if self.world.stream.ancestors(key) & open_ones}

    def _is_read(self, key: str, checkpoint: str) -> bool:
        shard = self.world.stream.shards[key]
        if not shard.is_open or checkpoint == CheckpointPosition.SHARD_END:
            return checkpoint == CheckpointPosition.SHARD_END
        return self.world.sink.processed.get(key, 0) >= shard.size and place_of(checkpoint) <= shard.size

    def _held(self) -> dict[str, set[str]]:
        staying = [process for process in self.fleet.living() if not process.holdings.is_ousted]
        held = {process.name: set(process.holdings.held) for process in staying}
        return held | {java.name: java.holds() for java in self.fleet.living_javas()}

    def _unevenness(self, held: dict[str, set[str]]) -> list[tuple[str, str]]:
        """Return a reason if the workers' numbers of leases, or of unread shards, differ by more than one.

        ``held`` has the lease keys of each worker, by the worker's name. There are three exceptions:

        * If the plan balances by load, the result is empty, because this does not even out the numbers of leases.
        * If the plan has no sessions or has Java workers, other workers cannot see a worker that has no lease. Such a
          worker may stay without a lease if any shard is finished.
        * A Java worker does not distinguish finished leases: it may keep too many finished leases, and hands over no
          finished lease. So its unread shards are not counted. If a Java worker is alive and a shard is finished, the
          numbers of leases may differ by any amount.
        """
        finished = self._finished()
        javas = {java.name for java in self.fleet.living_javas()}
        is_seen = self.world.plan.has_sessions and not self.world.plan.has_java
        counts = {name: len(keys) for name, keys in held.items() if keys or not finished or is_seen}
        unread = {name: len(keys - finished) for name, keys in held.items() if name not in javas}
        reasons: list[tuple[str, str]] = []
        if self.world.plan.balance_by != "count":
            return reasons
        if _spread(counts) > 1 and not (javas and finished):
            reasons.append(("", f"leases are uneven: {counts}"))
        if _spread(unread) > 1:
            reasons.append(("", f"work is uneven: {unread}"))
        return reasons


def _spread(numbers: dict[str, int]) -> int:
    return max(numbers.values(), default=0) - min(numbers.values(), default=0)
