"""The vocabulary of faults: the faults of every kind of simulation, and the violations that they excuse.

A law is judged first. An excuse is looked for only if the law would be broken. So ``excused`` in a summary counts how
often a law would have failed without an excuse: after some faults the law cannot be kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from attrs import frozen

from streamclient.testing.history import EPOCHS, LOST, ORDER, READERS


class Do(Enum):
    """An event that may happen to a fleet from outside."""

    START = "start"
    """A worker starts. If its name was already used, it is that worker's next life."""
    CRASH = "crash"
    """A process ends at once, with everything it was doing."""
    STOP = "stop"
    """A worker is asked to stop, and hands its leases over."""
    TWIN = "twin"
    """A second process starts under the name of a living worker."""
    FREEZE = "freeze"
    """A process is frozen, user code included, as by SIGSTOP. It continues as if nothing had happened."""
    CUT = "cut"
    """No request of a worker (or of all) arrives."""
    DEAFEN = "deafen"
    """The requests of a worker (or of all) arrive and are carried out, but no answer comes back."""
    SLOW = "slow"
    """Every message of a worker (or of all) takes ``amount`` times as long."""
    THROTTLE = "throttle"
    """The service refuses the share ``amount`` of all calls, without applying any of them."""
    SPLIT = "split"
    """An open shard closes and leaves two children."""
    MERGE = "merge"
    """Two adjacent open shards close and leave one child."""
    EXPIRE = "expire"
    """A closed shard leaves the stream with all its records, read or not."""
    TRIM = "trim"
    """Retention removes the oldest records of a shard, the share ``amount`` of them, read or not."""
    STALE = "stale"
    """Lists of shards are ``amount`` seconds old."""
    DELETE_ROW = "delete row"
    """The row of a lease is deleted without a condition, as Java's shard sync does with a stale list."""
    RESET_ROW = "reset row"
    """The row of a lease is created anew without a condition, as Java's shard sync does when two of them race."""
    FAIL = "fail"
    """The processors of a shard raise each time they are called."""
    POISON = "poison"
    """A record that comes soon is poisoned: every processor that gets this record raises."""
    DRAG = "drag"
    """The processors of a shard take ``amount`` times as long."""
    HANG = "hang"
    """The present call of a shard's processor does not return; after ``amount`` seconds the watchdog reports it."""
    DONE = "done"
    """The processor of a shard marks itself done."""
    REPLACE = "replace"
    """The processor of a shard marks itself for a restart."""
    PAUSE = "pause"
    """An operator pauses a shard, and resumes it afterwards; with an ``amount``, the pause ends by itself."""
    REWIND = "rewind"
    """An operator pauses a shard, waits until its owner obeys, sets the checkpoint back to the share ``amount`` of the
    processed records, and resumes the shard."""
    RELEASE = "release"
    """An operator takes a lease from its owner, once the owner obeys a pause."""
    MOVE = "move"
    """An operator requests a lease in the name of a worker."""
    TAKE_OUT = "take out"
    """An operator orders that a record of a shard is parked, or skipped with an ``amount``: a poisoned record, if there
    is one."""
    HOLD = "hold"
    """The worker's own program pauses one of its shards, and resumes it afterwards."""
    HOLD_ALL = "hold all"
    """The worker's own program pauses the whole worker, and resumes it afterwards."""
    END_SESSION = "end session"
    """The tunnel service loses the session of a client without notice."""


class Fate(Enum):
    """The outcome of one call."""

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
    """The stream does not deliver a page."""

    @property
    def is_unsent(self) -> bool:
        """Whether the service certainly does nothing."""
        return self in (Fate.LOST_REQUEST, Fate.CUT, Fate.THROTTLED)


class Excuse(Enum):
    """A reason why a law need not hold."""

    ROW_DESTROYED = "row destroyed"
    """The row of the lease was destroyed since the process's last accepted write, and the process cannot know that
    yet."""
    ROW_ANEW = "row begun anew"
    """The counter of the row began anew a short time ago, so a frozen process may take the row for the former one."""
    NAME_TAKEN = "name taken over"
    """Another process has registered under the name so recently that the excused process may not know it."""
    TOUCHED = "changed from outside"
    """The row was changed from outside, so the shard is read again."""
    JAVA = "Java worker"
    """A Java worker has no epochs, does not wait for children, and leaves shards unread."""
    LOSS_GIVEN_UP = "reported loss"
    """Records had left the stream, which was reported, and reading went on after these records."""
    LEFT_UNSEEN = "left unseen"
    """A shard left the stream before any worker knew of it."""
    BEGINS_LATER = "begins later"
    """Nothing before the first row of a shard is required if reading starts at the latest record."""
    JUST_THAWED = "just thawed"
    """A process continues what it was about to do, and notices the time a moment later."""
    CALL_UNDER_WAY = "call under way"
    """A reader was told to stop during a call."""
    SESSION_LOST = "session lost"
    """The service lost the session without notice."""


@frozen
class Excusing:
    """The faults that an excuse comes from, and the laws that it excuses."""

    faults: tuple[Do, ...]
    """The faults of which at least one must have happened. An empty tuple allows any event that moves a channel."""
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
    """The number of times that each excuse was needed. The keys are ``LAW: EXCUSE``."""

    def note(self, law: str, excuse: Excuse) -> bool:
        """Count an excuse; return true, for use in a condition."""
        if law not in EXCUSES[excuse].laws:
            raise ValueError(f"{excuse.value!r} is not declared to excuse the law {law!r}")
        name = f"{law}: {excuse.value}"
        self[name] = self.get(name, 0) + 1
        return True
