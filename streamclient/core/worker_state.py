"""Everything that the parts of ``Holdings`` share: what is known, what is under way, and the commands being collected.

One thread owns it. Only the modules of this package that implement ``Holdings`` change it. Held leases and flights are
changed through its methods alone, which keep what is due when: an event about one lease costs nothing for the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random

from attrs import define, field, frozen

from streamclient.base.backoff import lease_pause_seconds
from streamclient.config import ClientConfig
from streamclient.core.deadlines import Deadlines
from streamclient.core.events import Command, ListShards, ReadRows, Report, Severity
from streamclient.core.held import Acquisition, HeldLease
from streamclient.core.leases import LeaseWrite
from streamclient.core.plan.loads import Loads
from streamclient.core.shards import ListedEnds, Listing, NewLease, Start
from streamclient.core.sightings import LeaseView, add
from streamclient.core.values import evolve
from streamclient.core.worker_signals import Signals
from streamclient.core.write_rules import COUNTER, WriteKind, WriteOutcome
from streamclient.model import BalanceBy

MICROS = 1_000_000

MOST_REPORTED = 10_000
"""Anomalies that are remembered so as not to be told twice: far more than one worker has leases."""


@frozen
class Flight:
    """A write under way. At most one per lease."""

    write: LeaseWrite
    outcome: WriteOutcome | None = None
    """Known once the write was answered: it is in doubt, and the row is being read."""
    reads: int = 0
    """How often reading the row has failed."""
    tries: int = 1
    """Which try of the same intention this is."""


@frozen
class EndQuestion:
    """A consumer wants to know whether its shard has ended."""

    lease_key: str
    begun: int
    """How many listings had begun when it asked: those know nothing of what it read."""
    is_refused: bool = False
    """Whether it was told that no listing shows it."""


@define(eq=False)
class WorkerState:
    """Owned by ``Holdings``."""

    worker_id: str
    config: ClientConfig
    start: Start
    rng: Random
    new_identifier: Callable[[], str]
    view: LeaseView
    signals: Signals
    measured: Loads
    balance_by: BalanceBy = BalanceBy.COUNT
    """What is made even at present: what this worker was told to, unless others were told something else."""
    held: dict[str, HeldLease] = field(factory=dict)
    flights: dict[str, Flight] = field(factory=dict)
    compared: dict[str, int] = field(factory=dict)
    """The greatest counter of each lease that a write of this worker compared with: it may land long after."""
    given: dict[str, int] = field(factory=dict)
    """Hand-overs under way, by receiver."""
    creating: int = 0
    """How many of the flights create rows."""
    begun_late: set[str] = field(factory=set)
    """Leases whose rows this worker created at a later place than their shards' beginning."""
    has_created: bool = False
    """Whether rows were created that nobody else knows of yet."""
    deadlines: Deadlines = field(factory=Deadlines)
    """When a held lease needs attention although nothing happens: at the latest when its validity ends."""
    rereads: Deadlines = field(factory=Deadlines)
    """When to read a row again whose write is in doubt, after a read failed."""
    running: dict[str, str] = field(factory=dict)
    """Lease key to identifier of each consumer that was started and has not been reported as stopped."""
    waiting: dict[str, str] = field(factory=dict)
    """Held leases that wait for an ancestor, and which one."""
    acquisitions: int = 0
    draws: dict[str, int] = field(factory=dict)
    """Epochs being drawn, by lease key, and for which acquisition."""
    unseen: set[str] = field(factory=set)
    """Held leases whose epoch waits for a look at the worker's own row."""
    own_pauses: dict[str | None, str] = field(factory=dict)
    """Reasons of the worker's own program, by lease key, or ``None`` for all leases."""
    shunned: dict[str, float] = field(factory=dict)
    """Leases given up because their consumers stalled, and until when they are left to others."""
    released: dict[str, None] = field(factory=dict)
    """Leases that the user's processor is done with, oldest first: never taken again in this life."""
    passed_on: dict[str, float] = field(factory=dict)
    """Leases that this worker shall not read and handed to another one, and when."""
    heirs: Mapping[str, str] = field(factory=dict)
    """To whom each lease goes while this worker stops."""
    awaits_heirs: bool = False
    """Whether nothing is handed over yet, because a scan will tell to whom."""
    missing: dict[str, NewLease] = field(factory=dict)
    """Rows still to create after the last listing, parents first."""
    missing_children: Mapping[str, list[str]] = field(factory=dict)
    """Those of them that wait for the row of a parent, by that parent."""
    circles: Mapping[str, tuple[str, ...]] = field(factory=dict)
    """Shards that come before themselves in the last listing, each with all of its circle."""
    ends: ListedEnds = field(factory=ListedEnds)
    """What the listings show of the ends of shards."""
    end_questions: dict[str, EndQuestion] = field(factory=dict)
    """Consumers that wait for a listing to show the end of their shard."""
    accepted_ends: set[str] = field(factory=set)
    """Shards that have ended, as the worker's own program says."""
    listing: Listing | None = None
    previous_listing: Listing | None = None
    absent_since: dict[str, float] = field(factory=dict)
    reported: dict[tuple[str, str], None] = field(factory=dict)
    """Anomalies already reported, by lease key and kind, oldest first."""
    is_stopping: bool = False
    is_scanning: bool = False
    wants_scan: bool = False
    scan_asked_at: float = 0.0
    scan_at: float | None = None
    """When to scan although it is not this worker's turn."""
    scan_failures: int = 0
    has_turn: bool = False
    """Whether the scan that is wanted or under way is of this worker's turn: the whole fleet relies on it."""
    may_steal: bool = False
    is_listing: bool = False
    wants_listing: bool = False
    listings_begun: int = 0
    is_sync_planned: bool = True
    listed_at: float = float("-inf")
    """When shards were last listed."""
    is_row_scan_fresh: bool = False
    """Whether the present event is a scan: only then may a waiting child ask for a listing, once per scan."""
    now: float = float("-inf")
    wall_offset_micros: float | None = None
    """What the wall clock shows beyond ``now``; learned anew with each scan."""
    commands: list[Command] = field(factory=list)

    @property
    def duration_seconds(self) -> float:
        """Lease duration in seconds."""
        return self.config.lease_duration_millis / 1000

    # --- time --------------------------------------------------------------------------------------------------

    def advance(self, now: float) -> None:
        """Time never goes back. When it is told first, the wall clock shows the start of the worker."""
        self.now = max(self.now, now)
        if self.wall_offset_micros is None:
            self.tell_wall_clock(self.start.worker_start_micros)

    def tell_wall_clock(self, wall_micros: int) -> None:
        """What the wall clock shows now."""
        self.wall_offset_micros = wall_micros - self.now * MICROS

    def moment_of(self, wall_micros: int) -> float:
        """When the wall clock will show a time, in the seconds that everything else is counted in."""
        return (wall_micros - (self.wall_offset_micros or 0.0)) / MICROS

    # --- held leases -------------------------------------------------------------------------------------------

    def keep(self, held: HeldLease) -> None:
        """Store the present state of a held lease, and remember when it is due."""
        key = held.lease.lease_key
        self.held[key] = held
        self.deadlines.set(key, self._due(held))

    def next_acquisition(self) -> Acquisition:
        """Begin one: nobody else can have had the lease since."""
        self.acquisitions += 1
        return Acquisition(self.acquisitions)

    def give_up(self, lease_key: str) -> HeldLease:
        """Hold a lease no more."""
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
        """A write goes out; the lease must have none under way."""
        key = write.lease_key
        if key in self.flights:
            raise AssertionError(f"{write} while {self.flights[key].write} is under way")
        self.flights[key] = Flight(write, tries=tries)
        if COUNTER in write.rule.if_same:
            self.compared[key] = max(write.seen.counter, self.compared.get(key, 0))
        self._count_flight(write, 1)

    def doubt(self, lease_key: str, flight: Flight) -> None:
        """Go on with a flight whose write has an outcome in doubt."""
        self.flights[lease_key] = flight

    def read_later(self, lease_key: str) -> None:
        """Reading the row of a flight failed: read it again after a pause."""
        flight = self.flights[lease_key]
        reads = flight.reads + 1
        self.flights[lease_key] = evolve(flight, reads=reads)
        self.rereads.set(lease_key, self.now + self.pause_seconds(reads + 1))

    def land(self, lease_key: str) -> Flight:
        """Nothing is under way for the lease any more."""
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
        """Leases per worker as last seen, with those that are being handed over now."""
        loads = dict(self.view.credits(self.now))
        for receiver, number in self.given.items():
            loads[receiver] = loads.get(receiver, 0) + number
        return loads

    # --- commands ----------------------------------------------------------------------------------------------

    def emit(self, command: Command) -> None:
        """Collect one command."""
        self.commands.append(command)

    def report(self, severity: Severity, lease_key: str, text: str) -> None:
        """Collect one report, about a shard or, with an empty key, the worker itself; the text gets the names."""
        shard = f", shard {lease_key}" if lease_key else ""
        self.emit(Report(severity, lease_key, f"worker {self.worker_id}{shard}: {text}"))

    def forget_report(self, lease_key: str, kind: str) -> None:
        """An anomaly is over: should it come back, it is news."""
        self.reported.pop((lease_key, kind), None)

    def report_once(self, severity: Severity, lease_key: str, kind: str, text: str) -> None:
        """Report an anomaly the first time it is met; of very many, the oldest are forgotten, and may be told again."""
        if (lease_key, kind) not in self.reported:
            self.reported[lease_key, kind] = None
            if len(self.reported) > MOST_REPORTED:
                del self.reported[next(iter(self.reported))]
            self.report(severity, lease_key, text)

    def pause_seconds(self, failures: int) -> float:
        """Pause after that many failures in a row: none after the first, then doubling."""
        return lease_pause_seconds(failures, self.config)

    def scan_soon(self, seconds: float) -> None:
        """Scan after a while, in a fleet in which nobody scans unasked for long."""
        if self.signals.is_uniform:
            moment = self.now + seconds
            self.scan_at = moment if self.scan_at is None else min(moment, self.scan_at)

    def ask_pending(self) -> None:
        """Emit the scan and the listing that the event made necessary, unless one is under way.

        Without a session nothing may be taken, so a scan waits for it, and for a read of signals to end.
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
