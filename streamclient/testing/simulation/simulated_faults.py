"""The names of faults, outcomes of calls and excuses in all simulations.

After some faults no worker can keep certain laws, so these faults excuse violations of these laws. A simulation judges
a law first, and looks for an excuse only if the law is broken. So ``excused`` in a summary counts excused violations.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from attrs import frozen

from streamclient.testing.history import EPOCHS, LOST, ORDER, READERS


class Do(Enum):
    """An event that a plan may cause in a fleet: a fault, or another action such as the start of a worker."""

    START = "start"
    """A worker starts. Under a name that was already used, it is a new process of the same worker."""
    CRASH = "crash"
    """A process ends immediately, in the middle of its work."""
    STOP = "stop"
    """A worker is asked to stop, and hands its leases over."""
    TWIN = "twin"
    """A second process starts under the name of a living worker."""
    FREEZE = "freeze"
    """A process is frozen with its user code, as by SIGSTOP. After the freeze it continues where it was."""
    CUT = "cut"
    """No request of a worker (or of all workers) reaches the service."""
    DEAFEN = "deafen"
    """The service carries out the requests of a worker (or of all workers), but no answer comes back."""
    SLOW = "slow"
    """Every message of a worker (or of all workers) takes ``amount`` times as long as usual."""
    THROTTLE = "throttle"
    """The service refuses the share ``amount`` of all calls, without applying any of them."""
    SPLIT = "split"
    """An open shard closes, and its two child shards open."""
    MERGE = "merge"
    """Two adjacent open shards close, and one child of both opens."""
    EXPIRE = "expire"
    """A closed shard leaves the stream with all its records, read or unread."""
    TRIM = "trim"
    """Retention removes the oldest records of a shard, read or unread: the share ``amount`` of its records."""
    STALE = "stale"
    """The service returns lists of shards that are ``amount`` seconds old."""
    DELETE_ROW = "delete row"
    """The row of a lease is deleted without a condition, as the Java client's shard sync does after a stale list."""
    RESET_ROW = "reset row"
    """The row of a lease is created anew without a condition, as two racing shard syncs of the Java client do."""
    FAIL = "fail"
    """The processors of a shard raise each time they are called."""
    POISON = "poison"
    """One of the next records of a shard becomes a poison record: every processor that gets the record raises."""
    DRAG = "drag"
    """The processors of a shard take ``amount`` times as long as usual."""
    HANG = "hang"
    """The present call of a shard's processor hangs; after ``amount`` seconds the watchdog reports the call."""
    DONE = "done"
    """The processor of a shard marks itself as done."""
    REPLACE = "replace"
    """The processor of a shard asks to be replaced by a new processor."""
    PAUSE = "pause"
    """An operator pauses a shard for ``seconds``. If ``amount`` is 0, the operator resumes the shard; otherwise the
    pause has an end time."""
    REWIND = "rewind"
    """An operator pauses a shard, waits until its owner obeys, moves the checkpoint back, and resumes the shard. The
    fraction ``amount`` of the processed records remains before the checkpoint."""
    RELEASE = "release"
    """An operator pauses a shard, and takes the lease from its owner once the owner obeys."""
    MOVE = "move"
    """An operator marks a lease in the name of a worker, as if that worker had asked for the lease."""
    TAKE_OUT = "take out"
    """An operator orders that one record of a shard is parked, or skipped if ``amount`` is above 0. The operator
    prefers a poison record."""
    HOLD = "hold"
    """The worker's own program pauses one of its shards, and resumes it afterwards."""
    HOLD_ALL = "hold all"
    """The worker's own program pauses the whole worker, and resumes it afterwards."""
    END_SESSION = "end session"
    """The Tunnel Service loses the session of a client without telling the client."""


class Fate(Enum):
    """The outcome of one call to the service."""

    FINE = "fine"
    LOST_REQUEST = "lost request"
    LOST_ANSWER = "lost answer"
    LATE_REQUEST = "late request"
    LATE_ANSWER = "late answer"
    FALSE_REFUSAL = "false refusal"
    THROTTLED = "throttled"
    CUT = "cut off"
    """The request is lost, because the way to the service is cut for a while."""
    DEAF = "answer cut off"
    """The answer is lost, because the way back is cut for a while."""
    FAILING_READ = "failing read"
    """A read of records fails, although the network works."""

    @property
    def is_unsent(self) -> bool:
        """Whether the service certainly does not carry out the request."""
        return self in (Fate.LOST_REQUEST, Fate.CUT, Fate.THROTTLED)


class Excuse(Enum):
    """A reason why the violation of a law is excused."""

    ROW_DESTROYED = "row destroyed"
    """The row of the lease was destroyed after the process's last accepted write. The process cannot know this yet."""
    ROW_ANEW = "row begun anew"
    """The counter of the row began anew a short time ago. A process that was frozen may confuse the new row with
    the old row."""
    NAME_TAKEN = "name taken over"
    """Another process has registered under the process's name so recently that the process may not know it yet."""
    TOUCHED = "changed from outside"
    """An actor that is not a worker changed the row, so records of the shard may be read twice."""
    JAVA = "Java worker"
    """The Java client has no epochs, takes leases that have not expired, and may leave shards unread."""
    LOSS_GIVEN_UP = "reported loss"
    """Records had left the stream. The loss was reported, and the reader went on after these records."""
    LEFT_UNSEEN = "left unseen"
    """A shard left the stream before any worker knew of it."""
    BEGINS_LATER = "begins later"
    """The change was written before the position at which the shard's first row starts."""
    JUST_THAWED = "just thawed"
    """The process has just continued after a freeze, and has not yet noticed how much time has passed."""
    CALL_UNDER_WAY = "call under way"
    """The reader was told to stop while it processed a page."""
    SESSION_LOST = "session lost"
    """The service lost the session without telling the client."""


@frozen
class Excusing:
    """The faults that an excuse requires, and the laws whose violations it excuses."""

    faults: tuple[Do, ...]
    """The faults of which at least one must have happened. The tuple is empty if the excuse requires no fault. For
    example, a tunnel channel may move to another client while its reader processes a page, even without a fault."""
    laws: frozenset[str]


DESTROYED = (Do.DELETE_ROW, Do.RESET_ROW)

EXCUSES: Mapping[Excuse, Excusing] = {
    Excuse.ROW_DESTROYED: Excusing(
        DESTROYED, frozenset({READERS, EPOCHS, "answers are true", "starts where stored", "prepared is remembered"})
    ),
    Excuse.ROW_ANEW: Excusing(DESTROYED, frozenset({READERS, EPOCHS, "patience"})),
    Excuse.NAME_TAKEN: Excusing((Do.TWIN, Do.START), frozenset({READERS, EPOCHS, "fenced writes fail"})),
    Excuse.TOUCHED: Excusing((*DESTROYED, Do.REWIND), frozenset({LOST, ORDER, "nothing is repeated"})),
    Excuse.JAVA: Excusing((Do.START,), frozenset({READERS, LOST, ORDER, "rest"})),
    Excuse.LOSS_GIVEN_UP: Excusing((Do.TRIM, Do.EXPIRE), frozenset({LOST, ORDER, "checkpoints only advance"})),
    Excuse.LEFT_UNSEEN: Excusing((Do.EXPIRE,), frozenset({LOST, ORDER})),
    Excuse.BEGINS_LATER: Excusing((Do.START,), frozenset({LOST, ORDER})),
    Excuse.JUST_THAWED: Excusing((Do.FREEZE,), frozenset({"one holder"})),
    Excuse.CALL_UNDER_WAY: Excusing((), frozenset({"one holder"})),
    Excuse.SESSION_LOST: Excusing((Do.END_SESSION,), frozenset({"one holder"})),
}


class Excused(dict[str, int]):
    """The number of violations that each excuse allowed. A key has the form ``LAW: EXCUSE``."""

    def note(self, law: str, excuse: Excuse) -> bool:
        """Count a violation of ``law`` that ``excuse`` allows; return ``True``, for use in a condition."""
        if law not in EXCUSES[excuse].laws:
            raise ValueError(f"{excuse.value!r} is not declared to excuse the law {law!r}")
        name = f"{law}: {excuse.value}"
        self[name] = self.get(name, 0) + 1
        return True
