"""Everything that the parts of ``Holdings`` share: what is known, what is under way, and the commands being collected.

One thread owns it. Only the modules of this package that implement ``Holdings`` change it.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from attrs import define, field, frozen

from streamclient.config import ClientConfig
from streamclient.core.events import Command, ListShards, ReadRows, Report, Severity
from streamclient.core.leases import LeaseWrite, WriteOutcome
from streamclient.core.shards import Listing, NewLease, Start
from streamclient.core.tenancy import HeldLease
from streamclient.core.view import LeaseView

RETRY_SHARE = 0.05
"""Share of the lease duration before a failed write or read is repeated, doubling up to the renewal interval: one
second of the default twenty, so that several tries fit into what is left of a lease."""


@frozen
class Flight:
    """A write under way. At most one per lease."""

    write: LeaseWrite
    sent_at: float | None = None
    """Known once the write was answered: its outcome is in doubt, and the row is being read."""
    outcome: WriteOutcome | None = None
    read_again_at: float | None = None
    """When to read the row again, after a read failed."""
    reads: int = 0
    tries: int = 1
    """Which try of the same intention this is."""


@define(eq=False)
class Situation:
    """Owned by ``Holdings``."""

    worker_id: str
    config: ClientConfig
    start: Start
    rng: Random
    new_identifier: Callable[[], str]
    view: LeaseView
    held: dict[str, HeldLease] = field(factory=dict)
    flights: dict[str, Flight] = field(factory=dict)
    running: dict[str, str] = field(factory=dict)
    """Lease key to identifier of each consumer that was started and has not been reported as stopped."""
    released: set[str] = field(factory=set)
    """Leases that the user's processor is done with: never taken again in this life."""
    missing: dict[str, NewLease] = field(factory=dict)
    """Rows still to create after the last listing, parents first."""
    listing: Listing | None = None
    previous_listing: Listing | None = None
    absent_since: dict[str, float] = field(factory=dict)
    reported: set[tuple[str, str]] = field(factory=set)
    """Anomalies already reported, by lease key and kind."""
    is_stopping: bool = False
    is_scanning: bool = False
    wants_scan: bool = False
    scan_asked_at: float = 0.0
    may_steal: bool = False
    is_listing: bool = False
    wants_listing: bool = False
    is_sync_planned: bool = True
    is_row_scan_fresh: bool = False
    """Whether the present event is a scan: only then may a waiting child ask for a listing, once per scan."""
    now: float = 0.0
    commands: list[Command] = field(factory=list)

    @property
    def duration_seconds(self) -> float:
        """Lease duration in seconds."""
        return self.config.lease_duration_millis / 1000

    def emit(self, command: Command) -> None:
        """Collect one command."""
        self.commands.append(command)

    def report(self, severity: Severity, lease_key: str, text: str) -> None:
        """Collect one report; the text gets the worker's name."""
        self.emit(Report(severity, lease_key, f"worker {self.worker_id}, shard {lease_key}: {text}"))

    def report_once(self, severity: Severity, lease_key: str, kind: str, text: str) -> None:
        """Report an anomaly the first time it is met."""
        if (lease_key, kind) not in self.reported:
            self.reported.add((lease_key, kind))
            self.report(severity, lease_key, text)

    def pause_seconds(self, failures: int) -> float:
        """Pause after that many failures in a row: none after the first, then doubling."""
        if failures <= 1:
            return 0.0
        longest = self.config.renewer_interval_millis / 1000
        doublings = min(failures - 2, 16)
        return float(min(self.duration_seconds * RETRY_SHARE * 2**doublings, longest))

    def ask_pending(self) -> None:
        """Emit the scan and the listing that the event made necessary, unless one is under way."""
        if self.wants_scan and not self.is_scanning:
            self.wants_scan, self.is_scanning, self.scan_asked_at = False, True, self.now
            self.emit(ReadRows())
        if self.wants_listing and not self.is_listing:
            self.wants_listing, self.is_listing = False, True
            self.emit(ListShards())
