"""The rows of all workers as this worker saw them, and the times of these sightings by its own clock.

Laws:

* a beat is stamped with the time at which the first read that showed the beat returned. The service had accepted the
  beat before that;
* a session stands still if two reads showed the same beat, and were more than a lease duration apart by those stamps.
  Only reads that returned count;
* killed is final for a nonce: a read that began before the verdict cannot undo it;
* a worker that returns after its own session was over begins to watch from the start. So if an outage of the status
  table stopped every worker, the workers do not take each other for dead.

Two reads of worker rows never overlap, so a later read never shows an older row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from attrs import frozen

from streamclient.core.membership import SessionState, WorkerRow
from streamclient.core.values import evolve

WATCHED = 2
"""The number of workers that each worker watches: its successors in the ring of live workers, which is sorted by name.
So every worker is watched by two others, and one of these two may die together with the watched worker."""

WIDENED = 8
"""The number of further workers to watch for each late worker. They may have died together with the late worker. If
they are watched from now on, their deaths are noticed at the same time. Otherwise each death would be noticed a lease
duration after the one before."""

LATE_SHARE = 0.5
"""The share of the lease duration after which a beat is late. Two heartbeats are at most a third of the lease duration
apart, so by then at least one heartbeat was missed."""

MEMORY_DURATIONS = 10
"""The number of lease durations for which a worker without a row is remembered, and for which a killed row is kept."""


@frozen
class _Watch:
    """One worker row, and the times at which this worker saw it."""

    row: WorkerRow
    since: float
    """The time at which this worker first saw the row with its present nonce and beat."""
    read_at: float
    """The time at which this worker last saw the row with its present nonce and beat."""

    @property
    def still_seconds(self) -> float:
        """The number of seconds for which the session was seen to stand still."""
        return self.read_at - self.since


class Peers:
    """The rows of all other workers. Owned by one thread."""

    def __init__(self, worker_id: str, duration_seconds: float) -> None:
        self.worker_id = worker_id
        self.duration_seconds = duration_seconds
        self._watches: dict[str, _Watch] = {}
        self._gone: dict[str, float] = {}
        """Workers that once had a row, and the time at which the row was first missing."""

    # --- observed rows -----------------------------------------------------------------------------------------

    def observe_all(self, rows: Iterable[WorkerRow], now: float) -> None:
        """Process a complete list of worker rows that returned at ``now``."""
        seen = {row.worker_id: row for row in rows}
        self.observe({*seen, *self._watches}, seen.values(), now)

    def observe(self, names: Iterable[str], rows: Iterable[WorkerRow], now: float) -> None:
        """Process the answer to a read of the rows of the workers ``names``. The answer came at ``now``.

        Workers that are missing in ``rows`` have no row in the status table.
        """
        seen = {row.worker_id: row for row in rows}
        for name in sorted(set(names) - {self.worker_id}):
            row = seen.get(name)
            if row is None:
                self._miss(name, now)
            else:
                self._see(row, now)

    def note_killed(self, name: str, nonce: str) -> None:
        """Record that this worker has killed the session ``nonce`` of the worker ``name``."""
        watch = self._watches.get(name)
        if watch is not None and watch.row.nonce == nonce:
            self._watches[name] = evolve(watch, row=evolve(watch.row, state=SessionState.KILLED))

    def look_again(self, name: str) -> None:
        """Record that this worker's verdict, which was to kill the session of the worker ``name``, was not accepted.

        Only a later read shows whether that session still goes on.
        """
        watch = self._watches.get(name)
        if watch is not None:
            self._watches[name] = evolve(watch, read_at=watch.since)

    def watch_anew(self, now: float) -> None:
        """Forget the time for which other workers stood still, because this worker itself could not watch them."""
        self._watches = {name: evolve(watch, since=now, read_at=now) for name, watch in self._watches.items()}

    def _see(self, row: WorkerRow, now: float) -> None:
        self._gone.pop(row.worker_id, None)
        old = self._watches.get(row.worker_id)
        if old is None or (old.row.nonce, old.row.beat) != (row.nonce, row.beat):
            is_killed = old is not None and old.row.nonce == row.nonce and not old.row.is_live
            kept = evolve(row, state=SessionState.KILLED) if is_killed else row
            self._watches[row.worker_id] = _Watch(kept, now, now)
        else:
            kept = old.row if not old.row.is_live else row
            self._watches[row.worker_id] = _Watch(kept, old.since, now)

    def _miss(self, name: str, now: float) -> None:
        if self._watches.pop(name, None) is not None:
            self._gone[name] = now
        horizon = now - MEMORY_DURATIONS * self.duration_seconds
        self._gone = {other: at for other, at in self._gone.items() if at >= horizon}

    # --- conclusions from the rows -----------------------------------------------------------------------------

    def row(self, name: str) -> WorkerRow | None:
        """Return the row of another worker, as it was last read."""
        watch = self._watches.get(name)
        return None if watch is None else watch.row

    def has_session(self, name: str) -> bool:
        """Return whether the worker has a row and so knows of sessions.

        The session in the row may be killed. For this worker itself, the result is always ``True``.
        """
        return name == self.worker_id or name in self._watches

    def is_over(self, name: str) -> bool:
        """Return whether the worker had a session that was killed, or whose row was removed."""
        watch = self._watches.get(name)
        return name in self._gone if watch is None else not watch.row.is_live

    def is_live(self, name: str) -> bool:
        """Return whether another worker has a session that is not killed."""
        watch = self._watches.get(name)
        return watch is not None and watch.row.is_live

    def is_leaving(self, name: str) -> bool:
        """Return whether the worker ``name`` has announced that it stops."""
        watch = self._watches.get(name)
        return watch is not None and watch.row.state is SessionState.LEAVING

    @property
    def killed(self) -> frozenset[str]:
        """The workers whose present row belongs to a killed session."""
        return frozenset(name for name, watch in self._watches.items() if not watch.row.is_live)

    @property
    def others(self) -> list[str]:
        """The sorted names of other workers with a live session, including workers that stop."""
        return sorted(name for name, watch in self._watches.items() if watch.row.is_live)

    @property
    def staying_others(self) -> list[str]:
        """The sorted names of other workers that may receive leases."""
        return sorted(name for name, watch in self._watches.items() if watch.row.is_staying)

    # --- watching ----------------------------------------------------------------------------------------------

    def watched(self) -> list[str]:
        """Return the workers to watch now: the next workers in the ring of live workers, which is sorted by name."""
        ring = self.others
        successors = [name for name in ring if name > self.worker_id] + [name for name in ring if name < self.worker_id]
        late = sum(self._is_late(name) for name in successors)
        return successors[: WATCHED + WIDENED * late]

    def standing_still(self) -> list[WorkerRow]:
        """Return the live sessions that stood still for longer than the lease duration. They may be killed."""
        return [watch.row for _, watch in sorted(self._watches.items()) if watch.row.is_live and self._is_still(watch)]

    def verdict_at(self, names: Sequence[str]) -> float | None:
        """Return the first time at which a read could show that one of ``names`` stood still for the lease duration.

        The result is ``None`` if the rows of ``names`` were not seen.
        """
        moments = [self._watches[name].since + self.duration_seconds for name in names if name in self._watches]
        return min(moments, default=None)

    def forgettable(self, now: float) -> list[WorkerRow]:
        """Return the rows of killed sessions that have stood still for ``MEMORY_DURATIONS`` and may be deleted."""
        horizon = now - MEMORY_DURATIONS * self.duration_seconds
        watches = sorted(self._watches.items())
        return [watch.row for _, watch in watches if not watch.row.is_live and watch.since < horizon]

    def _is_still(self, watch: _Watch) -> bool:
        return watch.still_seconds > self.duration_seconds

    def _is_late(self, name: str) -> bool:
        return self._watches[name].still_seconds > LATE_SHARE * self.duration_seconds

    def __repr__(self) -> str:
        return f"Peers({self.worker_id}: {len(self.others)} others live, {len(self.killed)} killed)"
