"""The reasons why a held shard makes no progress, as values.

Code that finds a reason makes a value. Code that decides compares values. Only this module turns values into words.
Texts of user code and of the service are details of a reason, which no code parses.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from functools import lru_cache

from attrs import field, frozen

from streamclient.errors import MOST_ERROR_CHARACTERS, StreamClientError, StreamClientException, printable

MOST_TRACEBACK_CHARACTERS = 16_384
"""The largest number of characters of a traceback that are logged or stored. A longer traceback, for example of
an endless recursion, keeps only its last characters."""


class ReasonKind(Enum):
    """The kinds of things for which a held shard can wait; ``ShardStatus.reason`` has the details."""

    NONE = "none"
    """The shard waits for nothing: it moves, or is caught up."""

    LEASE = "lease"
    """The shard waits for a step of its lease, for example a hand-over."""

    PARENTS = "parents"
    PAUSED = "paused"
    USER_CODE = "user_code"
    """The shard waits for the end of a long call into user code, or for a free thread of the executor."""

    PROCESSOR = "processor"
    """The shard waits for the next try, because its processor failed."""

    PARKING = "parking"
    """The shard waits for the parking store, which fails or takes long."""

    READING = "reading"
    """The shard waits for the stream, whose reads fail or take long."""

    CHECKPOINT = "checkpoint"
    """The shard waits for the status table's answer to a checkpoint."""

    DECISION = "decision"
    """The shard waits for a decision of an operator, because it stopped at a failed record or at a loss."""

    FINISHED = "finished"


class Cause(Enum):
    """The exact causes for which a held shard can wait.

    Each cause has one ``ReasonKind``. Some causes concern one thing, such as another shard or a call. A reason with
    such a cause names this thing in ``Reason.subject``.
    """

    # Steps of the shard's lease, before any record of the shard is read.
    FINISHED = "finished"
    PARENT = "parent"
    """The shard waits for an unfinished ancestor, which ``Reason.subject`` names."""
    PARENT_ROW_MISSING = "parent_row_missing"
    """A parent has no lease row, so the worker does not know whether the parent is finished. ``Reason.subject``
    names that parent."""
    PARENT_CIRCLE = "parent_circle"
    """The stream lists the shard as its own ancestor. ``Reason.subject`` names the cycle: the shards that are
    each other's parents."""
    ROW_GONE = "row_gone"
    HAND_OVER_IN_DOUBT = "hand_over_in_doubt"
    LEAVING_PAUSE = "leaving_pause"
    """The shard's pause is over, and the worker waits until the lease row says so."""
    PREVIOUS_PROCESSOR = "previous_processor"
    """A call into this worker's earlier processor of the shard has not returned yet."""
    PREVIOUS_CHECKPOINT = "previous_checkpoint"
    EPOCH = "epoch"
    """The worker does not know the epoch of this acquisition of the lease yet."""
    LOOK = "look"
    """The worker must first check that no other process has the worker's name."""

    # Steps of the shard's lease, while the shard is read or after it was read.
    ASKED_FOR = "asked_for"
    """Another worker, which ``Reason.subject`` names, asked for the lease."""
    GIVEN_AWAY = "given_away"
    STALLED = "stalled"
    """The consumer makes no progress, so the worker lets the lease expire."""
    LEASE_LOST = "lease_lost"
    """The lease is lost, and one call into user code has not returned yet."""
    WORKER_FAILED = "worker_failed"
    """The worker has failed, and leaves the shard to other workers. ``Reason.detail`` has the error."""
    WORKER_ENDED = "worker_ended"
    CLOSING = "closing"
    """The worker shuts the processor down. ``Reason.subject`` is the ``ShutdownReason`` that the processor gets."""

    # Pauses.
    PAUSED = "paused"
    """An operator, whom ``Reason.subject`` names, paused the shard."""
    PAUSED_BY_PROGRAM = "paused_by_program"

    # Calls of user code. ``Reason.subject`` is the name of the call.
    CALL_QUEUED = "call_queued"
    """A call into user code waits for a thread of the executor."""
    CALL_RUNS = "call_runs"
    BATCH_WAITS = "batch_waits"
    """A batch waits in line until the program takes it."""
    BATCH_OUT = "batch_out"
    """The program has taken a batch and not finished it."""
    PROCESSOR_FAILED = "processor_failed"
    RESTART_MARKED = "restart_marked"
    END_NOT_STORED = "end_not_stored"
    PARKING_FAILED = "parking_failed"
    PARKING_QUEUED = "parking_queued"
    PARKING_RUNS = "parking_runs"
    NEXT_TRY = "next_try"
    """The worker will try a failed action again, after the time in ``Reason.detail``. The reason before this one in
    ``ShardStatus.reasons`` names the failure."""
    PRESENT_TRY = "present_try"
    """The worker is trying a failed action again. The reason before this one in ``ShardStatus.reasons`` names the
    failure."""
    STRATEGY_ASKED = "strategy_asked"
    """The user's retry strategy is deciding whether to retry. The reason before this one in ``ShardStatus.reasons``
    names the failure."""

    # Reads of the stream.
    READING_FAILED = "reading_failed"
    READ_QUEUED = "read_queued"
    """A read waits for a thread of the fetch pool."""
    READ_RUNS = "read_runs"
    TURN = "turn"
    """A channel of a tunnel waits until the worker reads fewer other channels."""
    CHANNEL_GIVEN_UP = "channel_given_up"
    """The service does not know a channel of a tunnel, or this version does not know the channel's state.
    ``Reason.subject`` names the channel."""
    FINDING_LOSS = "finding_loss"
    END_NOT_SHOWN = "end_not_shown"
    """A page of records says that the shard has ended, but the list of shards does not show the end."""
    NO_PROGRESS = "no_progress"
    """The service repeats records or the position, so reading would never end. ``Reason.detail`` names the fault."""

    # Writes of the status table, while the shard is read.
    CHECKPOINT = "checkpoint"

    # Causes that need a decision of an operator.
    FAILING_RECORD = "failing_record"
    """A record, which ``Reason.subject`` names, keeps failing."""
    PARKED_SHARE = "parked_share"
    """More records would be parked than the failure policy allows. ``Reason.subject`` names the next
    record to park."""
    LOSS = "loss"
    """Unread records have left the stream. ``Reason.subject`` is the position that no longer exists."""

    @property
    def kind(self) -> ReasonKind:
        """The kind of thing for which a shard with this cause waits."""
        return _WORDS[self].kind


@frozen
class Reason:
    """A reason why a held shard waits."""

    cause: Cause
    subject: str = ""
    """The thing that the cause names: a shard, a worker, a call, a record; see ``Cause``."""
    detail: str = ""
    """More details for people, such as the text of an error, or a duration."""
    record_id: str = ""
    """The id of the record that ``subject`` names; empty if ``subject`` does not name a record."""

    @property
    def kind(self) -> ReasonKind:
        """The kind of the reason's cause."""
        return self.cause.kind


@frozen
class _Words:
    kind: ReasonKind
    phrase: str
    more: str = ": {detail}"
    """The text that is printed after ``phrase`` if the reason has a detail; ``{detail}`` stands for that detail."""


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
    Cause.STALLED: _Words(ReasonKind.LEASE, "its lease is left to expire, because its consumer stalled"),
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
    Cause.BATCH_WAITS: _Words(
        ReasonKind.USER_CODE, "{subject} has waited", " {detail} in line, because the program takes no batch"
    ),
    Cause.BATCH_OUT: _Words(ReasonKind.USER_CODE, "{subject} has been out", " for {detail} in the program"),
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
"""A set of causes. A held shard that waits for one of these causes has no processor yet."""


def text_of(*reasons: Reason) -> str:
    """Return the words for ``reasons``, one reason after the other."""
    return "; ".join(map(_words_of, reasons))


def kind_of(reasons: Iterable[Reason]) -> ReasonKind:
    """Return the kind of the first of ``reasons``; ``ReasonKind.NONE`` if there are no reasons."""
    return next((reason.kind for reason in reasons), ReasonKind.NONE)


_VOLATILE = re.compile(
    r"""
    (?=['"0-9a-fA-Fo-])(?:                                # most characters begin none of these
    (?<!\w)'(?:[^'\\]|\\.)*'(?!\w)                       # a quote, but not from one apostrophe to the next
    | (?<!\w)"(?:[^"\\]|\\.)*"(?!\w)
    | \b[0-9a-fA-F]{8}-[0-9a-fA-F-]+                     # a UUID, as of requests
    | \b0x[0-9a-fA-F]+\b                                # an address
    | \b(?=[a-fA-F]*[0-9])[0-9a-fA-F]{12,}\b            # a digest; words of letters alone are words
    | \bonce\b
    | (?:(?<![\w.)])-)?[0-9]+(?:\.[0-9]+)?(?:\ times\b)?  # a number; its sign, unless it joins two words
    )""",
    re.VERBOSE,
)
"""The parts of a text that differ between texts with the same cause: quotes, ids and numbers."""


def described(error: BaseException) -> str:
    """Return the type and text of an error on one line, for reasons and logs; never raises.

    For an exception of a user's class, this function runs user code. So an owner thread uses a ``Raised`` instead.
    """
    name = type(error).__name__
    return _quoted(lambda: printable(f"{name}: {error}"), f"{name}, whose text cannot be told: it")


def traceback_of(error: BaseException) -> str:
    """Return the traceback of an error, with each message on one line. The beginning of a long traceback is cut off."""
    text = "".join(traceback.format_exception(error))
    for link in _chain(error):
        try:
            told = str(link)
        except Exception:  # the text of the error cannot be made, as the traceback itself says
            continue
        if len(told) > MOST_ERROR_CHARACTERS or not told.isprintable():
            text = text.replace(told, "\n".join(map(printable, _lines(link, told))))
    lines = (printable(line, None) for line in text.rstrip("\n").split("\n"))
    return "\n".join(lines)[-MOST_TRACEBACK_CHARACTERS:]


def plain_traceback(error: BaseException) -> str | None:
    """Return the result of ``traceback_of``; ``None`` if Python's own text for the traceback is the same.

    With ``None``, log handlers may make the text of the traceback themselves.
    """
    told = traceback_of(error)
    return None if told == "".join(traceback.format_exception(error)).rstrip("\n") else told


def _lines(error: BaseException, told: str) -> list[str]:
    """Return the lines of ``told``, the message of ``error``.

    Only a message of this package's errors is split at its line breaks. Any other message is returned as one line.
    """
    return told.split("\n") if isinstance(error, StreamClientError) else [told]


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield the error, and each other error in its traceback, once."""
    known, waiting = {}, [error]
    while waiting:
        link = waiting.pop()
        if id(link) not in known:
            known[id(link)] = link
            yield link
            more = (link.__cause__, link.__context__, *getattr(link, "exceptions", ()))
            waiting += [other for other in more if isinstance(other, BaseException)]


@lru_cache(maxsize=4096)
def common_words(text: str) -> str:
    """Return a text with ``#`` in place of quotes, ids and numbers.

    Texts with the same cause then have the same words, even for different shards, records or tries.
    """
    return _VOLATILE.sub("#", text)


def encodable(text: str) -> str:
    """Return ``text`` with escapes for characters that UTF-8 cannot encode, for example in the names of files."""
    return text.encode("utf-8", "backslashreplace").decode()


@frozen(eq=False)
class Raised:
    """The error of a call, with texts about the error. The thread of the call makes the texts.

    Making such a text may run user code, which an owner thread must not do. So an owner thread uses the finished
    texts. It reads only the type of the error itself.
    """

    error: BaseException
    text: str
    """The type and text of the error."""
    traceback: str
    code: str
    """The service's code for the error; empty if the error does not come from the service."""

    @classmethod
    def of(cls, error: BaseException) -> Raised:
        """Make the value for an error. Never raises, even if the error's own methods raise."""
        return cls(
            error,
            described(error),
            _quoted(lambda: traceback_of(error), "its traceback"),
            _quoted(lambda: printable(f"{getattr(error, 'code', None) or ''}"), "its code"),
        )

    def is_a(self, kind: type[BaseException]) -> bool:
        """Return whether the error is of the type ``kind``. Unlike ``isinstance``, this runs no code of the error."""
        return issubclass(type(self.error), kind)


def as_error(raised: BaseException) -> Exception:
    """Return ``raised`` as the error with which its call is answered; wrap an error such as ``SystemExit``.

    Code of the user in a call to the service, such as a lease manager or a stream API, may raise even ``SystemExit``.
    The owner must get an answer then as well, because without an answer it would wait for the call forever.
    """
    if isinstance(raised, Exception):
        return raised
    error = StreamClientException(f"the call raised {described(raised)}")
    error.__cause__ = raised
    return error


def counted(count: int | str, noun: str) -> str:
    """Return a number and its noun: ``1 row``, ``2 rows``, ``2 entries``, or ``no rows`` for the count ``no``."""
    if count == 1:
        return f"{count} {noun}"
    return f"{count} {re.sub('(?<![aeiou])y$', 'ie', noun)}s"


def times(count: int) -> str:
    """Return ``once``, or for example ``2 times``."""
    return "once" if count == 1 else f"{count} times"


def failed_calls(count: int) -> str:
    """Return ``one failed call``, or for example ``2 failed calls``."""
    return "one failed call" if count == 1 else f"{count} failed calls"


def _quoted(words: Callable[[], str], otherwise: str) -> str:
    """Return the text that ``words`` makes; if the foreign code in ``words`` raises, return a text that says so."""
    try:
        return encodable(words())
    except BaseException as raised:
        return f"{otherwise} raises {type(raised).__name__}"


def _words_of(reason: Reason) -> str:
    words = _WORDS[reason.cause]
    closing = _CLOSING.get(reason.subject, "its processor is being shut down")
    phrase = words.phrase.format(subject=reason.subject, closing=closing)
    return printable(phrase + (words.more.format(detail=reason.detail) if reason.detail else ""))


@frozen
class FailingShard:
    """A shard whose processor fails repeatedly, or which the failure policy has stopped."""

    since_micros: int
    """The time at which the worker noticed the failures, in microseconds since 1970 by this machine's clock."""
    reason: str
    """The reason in the shard's status: the failed call, its error, and the number of failures."""


@frozen
class WorkerHealth:
    """The value of ``health``, ``readiness`` and ``liveness`` of a worker or daemon."""

    is_healthy: bool
    reason: str = ""
    """The failing call, its error, and the time for which it has failed; empty for a healthy worker."""
    failing_shards: Mapping[str, FailingShard] = field(factory=dict)
    """At most three shards whose processors fail, by shard id as in ``shard_statuses``; the shard that has failed
    longest comes first. Such shards make a worker unhealthy only if ``ClientConfig.unhealthy_after_failing_millis`` is
    above 0."""
    more_failing_shards: int = 0
    """The number of failing shards that ``failing_shards`` leaves out."""
