"""Worker sessions: the rows by which workers know of each other, and their writes; ``rows.RULES`` has the rule.

Every worker has one row beside the leases. A *session* is one life of it: it begins when the row gets a new ``nonce``,
lives as long as its ``beat`` moves, and ends when its worker removes the row or when another worker that saw it stand
still for a lease duration writes that it is *killed*. Java workers never look at these rows.

Laws:

* a worker holds leases only while its session is valid: from the time *before* its last accepted beat was sent, for the
  lease duration less the margin. A lease is held until its own end or the session's, whichever comes first;
* every write but a wake compares nonce, beat and state with what its writer read. So between the read and the write
  nobody else wrote, and a killed session never beats again: its worker needs a new nonce;
* a nonce is never used twice, and killed stays killed: only a new session replaces a killed one;
* a take counts for a session only if it was sent after that session was known to exist.

**Why two workers never read one shard.** A worker A holds a lease under a session with nonce n; another worker X takes
it because n was killed, without waiting for the lease to expire.

1. *The killed session is over.* Whoever killed n saw beat b first at its own time t, after the read that showed it had
   returned. The service had accepted b before, and A had sent it before that, at s. The killer waited for the lease
   duration D after t, by its own monotonic clock, before it sent the verdict. The service accepted the verdict, so
   nonce, beat and state were as read: no beat after b was accepted before it, and none is afterwards, however late it
   lands. So b is the last beat of n that ever counts, and n was valid until s + 0.95 D at most, by A's clock. The
   verdict took effect after t + D, by the killer's, and s < t. Clocks that drift apart by less than 5 % put the end of
   n, and with it of every lease held under it, before the verdict.
2. *The lease is that of the killed session.* X reads lease rows first and worker rows afterwards. The lease row said
   (A, c) at a time r, A's worker row said n at a later time w, and X knows that n was killed, from that read or because
   its own verdict was accepted. At r no session of A after n existed, for its registration would have replaced n before
   w. So (A, c) was written under n or before, or for A by whoever handed the lease over. A later session of A holds the
   lease only after a take of its own, sent after its registration, which moves c; an earlier take that lands late or is
   answered late counts for no session.
3. *The take is exact.* X's take compares counter and owner with (A, c). If A, under a new session, or anybody else has
   taken the lease meanwhile, the counter has moved and the take is refused. If it is accepted, nobody but X has written
   the row since r, and nobody relies on the lease any more.

No clock of one machine is compared with that of another; only durations are.
"""

from __future__ import annotations

from enum import Enum

from attrs import frozen

from streamclient.core.values import evolve
from streamclient.core.write_rules import RULES, Rule, WorkerWriteKind


class SessionState(Enum):
    """What a worker row says about its worker."""

    RUNNING = "running"
    LEAVING = "leaving"
    """It stops: it gives its leases away, and gets none."""
    KILLED = "killed"
    """Another worker saw it stand still for a lease duration. It holds nothing any more."""


@frozen
class WorkerRow:
    """One worker's row, as read or as written."""

    worker_id: str
    stream_id: str
    nonce: str
    """New for each session."""
    beat: int
    """Moved by each beat of the session."""
    state: SessionState = SessionState.RUNNING
    wake: int = 0
    """Moved by others: whoever sees its own one changed scans now."""
    info: str = ""
    """For people, see ``worker_info``; empty where it was not read."""
    balance_by: str = ""
    """What the worker makes even, a value of ``BalanceBy``; written when a session begins. Empty if it does not say."""

    @property
    def is_live(self) -> bool:
        """Whether nobody has killed it."""
        return self.state is not SessionState.KILLED

    @property
    def is_staying(self) -> bool:
        """Whether it may be given leases."""
        return self.state is SessionState.RUNNING

    def __str__(self) -> str:
        return f"{self.worker_id}({self.state.value}, {self.nonce}, {self.beat})"


@frozen
class WorkerWrite:
    """One conditional change of one worker row. Made by the functions below, never by hand."""

    kind: WorkerWriteKind
    worker_id: str
    seen: WorkerRow | None
    """The row must have this nonce, beat and state; ``None``: it must be absent."""
    result: WorkerRow | None
    """The row afterwards if accepted, but for its ``wake``; ``None`` after REMOVE."""
    also: tuple[str, ...] = ()
    """Fields that this very write stores beside those that its rule always does: ``info`` may be long, and changes
    rarely."""

    @property
    def rule(self) -> Rule:
        """What such a write compares and stores."""
        return RULES[self.kind]

    @property
    def expected(self) -> WorkerRow | None:
        """The row that must be there; ``None``: none may."""
        return self.seen

    @property
    def changes(self) -> tuple[str, ...]:
        """Fields of ``WorkerRow`` that are written, with their values in ``result``; the row keeps all others."""
        return (*self.rule.writes, *self.also)

    def __str__(self) -> str:
        return f"{self.kind.value} {self.seen or self.worker_id} -> {self.result or 'absent'}"


def register(seen: WorkerRow | None, row: WorkerRow) -> WorkerWrite:
    """Begin a session, in place of the row as read or of none."""
    if seen is not None and seen.nonce == row.nonce:
        raise ValueError(f"a new session needs a new nonce, not that of {seen}")
    result = evolve(row, wake=0 if seen is None else seen.wake)
    return WorkerWrite(WorkerWriteKind.REGISTER, row.worker_id, seen, result)


def restore(known: WorkerRow) -> WorkerWrite:
    """Go on with a session whose row somebody deleted.

    That needs an absent row. A session that was killed has one, and is over, long before anybody deletes it.
    """
    _check_alive(known)
    result = evolve(known, beat=known.beat + 1)
    return WorkerWrite(WorkerWriteKind.BEAT, known.worker_id, None, result, ("info",))


def beat(seen: WorkerRow, *, state: SessionState | None = None, info: str | None = None) -> WorkerWrite:
    """Heartbeat of a session: beat + 1, perhaps with another state or other information."""
    _check_alive(seen)
    result = evolve(seen, beat=seen.beat + 1, state=state or seen.state, info=seen.info if info is None else info)
    return WorkerWrite(WorkerWriteKind.BEAT, seen.worker_id, seen, result, () if info is None else ("info",))


def kill(seen: WorkerRow) -> WorkerWrite:
    """Write the verdict on a session that stood still; see the proof above for when that may be sent."""
    return WorkerWrite(WorkerWriteKind.KILL, seen.worker_id, seen, evolve(seen, state=SessionState.KILLED))


def remove(seen: WorkerRow) -> WorkerWrite:
    """Delete a row, one's own or that of a killed session, if it is still as seen. An absent row counts as deleted."""
    return WorkerWrite(WorkerWriteKind.REMOVE, seen.worker_id, seen, None)


def woken(row: WorkerRow) -> WorkerRow:
    """The row after a wake. It needs an existing row and no other condition, and may be lost or repeated."""
    return evolve(row, wake=row.wake + 1)


def _check_alive(row: WorkerRow) -> None:
    if not row.is_live:
        raise ValueError(f"{row} cannot beat: killed is final, register a new session")
