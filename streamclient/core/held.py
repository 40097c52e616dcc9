"""One held lease: the worker's intention, the consumer, the state of the lease's row, and the next step.

Intention, consumer and row form the state of the lease. ``NEXT`` gives the step for each state, and ``settle`` takes
that step. This module has only values and pure functions.

Laws:

* a lease is valid for the lease duration less a margin, counted from the time *before* the write that got the lease was
  sent;
* a row that was read back may show that one of several writes moved it, but not which one. So the validity counts from
  the earliest of these writes;
* while the lease is held, a mark (another worker's request for the lease) disappears only by this worker's own take;
* while the lease is held, only writes of this worker increase its counter, one at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum

from attrs import field, frozen

from streamclient.base.reasons import Cause, Reason
from streamclient.core.deadlines import NEVER
from streamclient.core.leases import LeaseWrite
from streamclient.core.values import evolve
from streamclient.core.write_rules import NO_DOUBT, Doubt, WriteKind
from streamclient.model import Lease, PendingCheckpoint, Progress, RecordOrder, ShardState

MARGIN_SHARE = 0.05
"""The last share of the lease duration, in which the owner no longer relies on its lease: one second of the default
twenty. In twenty seconds, the clocks of two machines drift apart by a few milliseconds. The rest of the second is for
stopping the consumer before another worker may start."""


class Intention(Enum):
    """A worker's intention for a lease that it holds."""

    __hash__ = object.__hash__  # faster than Enum's own hash, which costs a Python call per look-up

    READ = "read"
    PAUSE = "pause"
    """Hold the lease without reading the shard, by order of an operator or of the worker's own program."""
    KEEP = "keep"
    """Keep the lease and read no more, because every record of the shard was processed."""
    GIVE_AWAY = "give away"
    """Hand the lease over, because another worker asked for it or shall get it, or because this worker stops."""
    LET_RUN_OUT = "let run out"
    """Do not renew the lease, because its consumer stalled. If the consumer ends in time, hand the lease over
    immediately."""


class Consuming(Enum):
    """Whether this worker may be running user code for the shard."""

    __hash__ = object.__hash__  # faster than Enum's own hash, which costs a Python call per look-up

    NO_CONSUMER = "no consumer"
    CONSUMER = "its consumer"
    LEAVING = "one that leaves"
    """A consumer that was asked to stop, and whose checkpoints still work. Or a consumer that still runs although this
    worker has lost the lease and taken it again."""


class RowState(Enum):
    """The way in which the row may differ from this worker's last accepted write.

    A mark of another worker or an operator's pause does not change this state.
    """

    __hash__ = object.__hash__  # faster than Enum's own hash, which costs a Python call per look-up

    OWN = "as written"
    OBEYS = "may say that nothing reads"
    """The row may say that the shard is not read, because of a pause. Before the shard is read again, this
    acknowledgement must be withdrawn."""
    OFFERED = "may be another's"
    """A transfer was sent, and its outcome is unknown. No consumer may start until another write is accepted."""
    GONE = "gone"
    """The row does not exist. The list of shards decides whether to create it again; until then nothing is written."""


class LeaseStep(Enum):
    """The next step of a held lease. The docstring of the module ``settle`` names the writes for these steps."""

    START = "start a consumer, once parents, epoch and the look at the worker's own row allow it"
    LET_READ = "let its consumer read"
    STOP = "ask its consumer to stop"
    AWAIT_END = "wait until the consumer has ended"
    SET_RIGHT = "write the row, and start nothing before that was accepted"
    AWAIT_ROW = "wait for the list of shards"
    HOLD = "hold it, and read nothing"
    HAND_OVER = "transfer it to another worker, or leave it if no other lives"
    RUN_OUT = "wait until the consumer has ended or the lease is over, and do not renew it"


_READ, _PAUSE, _KEEP = Intention.READ, Intention.PAUSE, Intention.KEEP
_GIVE, _RUN_OUT = Intention.GIVE_AWAY, Intention.LET_RUN_OUT
_NO_CONSUMER, _CONSUMER, _LEAVING = Consuming
_OWN, _OBEYS, _OFFERED, _GONE = RowState

_WHILE_READ = (_OWN, _GONE)
"""The possible states of the row while a consumer runs. A consumer starts only in the state ``OWN``. While a consumer
runs, this worker acknowledges no pause and sends no transfer."""
_WHILE_LEAVING = (_OWN, _OBEYS, _GONE)
"""The possible states of the row while a consumer leaves. If this worker has lost the lease and taken it again
meanwhile, the row may still acknowledge a pause."""

_LINES: Sequence[tuple[Intention, Consuming, Sequence[RowState], LeaseStep]] = (
    (_READ, _NO_CONSUMER, (_OWN,), LeaseStep.START),
    (_READ, _NO_CONSUMER, (_OBEYS, _OFFERED), LeaseStep.SET_RIGHT),
    (_READ, _NO_CONSUMER, (_GONE,), LeaseStep.AWAIT_ROW),
    (_READ, _CONSUMER, _WHILE_READ, LeaseStep.LET_READ),
    (_READ, _LEAVING, _WHILE_LEAVING, LeaseStep.AWAIT_END),
    (_PAUSE, _NO_CONSUMER, tuple(RowState), LeaseStep.HOLD),
    (_PAUSE, _CONSUMER, _WHILE_READ, LeaseStep.STOP),
    (_PAUSE, _LEAVING, _WHILE_LEAVING, LeaseStep.AWAIT_END),
    (_KEEP, _NO_CONSUMER, tuple(RowState), LeaseStep.HOLD),
    (_KEEP, _CONSUMER, _WHILE_READ, LeaseStep.LET_READ),
    (_KEEP, _LEAVING, _WHILE_LEAVING, LeaseStep.AWAIT_END),
    (_GIVE, _NO_CONSUMER, tuple(RowState), LeaseStep.HAND_OVER),
    (_GIVE, _CONSUMER, _WHILE_READ, LeaseStep.STOP),
    (_GIVE, _LEAVING, _WHILE_LEAVING, LeaseStep.AWAIT_END),
    (_RUN_OUT, _NO_CONSUMER, tuple(RowState), LeaseStep.HAND_OVER),
    (_RUN_OUT, _CONSUMER, _WHILE_READ, LeaseStep.STOP),
    (_RUN_OUT, _LEAVING, _WHILE_LEAVING, LeaseStep.RUN_OUT),
)

NEXT: dict[tuple[Intention, Consuming, RowState], LeaseStep] = {
    (intention, consuming, row): step for intention, consuming, rows, step in _LINES for row in rows
}
"""The next step for each state: intention, consumer and row. A state that is missing cannot occur."""


@frozen
class CheckpointRequest:
    """One call of ``checkpoint()`` or ``prepare_checkpoint()`` that waits for its answer."""

    request_id: int
    value: str
    progress: Progress | None = None
    pending: PendingCheckpoint | None = None
    """The checkpoint to prepare; ``None`` to store ``value`` as the checkpoint."""
    was_sent: bool = False
    """Whether the request was sent at least once. If so, and no answer came, its value may be stored, now or later."""


@frozen
class Acquisition:
    """A time in which no other worker can have had the lease. Consumers of one acquisition share an epoch."""

    number: int
    """The number of the acquisition among all acquisitions of this worker."""
    identifier: str = ""
    """The identifier that processors see: the identifier of the first consumer. Empty until that consumer starts."""
    epoch: int = 0
    """The epoch of this acquisition; 0 until it is known."""
    needs_epoch: bool = True
    """Whether an epoch must be drawn. It is the first epoch of the acquisition, or a second one that shows whether
    another worker acquired the lease meanwhile."""
    problem: str = ""
    """The reason why the last draw of the epoch failed; empty without a failure."""
    failures: int = 0
    draw_again_at: float = NEVER


@frozen
class HeldLease:
    """A lease that this worker holds: its row, its state, and the facts from which the worker derives the state."""

    lease: Lease
    """The row as this worker last wrote it, with the marks (requests of other workers) and the operators' pauses that
    this worker has read since."""
    identifier: str
    """The identifier of the running or last consumer. Before the first consumer starts, it is the identifier that the
    first consumer will get."""
    valid_until: float
    """The time from which another worker may be reading, in monotonic seconds."""
    first_counter: int
    """The counter that the take wrote. A row with a lower counter is older than the take."""
    moved_at: float
    """The time when this worker sent its last accepted write of the row."""
    acquisition: Acquisition
    intention: Intention = Intention.READ
    consuming: Consuming = Consuming.NO_CONSUMER
    is_gone: bool = False
    is_offered: bool = False
    may_acknowledge: bool = False
    """Whether the row may acknowledge a pause, as ``RowState.OBEYS`` says. In the same way, ``is_gone`` means what
    ``RowState.GONE`` says, and ``is_offered`` what ``OFFERED`` says. Several of them may be true at the same time."""
    promised_to: str = ""
    """The worker that shall receive the lease to even out loads. This worker hands the lease over without being
    asked."""
    stall: str = ""
    """The reason why the consumer stalled; empty if it did not. After a stall, the validity is never extended."""
    has_started: bool = False
    """Whether a consumer with this identifier was started."""
    clear_since: float | None = None
    """The time at which all conditions for a consumer were met except one: a later read of the worker's own row;
    otherwise ``None``. The read shows whether a newer process with the same name may have taken the lease meanwhile.
    That process may have the smaller epoch. If this worker then used its own epoch, a destination would refuse the
    writes of the newer process."""
    pause_known_at: float = NEVER
    """The time of the read that showed the present pause and the present orders about records, or of the write that
    removed such orders. Scans that began earlier are out of date."""
    mute_pause: str = ""
    """The request id of a pause that this worker cannot acknowledge, because the store does not support such a
    write."""
    orders_given: tuple[RecordOrder, ...] = ()
    """The orders about records that the running or last consumer was given."""
    orders_over: Mapping[str, tuple[RecordOrder, str]] = field(factory=dict)
    """The orders that the consumer has obeyed, each with its outcome, by request id."""
    orders_gone: Mapping[str, tuple[RecordOrder, str]] = field(factory=dict)
    """The orders that left the row before the consumer had obeyed them, each with its outcome, by request id."""
    noted: frozenset[str] = frozenset()
    """The request ids of the orders whose outcome is in the audit."""
    keeps_orders: bool = False
    """Whether obeyed orders stay in the row, because the store does not support their removal."""
    requests: tuple[CheckpointRequest, ...] = ()
    sent_requests: int = 0
    """The number of requests, from the beginning of ``requests``, that the unanswered write stores. The answer to that
    write completes these requests."""
    is_renewal_due: bool = False
    doubt: Doubt = NO_DOUBT
    moved_unseen_at: float = NEVER
    """The time of a read that showed a changed counter. A write of this worker may have changed the counter, or a write
    of another process with its name. A later read of the worker's own row shows which process wrote. Until then this
    worker does not write the lease row."""
    unexplained_moves: int = 0
    """The number of consecutive writes that were refused although the row, when it was read back, showed them as
    applied."""
    reason: Reason | None = None
    """The reason why the shard is not being read; ``None`` while it is being read."""

    @property
    def row(self) -> RowState:
        """The state of the row. If several states apply, this is the state that prevents reading for longest."""
        if self.is_gone:
            return RowState.GONE
        if self.is_offered:
            return RowState.OFFERED
        return RowState.OBEYS if self.may_acknowledge else RowState.OWN

    @property
    def step(self) -> LeaseStep:
        """The next step for this lease, as ``NEXT`` gives it."""
        return NEXT[self.intention, self.consuming, self.row]

    @property
    def checkpoint(self) -> str:
        """The checkpoint that the lease's row stores."""
        return self.lease.checkpoint

    @property
    def is_being_read(self) -> bool:
        """Whether a consumer reads the shard, and no request asks this consumer to stop or to change its orders.

        The consumer runs and knows the row's orders, and the lease is neither paused nor requested by another worker.
        """
        is_undisturbed = not self.lease.stealer and self.lease.pause is None and self.lease.orders == self.orders_given
        return self.consuming is Consuming.CONSUMER and is_undisturbed

    @property
    def state(self) -> ShardState:
        """The activity of the shard, as far as the lease shows it. If a consumer runs, its own state is more exact."""
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
    """Return the time until which the owner may rely on a lease whose accepted write was sent at ``sent_at``."""
    return sent_at + duration_seconds * (1.0 - MARGIN_SHARE)


def accepted(
    held: HeldLease, write: LeaseWrite, sent_at: float, duration_seconds: float, row: Lease | None
) -> HeldLease:
    """Return the lease after a write of this worker was applied. ``row`` is the row, if it was read back."""
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
        may_acknowledge=held.may_acknowledge and write.kind is not WriteKind.LEAVE_PAUSE,
        is_gone=False,
        is_offered=False,
        doubt=NO_DOUBT,
    )


def _after(lease: Lease, write: LeaseWrite) -> Lease:
    """Return ``lease`` with the fields that the write stores.

    All other fields stay, because this worker may have noticed a mark or a pause since it sent the write.
    """
    return evolve(lease, **{name: getattr(write.result, name) for name in write.changes})
