"""Events and commands of a worker: the border between ``Holdings`` and the code that runs it.

Events are facts in the past tense, and commands are imperatives. ``Holdings.handle(event, now)`` takes one event and
returns the commands. ``now`` is the time at which the fact became known, in monotonic seconds. The calling code
executes the commands outside the owner thread and reports every outcome as another event. A worker does so with threads
and calls; the simulator does so on simulated time.
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
    """A call has returned.

    The code that reports this event must read the clock for ``now`` after the return, never before.
    """

    call: Call[ValueT]
    value: ValueT | None = None
    """The result of the call. If the call is a write and the result is ``None``, the write is in doubt."""
    sent_at: float = float("-inf")
    """The time just before a write was sent. If the write is accepted, the owner's lease, or the worker's session, is
    valid from that time on."""
    error: Exception | None = None
    """The reason why the value is unknown, after all retries of the call. If there is a value, the error is the reason
    why a write was not applied."""


@frozen
class Scan:
    """The rows of the status table, as one scan read them."""

    rows: tuple[Lease, ...]
    wall_micros: int | None = None
    """The time of this machine's wall clock when the scan returned, in microseconds since 1970. Pauses end by this
    clock. ``None`` means that the wall clock and the monotonic clock have advanced equally since the last scan."""
    workers: tuple[WorkerRow, ...] | None = None
    """The rows of all workers, which are read after the rows of the leases; ``None`` if the store has no worker
    rows."""


@frozen
class ShardList:
    """The complete answer of DescribeStream, over all pages."""

    shards: tuple[Shard, ...]
    expiration_hours: int | None = None
    """The stream's retention in hours."""


@frozen
class ReadRows(Call[Scan]):
    """Scan the status table: first the rows of leases, then the rows of workers.

    ``Holdings`` never requests a scan while another scan runs.
    """


@frozen
class ReadSignals(Call[tuple[WorkerRow, ...]]):
    """Read the rows of the workers ``names``. Never requested while a scan or another ``ReadSignals`` is unanswered."""

    names: tuple[str, ...]


@frozen
class ReadRow(Call[Lease | None]):
    """Read one lease row. The result is ``None`` if the row is absent."""

    lease_key: str


@frozen
class ListShards(Call[ShardList]):
    """Read the complete list of shards. Never requested while another listing is unanswered."""


@frozen
class WriteLease(Call[WriteOutcome]):
    """Send one write of a lease row. Never repeat a write of unknown outcome. Renewals may be sent as one batch."""

    write: LeaseWrite


@frozen
class WriteWorker(Call[WriteOutcome]):
    """Send one write of a worker row, and never repeat it.

    A heartbeat and the renewals that ``Holdings`` returns for the same event are sent together.
    """

    write: WorkerWrite


@frozen
class WakeWorkers(Call[None]):
    """Wake the workers ``names``, so that they scan immediately.

    If one event causes several of these commands, they may be sent together.
    """

    names: tuple[str, ...]


@frozen
class NoteOrder(Call[None]):
    """Store an audit row that says how an operator's order to park or skip records ended.

    A repeated note replaces the same audit row.
    """

    lease_key: str
    order: RecordOrder
    who: str
    """The name of the worker that reports the outcome of the order."""
    outcome: str
    at_micros: int
    """The time that the note states, in microseconds since 1970. A repeated note has the same time."""


@frozen
class DrawEpoch(Call[int]):
    """Draw the epoch of a new acquisition, greater than all epochs that any worker has drawn for this lease.

    Several draws may be sent together. No draw is requested while another draw for the same lease is unanswered. After
    an error, an epoch may have been drawn, but it is never used.
    """

    lease_key: str


# --- other events ----------------------------------------------------------------------------------------------------


@frozen
class TakeDue:
    """The interval ``taker_interval_millis`` has passed, so the worker should look for leases to take."""


@frozen
class RenewDue:
    """The interval between two heartbeats has passed, so the worker should renew its held leases."""


@frozen
class SyncDue:
    """A new listing of the shards is due: its interval has passed, or an ended shard needs the rows of its children."""


@frozen
class InfoChanged:
    """The text that this worker shows operators about itself has changed. The next heartbeat carries it."""

    info: str


@frozen
class CheckpointRequested:
    """User code wants to store a position. Exactly one ``AnswerCheckpoint`` follows."""

    request_id: int
    lease_key: str
    consumer_id: str
    value: str
    progress: Progress | None = None
    """The progress of the shard up to ``value``, which is stored together with ``value``."""
    pending: PendingCheckpoint | None = None
    """The checkpoint to prepare; ``None`` to store ``value``. A prepared checkpoint is stored beside the present
    checkpoint, and ``value`` is not stored."""


@frozen
class EndRead:
    """A consumer read a page that reports the end of its shard. The list of shards must confirm that end.

    An ``AnswerEnd`` follows. If that answer says that the end is not shown, a second answer may follow when a later
    listing shows the end. No answer follows if the consumer ends first.
    """

    lease_key: str
    consumer_id: str
    read_at: float
    """The time when the read of that page began, in monotonic seconds."""


@frozen
class EndAccepted:
    """The worker's own program declares that a shard has ended, although the list of shards does not show that."""

    lease_key: str


@frozen
class OrderOver:
    """A consumer is done with an operator's order.

    Either a stored checkpoint is after all records that the order names, or the order was withdrawn.
    """

    lease_key: str
    consumer_id: str
    order: RecordOrder
    taken: int
    """The number of the order's records that the consumer parked or dropped."""
    is_withdrawn: bool = False


@frozen
class ConsumerStalled:
    """A consumer makes no progress: its call into user code, or its read, exceeded the limit for such calls.

    So the worker must not keep the lease.
    """

    lease_key: str
    consumer_id: str
    reason: str


@frozen
class PauseRequested:
    """The worker's program pauses one shard or, with ``lease_key=None``, the whole worker."""

    lease_key: str | None
    reason: str


@frozen
class ResumeRequested:
    """The worker's program ends a pause that it requested itself. An operator's pause in the lease row stays."""

    lease_key: str | None


class ConsumerEnd(Enum):
    """The way in which a consumer ended."""

    SHARD_END = "shard_end"
    """SHARD_END is stored. The worker keeps the lease, without a consumer."""

    STOPPED = "stopped"
    """The consumer stopped because of ``StopConsumer``."""

    DONE = "done"
    """The processor asked to end its work before the end of the shard. The worker then releases the lease."""


@frozen
class ConsumerStopped:
    """A consumer is gone, and none of its user code runs any more. Reported once for each ``StartConsumer``."""

    lease_key: str
    consumer_id: str
    end: ConsumerEnd


@frozen
class StopRequested:
    """The worker must stop: take no leases, stop consumers, hand leases over."""


@frozen
class Tick:
    """The time that ``Holdings.next_deadline`` returned has come. The event does no harm at any other time."""


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
    """Create a lease row whose first checkpoint must be looked up.

    Get an iterator at ``timestamp_micros``, then write the row with that iterator as its checkpoint. The answer is the
    same as for a ``WriteLease`` that creates this row.
    """

    lease: Lease
    timestamp_micros: int


@frozen
class StartConsumer:
    """Start a consumer that reads a held shard from ``checkpoint``. The shard's parents are finished."""

    shard_info: ShardInfo
    checkpoint: str
    pending: PendingCheckpoint | None = None
    progress: Progress | None = None
    fleet_has_processed: bool = False
    """Whether the status table shows that any worker of the fleet has processed records of any shard."""
    consumer_id: str = ""
    """The consumer's id. If it is empty, this is the first consumer of an acquisition, and its id is the lease
    identifier."""

    orders: tuple[RecordOrder, ...] = ()
    """The operators' orders about records of the shard."""

    @property
    def identifier(self) -> str:
        """The id by which events and commands name this consumer."""
        return self.consumer_id or self.shard_info.lease_identifier


@frozen
class GiveOrders:
    """Give a running consumer the operators' present orders about records of its shard."""

    lease_key: str
    consumer_id: str
    orders: tuple[RecordOrder, ...]


@frozen
class ForgetEpoch:
    """Drop the epoch counter of a shard that left the stream and whose lease was deleted. No answer follows."""

    lease_key: str


@frozen
class StopConsumer:
    """Stop this consumer. If the reason is ZOMBIE, the lease is lost already."""

    lease_key: str
    consumer_id: str
    reason: ShutdownReason


class CheckpointOutcome(Enum):
    """The way in which a checkpoint request ended."""

    STORED = "stored"
    LEASE_LOST = "lease_lost"
    UNKNOWN = "unknown"
    REJECTED = "rejected"
    """The checkpoint is not stored and never will be, although the lease is held. The answer's ``error`` says why."""


@frozen
class AnswerCheckpoint:
    """Answer the user code that waits for a checkpoint to be stored or refused."""

    request_id: int
    outcome: CheckpointOutcome
    error: Exception | None = None


@frozen
class AnswerEnd:
    """Tell a consumer whether its shard has ended.

    ``since_read`` says that the end became known, or was accepted, only after the consumer had read its last page. If
    so, the consumer reads that page again.
    """

    lease_key: str
    consumer_id: str
    is_shown: bool
    since_read: bool = False
    detail: str = ""
    """The reason why the end of the shard cannot be confirmed; empty if the end is confirmed."""


class Severity(Enum):
    """The log level of a ``Report``."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@frozen
class Report:
    """Log one change of state or one anomaly. The text names worker, shard and counter."""

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
