"""The facts about a fleet at one time, as values. ``collection`` reads the facts; ``explanation`` explains them.

Times are microseconds since 1970 by the service's clock, which also stamps every cell of a table. So a single reading
shows the age of a heartbeat, even if the clock of the operator's machine is wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from enum import Enum
from functools import cached_property

from attrs import evolve, field, frozen

from streamclient.base.reasons import Reason
from streamclient.base.times import MICROS_PER_SECOND
from streamclient.core.shard_tree import ShardTree
from streamclient.core.shards import Gates
from streamclient.core.worker_info import WorkerInfo
from streamclient.model import Lease, ParkedKey, Shard

SILENT_SHARE = 0.5
"""The share of the lease duration after which a worker without a heartbeat is silent. A living worker gives a heartbeat
every third of the lease duration."""


@frozen(kw_only=True)
class RowFacts:
    """One lease row of the status table, as it was read, with the times of its last writes."""

    shard_id: str
    lease: Lease | None
    """The lease in the row; ``None`` if the row cannot be read as a lease."""
    problem: str = ""
    """The reason why the row cannot be read as a lease; empty if it can."""
    is_of_unknown_version: bool = False
    """Whether an unknown version of this package wrote the row, for example a newer version."""
    beat_micros: int = 0
    """The time at which the lease's counter was last written: by a renewal, a checkpoint or a change of owner."""
    checkpoint_micros: int = 0
    """The time at which the lease's checkpoint was last written."""
    owner_micros: int = 0
    """The time at which the lease's owner was last written: a worker took, released or handed over the lease."""
    stealer_micros: int = 0
    """The time at which the stealer, the worker that asks for the lease, was last written. Either a worker asked, or a
    worker took the lease and so cleared the request."""
    pause_micros: int = 0
    """The time at which an operator's pause was last written to the row."""

    @property
    def why_unreadable(self) -> str:
        """The reason why the running version of this package cannot read the row, and so cannot change it.

        Use this property only if ``lease`` is ``None``.
        """
        return self.problem if self.is_of_unknown_version else f"its row is malformed: {self.problem}"


class Process(Enum):
    """The state of a worker's process, as this machine sees it."""

    ELSEWHERE = "elsewhere"
    """The worker runs on another machine or in another container, or does not publish where it runs."""
    RUNNING = "running"
    STOPPED = "stopped"
    """The process exists but gets no processor time: SIGSTOP, a debugger, a frozen container."""
    GONE = "gone"


@frozen(kw_only=True)
class WorkerFacts:
    """One worker's session row in the status table, as it was read, and the state of the worker's process."""

    name: str
    state: str
    """The state of the session: ``running``, ``leaving`` or ``killed``."""
    nonce: str = ""
    """A value that differs for each process that runs under this worker name."""
    beat: int = 0
    beat_micros: int = 0
    info: WorkerInfo = field(factory=WorkerInfo)
    process: Process = Process.ELSEWHERE


@frozen(kw_only=True)
class HeadFacts:
    """The facts about a shard's next unread record, from a read at its checkpoint."""

    next_record_micros: int | None = None
    """The time at which the next unread record was written; ``None`` if no unread record is known."""
    is_end: bool = False
    """True if the shard is closed and read to its end."""
    is_trimmed: bool = False
    """True if records at the checkpoint are lost, because they are older than the stream's retention."""
    problem: str = ""
    """The reason why the read failed; empty if it succeeded."""


@frozen(kw_only=True)
class StreamView:
    """The data table's stream as it was read: its id, its retention, and its list of shards."""

    table_name: str
    stream_id: str | None
    """The stream's id; ``None`` if the table's stream is off."""
    expiration_hours: int = 0
    listing: Mapping[str, Shard] | None = None
    """All shards that the stream lists; ``None`` if the list could not be read."""
    problem: str = ""
    """The reason why the stream, or a part of it, could not be read; empty if all of the stream was read."""
    problem_code: str = ""


@frozen(kw_only=True)
class OperatorChange:
    """The last change of a lease by an operator, from the audit row of the change."""

    at_micros: int
    who: str
    command: str
    outcome: str


def parked_counts(keys: Iterable[ParkedKey]) -> Counter[str]:
    """Return the number of keys with parked records, by shard. A key of several fleets counts once."""
    return Counter(shard_id for _, shard_id in {(key.key, key.shard_id) for key in keys})


@frozen(kw_only=True, slots=False)
class FleetFacts:
    """All facts about a fleet from which verdicts are derived.

    A property that describes all shards is computed at its first use, and then kept.
    """

    now_micros: int
    lease_duration_seconds: float
    status_table_name: str
    stream: StreamView
    rows: Mapping[str, RowFacts] = field(factory=dict)
    earlier: Mapping[str, RowFacts] = field(factory=dict)
    """The rows of an earlier reading, made ``observed_seconds`` before ``rows``; empty if the rows were read only
    once."""
    observed_seconds: float = 0.0
    workers: Mapping[str, WorkerFacts] = field(factory=dict)
    earlier_workers: Mapping[str, WorkerFacts] = field(factory=dict)
    heads: Mapping[str, HeadFacts] = field(factory=dict)
    """The facts about the next unread record of each shard for which they were requested. Parked and skipped records
    count as unread here, but not in the result of ``head``."""
    former_rows: Mapping[str, RowFacts] = field(factory=dict)
    """The lease rows of a former stream of the same data table."""
    former_stream_id: str | None = None
    parked: Mapping[str, int] | None = None
    """The number of keys with parked records, by shard; ``None`` if the operator named no parking store."""
    changes: Mapping[str, OperatorChange] = field(factory=dict)
    """The last change of each shard by an operator, among the audit rows that were read."""
    problem: str = ""
    """The reason why the status table could not be read; empty if the read succeeded."""
    problem_code: str = ""

    def age_seconds(self, micros: int) -> float:
        """Return the seconds from the time ``micros`` to the time of the facts; at least 0."""
        return max(0.0, (self.now_micros - micros) / MICROS_PER_SECOND)

    def lease(self, shard_id: str) -> Lease | None:
        """Return the shard's lease; ``None`` if the shard has no row, or if its row is not a lease."""
        row = self.rows.get(shard_id)
        return None if row is None else row.lease

    def head(self, shard_id: str) -> HeadFacts | None:
        """Return the facts about the shard's next unread record; ``None`` if nothing was read at its checkpoint.

        Records that the owner has parked or skipped do not count as unread, although the checkpoint is before them. So
        they do not count as lost, either, when the stream no longer keeps them.
        """
        found = self.heads.get(shard_id)
        if found is None or not self.is_set_aside(shard_id):
            return found
        return evolve(found, next_record_micros=None, is_trimmed=False)

    def is_set_aside(self, shard_id: str) -> bool:
        """Return whether the shard's owner says that it has parked or skipped every record after the checkpoint.

        Only an owner that lives is believed: later records may come after the last heartbeat of another owner.
        """
        lease = self.lease(shard_id)
        session = None if lease is None else self.workers.get(lease.owner)
        if session is None or session.state == "killed" or self.is_silent(session.beat_micros):
            return False
        return shard_id in session.info.set_aside

    def is_silent(self, beat_micros: int) -> bool:
        """Return whether a worker is silent whose last heartbeat came at ``beat_micros``."""
        return self.age_seconds(beat_micros) > self.lease_duration_seconds * SILENT_SHARE

    def owner_reasons(self, shard_id: str) -> tuple[Reason, ...]:
        """Return the reasons that the shard's owner publishes for its wait; empty if it publishes none."""
        lease = self.lease(shard_id)
        session = None if lease is None else self.workers.get(lease.owner)
        trouble = None if session is None else session.info.shards.get(shard_id)
        return () if trouble is None else trouble.reasons

    def halted_record(self, shard_id: str) -> str:
        """Return the id of the record at which the shard stopped; empty if the owner publishes no such record."""
        return next((reason.record_id for reason in self.owner_reasons(shard_id) if reason.record_id), "")

    @property
    def trouble(self) -> str:
        """The reason why the facts are not complete; empty if the facts are complete."""
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
        """The leases of all rows that can be read as leases, by shard id."""
        return {key: row.lease for key, row in self.rows.items() if row.lease is not None}

    @cached_property
    def tree(self) -> ShardTree:
        """The tree of parents and children of all shards in lease rows or in the stream's list."""
        return ShardTree.of(self.leases.values(), (self.stream.listing or {}).values())

    @cached_property
    def gates(self) -> Gates:
        """The gates of all shards. A gate tells whether all ancestors of a shard were processed."""
        return Gates(self.leases, self.stream.listing)

    @property
    def parents(self) -> Mapping[str, frozenset[str]]:
        """The parents of every known shard, by shard id."""
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
        """The leases of each owner. A handed-over lease is under its new owner.

        Leases without an owner are under ``""``.
        """
        owned: dict[str, list[Lease]] = {}
        for lease in self.leases.values():
            owned.setdefault(lease.owner, []).append(lease)
        return owned

    @cached_property
    def left_by(self) -> Mapping[str, frozenset[str]]:
        """The workers that have left a shard for good, by shard.

        Each worker publishes which shards it has left. It never takes these shards again.
        """
        left: dict[str, frozenset[str]] = {}
        for name, session in self.workers.items():
            for shard_id in session.info.left:
                left[shard_id] = left.get(shard_id, frozenset()) | {name}
        return left

    @cached_property
    def beats(self) -> Mapping[str, int]:
        """The time at which each owner of leases last wrote one of them, by the owner's name; 0 if it wrote none.

        A lease that was handed over to the owner does not count, because its former owner wrote it.
        """
        beats: dict[str, int] = {}
        for key, lease in self.leases.items():
            if lease.owner:
                written = 0 if lease.is_handed_over else self.rows[key].beat_micros
                beats[lease.owner] = max(beats.get(lease.owner, 0), written)
        return beats
