"""What happened to a worker, and what it should do: the border between ``Holdings`` and its shell.

Events are facts in the past tense, commands are imperatives. ``Holdings.handle(event, now)`` takes one event and
returns the commands; ``now`` is monotonic seconds, read by the shell when the fact became known. The shell executes
commands outside the owner thread and reports every outcome as another event. The simulator does the same on
simulated time.
"""

from __future__ import annotations

from enum import Enum

from attrs import frozen

from streamclient.core.leases import LeaseWrite
from streamclient.core.membership import WorkerRow, WorkerWrite
from streamclient.core.rows import WriteOutcome
from streamclient.model import Lease, PendingCheckpoint, Progress, Shard, ShardInfo, ShutdownReason

# --- events ------------------------------------------------------------------------------------------------------


@frozen
class TakeDue:
    """The taker's interval passed."""


@frozen
class RenewDue:
    """The renewer's interval passed."""


@frozen
class SyncDue:
    """The shard sync interval passed, or an ended shard asks for its children."""


@frozen
class RowsRead:
    """A scan of the status table returned. ``now`` must be read after it returned, never before."""

    rows: tuple[Lease, ...]
    wall_micros: int | None = None
    """This machine's clock at ``now``, in microseconds since 1970; pauses end by it. ``None``: it went on as before."""
    workers: tuple[WorkerRow, ...] | None = None
    """The rows of all workers, read after those of the leases; ``None`` if the store has none."""


@frozen
class RowsUnreadable:
    """A scan failed after its retries."""

    error: Exception


@frozen
class SignalsRead:
    """The rows of some workers were read, as ``ReadSignals`` asked."""

    names: tuple[str, ...]
    """Who was asked for."""
    workers: tuple[WorkerRow, ...]
    """Who has a row."""


@frozen
class SignalsUnreadable:
    """Reading the rows of workers failed."""

    error: Exception


@frozen
class WorkerWriteAnswered:
    """A write of a worker row came back. ``sent_at`` is the time before it was sent: the session is valid from then."""

    write: WorkerWrite
    outcome: WriteOutcome
    sent_at: float
    error: Exception | None = None


@frozen
class WakesSent:
    """The wakes came back; with an error, nobody knows which of them arrived."""

    names: tuple[str, ...]
    error: Exception | None = None


@frozen
class InfoChanged:
    """What this worker tells operators about itself has changed; the next beat carries it."""

    info: str


@frozen
class ShardsListed:
    """A complete DescribeStream returned, over all pages."""

    shards: tuple[Shard, ...]
    expiration_hours: int | None = None
    """How long the stream keeps records."""


@frozen
class ShardsUnlistable:
    """DescribeStream failed after its retries."""

    error: Exception


@frozen
class WriteAnswered:
    """A write came back. ``sent_at`` is the time before it was sent: an owner's lease is valid from then on."""

    write: LeaseWrite
    outcome: WriteOutcome
    sent_at: float
    error: Exception | None = None


@frozen
class RowReadBack:
    """One row was read, as ``ReadRow`` asked; ``None`` if absent."""

    lease_key: str
    row: Lease | None


@frozen
class RowUnreadable:
    """Reading one row failed after its retries."""

    lease_key: str
    error: Exception


@frozen
class CheckpointRequested:
    """User code wants to store a position; answered exactly once by ``AnswerCheckpoint``."""

    request_id: int
    lease_key: str
    consumer_id: str
    value: str
    progress: Progress | None = None
    """What was processed up to ``value``; stored with it."""
    pending: PendingCheckpoint | None = None
    """If given, ``value`` is not stored as checkpoint: this is stored as the pending one beside the present one."""


@frozen
class EpochDrawn:
    """A number greater than all drawn before for this lease, by whomever."""

    lease_key: str
    epoch: int


@frozen
class EpochUndrawn:
    """Drawing failed, or nobody knows; the number that may have been drawn is never used."""

    lease_key: str
    error: Exception


@frozen
class ConsumerStalled:
    """A consumer makes no progress and gives no reason that excuses it; the lease must not be kept for it."""

    lease_key: str
    consumer_id: str
    reason: str


@frozen
class PauseRequested:
    """The worker's own program pauses one shard, or the whole worker with ``lease_key=None``."""

    lease_key: str | None
    reason: str


@frozen
class ResumeRequested:
    """The opposite of ``PauseRequested``; an operator's pause in the lease row stays."""

    lease_key: str | None


class ConsumerEnd(Enum):
    """How a consumer ended."""

    SHARD_END = "shard_end"
    """SHARD_END is stored; the lease stays held without a consumer."""

    STOPPED = "stopped"
    """It stopped as ``StopConsumer`` asked."""

    DONE = "done"
    """The processor marked itself done with an open shard: release the lease."""


@frozen
class ConsumerStopped:
    """A consumer is gone: no user code of it runs any more. Reported once per ``StartConsumer``."""

    lease_key: str
    consumer_id: str
    end: ConsumerEnd


@frozen
class StopRequested:
    """The worker shall stop: take nothing, stop consumers, hand leases over."""


@frozen
class Tick:
    """``Holdings.next_deadline`` was reached. Harmless at any other time."""


Event = (
    TakeDue
    | RenewDue
    | SyncDue
    | RowsRead
    | RowsUnreadable
    | SignalsRead
    | SignalsUnreadable
    | WorkerWriteAnswered
    | WakesSent
    | InfoChanged
    | ShardsListed
    | ShardsUnlistable
    | WriteAnswered
    | RowReadBack
    | RowUnreadable
    | CheckpointRequested
    | EpochDrawn
    | EpochUndrawn
    | ConsumerStalled
    | PauseRequested
    | ResumeRequested
    | ConsumerStopped
    | StopRequested
    | Tick
)

# --- commands ----------------------------------------------------------------------------------------------------


@frozen
class ReadRows:
    """Scan the status table. Never asked for again while one scan is under way."""


@frozen
class ReadSignals:
    """Read the rows of these workers. Never asked for while a scan or another such read is under way."""

    names: tuple[str, ...]


@frozen
class ReadRow:
    """Read one row."""

    lease_key: str


@frozen
class ListShards:
    """Read the complete shard list. Never asked for again while one listing is under way."""


@frozen
class WriteLease:
    """Send one write. The shell may send several renewals as one batch, and never repeats an uncertain write."""

    write: LeaseWrite


@frozen
class WriteWorker:
    """Send one write of a worker row, a beat with the renewals of the same turn; the shell never repeats it."""

    write: WorkerWrite


@frozen
class WakeWorkers:
    """Have these workers scan at once. The wakes of one turn may go out together."""

    names: tuple[str, ...]


@frozen
class ResolveAndCreate:
    """Create a row whose first checkpoint must be looked up: an iterator at ``timestamp_micros``, then the write.

    Answered by ``WriteAnswered`` whose write is a CREATE with that iterator as checkpoint.
    """

    lease: Lease
    timestamp_micros: int


@frozen
class StartConsumer:
    """Read the shard, from ``checkpoint``; its parents are finished and the lease is held."""

    shard_info: ShardInfo
    checkpoint: str
    pending: PendingCheckpoint | None = None
    progress: Progress | None = None
    consumer_id: str = ""
    """Of this one consumer, where it is not the first of its acquisition: that one goes by the lease identifier."""

    @property
    def identifier(self) -> str:
        """By which events and commands name this consumer."""
        return self.consumer_id or self.shard_info.lease_identifier


@frozen
class DrawEpoch:
    """Draw the epoch of a new acquisition, answered by ``EpochDrawn`` or ``EpochUndrawn``. Many go out together.

    Never asked for again for the same lease while it is under way.
    """

    lease_key: str


@frozen
class ForgetEpoch:
    """The lease of a shard that left the stream was deleted: drop what its epochs are counted by. No answer."""

    lease_key: str


@frozen
class StopConsumer:
    """Stop the consumer of this tenancy. With ZOMBIE the lease is already lost."""

    lease_key: str
    consumer_id: str
    reason: ShutdownReason


class CheckpointOutcome(Enum):
    """How a checkpoint request ended."""

    STORED = "stored"
    LEASE_LOST = "lease_lost"
    UNKNOWN = "unknown"
    REJECTED = "rejected"
    """Surely not stored, and it never will be, although the lease is held: ``error`` says why."""


@frozen
class AnswerCheckpoint:
    """Tell the waiting user code."""

    request_id: int
    outcome: CheckpointOutcome
    error: Exception | None = None


class Severity(Enum):
    """How loudly to report."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@frozen
class Report:
    """Log one change of state or one anomaly; the text names worker, shard and counter."""

    severity: Severity
    lease_key: str
    text: str


Command = (
    ReadRows
    | ReadSignals
    | WriteWorker
    | WakeWorkers
    | ReadRow
    | ListShards
    | WriteLease
    | ResolveAndCreate
    | DrawEpoch
    | ForgetEpoch
    | StartConsumer
    | StopConsumer
    | AnswerCheckpoint
    | Report
)
