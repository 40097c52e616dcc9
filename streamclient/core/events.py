"""Events and commands of a worker: the border between ``Holdings`` and the code that runs it.

Events are facts in the past tense, commands are imperatives. ``Holdings.handle(event, now)`` takes one event and
returns the commands; ``now`` is the time at which the fact became known, in monotonic seconds. The calling code
executes the commands outside the owner thread and reports every outcome as another event. A worker does so with threads
and calls, the simulator on simulated time.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Generic, TypeVar

from attrs import frozen

from streamclient.core.leases import LeaseWrite
from streamclient.core.membership import WorkerRow, WorkerWrite
from streamclient.core.write_rules import WriteOutcome
from streamclient.model import Lease, PendingCheckpoint, Progress, RecordOrder, Shard, ShardInfo, ShutdownReason

# --- calls, and their answers --------------------------------------------------------------------------------------

ValueT = TypeVar("ValueT")


class Call(Generic[ValueT]):
    """A command that is answered exactly once, with its result or with the error that prevented it."""

    __slots__ = ()


@frozen
class Answered(Generic[ValueT]):
    """A call returned. The reporting code must read ``now`` after the return, never before."""

    call: Call[ValueT]
    value: ValueT | None = None
    """The result. A write without an outcome is in doubt."""
    sent_at: float = float("-inf")
    """The time just before a write was sent. If the write is accepted, an owner's lease or a worker's session is valid
    from then on."""
    error: Exception | None = None
    """The reason why the value is unknown, after all retries of the call. If there is a value, the reason why a write
    was not applied."""


@frozen
class Scan:
    """The rows of the status table, as one scan read them."""

    rows: tuple[Lease, ...]
    wall_micros: int | None = None
    """This machine's clock at ``now``, in microseconds since 1970, by which pauses end; ``None`` if that clock has
    advanced evenly."""
    workers: tuple[WorkerRow, ...] | None = None
    """The rows of all workers, read after those of the leases; ``None`` if the store has no worker rows."""


@frozen
class ShardList:
    """The complete answer of DescribeStream, over all pages."""

    shards: tuple[Shard, ...]
    expiration_hours: int | None = None
    """The stream's retention in hours."""


@frozen
class ReadRows(Call[Scan]):
    """Scan the status table: leases first, then workers. Never requested while another scan is under way."""


@frozen
class ReadSignals(Call[tuple[WorkerRow, ...]]):
    """Read the rows of these workers. Never requested while a scan or another such read is under way."""

    names: tuple[str, ...]


@frozen
class ReadRow(Call[Lease | None]):
    """Read one lease row; the result is ``None`` if the row is absent."""

    lease_key: str


@frozen
class ListShards(Call[ShardList]):
    """Read the complete shard list. Never requested while another listing is under way."""


@frozen
class WriteLease(Call[WriteOutcome]):
    """Send one write. Several renewals may go out as one batch; a write of unknown outcome is never repeated."""

    write: LeaseWrite


@frozen
class WriteWorker(Call[WriteOutcome]):
    """Send one write of a worker row, and never repeat it. A heartbeat goes out with the renewals of the same turn."""

    write: WorkerWrite


@frozen
class WakeWorkers(Call[None]):
    """Make these workers scan at once. The wakes of one turn may go out together."""

    names: tuple[str, ...]


@frozen
class NoteOrder(Call[None]):
    """Store in the audit how an operator's order about records ended; a repetition replaces the same audit row."""

    lease_key: str
    order: RecordOrder
    who: str
    """The worker."""
    outcome: str
    at_micros: int
    """The time of the note in microseconds since 1970."""


@frozen
class DrawEpoch(Call[int]):
    """Draw the epoch of a new acquisition: greater than all numbers drawn before for this lease by any worker.

    Several draws may go out together. No draw is requested while another draw for the same lease is under way. After an
    error, the number that may have been drawn is never used.
    """

    lease_key: str


# --- other events ----------------------------------------------------------------------------------------------------


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
class InfoChanged:
    """The text that this worker shows operators about itself has changed; the next beat carries it."""

    info: str


@frozen
class CheckpointRequested:
    """User code wants to store a position; ``AnswerCheckpoint`` answers exactly once."""

    request_id: int
    lease_key: str
    consumer_id: str
    value: str
    progress: Progress | None = None
    """Progress up to ``value``, stored with it."""
    pending: PendingCheckpoint | None = None
    """The checkpoint to prepare, if any: it is stored beside the present checkpoint, and ``value`` is not stored."""


@frozen
class EndRead:
    """A consumer read a page that reports the end of its shard, which the list of shards has to confirm.

    One ``AnswerEnd`` follows, unless the consumer ends before.
    """

    lease_key: str
    consumer_id: str
    read_at: float
    """The time when the read of the page began."""


@frozen
class EndAccepted:
    """The worker's own program declares a shard ended, against the list of shards."""

    lease_key: str


@frozen
class OrderOver:
    """An operator's order is over for a consumer: a stored checkpoint is after all its records, or it was withdrawn."""

    lease_key: str
    consumer_id: str
    order: RecordOrder
    taken: int
    """The number of its records that the consumer took out."""
    is_withdrawn: bool = False


@frozen
class ConsumerStalled:
    """A consumer makes no progress and has no reason that excuses it; the lease must not be kept for it."""

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
    """The way in which a consumer ended."""

    SHARD_END = "shard_end"
    """SHARD_END is stored; the lease stays held without a consumer."""

    STOPPED = "stopped"
    """The consumer stopped as ``StopConsumer`` asked."""

    DONE = "done"
    """The processor asked for its end although the shard is open: release the lease."""


@frozen
class ConsumerStopped:
    """A consumer is gone: none of its user code runs any more. Reported once per ``StartConsumer``."""

    lease_key: str
    consumer_id: str
    end: ConsumerEnd


@frozen
class StopRequested:
    """The worker has to stop: take nothing, stop consumers, hand leases over."""


@frozen
class Tick:
    """``Holdings.next_deadline`` was reached. Harmless at any other time."""


Event = (
    Answered[Any]
    | TakeDue
    | RenewDue
    | SyncDue
    | InfoChanged
    | CheckpointRequested
    | EndRead
    | EndAccepted
    | OrderOver
    | ConsumerStalled
    | PauseRequested
    | ResumeRequested
    | ConsumerStopped
    | StopRequested
    | Tick
)

# --- other commands --------------------------------------------------------------------------------------------------


@frozen
class ResolveAndCreate:
    """Create a row whose first checkpoint must be looked up: get an iterator at ``timestamp_micros``, then write.

    The command is answered like the ``WriteLease`` of that row, which has the iterator as checkpoint.
    """

    lease: Lease
    timestamp_micros: int


@frozen
class StartConsumer:
    """Read the shard from ``checkpoint``; its parents are finished and the lease is held."""

    shard_info: ShardInfo
    checkpoint: str
    pending: PendingCheckpoint | None = None
    progress: Progress | None = None
    fleet_has_processed: bool = False
    """Whether rows of the status table show that records of any shard were processed."""
    consumer_id: str = ""
    """The consumer's id. It may be empty for the first consumer of an acquisition, whose id is the lease identifier."""

    orders: tuple[RecordOrder, ...] = ()
    """The operators' orders about records of the shard."""

    @property
    def identifier(self) -> str:
        """The id by which events and commands name this consumer."""
        return self.consumer_id or self.shard_info.lease_identifier


@frozen
class GiveOrders:
    """Give a consumer the operators' orders about records as they are now."""

    lease_key: str
    consumer_id: str
    orders: tuple[RecordOrder, ...]


@frozen
class ForgetEpoch:
    """Drop the epoch counter of a shard that left the stream; its lease was deleted. No answer follows."""

    lease_key: str


@frozen
class StopConsumer:
    """Stop this consumer. With ZOMBIE the lease is already lost."""

    lease_key: str
    consumer_id: str
    reason: ShutdownReason


class CheckpointOutcome(Enum):
    """The way in which a checkpoint request ended."""

    STORED = "stored"
    LEASE_LOST = "lease_lost"
    UNKNOWN = "unknown"
    REJECTED = "rejected"
    """Certainly not stored, now or later, although the lease is held; ``error`` says why."""


@frozen
class AnswerCheckpoint:
    """Answer the waiting user code."""

    request_id: int
    outcome: CheckpointOutcome
    error: Exception | None = None


@frozen
class AnswerEnd:
    """Tell a consumer whether its shard has ended.

    With ``since_read``, the end became known only after the page was read, so the page is read again.
    """

    lease_key: str
    consumer_id: str
    is_shown: bool
    since_read: bool = False
    detail: str = ""
    """Why the end cannot be confirmed, if it is not shown."""


class Severity(Enum):
    """The level of a report."""

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
    Call[Any]
    | ResolveAndCreate
    | ForgetEpoch
    | StartConsumer
    | StopConsumer
    | GiveOrders
    | AnswerCheckpoint
    | AnswerEnd
    | Report
)
