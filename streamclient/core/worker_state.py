"""The shared state of the parts of ``Holdings``: facts, unfinished work, and the commands to return.

One thread owns the state. Only the modules of this package that implement ``Holdings`` change it. They change held
leases and flights (unanswered writes) only through methods, which keep the deadlines up to date. So an event about one
lease costs nothing for other leases.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random

from attrs import define, field, frozen

from streamclient.base.backoff import lease_pause_seconds
from streamclient.base.times import MICROS_PER_SECOND
from streamclient.config import ClientConfig
from streamclient.core.deadlines import NEVER, Deadlines
from streamclient.core.events import Command, ListShards, ReadRows, Report, Severity
from streamclient.core.held import Acquisition, HeldLease
from streamclient.core.leases import LeaseWrite
from streamclient.core.plan.loads import Loads
from streamclient.core.shard_tree import ListedEnds, Listing
from streamclient.core.shards import NewLease, Start
from streamclient.core.sightings import LeaseView, add
from streamclient.core.values import evolve
from streamclient.core.worker_signals import Signals
from streamclient.core.write_rules import COUNTER, WriteKind, WriteOutcome
from streamclient.model import BalanceBy, Pause

MOST_REPORTED = 10_000
"""The largest number of anomalies that are remembered, so that they are not reported twice. A worker has far fewer
leases."""


@frozen
class Flight:
    """An unanswered or doubtful write. A lease has at most one."""

    write: LeaseWrite
    outcome: WriteOutcome | None = None
    """The outcome of an answered write that is in doubt, so that the row is being read back; ``None`` before the
    answer."""
    reads: int = 0
    """The number of failed reads of the row since the write."""
    tries: int = 1
    """The number of this attempt, counted from 1 among writes with the same purpose."""


@frozen
class EndQuestion:
    """A consumer's question whether its shard has ended."""

    lease_key: str
    begun: int
    """The number of listings that had begun when the question came. Such listings may be older than the page that the
    consumer read."""
    is_refused: bool = False
    """Whether the question was refused: the consumer was told that no listing shows the end of its shard. A refused
    question stays open, because a later listing may show the end."""


LAPSES_WITHIN_DURATIONS = 3
"""The largest number of lease durations between two lapses that belong together. A lease that is taken again, and runs
out again, lapses about once in a lease duration."""


@define(eq=False)
class Lapses:
    """The leases that were lost only because takes or heartbeats were answered too late.

    A single lapse follows from a frozen machine or a short outage. Lapses that go on show that the store is too slow
    for the leases that this worker takes.
    """

    config: ClientConfig
    _first_at: float = NEVER
    """The time of the first of the lapses that belong together."""
    _last_at: float = NEVER

    def note(self, now: float) -> None:
        """Record that a lease has lapsed."""
        if now - self._last_at > self._within_seconds:
            self._first_at = now
        self._last_at = now

    def trouble(self, now: float) -> str:
        """Return a text if leases have lapsed for longer than the limit of the configuration; otherwise empty."""
        lasted = self._last_at - self._first_at if self._last_at > NEVER else 0.0
        limit = self.config.max_duration_before_last_successful_renew_or_take_lease / 1000
        if lasted <= limit or now - self._last_at > self._within_seconds:
            return ""
        return (
            f"leases were lost again and again for {lasted:.0f} s, because takes or heartbeats were answered too late "
            f"for a lease duration of {self.config.lease_duration_millis / 1000:g} s: make the status table or the "
            "lease manager faster, start more workers, or set a longer lease_duration_millis"
        )

    @property
    def _within_seconds(self) -> float:
        return LAPSES_WITHIN_DURATIONS * self.config.lease_duration_millis / 1000


@define(eq=False)
class WorkerState:
    """The state of one worker, owned by its ``Holdings``."""

    worker_id: str
    config: ClientConfig
    start: Start
    rng: Random
    new_identifier: Callable[[], str]
    view: LeaseView
    signals: Signals
    measured: Loads
    lapses: Lapses
    sets_counters: bool = True
    """Whether the store stores the counter of a write's result. Otherwise each write only adds 1 to the counter."""
    balance_by: BalanceBy = BalanceBy.COUNT
    """The quantity that is evened out at present: this worker's setting, unless other workers have another setting."""
    held: dict[str, HeldLease] = field(factory=dict)
    flights: dict[str, Flight] = field(factory=dict)
    compared: dict[str, int] = field(factory=dict)
    """The greatest counter with which any write of this worker compared, by lease key. Such a write may be applied long
    after it was sent, so each take of this worker sets a greater counter (``leases.take_above``), if the store can."""
    given: dict[str, int] = field(factory=dict)
    """The number of unanswered hand-overs, by receiver."""
    creating: int = 0
    """The number of unanswered writes that create rows."""
    begun_late: set[str] = field(factory=set)
    """Leases whose rows this worker created at a position after the beginning of their shards."""
    first_listed: set[str] | None = None
    """The shards of the first listing that this worker compared with the rows, as long as the stream lists them;
    ``None`` before that. Every shard that the stream lists only later was opened after this worker had started."""
    has_created: bool = False
    """Whether this worker has created rows of which it has not told the other workers yet."""
    deadlines: Deadlines = field(factory=Deadlines)
    """The times at which held leases need attention even if no event comes: at the latest, when their validity ends."""
    rereads: Deadlines = field(factory=Deadlines)
    """The times at which to repeat failed reads of rows whose writes are in doubt."""
    running: dict[str, str] = field(factory=dict)
    """The identifiers of the consumers that were started and were not reported as stopped, by lease key."""
    waiting: dict[str, str] = field(factory=dict)
    """The held leases that wait for an ancestor, each with that ancestor."""
    acquisitions: int = 0
    draws: dict[str, int] = field(factory=dict)
    """The unanswered requests for epochs: the number of the acquisition that needs the epoch, by lease key."""
    notes_under_way: set[tuple[str, str]] = field(factory=set)
    """The orders whose outcome is being noted in the audit, each as a lease key and a request id."""
    noted_at: dict[tuple[str, str], int] = field(factory=dict)
    """The times of all notes that the audit does not have yet. A repeated note has the same time, so it replaces the
    earlier note."""
    unseen: set[str] = field(factory=set)
    """The held leases that wait for a read of the worker's own row."""
    own_pauses: dict[str | None, str] = field(factory=dict)
    """The pauses of the worker's own program: the reason by lease key; the key ``None`` stands for all leases."""
    shunned: dict[str, float] = field(factory=dict)
    """Leases that were given up because their consumers stalled, and the time until which they are left to other
    workers."""
    released: dict[str, None] = field(factory=dict)
    """Leases that the user's processors left before the end of the shard, oldest first. This process never takes them
    again."""
    passed_on: dict[str, float] = field(factory=dict)
    """Leases that this worker must not read and has handed on, and the time when it did so."""
    heirs: Mapping[str, str] = field(factory=dict)
    """The worker that receives each lease when this worker stops, by lease key."""
    heirs_due_at: float | None = None
    """The time at which the receivers of hand-overs are decided even without a new scan; ``None`` if no hand-over waits
    for this decision."""
    missing: dict[str, NewLease] = field(factory=dict)
    """The rows that are still to be created after the last listing, parents first."""
    ends: ListedEnds = field(factory=ListedEnds)
    """The knowledge about which shards have ended, from all listings so far."""
    end_questions: dict[str, EndQuestion] = field(factory=dict)
    """The questions of consumers that wait for a listing that shows the end of their shard, by consumer id."""
    accepted_ends: dict[str, float] = field(factory=dict)
    """The shards that the worker's own program declared as ended, with the times of the declarations."""
    ordered_ends: dict[str, tuple[Pause, float]] = field(factory=dict)
    """The shards whose end an operator accepted, with the order and the time when this worker first saw the order."""
    listing: Listing | None = None
    previous_listing: Listing | None = None
    absent_since: dict[str, float] = field(factory=dict)
    reported: dict[tuple[str, str], None] = field(factory=dict)
    """The anomalies that were reported, by lease key and kind, oldest first."""
    is_stopping: bool = False
    is_scanning: bool = False
    wants_scan: bool = False
    scan_asked_at: float = 0.0
    scan_at: float | None = None
    """The time of the next scan outside this worker's turns; ``None`` if no such scan is planned."""
    scan_failures: int = 0
    has_turn: bool = False
    """Whether the scan that is wanted or running belongs to this worker's turn, on which the whole fleet relies."""
    may_steal: bool = False
    is_listing: bool = False
    wants_listing: bool = False
    listings_begun: int = 0
    is_sync_planned: bool = True
    listed_at: float = float("-inf")
    """The time when the last listing of the shards came, in monotonic seconds."""
    is_row_scan_fresh: bool = False
    """Whether the present event is the result of a scan. Only during such an event may a shard that waits for its
    parents request a listing, so it requests at most one listing per scan."""
    now: float = float("-inf")
    wall_offset_micros: float | None = None
    """The wall clock's microseconds since 1970 minus ``now`` in microseconds. Each scan updates the difference."""
    commands: list[Command] = field(factory=list)

    @property
    def duration_seconds(self) -> float:
        """The lease duration in seconds."""
        return self.config.lease_duration_millis / 1000

    @property
    def awaits_heirs(self) -> bool:
        """Whether hand-overs wait for a scan that decides their receivers."""
        return self.heirs_due_at is not None

    # --- time --------------------------------------------------------------------------------------------------

    def advance(self, now: float) -> None:
        """Advance the time, which never goes back.

        The first call also sets the wall clock's time at the start of the worker.
        """
        self.now = max(self.now, now)
        if self.wall_offset_micros is None:
            self.tell_wall_clock(self.start.worker_start_micros)

    def tell_wall_clock(self, wall_micros: int) -> None:
        """Record that the wall clock shows ``wall_micros`` now."""
        self.wall_offset_micros = wall_micros - self.now * MICROS_PER_SECOND

    def moment_of(self, wall_micros: int) -> float:
        """Return the time, in monotonic seconds, at which the wall clock shows ``wall_micros``."""
        return (wall_micros - (self.wall_offset_micros or 0.0)) / MICROS_PER_SECOND

    @property
    def wall_micros(self) -> int:
        """The wall clock's microseconds since 1970, as the last scan showed it."""
        return round(self.now * MICROS_PER_SECOND + (self.wall_offset_micros or 0.0))

    # --- held leases -------------------------------------------------------------------------------------------

    def keep(self, held: HeldLease) -> None:
        """Store the present state of a held lease, and update the lease's deadline."""
        key = held.lease.lease_key
        self.held[key] = held
        self.deadlines.set(key, self._due(held))

    def next_acquisition(self) -> Acquisition:
        """Begin and return a new acquisition: a time in which no other worker can have had the lease."""
        self.acquisitions += 1
        return Acquisition(self.acquisitions)

    def give_up(self, lease_key: str) -> HeldLease:
        """Remove and return a lease that this worker no longer holds."""
        self.deadlines.set(lease_key, None)
        self.waiting.pop(lease_key, None)
        return self.held.pop(lease_key)

    def _due(self, held: HeldLease) -> float:
        due = held.valid_until
        for moment in (held.doubt.not_before, held.acquisition.draw_again_at):
            if self.now < moment < due:
                due = moment
        pause = held.lease.pause
        if pause is not None and pause.until_micros is not None:
            end = self.moment_of(pause.until_micros)
            if self.now < end < due:
                due = end
        return due

    # --- flights -----------------------------------------------------------------------------------------------

    def launch(self, write: LeaseWrite, *, tries: int = 1) -> None:
        """Record that a write has been sent. The lease must have no other unanswered write."""
        key = write.lease_key
        if key in self.flights:
            raise AssertionError(f"{write} while {self.flights[key].write} is under way")
        self.flights[key] = Flight(write, tries=tries)
        if COUNTER in write.rule.if_same:
            self.compared[key] = max(write.seen.counter, self.compared.get(key, 0))
        self._count_flight(write, 1)

    def doubt(self, lease_key: str, flight: Flight) -> None:
        """Replace the flight of a lease, because the outcome of its write turned out to be in doubt."""
        self.flights[lease_key] = flight

    def read_later(self, lease_key: str) -> None:
        """Plan another read of the row of a write in doubt, after a pause, because a read failed."""
        flight = self.flights[lease_key]
        reads = flight.reads + 1
        self.flights[lease_key] = evolve(flight, reads=reads)
        self.rereads.set(lease_key, self.now + self.pause_seconds(reads + 1))

    def land(self, lease_key: str) -> Flight:
        """Remove and return the flight of a lease: its unanswered or doubtful write."""
        flight = self.flights.pop(lease_key)
        self.rereads.set(lease_key, None)
        self._count_flight(flight.write, -1)
        return flight

    def _count_flight(self, write: LeaseWrite, change: int) -> None:
        if write.kind is WriteKind.CREATE:
            self.creating += change
        elif write.kind is WriteKind.TRANSFER and write.result is not None:
            add(self.given, write.result.owner, change)

    @property
    def loads(self) -> Mapping[str, int]:
        """The number of leases of each worker, as last seen.

        Each hand-over that this worker has sent, and that is unanswered, adds a lease to its receiver.
        """
        loads = dict(self.view.credits(self.now))
        for receiver, number in self.given.items():
            loads[receiver] = loads.get(receiver, 0) + number
        return loads

    # --- commands ----------------------------------------------------------------------------------------------

    def emit(self, command: Command) -> None:
        """Add ``command`` to the list that ``Holdings.handle`` returns for the present event."""
        self.commands.append(command)

    def report(self, severity: Severity, lease_key: str, text: str) -> None:
        """Report ``text`` about a shard or, with an empty key, about the worker.

        The name of the worker and the key of the shard, if there is one, are added to the text.
        """
        shard = f", shard {lease_key}" if lease_key else ""
        self.emit(Report(severity, lease_key, f"worker {self.worker_id}{shard}: {text}"))

    def forget_report(self, lease_key: str, kind: str) -> None:
        """Forget a reported anomaly that is over, so that it is reported again if it returns."""
        self.reported.pop((lease_key, kind), None)

    def report_once(self, severity: Severity, lease_key: str, kind: str, text: str) -> None:
        """Report an anomaly the first time it occurs.

        Beyond ``MOST_REPORTED`` anomalies, the oldest are forgotten and may be reported again.
        """
        if (lease_key, kind) not in self.reported:
            self.reported[lease_key, kind] = None
            if len(self.reported) > MOST_REPORTED:
                del self.reported[next(iter(self.reported))]
            self.report(severity, lease_key, text)

    def pause_seconds(self, failures: int) -> float:
        """Return the pause after ``failures`` consecutive failures: 0 after the first, then doubling."""
        return lease_pause_seconds(failures, self.config)

    def scan_soon(self, seconds: float) -> None:
        """Scan after ``seconds`` if all workers have sessions. In any other fleet, every worker scans often anyway."""
        if self.signals.is_uniform:
            moment = self.now + seconds
            self.scan_at = moment if self.scan_at is None else min(moment, self.scan_at)

    def ask_pending(self) -> None:
        """Emit the scan and the listing that are wanted, each only after the previous one was answered.

        A scan also waits for a valid session, because no lease may be taken without a session, and for the end of a
        read of signals.
        """
        if self.scan_at is not None and self.scan_at <= self.now:
            self.wants_scan, self.scan_at = True, None
        can_scan = self.signals.may_hold(self.now) and not self.signals.is_reading
        if self.wants_scan and not self.is_scanning and can_scan:
            self.wants_scan, self.is_scanning, self.scan_asked_at = False, True, self.now
            self.emit(ReadRows())
        if self.wants_listing and not self.is_listing:
            self.wants_listing, self.is_listing = False, True
            self.listings_begun += 1
            self.emit(ListShards())
