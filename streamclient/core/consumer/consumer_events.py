"""Events and commands of one shard's consumer: the border between its machine and the code that runs it.

Events are facts in the past tense, and commands are imperatives, as with ``Holdings``. ``ConsumerMachine.handle(event,
now)`` takes one event and returns the commands to carry out, in order. A worker carries the commands out with threads
and calls; the simulator does so on simulated time. No event or command is ever changed. Events and commands that are
made for every page are not frozen, because freezing would double the cost of making them.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any, Protocol

from attrs import define, frozen

from streamclient.base.position import Position
from streamclient.base.reasons import Raised
from streamclient.core.consumer.parked import Failure
from streamclient.core.events import CheckpointOutcome, ConsumerEnd, Severity
from streamclient.model import PendingCheckpoint, Progress, RecordOrder, ShutdownReason
from streamclient.records import SequenceInfo, StreamRecord


class ShardPage(Protocol):
    """The result of one read of a shard; ``RecordPage`` implements it."""

    @property
    def records(self) -> Sequence[StreamRecord]:
        """The records, oldest first."""

    @property
    def next_position(self) -> Position:
        """The position where the next read begins, or ``Position.SHARD_END``."""

    @property
    def may_more_record(self) -> bool | None:
        """The service's hint that more records wait; ``None`` without a hint."""

    @property
    def body_bytes(self) -> int:
        """The size of the answer's body in bytes."""


# --- events ----------------------------------------------------------------------------------------------------------


@frozen
class Began:
    """The consumer was made. The parents of its lease are finished."""


@frozen
class StopAsked:
    """The worker asked the consumer to end. With the reason ZOMBIE the lease is lost already."""

    reason: ShutdownReason


@frozen
class Marked:
    """A processor asked, through its marker, to be ended."""

    processor: int
    """The number of the processor, from ``NewProcessor``. A request of a processor that was replaced is ignored."""
    reason: ShutdownReason


@frozen
class LossAccepted:
    """The loss was accepted. A shard that stopped because of lost records goes on with the records left."""


@frozen
class OrdersGiven:
    """The operators' orders about records, as the lease's row has them now. They replace all earlier orders."""

    orders: tuple[RecordOrder, ...]


@frozen
class EndJudged:
    """The answer to ``ConfirmEnd``.

    If the end is not shown, a second answer may follow once a listing shows the end.
    """

    visit: int
    is_shown: bool
    since_read: bool = False
    """Whether the end became known only after the page was read. The page may have been cut, so it is read once
    more."""
    detail: str = ""
    """The reason why the end cannot be confirmed; empty if it is confirmed."""


@frozen
class CheckpointAsked:
    """User code asked for a checkpoint; exactly one ``CheckpointAnswered`` follows."""


@frozen
class CheckpointAnswered:
    """A checkpoint was stored, prepared or refused."""

    outcome: CheckpointOutcome
    value: str
    progress: Progress | None = None
    pending: PendingCheckpoint | None = None
    """The checkpoint that was prepared, instead of storing ``value``; ``None`` if ``value`` was stored or refused."""


@define
class PageRead:
    """The answer to ``Read``."""

    visit: int
    page: ShardPage
    read_at: float
    """The time when the read of the page began. If the page was read ahead, that may be before ``Read``."""


@frozen
class ReadFailed:
    """The other answer to ``Read``: an error."""

    visit: int
    error: Raised


@frozen
class FirstLeftFound:
    """The answer to ``FindFirstLeft``: the oldest record left in the shard, or ``None`` if the shard is empty."""

    visit: int
    first_left: SequenceInfo | None


@frozen
class FirstLeftUnknown:
    """The other answer to ``FindFirstLeft``: the error of the search."""

    visit: int
    error: Raised


@define
class CallReturned:
    """The call into user code returned, or raised ``error``."""

    error: Raised | None = None
    value: Any = None
    """The result of the call, as the command for the call describes it."""


@frozen
class CallTakenBack:
    """The answer to ``TakeBack`` if no thread had begun the call. The call never ran, and never will."""


@frozen
class TimeCame:
    """The pause of a ``Wait`` is over."""

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
    """Make the announced processor and call its ``initialize``. The result is whether the processor was made."""


@define
class ProcessRecords:
    """Call ``process_records``."""

    records: Sequence[StreamRecord]
    attempt: int = 0
    """The number of failed calls whose batch contained all of these records."""


@frozen
class AskParkedKeys:
    """Ask the parking store for the parked keys of the stream. The result is a sequence of ``ParkedKey``."""


@frozen
class Park:
    """Park records of a page.

    The result is a sequence of ``ParkedRecord``; the store has them safely when the call returns.
    """

    page: ShardPage
    indices: Sequence[int]
    """The indices of the records in the page."""
    generations: Sequence[int] | None
    """The generation of each record's key, in the order of ``indices``; ``None`` if the worker has no store of its
    own."""
    position: str
    """The position at which the page was read."""
    failure: Failure
    order: RecordOrder | None = None
    """The operator's order because of which the records are parked; ``None`` if there is no order. The order names a
    store for workers without a store of their own."""


@frozen
class AskStrategy:
    """Ask the user's retry strategy. The result is the pause in seconds, or ``None`` for no retry."""

    error: Exception
    retries: int


@frozen
class ShutDown:
    """Call ``shutdown``."""

    reason: ShutdownReason


@frozen
class TakeBack:
    """Cancel the present call if no thread has begun it. If that succeeds, ``CallTakenBack`` is the only answer."""


# --- commands: reading and time --------------------------------------------------------------------------------------


@define
class Read:
    """Read the page at a position."""

    visit: int
    position: Position


@define
class ReadAhead:
    """Read the pages that follow ``page`` while ``page`` is being processed, as far as there is room."""

    page: ShardPage


@frozen
class DropReading:
    """Drop the read in progress, and all pages that were read ahead."""


@frozen
class FindFirstLeft:
    """Find the oldest record that retention left in the shard."""

    visit: int


@define
class ConfirmEnd:
    """Find out whether the shard has ended. The page that was just read says so."""

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
    """Prepare for one more processor, which gets a checkpointer of its own."""

    number: int
    initial: str
    """The position at which the processor starts."""
    progress: Progress
    """The progress up to that position."""
    pending: PendingCheckpoint | None
    """The checkpoint that an earlier processor prepared and did not complete; ``None`` without such a checkpoint."""
    lost_behind: str | None = None
    """The stored checkpoint, if records after it are lost and the loss was accepted."""


@frozen
class Offer:
    """Let the processor store the checkpoint that an earlier processor prepared."""

    position: str
    progress: Progress
    last: SequenceInfo | None = None
    """The last record before the position."""


@frozen
class Withdraw:
    """Withdraw the offer of ``position``, which the processor did not store."""

    position: str


@define
class Permit:
    """Let the position after one more batch be stored. Without ``progress``, the progress is unchanged."""

    position: str
    progress: Progress | None = None
    last: SequenceInfo | None = None
    """The last record before the position; with ``None``, the last record stays as it was known."""


@frozen
class Retract:
    """Withdraw the last permitted position, because its batch failed. Only earlier positions may be stored."""


@frozen
class CloseCheckpoints:
    """Refuse all further checkpoints of this processor."""

    because: str


# --- commands: statistics and logs -----------------------------------------------------------------------------------


class Told(Enum):
    """The kinds of events that are counted."""

    ACCEPTED = "records accepted by user code"
    PARKED = "records that are safe in the parking store"
    REDELIVERED = "records handed to the same processor again"
    CAUGHT_UP = "a read found nothing more"
    END_REACHED = "the end of the shard was reached"
    RESTARTED = "a new processor replaces another one"
    END_NOT_STORED = "the processor let the shard end without storing that"
    LOSS_GIVEN_UP = "lost records are given up, and nothing is known of what is left"


@define
class Tell:
    """Count ``what``."""

    what: Told
    records: int = 0


@define
class PageDone:
    """Record that every record of a page was accepted, or is safe in the parking store."""

    page: ShardPage
    last: SequenceInfo | None
    """The position of the page's last record; ``None`` for a page without records."""


@frozen
class OrderEnded:
    """Tell that an operator's order is obeyed. A stored checkpoint is then after all records that the order names."""

    order: RecordOrder
    taken: int
    """The number of these records that this consumer took out. The other records were passed before it read the
    shard."""
    is_withdrawn: bool = False
    """Whether the order left the row before it was obeyed. If so, no further record is taken out."""


@frozen
class TellOutage:
    """Log a failure. One outage causes the same failure repeatedly, for many shards."""

    of: str
    """The kind of work that fails: ``reading`` or ``parking``."""
    error: Raised
    text: str


@frozen
class LogLine:
    """Log one line about the shard."""

    severity: Severity
    text: str
    error: Raised | None = None
    """The error to log with its traceback; ``None`` without an error."""


@frozen
class Ended:
    """The last command: no work of this consumer runs any more."""

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
    | CloseCheckpoints
    | Tell
    | PageDone
    | OrderEnded
    | TellOutage
    | LogLine
    | Ended
)
