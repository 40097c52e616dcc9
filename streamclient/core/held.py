"""One held lease: what this worker wants with it, who consumes the shard, what the row may say; and what follows.

Its state is these three, and ``NEXT`` says what each state asks for; ``settle`` does it. Values and pure functions.

Laws:

* a lease is valid from the time *before* the write that got it was sent, for the lease duration less a margin;
* a row that was read back proves that one of several writes moved it, not which: validity counts from the earliest;
* a mark never vanishes while the lease is held, except by this worker's own take;
* while it is held its counter only grows by own writes, one at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from attrs import frozen

from streamclient.base.reasons import Cause, Reason
from streamclient.core.deadlines import NEVER
from streamclient.core.leases import LeaseWrite
from streamclient.core.values import evolve
from streamclient.core.write_rules import NO_DOUBT, Doubt, WriteKind
from streamclient.model import Lease, PendingCheckpoint, Progress, ShardState

MARGIN_SHARE = 0.05
"""Share of the lease duration that an owner gives up: one second of the default twenty. Clocks of two machines drift
apart by a few milliseconds in that time; the rest is for telling the consumer before anyone else may start."""


class Intention(Enum):
    """What this worker wants with the lease."""

    __hash__ = object.__hash__  # members are single, and Enum's own hash, of the name, costs a call per look-up

    READ = "read"
    PAUSE = "pause"
    """Held and not read: an operator, or the worker's own program, said so."""
    KEEP = "keep"
    """Everything in the shard was processed."""
    GIVE_AWAY = "give away"
    """Another worker asked for it or shall have it, or this one stops."""
    LET_RUN_OUT = "let run out"
    """Its consumer stalled: it is not renewed any more, and goes to another worker at once if the consumer ends."""


class Consuming(Enum):
    """Whether user code may be running for the shard, here."""

    __hash__ = object.__hash__  # members are single, and Enum's own hash, of the name, costs a call per look-up

    NOBODY = "nobody"
    CONSUMER = "its consumer"
    LEAVING = "one that leaves"
    """A consumer that was asked to stop, whose checkpoints still work; or one of an earlier life of the lease."""


class RowState(Enum):
    """What the row may say, beside what this worker wrote last. Marks and pauses that others set change no state."""

    __hash__ = object.__hash__  # members are single, and Enum's own hash, of the name, costs a call per look-up

    OWN = "as written"
    OBEYS = "may say that nothing reads"
    """Because of a pause. That has to be taken back before anything reads again."""
    OFFERED = "may be another's"
    """A transfer was sent and its fate is unknown: no consumer may start until another write was accepted."""
    GONE = "gone"
    """The list of shards must say whether to create it again. Until then nothing is written."""


class LeaseStep(Enum):
    """What a held lease asks for. Whatever it is, see ``settle`` for what is written meanwhile."""

    START = "start a consumer, once parents, epoch and the look at the worker's own row allow it"
    LET_READ = "let its consumer read"
    STOP = "ask its consumer to stop"
    AWAIT_END = "wait until the consumer has ended"
    SET_RIGHT = "write the row, and start nothing before that was accepted"
    AWAIT_ROW = "wait for the list of shards"
    HOLD = "hold it, and read nothing"
    HAND_OVER = "transfer it to another worker, or leave it if there is none"
    RUN_OUT = "wait until the consumer has ended or the lease is over, and do not renew it"


_READ, _PAUSE, _KEEP = Intention.READ, Intention.PAUSE, Intention.KEEP
_GIVE, _RUN_OUT = Intention.GIVE_AWAY, Intention.LET_RUN_OUT
_NOBODY, _CONSUMER, _LEAVING = Consuming
_OWN, _OBEYS, _OFFERED, _GONE = RowState

_WHILE_READ = (_OWN, _GONE)
"""No consumer starts before the row is as written, and nothing is acknowledged or offered while one is there."""
_WHILE_LEAVING = (_OWN, _OBEYS, _GONE)
"""Beside a consumer of an earlier life, the row that was taken may say what was true in a life before that."""

_LINES: Sequence[tuple[Intention, Consuming, Sequence[RowState], LeaseStep]] = (
    (_READ, _NOBODY, (_OWN,), LeaseStep.START),
    (_READ, _NOBODY, (_OBEYS, _OFFERED), LeaseStep.SET_RIGHT),
    (_READ, _NOBODY, (_GONE,), LeaseStep.AWAIT_ROW),
    (_READ, _CONSUMER, _WHILE_READ, LeaseStep.LET_READ),
    (_READ, _LEAVING, _WHILE_LEAVING, LeaseStep.AWAIT_END),
    (_PAUSE, _NOBODY, tuple(RowState), LeaseStep.HOLD),
    (_PAUSE, _CONSUMER, _WHILE_READ, LeaseStep.STOP),
    (_PAUSE, _LEAVING, _WHILE_LEAVING, LeaseStep.AWAIT_END),
    (_KEEP, _NOBODY, tuple(RowState), LeaseStep.HOLD),
    (_KEEP, _CONSUMER, _WHILE_READ, LeaseStep.LET_READ),
    (_KEEP, _LEAVING, _WHILE_LEAVING, LeaseStep.AWAIT_END),
    (_GIVE, _NOBODY, tuple(RowState), LeaseStep.HAND_OVER),
    (_GIVE, _CONSUMER, _WHILE_READ, LeaseStep.STOP),
    (_GIVE, _LEAVING, _WHILE_LEAVING, LeaseStep.AWAIT_END),
    (_RUN_OUT, _NOBODY, tuple(RowState), LeaseStep.HAND_OVER),
    (_RUN_OUT, _CONSUMER, _WHILE_READ, LeaseStep.STOP),
    (_RUN_OUT, _LEAVING, _WHILE_LEAVING, LeaseStep.RUN_OUT),
)

NEXT: dict[tuple[Intention, Consuming, RowState], LeaseStep] = {
    (intention, consuming, row): step for intention, consuming, rows, step in _LINES for row in rows
}
"""(intention, consuming, row) -> what the lease asks for. A state that is not named here cannot be."""


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
class Acquisition:
    """One time in which nobody else can have had the lease; consumers of one acquisition share an epoch."""

    number: int
    """Of all of this worker's."""
    identifier: str = ""
    """As processors are told it: that of its first consumer. Empty until that starts."""
    epoch: int = 0
    """0 until it is known."""
    needs_epoch: bool = True
    """Whether one has to be drawn, or another one to be sure that nobody acquired the lease in between."""
    problem: str = ""
    """Why the last try to draw one failed."""
    failures: int = 0
    draw_again_at: float = NEVER


@frozen
class HeldLease:
    """A lease this worker holds: its state in the table, and the facts that it rests on."""

    lease: Lease
    """The row as this worker last wrote it, with the marks and pauses that were seen since."""
    identifier: str
    """Of the consumer that runs, or ran last; before one was started, of this acquisition."""
    valid_until: float
    """Monotonic seconds; from then on another worker may be reading."""
    first_counter: int
    """What the take wrote. Rows with a lower counter are older than that."""
    moved_at: float
    """When the last accepted write was sent."""
    acquisition: Acquisition
    intention: Intention = Intention.READ
    consuming: Consuming = Consuming.NOBODY
    is_gone: bool = False
    is_offered: bool = False
    may_say_obeys: bool = False
    """Facts of the row; see ``RowState``. A row that is gone or offered may say that nothing reads as well."""
    promised_to: str = ""
    """The worker that shall have it so that loads are even; this worker hands it over unasked."""
    stall: str = ""
    """Why its consumer stalled, if it did: the validity is never extended."""
    has_started: bool = False
    """Whether a consumer was started under this identifier."""
    clear_since: float | None = None
    """Since when nothing but a look at the worker's own row is wanting for a consumer to start. A process of the same
    name may have taken the lease while this one waited, and would be refused by what has seen this one's epoch."""
    pause_known_at: float = NEVER
    """When the row was read that showed the present pause, or none; scans that began earlier know less."""
    mute_pause: str = ""
    """A pause that the store cannot acknowledge."""
    requests: tuple[CheckpointRequest, ...] = ()
    sent_requests: int = 0
    """How many of them, from the front, the write under way answers."""
    is_renewal_due: bool = False
    doubt: Doubt = NO_DOUBT
    moved_unseen_at: float = NEVER
    """When a row was read back that had moved, by a write of this worker or of another process with its name: a later
    look at the worker's own row tells, and nothing is written on what was read before that."""
    unexplained_moves: int = 0
    """Refused writes in a row after which the row looked as if they had been applied."""
    reason: Reason | None = None
    """Why nothing is being read; ``None`` while it is."""

    @property
    def row(self) -> RowState:
        """What the row may say: of several things, the one that keeps it from being read for longest."""
        if self.is_gone:
            return RowState.GONE
        if self.is_offered:
            return RowState.OFFERED
        return RowState.OBEYS if self.may_say_obeys else RowState.OWN

    @property
    def step(self) -> LeaseStep:
        """What it asks for."""
        return NEXT[self.intention, self.consuming, self.row]

    @property
    def checkpoint(self) -> str:
        """The stored checkpoint."""
        return self.lease.checkpoint

    @property
    def is_being_read(self) -> bool:
        """Whether all is well: its consumer runs, and nobody wants anything of it."""
        return self.consuming is Consuming.CONSUMER and not self.lease.stealer and self.lease.pause is None

    @property
    def state(self) -> ShardState:
        """What the shard is doing, as far as the lease knows; the consumer knows more while it runs."""
        if self.consuming is Consuming.CONSUMER:
            return ShardState.PROCESSING
        if self.consuming is Consuming.LEAVING or self.intention in (Intention.GIVE_AWAY, Intention.LET_RUN_OUT):
            return ShardState.SHUTTING_DOWN
        if self.lease.is_finished:
            return ShardState.SHUTDOWN_COMPLETE
        if self.intention is Intention.PAUSE:
            return ShardState.PAUSED
        if self.reason is not None and self.reason.cause in (Cause.PARENT, Cause.PARENT_CIRCLE):
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
        may_say_obeys=held.may_say_obeys and write.kind is not WriteKind.LEAVE_PAUSE,
        is_gone=False,
        is_offered=False,
        doubt=NO_DOUBT,
    )


def _after(lease: Lease, write: LeaseWrite) -> Lease:
    """The row after the write, keeping a mark or a pause that was seen while the write was under way."""
    return evolve(lease, **{name: getattr(write.result, name) for name in write.changes})
