"""The writes of lease rows, one function each; ``rows.RULES`` says what each of them compares and stores."""

from __future__ import annotations

from attrs import frozen

from streamclient.core.values import evolve
from streamclient.core.write_rules import RESTORED_FIELDS, RULES, Rule, WriteKind
from streamclient.model import Lease, Pause, PendingCheckpoint, Progress


@frozen
class LeaseWrite:
    """One conditional change of one row. Made by the functions below, never by hand."""

    kind: WriteKind
    seen: Lease
    """The row as its writer last saw it; the condition compares with it. For CREATE, the row to store."""
    result: Lease | None
    """The row afterwards if accepted; ``None`` after DELETE."""
    also: tuple[str, ...] = ()
    """Fields that this very write stores beside those that its rule always does."""

    @property
    def rule(self) -> Rule:
        """What such a write compares and stores."""
        return RULES[self.kind]

    @property
    def expected(self) -> Lease | None:
        """The row that must be there; ``None``: none may."""
        return None if self.kind is WriteKind.CREATE else self.seen

    @property
    def changes(self) -> tuple[str, ...]:
        """Fields of ``Lease`` that are written, with their values in ``result``; the row keeps all others."""
        return (*self.rule.writes, *self.also)

    @property
    def lease_key(self) -> str:
        """Key of the row."""
        return self.seen.lease_key

    def __str__(self) -> str:
        return f"{self.kind.value} {self.seen} -> {self.result or 'absent'}"


def create(lease: Lease) -> LeaseWrite:
    """Store a new row, if none is there."""
    return LeaseWrite(WriteKind.CREATE, lease, lease)


def renew(seen: Lease) -> LeaseWrite:
    """Heartbeat: counter + 1."""
    return LeaseWrite(WriteKind.RENEW, seen, evolve(seen, counter=seen.counter + 1))


def take(seen: Lease, owner: str, *, checkpoint: str | None = None) -> LeaseWrite:
    """Become owner of a free, expired or handed-over lease; clears the stealer. Optionally restores a checkpoint."""
    result = evolve(seen, owner=owner, stealer="", counter=seen.counter + 1)
    if checkpoint in (None, seen.checkpoint):
        return LeaseWrite(WriteKind.TAKE, seen, result)
    restored = evolve(result, checkpoint=checkpoint, pending=None)
    return LeaseWrite(WriteKind.TAKE, seen, restored, ("checkpoint", "pending"))


def restore(seen: Lease, known: Lease) -> LeaseWrite:
    """Take a row that was put over ``known``, and give it back what it lost. A pause set since then stays."""
    result = evolve(
        known,
        stealer="",
        counter=seen.counter + 1,
        pause=seen.pause or known.pause,
        parent_shard_ids=seen.parent_shard_ids,
    )
    return LeaseWrite(WriteKind.TAKE, seen, result, RESTORED_FIELDS)


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
    return LeaseWrite(WriteKind.STEAL, wanted, evolve(seen, stealer=stealer))


def transfer(seen: Lease, new_owner: str) -> LeaseWrite:
    """Hand a held lease to a worker: owner = stealer = that worker, which is its signal to take it."""
    if not new_owner:
        raise ValueError(f"cannot transfer {seen} to nobody")
    result = evolve(seen, owner=new_owner, stealer=new_owner, counter=seen.counter + 1)
    return LeaseWrite(WriteKind.TRANSFER, seen, result)


def checkpoint(seen: Lease, value: str, progress: Progress | None = None) -> LeaseWrite:
    """Store progress; counts as a heartbeat. What was prepared is void once any other position is stored."""
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
    """The owner says that nothing reads the shard any more, because of the pause as seen; counts as a heartbeat."""
    if seen.pause is None:
        raise ValueError(f"{seen} is not paused, so there is no pause to take")
    taken = f"{seen.pause.request_id} {seen.owner}"
    result = evolve(seen, counter=seen.counter + 1, pause_taken=taken)
    return LeaseWrite(WriteKind.TAKE_PAUSE, seen, result)


def leave_pause(seen: Lease) -> LeaseWrite:
    """The owner takes that back before it reads again; counts as a heartbeat.

    As long as the row says that its owner obeys, nothing reads, and nothing will before the counter moves. An
    operator's write that compares the counter is sure of that, also after a pause that ended by itself.
    """
    result = evolve(seen, counter=seen.counter + 1, pause_taken="")
    return LeaseWrite(WriteKind.LEAVE_PAUSE, seen, result)


def delete(seen: Lease) -> LeaseWrite:
    """Remove the row of a shard that left the stream, if it is still as seen."""
    return LeaseWrite(WriteKind.DELETE, seen, None)


# --- an operator's -------------------------------------------------------------------------------------------------


def set_pause(seen: Lease, pause: Pause | None) -> LeaseWrite:
    """Order the owner, if it is the one seen, to hold the shard without reading it; ``None`` ends that.

    The counter stays: no heartbeat fails, and the owner notices by its next scan.
    """
    result = evolve(seen, pause=pause, pause_taken=seen.pause_taken if pause else "")
    return LeaseWrite(WriteKind.SET_PAUSE, seen, result, () if pause else ("pause_taken",))


def rewind(seen: Lease, checkpoint: str) -> LeaseWrite:
    """Move the checkpoint, back or forth, if the row is still as seen; what was prepared is void.

    The owner's next write is refused. It reads the row back, ends its consumer, and goes on from the new checkpoint.
    """
    result = evolve(seen, checkpoint=checkpoint, counter=seen.counter + 1, pending=None)
    return LeaseWrite(WriteKind.REWIND, seen, result)


def release(seen: Lease) -> LeaseWrite:
    """Take the lease from its owner, and leave it to others.

    Its owner does so when it stops and nobody is there to take the lease; else only an operator. Workers that know the
    row wait for a lease duration, because an owner from whom it is taken learns of that by its next heartbeat only. A
    worker that sees the row for the first time takes it at once, as any row without an owner: release only what is
    not read any more, is paused and acknowledged, or has no living owner.
    """
    result = evolve(seen, owner="", stealer="", counter=seen.counter + 1)
    return LeaseWrite(WriteKind.RELEASE, seen, result)
