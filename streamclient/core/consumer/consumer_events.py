"""What happened to one shard's consumer, and what it should do: the border between its machine and whoever runs it.

As with ``Holdings``, events are facts in the past tense and commands are imperatives. ``ConsumerMachine.handle(event,
now)`` takes one event and returns the commands, to be carried out in their order. A worker does so with threads and
calls, the simulator on simulated time. None is ever changed; those that are made for every page do not enforce it, as
that would double what making them costs.
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
from streamclient.model import PendingCheckpoint, Progress, ShutdownReason
from streamclient.records import SequenceInfo, StreamRecord


class ShardPage(Protocol):
    """What one read of a shard gave; ``RecordPage`` is one."""

    @property
    def records(self) -> Sequence[StreamRecord]:
        """Oldest first."""

    @property
    def next_position(self) -> Position:
        """Where the next read begins, or ``Position.SHARD_END``."""

    @property
    def may_more_record(self) -> bool | None:
        """The service's hint that more records wait."""

    @property
    def body_bytes(self) -> int:
        """Size of the answer."""


# --- events ----------------------------------------------------------------------------------------------------------


@frozen
class Began:
    """The consumer was made, for a lease whose parents are finished."""


@frozen
class StopAsked:
    """Somebody wants it to end. With ZOMBIE the lease is already lost."""

    reason: ShutdownReason


@frozen
class Marked:
    """A processor asked for its own end."""

    processor: int
    """Which one, as ``NewProcessor`` numbers them: what one that is already replaced asks for means nothing."""
    reason: ShutdownReason


@frozen
class LossAccepted:
    """Somebody decided that a shard which stopped for lost records goes on with what is left."""


@frozen
class EndJudged:
    """The answer to ``ConfirmEnd``; after one that it is not shown, another one may come that it is."""

    visit: int
    is_shown: bool
    since_read: bool = False
    """Whether that was not known yet when the page was read: then it is read once more, as it may have been cut."""
    detail: str = ""
    """Why nobody can say so, if it is not shown."""


@frozen
class CheckpointAsked:
    """User code asked for a checkpoint; exactly one ``CheckpointAnswered`` follows."""


@frozen
class CheckpointAnswered:
    """It was stored, or prepared, or not."""

    outcome: CheckpointOutcome
    value: str
    progress: Progress | None = None
    pending: PendingCheckpoint | None = None
    """If given, this was prepared, and ``value`` is not stored."""


@define
class PageRead:
    """The answer to ``Read``."""

    visit: int
    page: ShardPage


@frozen
class ReadFailed:
    """The other answer to ``Read``: what the stream raised."""

    visit: int
    error: Raised


@frozen
class FirstLeftFound:
    """The answer to ``FindFirstLeft``: the oldest record that the shard still has, if it has any."""

    visit: int
    first_left: SequenceInfo | None


@frozen
class FirstLeftUnknown:
    """The other answer to ``FindFirstLeft``."""

    visit: int
    error: Raised


@define
class CallReturned:
    """The call into user code that was under way returned, or raised ``error``."""

    error: Raised | None = None
    value: Any = None
    """What the command says that it answers with."""


@frozen
class CallTakenBack:
    """The answer to ``TakeBack``, if no thread had begun the call: it never ran, and never will."""


@frozen
class TimeCame:
    """The pause of a ``Wait`` is over."""

    visit: int


ConsumerEvent = (
    Began
    | StopAsked
    | Marked
    | LossAccepted
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

# --- commands: calls into user code, at most one at a time; each is answered by CallReturned --------------------------


@frozen
class Initialize:
    """Make the announced processor and call its ``initialize``; the value is whether it was made."""


@define
class ProcessRecords:
    """Call ``process_records``."""

    records: Sequence[StreamRecord]


@frozen
class AskParkedKeys:
    """Ask the parking store for the parked keys of the stream; the value is each ``ParkedKey``."""


@frozen
class Park:
    """Have records of a page set aside; the value is each ``ParkedRecord``, which is safe then."""

    page: ShardPage
    indices: Sequence[int]
    """Their places in the page."""
    generations: Sequence[int]
    """The generation of each."""
    position: str
    """Where the page was read."""
    failure: Failure


@frozen
class AskStrategy:
    """Ask the user's retry strategy; the value is the pause in seconds, or ``None`` for no retry."""

    error: Exception
    retries: int


@frozen
class ShutDown:
    """Call ``shutdown``."""

    reason: ShutdownReason


@frozen
class TakeBack:
    """Cancel the call under way if no thread has begun it; if so, ``CallTakenBack`` is all that is heard of it."""


# --- commands: reading and time --------------------------------------------------------------------------------------


@define
class Read:
    """Read the page at a position."""

    visit: int
    position: Position


@define
class ReadAhead:
    """Read what follows a page while that is processed, as far as there is room."""

    page: ShardPage


@frozen
class DropReading:
    """Forget what is being read and was read ahead."""


@frozen
class FindFirstLeft:
    """Find out what the stream's retention left of the shard."""

    visit: int


@define
class ConfirmEnd:
    """Find out whether the shard has ended, as the page says that was read."""

    visit: int


@define
class Wait:
    """Tell it when so many seconds are over."""

    visit: int
    seconds: float
    is_idle: bool = False
    """Whether nothing went wrong and nothing is left to do, so that a little sooner does as well."""


# --- commands: the processor's checkpointer --------------------------------------------------------------------------


@frozen
class NewProcessor:
    """Provide for one more processor, with a checkpointer of its own."""

    number: int
    initial: str
    """Where it starts."""
    progress: Progress
    """What was processed before that."""
    pending: PendingCheckpoint | None
    """What an earlier processor prepared and nobody completed."""
    lost_behind: str | None = None
    """The stored checkpoint, if records behind it are lost, and that is accepted."""


@frozen
class Offer:
    """Let what an earlier processor prepared be stored."""

    position: str
    progress: Progress
    last: SequenceInfo | None = None
    """The last record before it."""


@frozen
class Withdraw:
    """The processor did not take what was offered."""

    position: str


@define
class Permit:
    """Let the position behind one more batch be stored; without ``progress``, what was processed is as before."""

    position: str
    progress: Progress | None = None
    last: SequenceInfo | None = None
    """The last record before it; without one it is as before, too."""


@frozen
class Retract:
    """That batch failed: let only what was permitted before it be stored."""


@frozen
class CloseCheckpoints:
    """Nothing more is stored for this processor."""

    because: str


# --- commands: what others want to know ------------------------------------------------------------------------------


class Told(Enum):
    """What is counted."""

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
    """Count something."""

    what: Told
    records: int = 0


@define
class PageDone:
    """Every record of a page was accepted or is safely parked."""

    page: ShardPage
    last: SequenceInfo | None
    """Where its last record stands, if it has one."""


@frozen
class TellOutage:
    """Log a failure that one outage causes again and again, for many shards."""

    of: str
    """``reading`` or ``parking``."""
    error: Raised
    text: str


@frozen
class LogLine:
    """Log one line about the shard."""

    severity: Severity
    text: str
    error: Raised | None = None
    """Where it is worth a traceback."""


@frozen
class Ended:
    """Nothing of this consumer runs any more. The last command of all."""

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
    | TellOutage
    | LogLine
    | Ended
)
