"""The writes of lease rows, one function for each.

``write_rules.RULES`` lists the fields that each write compares and stores.
"""

from __future__ import annotations

from attrs import frozen

from streamclient.core.values import evolve
from streamclient.core.write_rules import RESTORED_FIELDS, RULES, Rule, WriteKind
from streamclient.model import Lease, Pause, PendingCheckpoint, Progress, RecordOrder


@frozen
class LeaseWrite:
    """One conditional change of one lease row. Only the functions of this module make such objects."""

    kind: WriteKind
    seen: Lease
    """The row as the writer last saw it, which the condition compares with the stored row. For CREATE, the new row."""
    result: Lease | None
    """The row after the write is accepted; ``None`` after DELETE."""
    also: tuple[str, ...] = ()
    """The fields that this write stores in addition to the fields of its rule."""

    @property
    def rule(self) -> Rule:
        """The rule of this write: its comparisons, and the fields that it stores."""
        return RULES[self.kind]

    @property
    def expected(self) -> Lease | None:
        """The row that must exist; ``None`` if the row must be absent."""
        return None if self.kind is WriteKind.CREATE else self.seen

    @property
    def changes(self) -> tuple[str, ...]:
        """The fields of ``Lease`` to write, with their values in ``result``. The row keeps all other fields."""
        return (*self.rule.writes, *self.also)

    @property
    def lease_key(self) -> str:
        """The key of the row to write: the id of its shard."""
        return self.seen.lease_key

    def __str__(self) -> str:
        return f"{self.kind.value} {self.seen} -> {self.result or 'absent'}"


def create(lease: Lease) -> LeaseWrite:
    """Return the write that stores a new lease row, if the row does not exist yet."""
    return LeaseWrite(WriteKind.CREATE, lease, lease)


def renew(seen: Lease) -> LeaseWrite:
    """Return the write that renews the lease: it adds 1 to the counter."""
    return LeaseWrite(WriteKind.RENEW, seen, evolve(seen, counter=seen.counter + 1))


def take(seen: Lease, owner: str, *, checkpoint: str | None = None) -> LeaseWrite:
    """Return the write by which ``owner`` becomes the owner of a free, expired or handed-over lease.

    The write clears the stealer, and restores ``checkpoint`` if it is given.
    """
    result = evolve(seen, owner=owner, stealer="", counter=seen.counter + 1)
    if checkpoint in (None, seen.checkpoint):
        return LeaseWrite(WriteKind.TAKE, seen, result)
    restored = evolve(result, checkpoint=checkpoint, pending=None)
    return LeaseWrite(WriteKind.TAKE, seen, restored, ("checkpoint", "pending"))


def restore(seen: Lease, known: Lease) -> LeaseWrite:
    """Return the write that takes a lease whose row was overwritten with a new row, and restores ``known``.

    A Java worker's shard sync, for example, overwrites rows. A pause and orders that the new row has got since then
    stay.
    """
    result = evolve(
        known,
        stealer="",
        counter=seen.counter + 1,
        pause=seen.pause or known.pause,
        orders=seen.orders or known.orders,
        parent_shard_ids=seen.parent_shard_ids,
    )
    return LeaseWrite(WriteKind.TAKE, seen, result, RESTORED_FIELDS)


def take_above(write: LeaseWrite, counter: int) -> LeaseWrite:
    """Return the take ``write`` with a result whose counter is greater than ``counter``.

    ``counter`` is the greatest counter with which an older write of this worker compared. A Java worker's shard sync
    may overwrite a row with a new row, whose counter begins at 0 again. Without a greater counter, an older write that
    arrives late could be accepted, once the new row's counter reaches the number with which that write compares.

    Use this function only if the store stores the counter of the result (``WorkerState.sets_counters``).
    """
    if write.result is None or write.result.counter > counter:
        return write
    return evolve(write, result=evolve(write.result, counter=counter + 1))


def steal(seen: Lease, stealer: str) -> LeaseWrite:
    """Return the write that marks a lease as wanted by ``stealer``.

    The owner then ends its consumer, stores a checkpoint and transfers the lease. The counter stays.
    """
    if not seen.owner:
        raise ValueError(f"cannot mark {seen}: it has no owner; take it instead")
    wanted = evolve(seen, stealer="")
    return LeaseWrite(WriteKind.STEAL, wanted, evolve(seen, stealer=stealer))


def transfer(seen: Lease, new_owner: str) -> LeaseWrite:
    """Return the write that hands a held lease over to ``new_owner``.

    A row with owner = stealer = ``new_owner`` tells that worker to take the lease.
    """
    if not new_owner:
        raise ValueError(f"cannot transfer {seen} without a new owner; release it instead")
    result = evolve(seen, owner=new_owner, stealer=new_owner, counter=seen.counter + 1)
    return LeaseWrite(WriteKind.TRANSFER, seen, result)


def checkpoint(seen: Lease, value: str, progress: Progress | None = None) -> LeaseWrite:
    """Return the write that stores a checkpoint. The write also renews the lease.

    A prepared checkpoint stays in the row if ``PendingCheckpoint.survives`` says so; otherwise the write removes it.
    """
    void = None if seen.pending is None or seen.pending.survives(value, seen.checkpoint) else seen.pending
    result = evolve(
        seen,
        checkpoint=value,
        counter=seen.counter + 1,
        pending=None if void is not None else seen.pending,
        progress=progress or seen.progress,
    )
    also = (*(() if void is None else ("pending",)), *(() if progress is None else ("progress",)))
    return LeaseWrite(WriteKind.CHECKPOINT, seen, result, also)


def prepare(seen: Lease, pending: PendingCheckpoint) -> LeaseWrite:
    """Return the write that stores the first half of a two-phase checkpoint. The write also renews the lease."""
    result = evolve(seen, counter=seen.counter + 1, pending=pending)
    return LeaseWrite(WriteKind.PREPARE, seen, result)


def take_pause(seen: Lease) -> LeaseWrite:
    """Return the write by which the owner says that it obeys a pause. The write also renews the lease."""
    if seen.pause is None:
        raise ValueError(f"{seen} is not paused, so no pause can be taken")
    taken = f"{seen.pause.request_id} {seen.owner}"
    result = evolve(seen, counter=seen.counter + 1, pause_taken=taken)
    return LeaseWrite(WriteKind.TAKE_PAUSE, seen, result)


def leave_pause(seen: Lease) -> LeaseWrite:
    """Return the write that withdraws the acknowledgement of a pause. The write also renews the lease.

    The owner sends this write before it reads the shard again. While the row says that its owner obeys, the shard is
    not read, and will not be read before the counter moves. An operator's write that compares the counter can rely on
    that, even after the pause's end time.
    """
    result = evolve(seen, counter=seen.counter + 1, pause_taken="")
    return LeaseWrite(WriteKind.LEAVE_PAUSE, seen, result)


def end_orders(seen: Lease, left: tuple[RecordOrder, ...]) -> LeaseWrite:
    """Return the write that keeps only the orders ``left``, because all other orders have ended.

    The write also renews the lease.
    """
    return LeaseWrite(WriteKind.END_ORDERS, seen, evolve(seen, counter=seen.counter + 1, orders=left))


def delete(seen: Lease) -> LeaseWrite:
    """Return the write that removes the row of a shard that left the stream, if the row is unchanged."""
    return LeaseWrite(WriteKind.DELETE, seen, None)


# --- writes of operators -------------------------------------------------------------------------------------------


def set_pause(seen: Lease, pause: Pause | None) -> LeaseWrite:
    """Return the write that pauses a lease: the owner then holds it without reading. ``pause=None`` ends the pause.

    The write is refused if the owner has changed. The counter stays, so no renewal fails. The owner notices the pause
    at its next scan.
    """
    result = evolve(seen, pause=pause, pause_taken=seen.pause_taken if pause else "")
    return LeaseWrite(WriteKind.SET_PAUSE, seen, result, () if pause else ("pause_taken",))


def set_orders(seen: Lease, orders: tuple[RecordOrder, ...]) -> LeaseWrite:
    """Return the write that replaces the orders about records, if owner and orders are unchanged.

    The counter stays, so no renewal by the owner fails.
    """
    return LeaseWrite(WriteKind.SET_ORDERS, seen, evolve(seen, orders=orders))


def rewind(seen: Lease, checkpoint: str) -> LeaseWrite:
    """Return the write that moves the checkpoint, back or forth, if the row is unchanged.

    The write removes a prepared checkpoint.

    The owner's next write is refused. The owner then reads the row, ends its consumer, and goes on from the new
    checkpoint.
    """
    result = evolve(seen, checkpoint=checkpoint, counter=seen.counter + 1, pending=None)
    return LeaseWrite(WriteKind.REWIND, seen, result)


def release(seen: Lease) -> LeaseWrite:
    """Return the write that takes the lease from its owner, and leaves it without an owner.

    An owner releases its lease if it stops and no other worker can take the lease. In all other cases only an operator
    releases a lease. Workers that know the row wait for a lease duration, because the former owner learns of the
    release only by its next renewal. A worker that sees the row for the first time takes it immediately, like any row
    without an owner. So release a lease only if it is no longer read, if it is paused and the pause is acknowledged, or
    if its owner is not alive.
    """
    result = evolve(seen, owner="", stealer="", counter=seen.counter + 1)
    return LeaseWrite(WriteKind.RELEASE, seen, result)
