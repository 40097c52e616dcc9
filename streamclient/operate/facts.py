"""The facts about a fleet at one moment: values only. ``collection`` reads them, ``explanation`` judges them.

Times are microseconds since 1970 by the service's clock, which also stamps every cell. So the age of a heartbeat is
known from a single reading, whatever the clock of the operator's machine says.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from functools import cached_property

from attrs import evolve, field, frozen

from streamclient.base.reasons import Reason
from streamclient.base.times import MICROS_PER_SECOND
from streamclient.core.shard_tree import ShardTree
from streamclient.core.shards import Gates
from streamclient.core.worker_info import WorkerInfo
from streamclient.model import Lease, Shard


@frozen(kw_only=True)
class RowFacts:
    """One lease row as it was read."""

    shard_id: str
    lease: Lease | None
    """The lease; ``None`` if the row is not a lease."""
    problem: str = ""
    """The reason why the row is not a lease; empty if it is one."""
    is_of_unknown_version: bool = False
    """Whether the row was written by a version of this package that this version does not know."""
    beat_micros: int = 0
    """Time of the last write of the counter: by a heartbeat, a checkpoint or a change of owner."""
    checkpoint_micros: int = 0
    """Time of the last write of the checkpoint."""
    owner_micros: int = 0
    """Time of the last write of the owner: a worker took the lease, or it was handed over."""
    stealer_micros: int = 0
    """The time of the last write of the stealer, the worker that asks for the lease. Either it asked, or its request
    was cleared when the lease was taken."""
    pause_micros: int = 0
    """Time of the last write of the pause."""

    @property
    def why_unreadable(self) -> str:
        """The reason why no command of this version can change the lease; for rows that are not leases."""
        return self.problem if self.is_of_unknown_version else f"its row is malformed: {self.problem}"


class Process(Enum):
    """The state of a worker's process, as this machine sees it."""

    ELSEWHERE = "elsewhere"
    """The worker runs on another machine, or does not publish where it runs."""
    RUNNING = "running"
    STOPPED = "stopped"
    """The process exists but gets no processor time: SIGSTOP, a debugger, a frozen container."""
    GONE = "gone"


@frozen(kw_only=True)
class WorkerFacts:
    """One worker's session row as it was read."""

    name: str
    state: str
    """``running``, ``leaving`` or ``killed``."""
    nonce: str = ""
    """A value that is new for each process that runs under this name."""
    beat: int = 0
    beat_micros: int = 0
    info: WorkerInfo = field(factory=WorkerInfo)
    process: Process = Process.ELSEWHERE


@frozen(kw_only=True)
class HeadFacts:
    """The result of a read at a shard's checkpoint."""

    next_record_micros: int | None = None
    """Time of the next unread record; ``None`` if no record waits."""
    is_end: bool = False
    """True if the shard is closed and read to its end."""
    is_trimmed: bool = False
    """True if the position is past the stream's retention: records are lost."""
    problem: str = ""
    """The reason why the read failed; empty if it did not."""


@frozen(kw_only=True)
class StreamView:
    """The data table's stream."""

    table_name: str
    stream_id: str | None
    """The stream's id; ``None`` if the table's stream is off."""
    expiration_hours: int = 0
    listing: Mapping[str, Shard] | None = None
    """All shards that the stream lists; ``None`` if the list could not be read."""
    problem: str = ""
    """The reason why the stream could not be read, or not entirely; empty if all of it was read."""
    problem_code: str = ""


@frozen(kw_only=True)
class OperatorChange:
    """The last change of a lease by an operator."""

    at_micros: int
    who: str
    command: str
    outcome: str


@frozen(kw_only=True, slots=False)
class FleetFacts:
    """Everything that a verdict may rest on. Values that are derived for all shards are computed once."""

    now_micros: int
    lease_duration_seconds: float
    status_table_name: str
    stream: StreamView
    rows: Mapping[str, RowFacts] = field(factory=dict)
    earlier: Mapping[str, RowFacts] = field(factory=dict)
    """The same rows ``observed_seconds`` earlier; empty if they were read only once."""
    observed_seconds: float = 0.0
    workers: Mapping[str, WorkerFacts] = field(factory=dict)
    earlier_workers: Mapping[str, WorkerFacts] = field(factory=dict)
    heads: Mapping[str, HeadFacts] = field(factory=dict)
    """The result of the read at each shard's checkpoint; only of shards that were asked about. See ``head``."""
    former_rows: Mapping[str, RowFacts] = field(factory=dict)
    """Rows of a former stream of the same data table."""
    former_stream_id: str | None = None
    parked: Mapping[str, int] | None = None
    """Number of keys with parked records, by shard; ``None`` unless a parking store was named."""
    changes: Mapping[str, OperatorChange] = field(factory=dict)
    """The last change by an operator, by shard, among the audit rows that were read."""
    problem: str = ""
    """The reason why the status table could not be read; empty if it was."""
    problem_code: str = ""

    def age_seconds(self, micros: int) -> float:
        """Return the seconds since a stamp; never negative."""
        return max(0.0, (self.now_micros - micros) / MICROS_PER_SECOND)

    def lease(self, shard_id: str) -> Lease | None:
        """Return the shard's lease; ``None`` if it has no row or its row is not a lease."""
        row = self.rows.get(shard_id)
        return None if row is None else row.lease

    def head(self, shard_id: str) -> HeadFacts | None:
        """Return the result of the read at the shard's checkpoint, if there was one.

        Records that the owner has parked or skipped do not wait, although the checkpoint is before them.
        """
        found = self.heads.get(shard_id)
        return evolve(found, next_record_micros=None) if found is not None and self.is_set_aside(shard_id) else found

    def is_set_aside(self, shard_id: str) -> bool:
        """Return whether the shard's owner says that it has parked or skipped every record after the checkpoint."""
        lease = self.lease(shard_id)
        session = None if lease is None else self.workers.get(lease.owner)
        return session is not None and shard_id in session.info.set_aside

    def owner_reasons(self, shard_id: str) -> tuple[Reason, ...]:
        """Return the reasons that the shard's owner publishes for its wait; empty if it publishes none."""
        lease = self.lease(shard_id)
        session = None if lease is None else self.workers.get(lease.owner)
        trouble = None if session is None else session.info.shards.get(shard_id)
        return () if trouble is None else trouble.reasons

    def halted_record(self, shard_id: str) -> str:
        """Return the id of the record at which the shard stopped, as its owner publishes it; empty for none."""
        return next((reason.record_id for reason in self.owner_reasons(shard_id) if reason.record_id), "")

    @property
    def trouble(self) -> str:
        """The reason why the facts are not complete; empty if they are."""
        if self.problem:
            return f"status table {self.status_table_name} cannot be read: {self.problem}"
        if self.stream.problem:
            return f"the stream of table {self.stream.table_name} cannot be read: {self.stream.problem}"
        return ""

    @property
    def unreadable(self) -> str:
        """The reason why nothing can be said about any shard. It is empty if stream and status table could be read."""
        if self.trouble:
            return self.trouble
        has_leases = self.stream.stream_id is not None or self.former_rows
        return "" if has_leases else f"data table {self.stream.table_name!r} has no stream"

    @cached_property
    def leases(self) -> Mapping[str, Lease]:
        """All leases by shard."""
        return {key: row.lease for key, row in self.rows.items() if row.lease is not None}

    @cached_property
    def tree(self) -> ShardTree:
        """All known shards, as rows and listing show them."""
        return ShardTree.of(self.leases.values(), (self.stream.listing or {}).values())

    @cached_property
    def gates(self) -> Gates:
        """The gates of all shards: whether everything before a shard was processed."""
        return Gates(self.leases, self.stream.listing)

    @property
    def parents(self) -> Mapping[str, frozenset[str]]:
        """The parents of every known shard."""
        return self.tree.parents

    @cached_property
    def circles(self) -> Mapping[str, tuple[str, ...]]:
        """The shards that are their own ancestors in the stream's list, each with all shards of its cycle."""
        return ShardTree.of((self.stream.listing or {}).values()).circles

    @cached_property
    def children(self) -> Mapping[str, list[str]]:
        """The children of every shard that has children, in sorted order."""
        return {key: sorted(children) for key, children in self.tree.children.items()}

    @cached_property
    def owned(self) -> Mapping[str, list[Lease]]:
        """The leases of every worker that owns any, handed-over ones too. Leases without an owner are under ``""``."""
        owned: dict[str, list[Lease]] = {}
        for lease in self.leases.values():
            owned.setdefault(lease.owner, []).append(lease)
        return owned

    @cached_property
    def left_by(self) -> Mapping[str, frozenset[str]]:
        """The workers that have left a shard for good, by shard, as they publish it.

        They never take the shard again.
        """
        left: dict[str, frozenset[str]] = {}
        for name, session in self.workers.items():
            for shard_id in session.info.left:
                left[shard_id] = left.get(shard_id, frozenset()) | {name}
        return left

    @cached_property
    def beats(self) -> Mapping[str, int]:
        """Time of the last write to any lease of an owner, by owner.

        A lease that waits for its new owner was written by the worker that handed it over, so it counts for neither
        worker.
        """
        beats: dict[str, int] = {}
        for key, lease in self.leases.items():
            if lease.owner:
                written = 0 if lease.is_handed_over else self.rows[key].beat_micros
                beats[lease.owner] = max(beats.get(lease.owner, 0), written)
        return beats
