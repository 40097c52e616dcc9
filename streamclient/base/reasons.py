"""Why a held shard does not move, as values.

A reason is made where it is known, compared by whoever decides, and turned into words here alone. Texts of user code
and of the service are details of a reason: nothing is ever read out of them.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum

from attrs import frozen

from streamclient.errors import MOST_ERROR_CHARACTERS, StreamClientError, printable

MOST_TRACEBACK_CHARACTERS = 16_384
"""Of a traceback that is told or stored, its inner end; recursion that ran away makes endless ones."""


class ReasonKind(Enum):
    """What a held shard waits for, in one word; ``ShardStatus.reason`` has the details."""

    NONE = "none"
    """For nothing: it moves, or is caught up."""

    LEASE = "lease"
    """For something about its lease, for example a hand-over."""

    PARENTS = "parents"
    PAUSED = "paused"
    USER_CODE = "user_code"
    """For a call into user code that takes long, or for a thread of the executor."""

    PROCESSOR = "processor"
    """For the pause after its processor failed."""

    PARKING = "parking"
    """For the parking store, which failed."""

    READING = "reading"
    """For the stream: reads fail or take long."""

    CHECKPOINT = "checkpoint"
    """For the status table's answer to a checkpoint."""

    DECISION = "decision"
    """For somebody: it stopped at a record that failed or at a loss."""

    FINISHED = "finished"


class Cause(Enum):
    """What exactly a held shard waits for. Each cause is of one ``ReasonKind``; the subject is what it names."""

    # Its lease, before anything of it is read.
    FINISHED = "finished"
    PARENT = "parent"
    """The subject is a shard before it, perhaps a grandparent, that is not finished."""
    PARENT_ROW_MISSING = "parent_row_missing"
    """The subject is a shard before it that has no lease row, so that nobody knows yet whether it is finished."""
    PARENT_CIRCLE = "parent_circle"
    """The stream lists it before itself; the subject is the shards that are each other's parents."""
    ROW_GONE = "row_gone"
    HAND_OVER_IN_DOUBT = "hand_over_in_doubt"
    LEAVING_PAUSE = "leaving_pause"
    """A pause is over, and the lease row has to say so first."""
    PREVIOUS_PROCESSOR = "previous_processor"
    """A call of the processor that had this shard before, on this worker, has not returned."""
    PREVIOUS_CHECKPOINT = "previous_checkpoint"
    EPOCH = "epoch"
    """The number of this acquisition is being drawn."""
    LOOK = "look"
    """The worker has to see first that no other process has its name."""

    # Its lease, while it is read or was.
    ASKED_FOR = "asked_for"
    """The subject is the worker that asked for it."""
    GIVEN_AWAY = "given_away"
    STALLED = "stalled"
    """Its consumer makes no progress, so its lease runs out."""
    LEASE_LOST = "lease_lost"
    """Only a call of user code that has not returned is left of it here."""
    WORKER_FAILED = "worker_failed"
    """Its worker has failed, and leaves it to others; the detail says how."""
    WORKER_ENDED = "worker_ended"
    CLOSING = "closing"
    """Its processor is being shut down; the subject is the ``ShutdownReason`` it hears."""

    # Orders.
    PAUSED = "paused"
    """The subject is who paused it."""
    PAUSED_BY_PROGRAM = "paused_by_program"

    # User code; the subject is the call.
    CALL_QUEUED = "call_queued"
    """The call waits for a thread of the executor."""
    CALL_RUNS = "call_runs"
    PROCESSOR_FAILED = "processor_failed"
    RESTART_MARKED = "restart_marked"
    END_NOT_STORED = "end_not_stored"
    PARKING_FAILED = "parking_failed"
    PARKING_QUEUED = "parking_queued"
    PARKING_RUNS = "parking_runs"
    NEXT_TRY = "next_try"
    """It tries again by itself; the detail says when. Comes behind the reason it tries again for."""
    PRESENT_TRY = "present_try"
    """It is being tried again just now. Comes behind the reason it tries again for."""
    STRATEGY_ASKED = "strategy_asked"
    """The user's retry strategy is asked whether and when. Comes behind the reason it is asked about."""

    # The stream.
    READING_FAILED = "reading_failed"
    READ_QUEUED = "read_queued"
    """A read waits for a thread of the fetch pool."""
    READ_RUNS = "read_runs"
    TURN = "turn"
    """A channel of a tunnel waits until fewer others are in work."""
    CHANNEL_GIVEN_UP = "channel_given_up"
    """A channel of a tunnel is not known to the service, or not understood; the subject is the channel."""
    FINDING_LOSS = "finding_loss"
    END_NOT_SHOWN = "end_not_shown"
    """A page says that the shard has ended, and the list of shards does not show it."""
    NO_PROGRESS = "no_progress"
    """The service gives records again, or the same place, so that reading would never end; the detail says what."""

    # The status table, in the middle of reading.
    CHECKPOINT = "checkpoint"

    # Somebody has to decide.
    FAILING_RECORD = "failing_record"
    """The subject names the record."""
    PARKED_SHARE = "parked_share"
    """More records would be parked than the failure policy allows; the subject names the next one."""
    LOSS = "loss"
    """Records were lost to retention; the subject is the position that is gone."""

    @property
    def kind(self) -> ReasonKind:
        """The kind it belongs to."""
        return _WORDS[self].kind


@frozen
class Reason:
    """One thing that a held shard waits for."""

    cause: Cause
    subject: str = ""
    """What the cause names: a shard, a worker, a call, a record; see ``Cause``."""
    detail: str = ""
    """What is known besides, for people: the text of an error, a duration."""

    @property
    def kind(self) -> ReasonKind:
        """The same in one of few words."""
        return self.cause.kind


@frozen
class _Words:
    kind: ReasonKind
    phrase: str
    more: str = ": {detail}"
    """Follows the phrase if there is a detail."""


_CLOSING = {
    "STOLEN": "being handed over",
    "PAUSED": "being paused",
    "TERMINATE": "the shard has ended",
    "PROCESS_DONE": "its processor is done with it",
    "PROCESS_RESTART": "its processor is being replaced",
}
_MEND = "mend the cause, then restart the worker, or pause and resume the shard"
_FIND_OUT = "find out what is wrong, then restart the worker, or pause and resume the shard"

_WORDS: Mapping[Cause, _Words] = {
    Cause.FINISHED: _Words(ReasonKind.FINISHED, "finished"),
    Cause.PARENT: _Words(ReasonKind.PARENTS, "parent {subject}", " {detail}"),
    Cause.PARENT_ROW_MISSING: _Words(ReasonKind.LEASE, "parent {subject} has no lease row", "{detail}"),
    Cause.PARENT_CIRCLE: _Words(
        ReasonKind.PARENTS, "the stream lists the shard before itself: {subject} are each other's parents"
    ),
    Cause.ROW_GONE: _Words(ReasonKind.LEASE, "its lease row is gone; waiting for the list of shards"),
    Cause.HAND_OVER_IN_DOUBT: _Words(ReasonKind.LEASE, "a hand-over is in doubt; waiting for the next heartbeat"),
    Cause.LEAVING_PAUSE: _Words(ReasonKind.LEASE, "its pause is over; waiting until its row says so"),
    Cause.PREVIOUS_PROCESSOR: _Words(ReasonKind.USER_CODE, "the previous processor of this shard has not stopped yet"),
    Cause.PREVIOUS_CHECKPOINT: _Words(ReasonKind.CHECKPOINT, "a checkpoint of the previous processor is under way"),
    Cause.EPOCH: _Words(ReasonKind.LEASE, "waiting for the epoch of this acquisition", " ({detail})"),
    Cause.LOOK: _Words(ReasonKind.LEASE, "waiting for a look at its worker's row"),
    Cause.ASKED_FOR: _Words(ReasonKind.LEASE, "being handed over: worker {subject} asked for it"),
    Cause.GIVEN_AWAY: _Words(ReasonKind.LEASE, "being handed over: its worker gives it away"),
    Cause.STALLED: _Words(ReasonKind.LEASE, "its lease is let run out, because its consumer stalled"),
    Cause.LEASE_LOST: _Words(ReasonKind.LEASE, "the lease is lost"),
    Cause.WORKER_FAILED: _Words(ReasonKind.LEASE, "its worker failed"),
    Cause.WORKER_ENDED: _Words(ReasonKind.LEASE, "its worker has ended"),
    Cause.CLOSING: _Words(ReasonKind.LEASE, "{closing}"),
    Cause.PAUSED: _Words(ReasonKind.PAUSED, "paused by {subject}"),
    Cause.PAUSED_BY_PROGRAM: _Words(ReasonKind.PAUSED, "paused by its own program"),
    Cause.CALL_QUEUED: _Words(
        ReasonKind.USER_CODE, "{subject} has waited", " {detail} for a free thread of the executor"
    ),
    Cause.CALL_RUNS: _Words(ReasonKind.USER_CODE, "{subject} has been running", " for {detail}"),
    Cause.PROCESSOR_FAILED: _Words(ReasonKind.PROCESSOR, "processor failed", " {detail}"),
    Cause.RESTART_MARKED: _Words(ReasonKind.PROCESSOR, "its processor asked for a restart"),
    Cause.END_NOT_STORED: _Words(
        ReasonKind.PROCESSOR, "shard ended but the processor did not checkpoint SHARD_END", " ({detail})"
    ),
    Cause.PARKING_FAILED: _Words(ReasonKind.PARKING, "the parking store failed", " {detail}"),
    Cause.PARKING_QUEUED: _Words(
        ReasonKind.PARKING,
        "waits for the parking store: {subject} has waited",
        " {detail} for a free thread of the executor",
    ),
    Cause.PARKING_RUNS: _Words(
        ReasonKind.PARKING, "waits for the parking store: {subject} has been running", " for {detail}"
    ),
    Cause.NEXT_TRY: _Words(ReasonKind.PROCESSOR, "next {subject}", " in {detail}"),
    Cause.PRESENT_TRY: _Words(ReasonKind.PROCESSOR, "the next {subject} is under way"),
    Cause.STRATEGY_ASKED: _Words(ReasonKind.PROCESSOR, "the retry strategy is being asked what follows"),
    Cause.READING_FAILED: _Words(ReasonKind.READING, "reading failed", " {detail}"),
    Cause.READ_QUEUED: _Words(
        ReasonKind.READING, "{subject} has waited", " {detail} for a free thread of the fetch pool"
    ),
    Cause.READ_RUNS: _Words(ReasonKind.READING, "{subject} has been running", " for {detail}"),
    Cause.TURN: _Words(
        ReasonKind.READING, "waits for its turn", ": max_channel_parallel={detail} channels are in work"
    ),
    Cause.CHANNEL_GIVEN_UP: _Words(ReasonKind.READING, "the channel is given up for now"),
    Cause.FINDING_LOSS: _Words(ReasonKind.READING, "records were lost; finding out which"),
    Cause.END_NOT_SHOWN: _Words(
        ReasonKind.READING, "the service says that the shard has ended, and the list of shards does not show it"
    ),
    Cause.NO_PROGRESS: _Words(ReasonKind.READING, "the service makes no progress"),
    Cause.CHECKPOINT: _Words(ReasonKind.CHECKPOINT, "waits for the answer to a checkpoint"),
    Cause.FAILING_RECORD: _Words(
        ReasonKind.DECISION, "stopped by failure_policy at {subject}", f", {{detail}}; {_MEND}"
    ),
    Cause.PARKED_SHARE: _Words(ReasonKind.DECISION, "stopped", f": {{detail}}; {_FIND_OUT}"),
    Cause.LOSS: _Words(ReasonKind.DECISION, "", "{detail}"),
}

BEFORE_READING = frozenset(
    {
        Cause.FINISHED,
        Cause.PARENT,
        Cause.PARENT_ROW_MISSING,
        Cause.PARENT_CIRCLE,
        Cause.ROW_GONE,
        Cause.HAND_OVER_IN_DOUBT,
        Cause.LEAVING_PAUSE,
        Cause.PREVIOUS_PROCESSOR,
        Cause.PREVIOUS_CHECKPOINT,
        Cause.EPOCH,
        Cause.LOOK,
        Cause.CHANNEL_GIVEN_UP,
    }
)
"""Causes that keep a shard without a processor of its own."""


def text_of(*reasons: Reason) -> str:
    """The reasons in words, one behind the other."""
    return "; ".join(map(_words_of, reasons))


def kind_of(reasons: Iterable[Reason]) -> ReasonKind:
    """The kind of the first of several reasons."""
    return next((reason.kind for reason in reasons), ReasonKind.NONE)


def described(error: BaseException) -> str:
    """Type and text of an error on one line, as reasons and logs quote it; never raises.

    The text of a user's exception is user code, so an owner thread is told a ``Raised`` instead.
    """
    name = type(error).__name__
    return _quoted(lambda: printable(f"{name}: {error}"), f"{name}, whose text cannot be told: it")


def traceback_of(error: BaseException) -> str:
    """The traceback of an error, whose messages have one line each, without its beginning where it is long."""
    text = "".join(traceback.format_exception(error))
    for each in _chain(error):
        try:
            told = str(each)
        except Exception:  # its traceback says so
            continue
        if len(told) > MOST_ERROR_CHARACTERS or not told.isprintable():
            text = text.replace(told, "\n".join(map(printable, _lines(each, told))))
    lines = (printable(line, None) for line in text.rstrip("\n").split("\n"))
    return "\n".join(lines)[-MOST_TRACEBACK_CHARACTERS:]


def plain_traceback(error: BaseException) -> str | None:
    """The same, if it is not what any handler of logs makes of the error by itself."""
    told = traceback_of(error)
    return None if told == "".join(traceback.format_exception(error)).rstrip("\n") else told


def _lines(error: BaseException, told: str) -> list[str]:
    """Those of a message of this package are its own."""
    return told.split("\n") if isinstance(error, StreamClientError) else [told]


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error, and those of which its traceback tells, each once."""
    found, waiting = {}, [error]
    while waiting:
        each = waiting.pop()
        if id(each) not in found:
            found[id(each)] = each
            yield each
            more = (each.__cause__, each.__context__, *getattr(each, "exceptions", ()))
            waiting += [other for other in more if isinstance(other, BaseException)]


def encodable(text: str) -> str:
    """The text, with what UTF-8 has no bytes for escaped: file names of another encoding bring it into messages."""
    return text.encode("utf-8", "backslashreplace").decode()


@frozen(eq=False)
class Raised:
    """What a call raised, with its words, which were made in the thread that ran the call.

    For owner threads, which run no user code: of the error itself they look at nothing but its type.
    """

    error: BaseException
    text: str
    """Type and text."""
    traceback: str
    code: str
    """What the service called it, if it came from there."""

    @classmethod
    def of(cls, error: BaseException) -> Raised:
        """Never raises, whatever the error does."""
        return cls(
            error,
            described(error),
            _quoted(lambda: traceback_of(error), "its traceback"),
            _quoted(lambda: printable(f"{getattr(error, 'code', None) or ''}"), "its code"),
        )

    def is_a(self, kind: type[BaseException]) -> bool:
        """Whether the error is of a type; unlike ``isinstance`` it asks the error nothing."""
        return issubclass(type(self.error), kind)


def times(count: int) -> str:
    """Once, or n times."""
    return "once" if count == 1 else f"{count} times"


def failed_calls(count: int) -> str:
    """One failed call, or n of them."""
    return "one failed call" if count == 1 else f"{count} failed calls"


def _quoted(words: Callable[[], str], otherwise: str) -> str:
    """What somebody else's code says, or that it raised: also SystemExit, as wherever user code runs."""
    try:
        return encodable(words())
    except BaseException as raised:
        return f"{otherwise} raises {type(raised).__name__}"


def _words_of(reason: Reason) -> str:
    words = _WORDS[reason.cause]
    closing = _CLOSING.get(reason.subject, "its processor is being shut down")
    phrase = words.phrase.format(subject=reason.subject, closing=closing)
    return printable(phrase + (words.more.format(detail=reason.detail) if reason.detail else ""))
