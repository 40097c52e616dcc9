"""One held lease, and what a row that was read back says about it. Values and pure functions only.

Laws:

* a lease is valid from the time *before* the write that got it was sent, for the lease duration less a margin;
* a mark never vanishes within a tenancy, except by this worker's own take;
* counters of one tenancy only grow by own writes, one at a time.
"""

from __future__ import annotations

from enum import Enum

from attrs import evolve, frozen

from streamclient.core.leases import LeaseWrite, WriteKind, was_applied
from streamclient.core.view import NEVER
from streamclient.model import Lease, ShardState

MARGIN_SHARE = 0.05
"""Share of the lease duration that an owner gives up: one second of the default twenty. Clocks of two machines drift
apart by a few milliseconds in that time; the rest is for telling the consumer before anyone else may start."""


class ConsumerPhase(Enum):
    """Whether user code may be running for this tenancy."""

    NONE = "none"
    """Not started, or gone."""
    RUNNING = "running"
    STOPPING = "stopping"
    """Asked to stop; checkpoints still work."""


@frozen
class CheckpointRequest:
    """One waiting call of ``checkpoint()``."""

    request_id: int
    value: str
    was_sent: bool = False
    """Whether it went out at least once: without an answer, it may be stored, or land yet."""


@frozen
class HeldLease:
    """A lease this worker holds."""

    lease: Lease
    """The row as this worker last wrote it."""
    identifier: str
    """Of this tenancy; the shard acquired again is another one."""
    valid_until: float
    """Monotonic seconds; from then on another worker may be reading."""
    first_counter: int
    """What the take wrote. Rows with a lower counter are older than this tenancy."""
    moved_at: float
    """When the last accepted write was sent."""
    consumer: ConsumerPhase = ConsumerPhase.NONE
    has_started: bool = False
    """Whether a consumer was started under this identifier."""
    is_draining: bool = False
    is_released: bool = False
    """The processor marked itself done: another worker shall have the lease."""
    is_absent: bool = False
    """The row is gone, and the list of shards must say whether to create it again."""
    is_unsettled: bool = False
    """A transfer was sent and its fate is unknown: no consumer may start until another write was accepted."""
    is_renewal_due: bool = False
    requests: tuple[CheckpointRequest, ...] = ()
    sent_requests: int = 0
    """How many of them, from the front, the write under way answers."""
    reason: str = ""
    """Why nothing is being read; empty while it is."""
    tries: int = 0
    """Writes in a row that were not applied."""
    not_before: float = NEVER
    """When the next write may be sent, after failures."""
    unexplained_moves: int = 0
    """Refused writes in a row after which the row looked as if they had been applied."""

    @property
    def checkpoint(self) -> str:
        """The stored checkpoint."""
        return self.lease.checkpoint

    @property
    def state(self) -> ShardState:
        """What the shard is doing, as far as the lease knows; the consumer knows more while it runs."""
        if self.consumer is ConsumerPhase.RUNNING:
            return ShardState.PROCESSING
        if self.consumer is ConsumerPhase.STOPPING or self.is_draining:
            return ShardState.SHUTTING_DOWN
        if self.lease.is_finished:
            return ShardState.SHUTDOWN_COMPLETE
        return ShardState.WAITING_ON_PARENT_SHARDS


def valid_until(sent_at: float, duration_seconds: float) -> float:
    """Until when a lease may be relied on whose accepted write was sent at ``sent_at``."""
    return sent_at + duration_seconds * (1.0 - MARGIN_SHARE)


def accepted(
    held: HeldLease, write: LeaseWrite, sent_at: float, duration_seconds: float, row: Lease | None
) -> HeldLease:
    """The lease after an own write was applied; ``row`` if it was read back."""
    lease = row or _after(held.lease, write)
    restarted = write.kind in (WriteKind.TAKE, WriteKind.CREATE)
    return evolve(
        held,
        lease=lease,
        first_counter=lease.counter if restarted else held.first_counter,
        valid_until=max(held.valid_until, valid_until(sent_at, duration_seconds)),
        moved_at=max(held.moved_at, sent_at),
        is_renewal_due=False,
        is_absent=False,
        is_unsettled=False,
        tries=0,
        not_before=NEVER,
    )


def _after(lease: Lease, write: LeaseWrite) -> Lease:
    """The row after the write, keeping a mark that was seen while the write was under way."""
    result = write.result or lease
    if write.kind is WriteKind.RENEW:
        return evolve(lease, counter=result.counter)
    if write.kind is WriteKind.CHECKPOINT:
        return evolve(lease, counter=result.counter, checkpoint=result.checkpoint)
    return result


class Standing(Enum):
    """What a row that was read back says about a held lease and the write in doubt."""

    APPLIED = "applied"
    UNCHANGED = "unchanged"
    """The row is as before, but for a mark: the write may be sent again."""
    ADVANCED = "advanced"
    """An earlier write of this worker landed late."""
    ABSENT = "absent"
    RESET = "reset"
    """Nobody owns the row: it was put again over the old one, as a Java worker's shard sync does."""
    NAME_CONFLICT = "name conflict"
    """Another process writes under this worker's name."""
    LOST = "lost"


def standing(held: HeldLease, write: LeaseWrite, row: Lease | None) -> Standing:
    """Classify a row that was read after ``write`` was refused or uncertain."""
    if row is None:
        return Standing.ABSENT
    if was_applied(row, write):
        return Standing.APPLIED
    known = held.lease
    if row.owner == known.owner:
        distance = row.counter - known.counter
        return {0: Standing.UNCHANGED, 1: Standing.ADVANCED}.get(distance, Standing.NAME_CONFLICT)
    return Standing.LOST if row.owner else Standing.RESET


def was_stored(held: HeldLease, write: LeaseWrite, row: Lease | None) -> bool | None:
    """Whether a checkpoint in doubt reached the table although the lease is lost; ``None`` if nobody can tell."""
    if row is None or write.result is None:
        return None
    if row.checkpoint == write.result.checkpoint != write.seen.checkpoint:
        return True
    moved_once = row.counter <= held.lease.counter + 1
    return False if moved_once or row.checkpoint == write.seen.checkpoint else None
