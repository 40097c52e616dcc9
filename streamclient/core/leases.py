"""The rule of the lease table, once.

Every change of a lease row is a ``LeaseWrite``: which row, what must be true of it, which columns change.
``apply_write`` is the rule; the memory lease manager is that function under a lock, and the Tablestore condition is
derived from the same value. Conditions are at least as strict as the Java client's, so both may work on one table:

* the counter alone fences renew, take, transfer and checkpoint there; we also compare the owner;
* a renewal also compares the stealer, so that a mark is noticed on the very next heartbeat, without a scan;
* a mark (steal) leaves the counter alone and needs an empty stealer;
* a lease is created only if its row is absent, and deleted only if unchanged.
"""

from __future__ import annotations

from enum import Enum

from attrs import evolve, frozen

from streamclient.model import Lease


class WriteKind(Enum):
    """The operations on a lease row."""

    CREATE = "create"
    RENEW = "renew"
    TAKE = "take"
    STEAL = "steal"
    TRANSFER = "transfer"
    CHECKPOINT = "checkpoint"
    DELETE = "delete"


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

    @property
    def lease_key(self) -> str:
        """Key of the row."""
        return self.seen.lease_key

    def __str__(self) -> str:
        return f"{self.kind.value} {self.seen} -> {self.result or 'absent'}"


def create(lease: Lease) -> LeaseWrite:
    """Store a new row, if none is there."""
    return LeaseWrite(WriteKind.CREATE, lease, False, False, False, lease)


def renew(seen: Lease) -> LeaseWrite:
    """Heartbeat: counter + 1."""
    return LeaseWrite(WriteKind.RENEW, seen, True, True, True, evolve(seen, counter=seen.counter + 1))


def take(seen: Lease, owner: str, *, checkpoint: str | None = None) -> LeaseWrite:
    """Become owner of a free, expired or handed-over lease; clears the stealer. Optionally restores a checkpoint."""
    kept = seen.checkpoint if checkpoint is None else checkpoint
    result = evolve(seen, owner=owner, stealer="", counter=seen.counter + 1, checkpoint=kept)
    return LeaseWrite(WriteKind.TAKE, seen, True, True, False, result)


def steal(seen: Lease, stealer: str) -> LeaseWrite:
    """Mark a lease as wanted; its owner finishes, checkpoints and transfers. The counter stays."""
    if not seen.owner:
        raise ValueError(f"cannot mark {seen}: it has no owner; take it instead")
    wanted = evolve(seen, stealer="")
    return LeaseWrite(WriteKind.STEAL, wanted, False, True, True, evolve(seen, stealer=stealer))


def transfer(seen: Lease, new_owner: str) -> LeaseWrite:
    """Hand a held lease to a worker: owner = stealer = that worker, which is its signal to take it."""
    if not new_owner:
        raise ValueError(f"cannot transfer {seen} to nobody")
    result = evolve(seen, owner=new_owner, stealer=new_owner, counter=seen.counter + 1)
    return LeaseWrite(WriteKind.TRANSFER, seen, True, True, False, result)


def checkpoint(seen: Lease, value: str) -> LeaseWrite:
    """Store progress; counts as a heartbeat."""
    result = evolve(seen, checkpoint=value, counter=seen.counter + 1)
    return LeaseWrite(WriteKind.CHECKPOINT, seen, True, True, False, result)


def delete(seen: Lease) -> LeaseWrite:
    """Remove the row of a shard that left the stream, if it is still as seen."""
    return LeaseWrite(WriteKind.DELETE, seen, True, True, False, None)


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
    """The row after a permitted write: only the columns that the operation writes change.

    Raises ``ValueError`` if the row does not permit it; callers ask ``permits`` under the same lock first.
    """
    if not permits(row, write):
        raise ValueError(f"{row or 'absent row'} does not permit {write}")
    if row is None or write.result is None or write.kind is WriteKind.CREATE:
        return write.result
    result = write.result
    if write.kind is WriteKind.STEAL:
        return evolve(row, stealer=result.stealer)
    if write.kind is WriteKind.CHECKPOINT:
        return evolve(row, counter=result.counter, checkpoint=result.checkpoint)
    if write.kind is WriteKind.TAKE and result.checkpoint != write.seen.checkpoint:
        return evolve(row, owner=result.owner, stealer="", counter=result.counter, checkpoint=result.checkpoint)
    return evolve(row, owner=result.owner, stealer=_stealer_after(row, write), counter=result.counter)


def _stealer_after(row: Lease, write: LeaseWrite) -> str:
    written = write.kind in (WriteKind.TAKE, WriteKind.TRANSFER) and write.result is not None
    return write.result.stealer if written and write.result is not None else row.stealer


def was_applied(row: Lease | None, write: LeaseWrite) -> bool:
    """Whether a row that was read back shows that this write was applied (and nothing happened since).

    A mark that arrived after the write does not hide it. A hand-over to the taker is not its take: both may lead to the
    same owner and counter, when the old owner transferred the lease just before an expired one was taken.
    """
    if row is None or write.result is None:
        return row is None and write.result is None
    expected = write.result
    if write.kind is WriteKind.STEAL:
        return row.owner == expected.owner and row.stealer == expected.stealer
    if row.is_handed_over != expected.is_handed_over:
        return False
    return (row.owner, row.counter, row.checkpoint) == (expected.owner, expected.counter, expected.checkpoint)
