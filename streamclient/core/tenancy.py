"""One held lease, and what a row that was read back says about it. Values and pure functions only.

Laws:

* a lease is valid from the time *before* the write that got it was sent, for the lease duration less a margin;
* a row that was read back proves that one of several writes moved it, not which: validity counts from the earliest;
* a mark never vanishes within a tenancy, except by this worker's own take;
* counters of one tenancy only grow by own writes, one at a time.
"""

from __future__ import annotations

from enum import Enum

from attrs import evolve, frozen

from streamclient.core.census import NEVER
from streamclient.core.leases import LeaseWrite
from streamclient.core.rows import WriteKind, was_applied
from streamclient.model import Lease, PendingCheckpoint, Progress, ShardState
from streamclient.reasons import Cause, Reason

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
    """One waiting call of ``checkpoint()`` or ``prepare_checkpoint()``."""

    request_id: int
    value: str
    progress: Progress | None = None
    pending: PendingCheckpoint | None = None
    """What to store as pending, in place of ``value`` as the checkpoint."""
    was_sent: bool = False
    """Whether it went out at least once: without an answer, it may be stored, or land yet."""


@frozen
class HeldLease:
    """A lease this worker holds."""

    lease: Lease
    """The row as this worker last wrote it."""
    identifier: str
    """Of the consumer that runs, or ran last; before one was started, of this acquisition."""
    valid_until: float
    """Monotonic seconds; from then on another worker may be reading."""
    first_counter: int
    """What the take wrote. Rows with a lower counter are older than this tenancy."""
    moved_at: float
    """When the last accepted write was sent."""
    lease_identifier: str = ""
    """Of this acquisition, as processors are told it: that of its first consumer. Empty until that starts."""
    acquisition: int = 0
    """Grows with each time that the lease may have had another owner before; consumers of one share an epoch."""
    epoch: int = 0
    """Of this acquisition; 0 until it is known."""
    needs_epoch: bool = True
    """Whether one has to be drawn, or another one to be sure that nobody acquired the lease in between."""
    epoch_problem: str = ""
    """Why the last try to draw one failed."""
    epoch_failures: int = 0
    draw_again_at: float = NEVER
    consumer: ConsumerPhase = ConsumerPhase.NONE
    has_started: bool = False
    """Whether a consumer was started under this identifier."""
    clear_since: float | None = None
    """Since when nothing but a look at the worker's own row is wanting for a consumer to start. A process of the same
    name may have taken the lease while this one waited, and would be refused by what has seen this one's epoch."""
    is_draining: bool = False
    is_paused: bool = False
    """By an operator, or by the worker's own program."""
    is_released: bool = False
    """The processor marked itself done: another worker shall have the lease."""
    promised_to: str = ""
    """The worker that shall have it so that loads are even; this worker hands it over unasked."""
    is_absent: bool = False
    """The row is gone, and the list of shards must say whether to create it again."""
    is_unsettled: bool = False
    """A transfer was sent and its fate is unknown: no consumer may start until another write was accepted."""
    is_renewal_due: bool = False
    stall: str = ""
    """Why its consumer stalled, if it did: the lease runs out, and its validity is never extended."""
    pause_known_at: float = NEVER
    """When the row was read that showed the present pause, or none; scans that began earlier know less."""
    has_acknowledged: bool = False
    """Whether the row may say that this worker obeys a pause: nothing may be read before that is taken back."""
    mute_pause: str = ""
    """A pause that the store cannot acknowledge."""
    requests: tuple[CheckpointRequest, ...] = ()
    sent_requests: int = 0
    """How many of them, from the front, the write under way answers."""
    reason: Reason | None = None
    """Why nothing is being read; ``None`` while it is."""
    tries: int = 0
    """Writes in a row that were not applied."""
    not_before: float = NEVER
    """When the next write may be sent, after failures."""
    doubted_at: float | None = None
    """When the earliest write was sent whose answer did not say that it was applied, since the counter is known: it may
    have moved the row, now or later. Others count from then."""
    moved_unseen_at: float = NEVER
    """When a row was read back that had moved, by a write of this worker or of another process with its name: a later
    look at the worker's own row tells, and nothing is written on what was read before that."""
    unexplained_moves: int = 0
    """Refused writes in a row after which the row looked as if they had been applied."""

    @property
    def checkpoint(self) -> str:
        """The stored checkpoint."""
        return self.lease.checkpoint

    @property
    def is_being_read(self) -> bool:
        """Whether all is well: its consumer runs, and nobody wants anything of it."""
        return self.consumer is ConsumerPhase.RUNNING and not self.lease.stealer and self.lease.pause is None

    @property
    def state(self) -> ShardState:
        """What the shard is doing, as far as the lease knows; the consumer knows more while it runs."""
        if self.consumer is ConsumerPhase.RUNNING:
            return ShardState.PROCESSING
        if self.consumer is ConsumerPhase.STOPPING or self.is_draining:
            return ShardState.SHUTTING_DOWN
        if self.lease.is_finished:
            return ShardState.SHUTDOWN_COMPLETE
        if self.is_paused:
            return ShardState.PAUSED
        if self.reason is not None and self.reason.cause is Cause.PARENT:
            return ShardState.WAITING_ON_PARENT_SHARDS
        return ShardState.INITIALIZING


def valid_until(sent_at: float, duration_seconds: float) -> float:
    """Until when a lease may be relied on whose accepted write was sent at ``sent_at``."""
    return sent_at + duration_seconds * (1.0 - MARGIN_SHARE)


def accepted(
    held: HeldLease, write: LeaseWrite, sent_at: float, duration_seconds: float, row: Lease | None
) -> HeldLease:
    """The lease after an own write was applied; ``row`` if it was read back."""
    lease = row or _after(held.lease, write)
    restarted = write.kind in (WriteKind.TAKE, WriteKind.CREATE)
    until = held.valid_until if held.stall else max(held.valid_until, valid_until(sent_at, duration_seconds))
    return evolve(
        held,
        lease=lease,
        first_counter=lease.counter if restarted else held.first_counter,
        valid_until=until,
        moved_at=max(held.moved_at, sent_at),
        is_renewal_due=False,
        has_acknowledged=held.has_acknowledged and write.kind is not WriteKind.LEAVE_PAUSE,
        is_absent=False,
        is_unsettled=False,
        tries=0,
        not_before=NEVER,
        doubted_at=None,
    )


def _after(lease: Lease, write: LeaseWrite) -> Lease:
    """The row after the write, keeping a mark or a pause that was seen while the write was under way."""
    return evolve(lease, **{name: getattr(write.result, name) for name in write.changes})


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
    REWOUND = "rewound"
    """The owner is the same, but somebody else moved the checkpoint: an operator's rewind."""
    RELEASED = "released"
    """Nobody owns the row, but it is the same row: an operator took the lease away."""
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
    is_own_checkpoint = row.checkpoint in _own_checkpoints(held)
    distance = row.counter - known.counter
    if row.owner == known.owner:
        if distance == 1 and not is_own_checkpoint:
            return Standing.REWOUND
        return {0: Standing.UNCHANGED, 1: Standing.ADVANCED}.get(distance, Standing.NAME_CONFLICT)
    if row.owner:
        return Standing.LOST
    return Standing.RELEASED if distance > 0 and is_own_checkpoint else Standing.RESET


def _own_checkpoints(held: HeldLease) -> set[str]:
    """What this tenancy stored last, and what it may have stored without knowing."""
    return {held.checkpoint, *(request.value for request in held.requests if request.was_sent and not request.pending)}


def was_stored(held: HeldLease, write: LeaseWrite, row: Lease | None) -> bool | None:
    """Whether a checkpoint in doubt reached the table although the lease is lost; ``None`` if nobody can tell."""
    if row is None or write.result is None:
        return None
    is_prepared = write.kind is WriteKind.PREPARE
    wanted, before, found = (
        (lease.pending if is_prepared else lease.checkpoint) for lease in (write.result, write.seen, row)
    )
    if found == wanted != before:
        return True
    # What was prepared vanishes with the next checkpoint, so its absence tells nothing once the checkpoint moved.
    is_unchanged = found == before and row.checkpoint == write.seen.checkpoint
    return False if row.counter <= held.lease.counter + 1 or is_unchanged else None
