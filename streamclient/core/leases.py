"""The writes of lease rows, one function each; ``write_rules.RULES`` gives the fields that each compares and stores."""

from __future__ import annotations

from attrs import frozen

from streamclient.core.values import evolve
from streamclient.core.write_rules import RESTORED_FIELDS, RULES, Rule, WriteKind
from streamclient.model import Lease, Pause, PendingCheckpoint, Progress, RecordOrder


@frozen
class LeaseWrite:
    """One conditional change of one row. Made only by the functions below."""

    kind: WriteKind
    seen: Lease
    """The row as its writer last saw it; the condition compares with it. For CREATE, the row to store."""
    result: Lease | None
    """The row after the write is accepted; ``None`` after DELETE."""
    also: tuple[str, ...] = ()
    """Fields that this write stores beside those of its rule."""

    @property
    def rule(self) -> Rule:
        """The comparisons and stored fields of such a write."""
        return RULES[self.kind]

    @property
    def expected(self) -> Lease | None:
        """The row that must be there; ``None`` if the row must be absent."""
        return None if self.kind is WriteKind.CREATE else self.seen

    @property
    def changes(self) -> tuple[str, ...]:
        """Fields of ``Lease`` to write, with their values in ``result``; the row keeps all others."""
        return (*self.rule.writes, *self.also)

    @property
    def lease_key(self) -> str:
        """Key of the row."""
        return self.seen.lease_key

    def __str__(self) -> str:
        return f"{self.kind.value} {self.seen} -> {self.result or 'absent'}"


def create(lease: Lease) -> LeaseWrite:
    """Store a new row if the row does not exist."""
    return LeaseWrite(WriteKind.CREATE, lease, lease)


def renew(seen: Lease) -> LeaseWrite:
    """Renew the lease: counter + 1."""
    return LeaseWrite(WriteKind.RENEW, seen, evolve(seen, counter=seen.counter + 1))


def take(seen: Lease, owner: str, *, checkpoint: str | None = None) -> LeaseWrite:
    """Become owner of a free, expired or handed-over lease, clear the stealer, and restore ``checkpoint`` if given."""
    result = evolve(seen, owner=owner, stealer="", counter=seen.counter + 1)
    if checkpoint in (None, seen.checkpoint):
        return LeaseWrite(WriteKind.TAKE, seen, result)
    restored = evolve(result, checkpoint=checkpoint, pending=None)
    return LeaseWrite(WriteKind.TAKE, seen, restored, ("checkpoint", "pending"))


def restore(seen: Lease, known: Lease) -> LeaseWrite:
    """Take a row that was reset over ``known``, and restore its content. Later orders of operators stay."""
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
    """Return the same take with a result whose counter is greater than ``counter``.

    A Java worker's shard sync may reset a row, whose counter then begins at 0 again. No write sent before the reset may
    find the counter with which it compares.
    """
    if write.result is None or write.result.counter > counter:
        return write
    return evolve(write, result=evolve(write.result, counter=counter + 1))


def steal(seen: Lease, stealer: str) -> LeaseWrite:
    """Mark a lease as wanted by ``stealer``; its owner finishes, checkpoints and transfers. The counter stays."""
    if not seen.owner:
        raise ValueError(f"cannot mark {seen}: it has no owner; take it instead")
    wanted = evolve(seen, stealer="")
    return LeaseWrite(WriteKind.STEAL, wanted, evolve(seen, stealer=stealer))


def transfer(seen: Lease, new_owner: str) -> LeaseWrite:
    """Hand a held lease over to ``new_owner``: owner = stealer = that worker is its signal to take it."""
    if not new_owner:
        raise ValueError(f"cannot transfer {seen} without a new owner; release it instead")
    result = evolve(seen, owner=new_owner, stealer=new_owner, counter=seen.counter + 1)
    return LeaseWrite(WriteKind.TRANSFER, seen, result)


def checkpoint(seen: Lease, value: str, progress: Progress | None = None) -> LeaseWrite:
    """Store a checkpoint, which counts as a heartbeat; a prepared checkpoint ends unless ``survives`` keeps it."""
    void = None if seen.pending is None or seen.pending.survives(value, seen.checkpoint) else seen.pending
    result = evolve(
        seen,
        checkpoint=value,
        counter=seen.counter + 1,
        pending=None if void is not None else seen.pending,
        progress=progress or seen.progress,
    )
    optional = (("pending", void), ("progress", progress))
    return LeaseWrite(WriteKind.CHECKPOINT, seen, result, tuple(name for name, value in optional if value is not None))


def prepare(seen: Lease, pending: PendingCheckpoint) -> LeaseWrite:
    """Store the first half of a two-phase checkpoint beside the checkpoint; counts as a heartbeat."""
    result = evolve(seen, counter=seen.counter + 1, pending=pending)
    return LeaseWrite(WriteKind.PREPARE, seen, result)


def take_pause(seen: Lease) -> LeaseWrite:
    """Acknowledge the pause as seen: nothing reads the shard any more; counts as a heartbeat."""
    if seen.pause is None:
        raise ValueError(f"{seen} is not paused, so no pause can be taken")
    taken = f"{seen.pause.request_id} {seen.owner}"
    result = evolve(seen, counter=seen.counter + 1, pause_taken=taken)
    return LeaseWrite(WriteKind.TAKE_PAUSE, seen, result)


def leave_pause(seen: Lease) -> LeaseWrite:
    """Take the acknowledgement back before the owner reads again; counts as a heartbeat.

    While the row says that its owner obeys, nothing reads, and nothing will before the counter moves. An operator's
    write that compares the counter can rely on that, even after a pause that ended by itself.
    """
    result = evolve(seen, counter=seen.counter + 1, pause_taken="")
    return LeaseWrite(WriteKind.LEAVE_PAUSE, seen, result)


def end_orders(seen: Lease, left: tuple[RecordOrder, ...]) -> LeaseWrite:
    """Leave only the orders ``left``, because the others are obeyed or over; counts as a heartbeat."""
    return LeaseWrite(WriteKind.END_ORDERS, seen, evolve(seen, counter=seen.counter + 1, orders=left))


def delete(seen: Lease) -> LeaseWrite:
    """Remove the row of a shard that left the stream, if the row is still as seen."""
    return LeaseWrite(WriteKind.DELETE, seen, None)


# --- writes of operators -------------------------------------------------------------------------------------------


def set_pause(seen: Lease, pause: Pause | None) -> LeaseWrite:
    """Order the owner, if it is still the same, to hold the shard without reading it; ``None`` ends the order.

    The counter stays: no heartbeat fails, and the owner notices by its next scan.
    """
    result = evolve(seen, pause=pause, pause_taken=seen.pause_taken if pause else "")
    return LeaseWrite(WriteKind.SET_PAUSE, seen, result, () if pause else ("pause_taken",))


def set_orders(seen: Lease, orders: tuple[RecordOrder, ...]) -> LeaseWrite:
    """Replace the orders about records, if owner and orders are still the same. The counter stays, as for a pause."""
    return LeaseWrite(WriteKind.SET_ORDERS, seen, evolve(seen, orders=orders))


def rewind(seen: Lease, checkpoint: str) -> LeaseWrite:
    """Move the checkpoint, back or forth, if the row is still as seen; a prepared checkpoint becomes void.

    The owner's next write is refused. It reads the row back, ends its consumer, and goes on from the new checkpoint.
    """
    result = evolve(seen, checkpoint=checkpoint, counter=seen.counter + 1, pending=None)
    return LeaseWrite(WriteKind.REWIND, seen, result)


def release(seen: Lease) -> LeaseWrite:
    """Take the lease from its owner, and leave it without an owner.

    An owner does so when it stops and no worker is there to take the lease; otherwise only an operator does. Workers
    that know the row wait for a lease duration, because the former owner learns of the release only by its next
    heartbeat. A worker that sees the row for the first time takes it at once, like any row without an owner. So release
    only a lease that is not read any more, is paused and acknowledged, or has no living owner.
    """
    result = evolve(seen, owner="", stealer="", counter=seen.counter + 1)
    return LeaseWrite(WriteKind.RELEASE, seen, result)
