"""The rule of the lease table, once.

Every change of a lease row is a ``LeaseWrite``: which row, what must be true of it, which columns change.
``apply_write`` is the rule; the memory lease manager is that function under a lock, and the Tablestore condition is
derived from the same value. Conditions are at least as strict as the Java client's, so both may work on one table:

* the counter alone fences renew, take, transfer and checkpoint there; we also compare the owner;
* a renewal also compares the stealer, so that a mark is noticed on the very next heartbeat, without a scan;
* a mark (steal) leaves the counter alone and needs an empty stealer;
* a lease is created only if its row is absent, and deleted only if unchanged.

Operators change rows beside the workers: a pause leaves the counter alone, so that it costs its owner nothing; a rewind
and a release move it, so that the owner's next heartbeat is refused and shows it the row.
"""

from __future__ import annotations

from enum import Enum

from attrs import evolve, fields, frozen

from streamclient.model import Lease, Pause, PendingCheckpoint, Progress


class WriteKind(Enum):
    """The operations on a lease row."""

    CREATE = "create"
    RENEW = "renew"
    TAKE = "take"
    STEAL = "steal"
    TRANSFER = "transfer"
    CHECKPOINT = "checkpoint"
    PREPARE = "prepare"
    TAKE_PAUSE = "take pause"
    LEAVE_PAUSE = "leave pause"
    DELETE = "delete"

    # An operator's, never a worker's.
    SET_PAUSE = "set pause"
    REWIND = "rewind"
    RELEASE = "release"


class WriteOutcome(Enum):
    """What is known after a write was sent."""

    ACCEPTED = "accepted"
    REFUSED = "refused"
    """The row did not meet the condition. After a retry the first try may have been applied: read back."""
    UNCERTAIN = "uncertain"
    """No usable answer: applied or not. Read back."""


@frozen
class LeaseWrite:
    """One conditional change of one row. Made by the functions below, never by hand."""

    kind: WriteKind
    seen: Lease
    """The row as its writer last saw it; the condition compares with it. For CREATE, the row to store."""
    compares_counter: bool
    compares_owner: bool
    compares_stealer: bool
    result: Lease | None
    """The row afterwards if accepted; ``None`` after DELETE."""
    changes: tuple[str, ...] = ()
    """Fields of ``Lease`` that are written, with their values in ``result``; the row keeps all others."""

    @property
    def lease_key(self) -> str:
        """Key of the row."""
        return self.seen.lease_key

    def __str__(self) -> str:
        return f"{self.kind.value} {self.seen} -> {self.result or 'absent'}"


STORED_FIELDS = tuple(
    name for name in (field.name for field in fields(Lease)) if name not in ("lease_key", "stream_id")
)
"""Fields of a lease that are columns, all of which CREATE writes."""

OWNERSHIP = ("counter", "owner", "stealer")
"""Fields that say who has a lease, and that it changed hands."""

RESTORED_FIELDS = ("checkpoint", "pending", "progress", "pause", "pause_taken")
"""What a row must get back that lost it, because somebody put it anew."""


def create(lease: Lease) -> LeaseWrite:
    """Store a new row, if none is there."""
    return LeaseWrite(WriteKind.CREATE, lease, False, False, False, lease, STORED_FIELDS)


def renew(seen: Lease) -> LeaseWrite:
    """Heartbeat: counter + 1."""
    return LeaseWrite(WriteKind.RENEW, seen, True, True, True, evolve(seen, counter=seen.counter + 1), ("counter",))


def take(seen: Lease, owner: str, *, checkpoint: str | None = None) -> LeaseWrite:
    """Become owner of a free, expired or handed-over lease; clears the stealer. Optionally restores a checkpoint."""
    result = evolve(seen, owner=owner, stealer="", counter=seen.counter + 1)
    if checkpoint in (None, seen.checkpoint):
        return LeaseWrite(WriteKind.TAKE, seen, True, True, False, result, OWNERSHIP)
    restored = evolve(result, checkpoint=checkpoint, pending=None)
    return LeaseWrite(WriteKind.TAKE, seen, True, True, False, restored, (*OWNERSHIP, "checkpoint", "pending"))


def restore(seen: Lease, known: Lease) -> LeaseWrite:
    """Take a row that was put over ``known``, and give it back what it lost. A pause set since then stays."""
    result = evolve(
        known,
        stealer="",
        counter=seen.counter + 1,
        pause=seen.pause or known.pause,
        parent_shard_ids=seen.parent_shard_ids,
    )
    return LeaseWrite(WriteKind.TAKE, seen, True, True, False, result, (*OWNERSHIP, *RESTORED_FIELDS))


def take_above(write: LeaseWrite, counter: int) -> LeaseWrite:
    """The same take, after which the row's counter is greater than ``counter``.

    A Java worker's shard sync may put a row anew, whose counter begins at 0 again. Nothing that was sent before it may
    find the counter that it compares with.
    """
    if write.result is None or write.result.counter > counter:
        return write
    return evolve(write, result=evolve(write.result, counter=counter + 1))


def steal(seen: Lease, stealer: str) -> LeaseWrite:
    """Mark a lease as wanted; its owner finishes, checkpoints and transfers. The counter stays."""
    if not seen.owner:
        raise ValueError(f"cannot mark {seen}: it has no owner; take it instead")
    wanted = evolve(seen, stealer="")
    return LeaseWrite(WriteKind.STEAL, wanted, False, True, True, evolve(seen, stealer=stealer), ("stealer",))


def transfer(seen: Lease, new_owner: str) -> LeaseWrite:
    """Hand a held lease to a worker: owner = stealer = that worker, which is its signal to take it."""
    if not new_owner:
        raise ValueError(f"cannot transfer {seen} to nobody")
    result = evolve(seen, owner=new_owner, stealer=new_owner, counter=seen.counter + 1)
    return LeaseWrite(WriteKind.TRANSFER, seen, True, True, False, result, OWNERSHIP)


def checkpoint(seen: Lease, value: str, progress: Progress | None = None) -> LeaseWrite:
    """Store progress; counts as a heartbeat. What was prepared is void from then on, whatever was stored."""
    result = evolve(seen, checkpoint=value, counter=seen.counter + 1, pending=None, progress=progress or seen.progress)
    optional = (("pending", seen.pending), ("progress", progress))
    changes = ("counter", "checkpoint", *(name for name, value in optional if value is not None))
    return LeaseWrite(WriteKind.CHECKPOINT, seen, True, True, False, result, changes)


def prepare(seen: Lease, pending: PendingCheckpoint) -> LeaseWrite:
    """Store the first half of a two-phase checkpoint beside the checkpoint; counts as a heartbeat."""
    result = evolve(seen, counter=seen.counter + 1, pending=pending)
    return LeaseWrite(WriteKind.PREPARE, seen, True, True, False, result, ("counter", "pending"))


def take_pause(seen: Lease) -> LeaseWrite:
    """The owner says that nothing reads the shard any more, because of the pause as seen; counts as a heartbeat."""
    if seen.pause is None:
        raise ValueError(f"{seen} is not paused, so there is no pause to take")
    taken = f"{seen.pause.request_id} {seen.owner}"
    result = evolve(seen, counter=seen.counter + 1, pause_taken=taken)
    return LeaseWrite(WriteKind.TAKE_PAUSE, seen, True, True, False, result, ("counter", "pause_taken"))


def leave_pause(seen: Lease) -> LeaseWrite:
    """The owner takes that back before it reads again; counts as a heartbeat.

    As long as the row says that its owner obeys, nothing reads, and nothing will before the counter moves. An
    operator's write that compares the counter is sure of that, also after a pause that ended by itself.
    """
    result = evolve(seen, counter=seen.counter + 1, pause_taken="")
    return LeaseWrite(WriteKind.LEAVE_PAUSE, seen, True, True, False, result, ("counter", "pause_taken"))


def delete(seen: Lease) -> LeaseWrite:
    """Remove the row of a shard that left the stream, if it is still as seen."""
    return LeaseWrite(WriteKind.DELETE, seen, True, True, False, None)


# --- an operator's -------------------------------------------------------------------------------------------------


def set_pause(seen: Lease, pause: Pause | None) -> LeaseWrite:
    """Order the owner, if it is the one seen, to hold the shard without reading it; ``None`` ends that.

    The counter stays: no heartbeat fails, and the owner notices by its next scan.
    """
    result = evolve(seen, pause=pause, pause_taken=seen.pause_taken if pause else "")
    changes = ("pause",) if pause else ("pause", "pause_taken")
    return LeaseWrite(WriteKind.SET_PAUSE, seen, False, True, False, result, changes)


def rewind(seen: Lease, checkpoint: str) -> LeaseWrite:
    """Move the checkpoint, back or forth, if the row is still as seen; what was prepared is void.

    The owner's next write is refused. It reads the row back, ends its consumer, and goes on from the new checkpoint.
    """
    result = evolve(seen, checkpoint=checkpoint, counter=seen.counter + 1, pending=None)
    changes = ("counter", "checkpoint", "pending")
    return LeaseWrite(WriteKind.REWIND, seen, True, True, True, result, changes)


def release(seen: Lease) -> LeaseWrite:
    """Take the lease from its owner, and leave it to others.

    Workers that know the row wait for a lease duration, because its owner learns of this by its next heartbeat only. A
    worker that sees the row for the first time takes it at once, as any row without an owner: release only what is
    paused and acknowledged, or what has no living owner.
    """
    result = evolve(seen, owner="", stealer="", counter=seen.counter + 1)
    return LeaseWrite(WriteKind.RELEASE, seen, True, True, False, result, OWNERSHIP)


# --- the rule ------------------------------------------------------------------------------------------------------


def permits(row: Lease | None, write: LeaseWrite) -> bool:
    """Whether the stored row meets the write's condition. An absent row meets only CREATE (and DELETE, trivially)."""
    if row is None:
        return write.kind in (WriteKind.CREATE, WriteKind.DELETE)
    if write.kind is WriteKind.CREATE:
        return False
    return (
        (not write.compares_counter or row.counter == write.seen.counter)
        and (not write.compares_owner or row.owner == write.seen.owner)
        and (not write.compares_stealer or row.stealer == write.seen.stealer)
    )


def apply_write(row: Lease | None, write: LeaseWrite) -> Lease | None:
    """The row after a permitted write: only the fields that the operation writes change.

    Raises ``ValueError`` if the row does not permit it; callers ask ``permits`` under the same lock first.
    """
    if not permits(row, write):
        raise ValueError(f"{row or 'absent row'} does not permit {write}")
    if row is None or write.result is None or row == write.seen:
        return write.result
    return evolve(row, **{name: getattr(write.result, name) for name in write.changes})


def was_applied(row: Lease | None, write: LeaseWrite) -> bool:
    """Whether a row that was read back shows that this write was applied (and nothing happened since).

    A mark or a pause that arrived after the write does not hide it. A hand-over to the taker is not its take: both may
    lead to the same owner and counter, when the old owner transferred the lease just before an expired one was taken.
    """
    if row is None or write.result is None:
        return row is None and write.result is None
    expected = write.result
    if write.kind is WriteKind.STEAL:
        return row.owner == expected.owner and row.stealer == expected.stealer
    if write.kind is WriteKind.SET_PAUSE:
        return row.owner == expected.owner and row.pause == expected.pause
    if row.is_handed_over != expected.is_handed_over:
        return False
    if write.kind is WriteKind.LEAVE_PAUSE and row.pause_taken:
        return False
    if "pending" in write.changes and row.pending != expected.pending:
        return False
    return (row.owner, row.counter, row.checkpoint) == (expected.owner, expected.counter, expected.checkpoint)
