"""Events and commands of one shard's consumer: the border between its state machine and the code that runs it.

Events are facts in the past tense, and commands are imperatives. ``ConsumerMachine.handle(event, now)`` takes one event
and returns the commands to carry out, in order. A worker carries the commands out with threads and calls; the simulator
does so on simulated time. No event or command is ever changed. Classes whose objects are made for every page are not
frozen, because freezing would double the cost of making them.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any, Protocol

from attrs import define, field, frozen

from streamclient.base.position import Position
from streamclient.base.reasons import Raised
from streamclient.core.consumer.parked import Failure
from streamclient.core.events import CheckpointOutcome, ConsumerEnd, Severity
from streamclient.core.shard_tree import ShardTree
from streamclient.model import PendingCheckpoint, Progress, RecordOrder, ShutdownReason
from streamclient.records import SequenceInfo, StreamRecord


class ShardPage(Protocol):
    """The result of one read of a shard. ``RecordPage`` implements this protocol."""

    @property
    def records(self) -> Sequence[StreamRecord]:
        """The records of the page, oldest first."""

    @property
    def next_position(self) -> Position:
        """The position where the next read begins, or ``Position.SHARD_END`` at the end of the shard."""

    @property
    def may_more_record(self) -> bool | None:
        """The service's hint whether more records wait after the page; ``None`` without a hint."""

    @property
    def body_bytes(self) -> int:
        """The size in bytes of the body of the service's response."""


# --- events ----------------------------------------------------------------------------------------------------------


@frozen
class Began:
    """The consumer was made. All parents of its shard are finished."""


@frozen
class StopAsked:
    """The worker asked the consumer to end. If the reason is ZOMBIE, the lease is lost already."""

    reason: ShutdownReason


@frozen
class Marked:
    """A processor called its ``IShutdownMarker``, to ask for the end of its work or for a new processor."""

    processor: int
    """The number of the processor, from ``NewProcessor``. If that processor was replaced meanwhile, the event is
    ignored."""
    reason: ShutdownReason


@frozen
class LossAccepted:
    """The worker's program accepted that records are lost. The stopped shard goes on with the records that are left."""


@frozen
class OrdersGiven:
    """The operators' orders about records, as the lease's row has them now. They replace all earlier orders."""

    orders: tuple[RecordOrder, ...]


@frozen
class EndJudged:
    """The answer to ``ConfirmEnd``.

    If the list of shards does not show the shard's end yet, a second answer may follow when a later list shows it.
    """

    visit: int
    is_shown: bool
    since_read: bool = False
    """Whether the end of the shard became known only after the consumer had read the page that reports the end. If so,
    the page may lack the last records of the shard, so the consumer reads it once more."""
    detail: str = ""
    """The reason why the end of the shard cannot be confirmed; empty if the end is confirmed."""


@frozen
class CheckpointAsked:
    """User code asked for a checkpoint; exactly one ``CheckpointAnswered`` follows."""


@frozen
class CheckpointAnswered:
    """A checkpoint that user code had requested was stored, prepared or refused."""

    outcome: CheckpointOutcome
    value: str
    progress: Progress | None = None
    pending: PendingCheckpoint | None = None
    """The checkpoint that was prepared; ``None`` if ``value`` was stored or refused."""


@define
class PageRead:
    """The answer to ``Read`` after a successful read."""

    visit: int
    page: ShardPage
    read_at: float
    """The time when the read of the page began. If the page was read ahead, its read may have begun before the command
    ``Read`` was given."""


@frozen
class ReadFailed:
    """The answer to ``Read`` after a failed read."""

    visit: int
    error: Raised


@frozen
class FirstLeftFound:
    """The answer to ``FindFirstLeft``: the oldest record left in the shard, or ``None`` if the shard is empty.

    If ``is_known`` is false, the search ended after many pages without a record, and ``first_left`` is ``None``.
    """

    visit: int
    first_left: SequenceInfo | None
    is_known: bool = True


@frozen
class FirstLeftUnknown:
    """The answer to ``FindFirstLeft`` if the search failed."""

    visit: int
    error: Raised


@define
class CallReturned:
    """The call into user code returned, or raised ``error``."""

    error: Raised | None = None
    value: Any = None
    """The result of the call. The class of the command that began the call describes it."""


@frozen
class CallTakenBack:
    """The answer to ``TakeBack`` if no thread had begun the call into user code. That call will never run."""


@frozen
class TimeCame:
    """The pause that the command ``Wait`` began is over."""

    visit: int


ConsumerEvent = (
    Began
    | StopAsked
    | Marked
    | LossAccepted
    | OrdersGiven
    | EndJudged
    | CheckpointAsked
    | CheckpointAnswered
    | PageRead
    | ReadFailed
    | FirstLeftFound
    | FirstLeftUnknown
    | CallReturned
    | CallTakenBack
    | TimeCame
)

# --- commands: calls into user code, at most one at a time; CallReturned answers each of them -----------------------


@frozen
class Initialize:
    """Make the processor that ``NewProcessor`` announced, and call its ``initialize``.

    The result says whether the processor was made.
    """


@define
class ProcessRecords:
    """Give a batch to the processor: call its ``process_records``."""

    records: Sequence[StreamRecord]
    attempt: int = 0
    """The number of earlier calls that failed and whose batches contained all of ``records``."""


@frozen
class AskParkedKeys:
    """Ask the parking store for the parked keys of the stream. The result is a sequence of ``ParkedKey``."""


@frozen
class Park:
    """Park records of a page.

    The result is a sequence of ``ParkedRecord``. When the call returns, the parking store has stored these records.
    """

    page: ShardPage
    indices: Sequence[int]
    """The indices, within the page, of the records to park."""
    generations: Sequence[int] | None
    """The ``ParkedRecord.generation`` of each record, in the order of ``indices``; ``None`` if the worker has no
    parking store of its own."""
    position: str
    """The position at which the page with the records was read."""
    failure: Failure
    order: RecordOrder | None = None
    """The operator's order because of which the records are parked; ``None`` without an order. The order also names
    the parking store, for workers without a store of their own."""
    tree: ShardTree = field(factory=ShardTree)
    """The known shards of the stream, from which the generations follow."""


@frozen
class AskStrategy:
    """Ask the user's retry strategy. The result is the pause in seconds, or ``None`` for no retry."""

    error: Exception
    retries: int


@frozen
class ShutDown:
    """Close the processor: call its ``shutdown``."""

    reason: ShutdownReason


@frozen
class TakeBack:
    """Cancel the present call if no thread has begun it. A cancelled call is answered only by ``CallTakenBack``."""


# --- commands: reading and time --------------------------------------------------------------------------------------


@define
class Read:
    """Read the page of the shard that begins at ``position``."""

    visit: int
    position: Position


@define
class ReadAhead:
    """Read the pages that follow ``page`` while ``page`` is being processed, as long as memory for them is left."""

    page: ShardPage


@frozen
class DropReading:
    """Drop the read in progress, and all pages that were read ahead."""


@frozen
class FindFirstLeft:
    """Find the oldest record that the stream still keeps in the shard."""

    visit: int


@define
class ConfirmEnd:
    """Find out whether the shard has really ended, as the page that was read last reports."""

    visit: int
    read_at: float
    """The time when the read of the page began."""


@define
class Wait:
    """Report ``TimeCame`` after ``seconds``."""

    visit: int
    seconds: float
    is_idle: bool = False
    """Whether nothing failed and no work is left. If so, the pause may end a little sooner."""


# --- commands: the processor's checkpointer --------------------------------------------------------------------------


@frozen
class NewProcessor:
    """Announce the next processor of the shard: make the checkpointer that this processor will use."""

    number: int
    initial: str
    """The position at which the new processor starts."""
    progress: Progress
    """The progress of the shard up to ``initial``."""
    pending: PendingCheckpoint | None
    """The checkpoint that an earlier processor prepared and did not complete; ``None`` without such a checkpoint."""
    lost_after: str | None = None
    """The stored checkpoint, if records after it are lost and the loss was accepted; otherwise ``None``."""


@frozen
class Offer:
    """Allow the processor to store the checkpoint that an earlier processor prepared."""

    position: str
    progress: Progress
    last: SequenceInfo | None = None
    """The last record before ``position``; ``None`` if it is unknown."""


@frozen
class Withdraw:
    """Withdraw the permission that ``Offer`` gave for ``position``. The processor did not store that position."""

    position: str


@define
class Permit:
    """Allow the processor to store ``position``, the end of one more batch.

    ``progress`` is the shard's progress up to ``position``; ``None`` if it has not changed.
    """

    position: str
    progress: Progress | None = None
    last: SequenceInfo | None = None
    """The last record before ``position``; ``None`` if the batch has no record."""


@frozen
class Retract:
    """Withdraw the permission to store the last permitted position, because the batch before that position failed."""


@frozen
class StoreSetAside:
    """Store the position before which the shard is caught up, if the processor has stored all of its batches.

    The records after its last checkpoint were then parked or skipped. So no batch comes that lets the processor store
    the position, and without this command the records would count as lost once the stream no longer keeps them.
    """


@frozen
class CloseCheckpoints:
    """Refuse all further checkpoint requests of the processor."""

    because: str


# --- commands: statistics and logs -----------------------------------------------------------------------------------


class Told(Enum):
    """The kinds of facts about a shard that ``Tell`` counts."""

    ACCEPTED = "records accepted by user code"
    PARKED = "records that are safe in the parking store"
    REDELIVERED = "records handed to the same processor again"
    CAUGHT_UP = "a read found nothing more"
    MAY_FOLLOW = "a read found no record, but records may follow"
    END_REACHED = "the end of the shard was reached"
    RESTARTED = "a new processor replaces another one"
    END_NOT_STORED = "the processor did not store the end of the shard"
    LOSS_GIVEN_UP = "lost records are given up, and nothing is known of the records that are left"


@define
class Tell:
    """Count a fact of the kind ``what``, for ``records`` records."""

    what: Told
    records: int = 0


@define
class PageDone:
    """Record that a page is done: each of its records was accepted, parked, or dropped by an order."""

    page: ShardPage
    last: SequenceInfo | None
    """The position of the page's last record; ``None`` for a page without records."""


@frozen
class OrderEnded:
    """Report that an operator's order is over.

    Either a stored checkpoint is after all records that the order names, or the order was withdrawn.
    """

    order: RecordOrder
    taken: int
    """The number of the order's records that this consumer took out of the shard."""
    is_withdrawn: bool = False
    """Whether the order left the lease's row before it was obeyed. If so, no further record is taken out."""


@frozen
class TellOutage:
    """Log a failure that an outage of a service may cause repeatedly and for many shards.

    If the same work fails in the same way, in whatever shard, that is one outage, and it is logged only now and then.
    """

    of: str
    """The kind of work that fails: ``reading`` or ``parking``."""
    error: Raised
    text: str


@frozen
class LogLine:
    """Log one line of text about the shard."""

    severity: Severity
    text: str
    error: Raised | None = None
    """The error to log with its traceback; ``None`` without an error."""


@frozen
class Ended:
    """Report that the consumer has ended: none of its work runs any more. This is its last command."""

    end: ConsumerEnd


ConsumerCommand = (
    Initialize
    | ProcessRecords
    | AskParkedKeys
    | Park
    | AskStrategy
    | ShutDown
    | TakeBack
    | Read
    | ReadAhead
    | DropReading
    | FindFirstLeft
    | ConfirmEnd
    | Wait
    | NewProcessor
    | Offer
    | Withdraw
    | Permit
    | Retract
    | StoreSetAside
    | CloseCheckpoints
    | Tell
    | PageDone
    | OrderEnded
    | TellOutage
    | LogLine
    | Ended
)
