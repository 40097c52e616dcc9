"""The signs by which workers notice each other: sessions, signals, verdicts that kill sessions, wakes, and turns.

A *signal* is the row of a worker, which a few workers read often. A *wake* is a write by which one worker makes another
one scan soon. Every ``signal_interval_millis`` a worker reads its own row, to see whether it was woken, and the rows of
the workers that it watches. The workers of a fleet scan the whole status table in *turns*. Laws:

* signals and scans are never read at the same time, so that a later read shows newer rows;
* a verdict on a worker is written only under the writer's own valid session;
* wakes carry no information and may be lost or repeated, because a worker that is woken scans, and a scan shows
  everything.

If the store has no worker rows, there are no signals, verdicts, wakes or turns, and the session counts as valid for
ever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from random import Random

from attrs import define, field

from streamclient.base.backoff import lease_pause_seconds
from streamclient.config import ClientConfig
from streamclient.core import membership
from streamclient.core.deadlines import FOR_EVER, NEVER
from streamclient.core.events import Command, ReadSignals, WakeWorkers, WriteWorker
from streamclient.core.membership import SessionState, WorkerRow, WorkerWrite
from streamclient.core.peers import Peers
from streamclient.core.session import News, Session
from streamclient.core.write_rules import WorkerWriteKind, WriteOutcome

SIGNAL_SHARE = 0.1
"""The longest time between two reads of signals, as a share of the lease duration. A longer ``signal_interval_millis``
is cut down to this limit, because verdicts wait for these reads."""

ALERT_READS, ALERT_SHARE = 8, 0.25
"""The number of reads of signals that quickly follow a wake, and the time between them as a share of the usual
interval. Such reads are useful because leases are mostly handed over one by one, and each hand-over wakes the receiver
again."""

JITTER_SHARE = 0.1
"""The largest share by which a turn to scan is early or late, so that the turns of different workers do not stay
together."""

WAKES_AT_MOST = 5
"""The largest number of repetitions of a wake whose outcome is unknown. A wake only saves time: without the wake, the
other worker sees the change in its next scan."""


@define(eq=False)
class Signals:
    """The signals of one worker. ``Holdings`` owns this object, and after each event asks it for work that is due."""

    session: Session
    peers: Peers
    signal_seconds: float
    turn_seconds: float
    """The mean time from the scan of one worker to the scan of the next worker."""
    rng: Random
    pause_seconds: Callable[[int], float]
    keeps_rows: bool = True
    """Whether the store has worker rows."""
    is_uniform: bool = False
    """Whether every worker that the last scan showed has a session."""
    wants_look: bool = False
    """Whether this worker's row must be read immediately."""
    is_announced: bool = False
    """Whether every other worker was woken since this session began."""
    announced_leaving: bool = False
    """Whether every other worker was woken after this worker's row began to say that this worker is leaving."""
    turn_at: float = NEVER
    next_moment: float = NEVER
    """The next time at which work is due even if no answer comes, as the last call of ``commands`` computed it."""
    _is_quiet: bool = False
    """Whether no method has changed this object since the last call of ``commands``."""
    _reading: tuple[str, ...] | None = None
    _asked_at: float = NEVER
    """The time when signals were last requested."""
    _alert_reads: int = 0
    """The number of further reads of signals that follow quickly, because this worker was woken."""
    _failures: int = 0
    _retry_at: float = NEVER
    _verdicts: dict[str, WorkerWrite] = field(factory=dict)
    """The unanswered writes of other workers' rows, by the worker's name."""
    _doubted: set[str] = field(factory=set)
    """The workers for which a verdict was sent whose outcome is unknown."""
    _to_wake: set[str] = field(factory=set)
    _waking: tuple[str, ...] | None = None
    _wake_failures: int = 0
    _wake_at: float = NEVER

    @classmethod
    def of(
        cls,
        worker_id: str,
        stream_id: str,
        config: ClientConfig,
        rng: Random,
        *,
        new_nonce: Callable[[], str],
        keeps_rows: bool,
        info: str,
    ) -> Signals:
        """Return the signals of a starting worker."""
        duration = config.lease_duration_millis / 1_000
        pause_seconds = partial(lease_pause_seconds, config=config)
        return cls(
            session=Session(worker_id, stream_id, duration, new_nonce, pause_seconds, info, config.balance_by.value),
            peers=Peers(worker_id, duration),
            signal_seconds=min(config.signal_interval_millis / 1_000, SIGNAL_SHARE * duration),
            turn_seconds=config.taker_interval_millis / 1_000,
            rng=rng,
            pause_seconds=pause_seconds,
            keeps_rows=keeps_rows,
        )

    # --- state of the session and the fleet --------------------------------------------------------------------

    def may_hold(self, now: float) -> bool:
        """Return whether this worker may hold and take leases now."""
        return not self.keeps_rows or self.session.is_valid(now)

    def covers(self, sent_at: float, now: float) -> bool:
        """Return whether a take sent at ``sent_at`` counts, because it belongs to the present session."""
        return not self.keeps_rows or (self.session.is_valid(now) and sent_at >= self.session.since)

    def was_seen_since(self, moment: float) -> bool:
        """Return whether a read of this worker's row, requested since ``moment``, showed this session unchanged."""
        return not self.keeps_rows or self.session.seen_at >= moment

    def look(self) -> None:
        """Request a read of this worker's own row as soon as possible."""
        self.wants_look, self._is_quiet = True, False

    @property
    def valid_until(self) -> float:
        """The time until which leases may be held, in monotonic seconds."""
        return self.session.valid_until if self.keeps_rows else FOR_EVER

    @property
    def staying(self) -> list[str]:
        """The sorted names of workers with sessions that may receive leases.

        This worker is among them until it begins to leave.
        """
        own = [] if self.session.is_leaving else [self.session.worker_id]
        return sorted([*self.peers.staying_others, *own])

    @property
    def is_leader(self) -> bool:
        """Whether this worker is the leader: the one worker that does work for the whole fleet.

        The leader is the first, by name, of the staying workers.
        """
        return self.staying[:1] == [self.session.worker_id]

    @property
    def is_idle(self) -> bool:
        """Whether no wake waits to be sent, and no sent wake is unanswered."""
        return not self._to_wake and self._waking is None

    # --- turns -------------------------------------------------------------------------------------------------

    def is_turn(self, now: float) -> bool:
        """Return whether it is this worker's turn to scan.

        In a fleet in which a worker has no session, it is always every worker's turn.
        """
        return not self.is_uniform or now >= self.turn_at

    def turn_taken(self, now: float, workers: int) -> None:
        """Plan this worker's next turn, which follows the turns of all other workers.

        Called when the scan of the present turn has returned.
        """
        spread = self.rng.uniform(1 - JITTER_SHARE, 1 + JITTER_SHARE)
        # The worker checks for its turn at intervals, so a turn begins half an interval late on average.
        self.turn_at = now + (workers * spread - 0.5) * self.turn_seconds

    # --- wakes -------------------------------------------------------------------------------------------------

    def wake(self, names: Iterable[str]) -> None:
        """Wake the workers ``names``, so that they scan soon.

        This worker, and workers that have no live session when the wake is sent, are left out.
        """
        if self.keeps_rows:
            self._to_wake.update(names)
            self._is_quiet = False

    def wake_all(self) -> None:
        """Wake all other workers, so that they scan soon."""
        self.wake(self.peers.others)

    def wakes_sent(self, names: tuple[str, ...], error: Exception | None, now: float) -> None:
        """Record whether waking the workers ``names`` succeeded.

        After a failure, plan another try. After more than ``WAKES_AT_MOST`` failures in a row, give the wake up.
        """
        self._waking, self._is_quiet = None, False
        self._wake_failures = 0 if error is None else self._wake_failures + 1
        if error is not None and self._wake_failures <= WAKES_AT_MOST:
            self._to_wake.update(names)
            self._wake_at = now + self.pause_seconds(self._wake_failures + 1)

    # --- reads -------------------------------------------------------------------------------------------------

    def signals_read(self, workers: Iterable[WorkerRow], now: float) -> tuple[News, bool]:
        """Process the signals that were requested. Return the change of the session, and whether to scan."""
        names, self._reading, self._failures = self._reading or (), None, 0
        self._is_quiet = False
        rows = {row.worker_id: row for row in workers}
        before = self.peers.killed
        self.peers.observe(names, rows.values(), now)
        is_news = bool(self.peers.killed - before)
        return self._own_row_read(rows.get(self.session.worker_id), self._asked_at, now, is_news=is_news)

    def signals_unreadable(self, now: float) -> int:
        """Record that signals could not be read, and plan the next try. Return the number of consecutive failures."""
        self._reading, self._is_quiet = None, False
        self._failures += 1
        self._retry_at = now + max(self.signal_seconds, self.pause_seconds(self._failures))
        return self._failures

    def scanned(self, workers: Iterable[WorkerRow], asked_at: float, now: float) -> tuple[News, bool]:
        """Process the rows of all workers. Return the change of the session, and whether to scan again.

        Another scan is needed if a wake arrived, because its cause may be a change that was made after the leases were
        read.
        """
        rows = {row.worker_id: row for row in workers}
        self._is_quiet = False
        self.peers.observe_all(rows.values(), now)
        return self._own_row_read(rows.get(self.session.worker_id), asked_at, now, is_news=False)

    def scan_failed(self) -> None:
        """Record that a scan ended without a result."""
        self._is_quiet = False

    def _own_row_read(self, row: WorkerRow | None, asked_at: float, now: float, *, is_news: bool) -> tuple[News, bool]:
        is_woken = row is not None and self.session.take_wake(row)
        if is_woken:
            self._alert_reads = ALERT_READS
        confirmed = any(self.peers.is_over(name) for name in self._doubted)
        if confirmed:
            self.wake_all()
        self._doubted &= {row.worker_id for row in self.peers.standing_still()}
        news = self.session.read(row, asked_at, now)
        self._announce_leaving()
        return news, is_woken or is_news or confirmed

    def _announce_leaving(self) -> None:
        own = self.session.row
        if own is not None and own.state is SessionState.LEAVING and not self.announced_leaving:
            self.announced_leaving = True
            self.wake_all()

    # --- writes ------------------------------------------------------------------------------------------------

    def beat_due(self) -> None:
        """Record that the interval between heartbeats has passed, so that a heartbeat is due."""
        self.session.is_beat_due, self._is_quiet = True, False

    def leave(self) -> None:
        """Announce to the other workers that this worker stops."""
        self.session.is_leaving, self._is_quiet = True, False

    def check_session(self, now: float) -> News:
        """End the session if its validity is over, and return the change of the session."""
        news = self.session.check_validity(now)
        self._is_quiet = self._is_quiet and news is News.NOTHING
        return news

    def own_write_answered(self, write: WorkerWrite, outcome: WriteOutcome, sent_at: float, now: float) -> News:
        """Process the outcome of a write of this worker's row, and return the change of the session."""
        news = self.session.answered(write, outcome, sent_at, now)
        self._is_quiet = False
        if news is News.BEGUN:
            self.peers.watch_anew(now)
            self.is_announced = False
        self._announce_leaving()
        return news

    def verdict_answered(self, write: WorkerWrite, outcome: WriteOutcome, now: float) -> bool:
        """Process the outcome of a write of another worker's row. Return whether the write killed a session."""
        self._verdicts.pop(write.worker_id, None)
        self._is_quiet = False
        if write.kind is WorkerWriteKind.REMOVE:
            # If the row was not removed, the next scan shows it again.
            self.peers.observe([write.worker_id], (), now)
        if write.kind is not WorkerWriteKind.KILL or write.seen is None:
            return False
        if outcome is WriteOutcome.UNCERTAIN:
            self._doubted.add(write.worker_id)
        if outcome is not WriteOutcome.ACCEPTED:
            self.peers.look_again(write.worker_id)
            return False
        self.peers.note_killed(write.worker_id, write.seen.nonce)
        self.wake_all()
        return True

    # --- commands that are due ---------------------------------------------------------------------------------

    def commands(self, now: float, *, is_scanning: bool, is_drained: bool) -> list[Command]:
        """Return the commands that are due now, and record them as sent."""
        if self._is_quiet and now < self.next_moment and not is_drained:
            return []
        commands = self._due_commands(now, is_scanning=is_scanning, is_drained=is_drained) if self.keeps_rows else []
        self._is_quiet = True
        self.next_moment = self._next_moment(now, is_scanning=is_scanning)
        return commands

    def _due_commands(self, now: float, *, is_scanning: bool, is_drained: bool) -> list[Command]:
        commands: list[Command] = [WriteWorker(write) for write in self._due_writes(now, is_drained=is_drained)]
        if not is_scanning and self._reading is None and self._read_due_at() <= now:
            self._reading = (self.session.worker_id, *self._watched())
            self._asked_at, self.wants_look = now, False
            self._alert_reads = max(0, self._alert_reads - 1)
            commands.append(ReadSignals(self._reading))
        names = tuple(sorted(self._to_wake & set(self.peers.others)))
        if self._waking is None and now >= self._wake_at:
            self._to_wake.clear()
            if names:
                self._waking = names
                commands.append(WakeWorkers(names))
        return commands

    @property
    def is_reading(self) -> bool:
        """Whether signals are being read. A scan waits for the end of such a read."""
        return self._reading is not None

    def _next_moment(self, now: float, *, is_scanning: bool) -> float:
        if not self.keeps_rows or self.session.is_ousted or self.session.is_ended:
            return FOR_EVER
        moments = [self.session.valid_until, self.session.doubt.not_before]
        if self._to_wake and self._waking is None:
            moments.append(self._wake_at)
        moments = [moment for moment in moments if moment > now]
        if not is_scanning and self._reading is None:
            moments.append(self._read_due_at())
        return min(moments, default=FOR_EVER)

    def _due_writes(self, now: float, *, is_drained: bool) -> list[WorkerWrite]:
        own = self.session.removal() if is_drained and self.is_idle else self.session.next_write(now)
        writes = [] if own is None else [own]
        if self.session.is_valid(now) and not is_drained:
            writes += self._launched(membership.kill(row) for row in self.peers.standing_still())
            if self.is_leader:
                writes += self._launched(membership.remove(row) for row in self.peers.forgettable(now))
        return writes

    def _launched(self, writes: Iterable[WorkerWrite]) -> list[WorkerWrite]:
        launched: Mapping[str, WorkerWrite] = {
            write.worker_id: write for write in writes if write.worker_id not in self._verdicts
        }
        self._verdicts.update(launched)
        return list(launched.values())

    def _watched(self) -> list[str]:
        return self.peers.watched() if self.session.row is not None else []

    def _read_due_at(self) -> float:
        if self.session.is_ousted or self.session.is_ended:
            return FOR_EVER
        if self._failures:
            return self._retry_at
        if self.session.needs_read or self.wants_look:
            return NEVER
        due = self._asked_at + self.signal_seconds * (ALERT_SHARE if self._alert_reads else 1.0)
        verdict_at = self.peers.verdict_at(self._watched())
        return due if verdict_at is None or verdict_at <= self._asked_at else min(due, verdict_at)
