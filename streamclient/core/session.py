"""The session of this worker: registered, kept alive by beats, ended, and begun again.

This is a small state machine; ``membership`` has its laws. The state machine decides which write of this worker's row
is due, and interprets answers and reads of the row. If the outcome of a write is unknown, the worker reads the row.

**Which process has the name.** The first registration of a process replaces any session that it finds. So a worker that
is restarted under its name goes on immediately. Every later registration replaces only sessions of its own process. If
a process had a session, and then finds a session of another process in its row, a newer process was started under its
name. The older process is *ousted*: it never registers again, so the two processes do not fight.

**Beats in doubt.** A repeated beat is the same write, so it is applied at most once. The try that was applied was sent
no earlier than the first try. So the validity of the session is counted from the time of the first try.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from attrs import define

from streamclient.core import membership
from streamclient.core.deadlines import NEVER
from streamclient.core.held import valid_until
from streamclient.core.membership import SessionState, WorkerRow, WorkerWrite
from streamclient.core.values import evolve
from streamclient.core.write_rules import NO_DOUBT, Doubt, WorkerWriteKind, WriteOutcome, was_applied

REMOVALS_AT_MOST = 3
"""The largest number of attempts to remove this worker's row when the worker stops. If the row stays, no harm is done:
the worker holds no lease, and after a lease duration other workers see that the row stands still."""


class News(Enum):
    """The change of a session that an event has caused."""

    NOTHING = "nothing"
    BEGUN = "begun"
    """A session was registered, so leases may be taken."""
    OVER = "over"
    """The session is over, and all leases held under it are lost."""
    OUSTED = "ousted"
    """The session is over for good, because a newer process has this worker's name."""


@define(eq=False)
class Session:
    """The worker's session, owned by ``Holdings``. The argument ``now`` of its methods never goes back."""

    worker_id: str
    stream_id: str
    duration_seconds: float
    new_nonce: Callable[[], str]
    pause_seconds: Callable[[int], float]
    info: str = ""
    """The text for operators, which the next write of this worker's row stores."""
    balance_by: str = ""
    """The quantity that this worker evens out. Other workers must use the same quantity."""
    row: WorkerRow | None = None
    """This worker's row as this session last wrote it; ``None`` without a session."""
    valid_until: float = NEVER
    since: float = NEVER
    """The time at which the session became known to exist. Writes that were sent earlier count for no session."""
    is_ousted: bool = False
    is_ended: bool = False
    """Whether the stop of the worker has ended the session: the row was removed, its removal was given up, or there was
    no session."""
    is_beat_due: bool = False
    is_leaving: bool = False
    has_begun: bool = False
    """Whether any session of this process was ever known to exist."""
    seen_at: float = NEVER
    """The time when the worker sent the latest call that showed the session unchanged: a read of its row, or a
    heartbeat."""
    needs_read: bool = True
    """Whether the next step can only be decided after a read of this worker's row."""
    needed_since: float = NEVER
    """Reads of this worker's row that were requested earlier than this time do not count."""
    doubt: Doubt = NO_DOUBT
    """The writes of this worker's row that no answer has confirmed."""
    _replaced: WorkerRow | None = None
    """This worker's row as it was read before a registration that replaces it."""
    _process: str = ""
    """The prefix of all nonces of this process. It identifies each registration of this process, even one that is
    applied late."""
    _registrations: int = 0
    _flight: WorkerWrite | None = None
    _is_in_doubt: bool = False
    _is_absent: bool = False
    _removals: int = 0
    _stored_info: str | None = None
    _wake: int | None = None

    def is_valid(self, now: float) -> bool:
        """Return whether the session is valid, so that this worker may hold and take leases now."""
        return self.row is not None and now < self.valid_until

    # --- writing -----------------------------------------------------------------------------------------------

    def next_write(self, now: float) -> WorkerWrite | None:
        """Return the write of this worker's row that is due, and record it as sent; ``None`` if no write is due."""
        if (
            self.is_ousted
            or self.is_ended
            or self._flight is not None
            or self.needs_read
            or now < self.doubt.not_before
        ):
            return None
        self._flight = self._due_write()
        return self._flight

    def _due_write(self) -> WorkerWrite | None:
        if self.row is None:
            return None if self.is_leaving else self._registration()
        if self._is_absent:
            return membership.restore(evolve(self.row, info=self.info))
        state = SessionState.LEAVING if self.is_leaving else SessionState.RUNNING
        if self.is_beat_due or state is not self.row.state:
            return membership.beat(self.row, state=state, info=None if self.info == self._stored_info else self.info)
        return None

    def _registration(self) -> WorkerWrite:
        self._process = self._process or self.new_nonce()
        self._registrations += 1
        nonce = f"{self._process}.{self._registrations}"
        row = WorkerRow(self.worker_id, self.stream_id, nonce, beat=1, info=self.info, balance_by=self.balance_by)
        return membership.register(self._replaced, row)

    def removal(self) -> WorkerWrite | None:
        """Return the write that ends the session once no lease is held; ``None`` if it cannot be sent now."""
        if self.row is None or self.is_ousted:
            self.is_ended = True
        if self.is_ended or self._flight is not None or self.row is None:
            return None
        self._removals += 1
        self._flight = membership.remove(self.row)
        return self._flight

    # --- answers -----------------------------------------------------------------------------------------------

    def answered(self, write: WorkerWrite, outcome: WriteOutcome, sent_at: float, now: float) -> News:
        """Process the outcome of a write of this worker's row, and return the change of the session."""
        if write is not self._flight and write != self._flight:
            return News.NOTHING
        if write.kind is WorkerWriteKind.REMOVE:
            self._flight = None
            self.is_ended = outcome is not WriteOutcome.UNCERTAIN or self._removals >= REMOVALS_AT_MOST
            return News.NOTHING
        if outcome is WriteOutcome.ACCEPTED:
            return self._accepted(write, sent_at, now)
        self._is_in_doubt, self.doubt = True, self.doubt.sent(sent_at)
        self._look(now)
        return News.NOTHING

    def _accepted(self, write: WorkerWrite, sent_at: float, now: float) -> News:
        assert write.result is not None
        self._settle_flight()
        self.row = write.result
        self._wake = write.result.wake if self._wake is None else self._wake
        self._is_absent = self.is_beat_due = False
        self.doubt = NO_DOUBT
        if "info" in write.changes:
            self._stored_info = write.result.info
        self.valid_until = max(self.valid_until, valid_until(sent_at, self.duration_seconds))
        self.seen_at = max(self.seen_at, sent_at)
        if write.kind is not WorkerWriteKind.REGISTER:
            return News.NOTHING
        self.since, self.has_begun = now, True
        return News.BEGUN

    def _settle_flight(self) -> None:
        self._flight, self._is_in_doubt, self.doubt = None, False, evolve(self.doubt, since=None)

    # --- reads -------------------------------------------------------------------------------------------------

    def read(self, row: WorkerRow | None, asked_at: float, now: float) -> News:
        """Process this worker's row (``None`` if it is absent) from a read requested at ``asked_at``.

        Return the change of the session.
        """
        if self.is_ousted or self.is_ended or asked_at < self.since:
            return News.NOTHING
        if self.has_begun and row is not None and row.nonce.rpartition(".")[0] != self._process:
            return self._oust()
        if asked_at < self.needed_since:
            return News.NOTHING
        self.needs_read = False
        if self._is_in_doubt:
            return self._resolve(row, now)
        if self._flight is None and self.row is None:
            self._replaced = row
        if self.row is None:
            return News.NOTHING
        if row is not None and row.nonce == self.row.nonce and row.is_live:
            self.seen_at = max(self.seen_at, asked_at)
        return self._check(row, now)

    def take_wake(self, row: WorkerRow) -> bool:
        """Return whether another worker has woken this worker since the last call."""
        is_woken = self.row is not None and row.wake != self._wake
        self._wake = row.wake
        return is_woken

    def _resolve(self, row: WorkerRow | None, now: float) -> News:
        """Decide whether the write in doubt was applied.

        ``row`` was read after the write had ended without a clear outcome.
        """
        write, sent_at = self._flight, self.doubt.since
        assert write is not None
        assert sent_at is not None
        if was_applied(row, write):
            return self._accepted(write, sent_at, now)
        self._flight, self._is_in_doubt = None, False
        self.doubt = self.doubt.again(now, self.pause_seconds)
        if write.kind is WorkerWriteKind.REGISTER:
            # A retry has another nonce. If this write is applied late, its session belongs to this process, so the
            # retry replaces it.
            self.doubt, self._replaced = evolve(self.doubt, since=None), row
            return News.NOTHING
        return self._check(row, now)

    def _check(self, row: WorkerRow | None, now: float) -> News:
        """Check whether the row still shows the session, and whether a beat that seemed lost was applied."""
        assert self.row is not None
        if row is None:
            self._is_absent = self._flight is None
        elif row.nonce != self.row.nonce or not row.is_live:
            return self._end(now)
        elif row.beat > self.row.beat and self._flight is None and self.doubt.since is not None:
            self.valid_until = max(self.valid_until, valid_until(self.doubt.since, self.duration_seconds))
            self.row, self.doubt, self._is_absent = evolve(row, info=self.row.info), NO_DOUBT, False
        return News.NOTHING

    # --- the end -----------------------------------------------------------------------------------------------

    def check_validity(self, now: float) -> News:
        """End the session if none of its heartbeats was stored in time, and return the change of the session."""
        if self.row is None or now < self.valid_until:
            return News.NOTHING
        return self._end(now)

    def _end(self, now: float) -> News:
        self._settle_flight()
        self.row, self.valid_until, self._stored_info = None, NEVER, None
        self._is_absent = False
        self._look(now)
        return News.OVER

    def _oust(self) -> News:
        self._settle_flight()
        self.row, self.valid_until, self.is_ousted = None, NEVER, True
        self.needs_read = False
        return News.OUSTED

    def _look(self, now: float) -> None:
        self.needs_read, self.needed_since = True, now
