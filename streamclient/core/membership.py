"""Worker sessions: the rows by which workers know of each other, and the writes of these rows.

In addition to the leases, the status table has one row for every worker. A *session* is one life of a worker. It begins
when the row gets a new ``nonce``, and lives as long as its ``beat`` moves. It ends when its worker removes the row, or
when another worker that saw the row stand still for a lease duration marks it as *killed*. Java workers never read
these rows.

Laws:

* a worker holds leases only while its session is valid: from the time *before* its last accepted beat was sent, for the
  lease duration less the margin. A lease ends at its own end or at the end of the session, whichever comes first;
* every write except a wake compares nonce, beat and state with the row that its writer read. So no other write came
  between that read and the write, and a killed session never beats again: its worker needs a new nonce;
* a nonce is never used twice, and killed stays killed: only a new session replaces a killed session;
* a take counts for a session only if it was sent after that session was known to exist.

**Why two workers never read one shard.** A worker A holds a lease under a session with nonce n; another worker X takes
it because n was killed, without waiting for the lease to expire.

1. *The killed session is over.* The killer of n stamped beat b with its own time t, after the first read that showed b
   had returned. The service had accepted b before that, and A had sent b even earlier, at s. The killer waited for the
   lease duration D after t, by its own monotonic clock, before it sent the verdict. The service accepted the verdict,
   so nonce, beat and state were unchanged. So no beat after b was accepted before the verdict, and no beat is accepted
   afterwards, however late a beat arrives. So b is the last beat of n that ever counts, and n was valid until s + 0.95
   D at most, by A's clock. The verdict took effect after t + D, by the killer's clock, and s < t. If the clocks drift
   apart by less than 5 %, n ended before the verdict, and so did every lease held under n.
2. *The lease belongs to the killed session.* X reads lease rows first and worker rows afterwards. At a time r, the
   lease row had owner A and counter c, in short (A, c). At a later time w, A's worker row had nonce n. X knows that n
   was killed, from the read at w or because its own verdict was accepted. At r no session of A after n existed, because
   its registration would have replaced n before w. So (A, c) was written under n or before, or for A by the worker that
   handed the lease over. A later session of A holds the lease only after a take of its own, sent after its
   registration, which moves c. An earlier take counts for no session if it is applied late or answered late.
3. *The take is exact.* X's take compares counter and owner with (A, c). If A, under a new session, or another worker
   has taken the lease meanwhile, the counter has moved and X's take is refused. If X's take is accepted, only X has
   written the row since r, and no other worker relies on the lease any more.

The proof compares only durations, and never the clock of one machine with the clock of another.
"""

from __future__ import annotations

from enum import Enum

from attrs import frozen

from streamclient.core.values import evolve
from streamclient.core.write_rules import RULES, Rule, WorkerWriteKind


class SessionState(Enum):
    """The state of a worker, as its row says."""

    RUNNING = "running"
    LEAVING = "leaving"
    """The worker stops. It hands its leases over, and receives none."""
    KILLED = "killed"
    """Another worker saw this worker stand still for a lease duration. The worker holds no lease any more."""


@frozen
class WorkerRow:
    """The row of one worker, as it was read or written."""

    worker_id: str
    stream_id: str
    nonce: str
    """An identifier that is new for each session."""
    beat: int
    """A number that grows with each heartbeat of the session."""
    state: SessionState = SessionState.RUNNING
    wake: int = 0
    """A number that other workers increase. If a worker sees a new number in its own row, it scans immediately."""
    info: str = ""
    """The text for operators, see ``worker_info``; empty if it was not read."""
    balance_by: str = ""
    """The quantity that the worker evens out, as a value of ``BalanceBy``. It is written at the beginning of a session;
    empty if it is unknown."""

    @property
    def is_live(self) -> bool:
        """Whether the session in this row was not killed."""
        return self.state is not SessionState.KILLED

    @property
    def is_staying(self) -> bool:
        """Whether the worker of this row may receive leases: it was not killed, and does not stop."""
        return self.state is SessionState.RUNNING

    def __str__(self) -> str:
        return f"{self.worker_id}({self.state.value}, {self.nonce}, {self.beat})"


@frozen
class WorkerWrite:
    """One conditional change of one worker row. Only the functions of this module make such objects."""

    kind: WorkerWriteKind
    worker_id: str
    seen: WorkerRow | None
    """The row as its writer saw it. The stored row must have the same nonce, beat and state. ``None`` if the row must
    be absent."""
    result: WorkerRow | None
    """The row after the write is accepted, except for its ``wake``; ``None`` after REMOVE."""
    also: tuple[str, ...] = ()
    """The fields that this write stores in addition to the fields of its rule. One of them is ``info``, which may be
    long and changes rarely."""

    @property
    def rule(self) -> Rule:
        """The rule of this write: its comparisons, and the fields that it stores."""
        return RULES[self.kind]

    @property
    def expected(self) -> WorkerRow | None:
        """The row that must exist; ``None`` if the row must be absent."""
        return self.seen

    @property
    def changes(self) -> tuple[str, ...]:
        """The fields of ``WorkerRow`` to write, with their values in ``result``. The row keeps all other fields."""
        return (*self.rule.writes, *self.also)

    def __str__(self) -> str:
        return f"{self.kind.value} {self.seen or self.worker_id} -> {self.result or 'absent'}"


def register(seen: WorkerRow | None, row: WorkerRow) -> WorkerWrite:
    """Return the write that begins a session: it replaces the row ``seen`` or, for ``None``, creates the row."""
    if seen is not None and seen.nonce == row.nonce:
        raise ValueError(f"a new session needs a new nonce, not the one of {seen}")
    result = evolve(row, wake=0 if seen is None else seen.wake)
    return WorkerWrite(WorkerWriteKind.REGISTER, row.worker_id, seen, result)


def restore(known: WorkerRow) -> WorkerWrite:
    """Return the write that creates the deleted row of a session again, so that the session goes on.

    The row must be absent. A killed session cannot go on in this way, because its row is deleted only long after its
    end.
    """
    _require_alive(known)
    result = evolve(known, beat=known.beat + 1)
    return WorkerWrite(WorkerWriteKind.BEAT, known.worker_id, None, result, ("info",))


def beat(seen: WorkerRow, *, state: SessionState | None = None, info: str | None = None) -> WorkerWrite:
    """Return the heartbeat of a session: ``beat`` grows by 1, and ``state`` and ``info`` are stored if given."""
    _require_alive(seen)
    result = evolve(seen, beat=seen.beat + 1, state=state or seen.state, info=seen.info if info is None else info)
    return WorkerWrite(WorkerWriteKind.BEAT, seen.worker_id, seen, result, () if info is None else ("info",))


def kill(seen: WorkerRow) -> WorkerWrite:
    """Return the verdict: the write that marks a session as killed, because the session stood still.

    The docstring of this module says when the verdict may be sent.
    """
    return WorkerWrite(WorkerWriteKind.KILL, seen.worker_id, seen, evolve(seen, state=SessionState.KILLED))


def remove(seen: WorkerRow) -> WorkerWrite:
    """Return the write that deletes this worker's row, or the row of a killed session, if the row is unchanged.

    An absent row counts as deleted.
    """
    return WorkerWrite(WorkerWriteKind.REMOVE, seen.worker_id, seen, None)


def woken(row: WorkerRow) -> WorkerRow:
    """Return the row after a wake. A wake has no condition except that the row exists. It may be lost or repeated."""
    return evolve(row, wake=row.wake + 1)


def _require_alive(row: WorkerRow) -> None:
    if not row.is_live:
        raise ValueError(f"{row} cannot beat: killed is final, register a new session")
