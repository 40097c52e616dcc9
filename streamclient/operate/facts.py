"""What is known about a fleet at one moment: values only. ``collection`` reads them, ``explanation`` judges them.

Times are microseconds since 1970 by the service's clock, which also stamps every cell. So the age of a heartbeat is
known from a single reading, whatever the clock of the operator's machine says.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from functools import cached_property

from attrs import field, frozen

from streamclient.base.times import MICROS_PER_SECOND
from streamclient.core.shard_tree import ShardTree
from streamclient.core.worker_info import WorkerInfo
from streamclient.model import Lease, Shard


@frozen(kw_only=True)
class RowFacts:
    """One lease row as it was read."""

    shard_id: str
    lease: Lease | None
    """``None`` if the row is no lease."""
    problem: str = ""
    """Why the row is no lease."""
    beat_micros: int = 0
    """When the counter was last written: by a heartbeat, a checkpoint or a change of owner."""
    checkpoint_micros: int = 0
    """When the checkpoint was last written."""
    owner_micros: int = 0
    """When the owner was last written: taken or handed over."""
    stealer_micros: int = 0
    """When the stealer was last written: marked, or cleared by a take."""
    pause_micros: int = 0
    """When the pause was last written."""


class Process(Enum):
    """What this machine says about a worker's process, if it runs here."""

    ELSEWHERE = "elsewhere"
    """It runs on another machine, or does not say where."""
    RUNNING = "running"
    STOPPED = "stopped"
    """It is there but gets no processor time: SIGSTOP, a debugger, a frozen container."""
    GONE = "gone"


@frozen(kw_only=True)
class WorkerFacts:
    """One worker's session row as it was read."""

    name: str
    state: str
    """``running``, ``leaving`` or ``killed``."""
    nonce: str = ""
    """New for each life of a process under this name."""
    beat: int = 0
    beat_micros: int = 0
    info: WorkerInfo = field(factory=WorkerInfo)
    process: Process = Process.ELSEWHERE


@frozen(kw_only=True)
class HeadFacts:
    """What a read at a shard's checkpoint gave."""

    next_record_micros: int | None = None
    """Time of the next unread record; ``None`` if nothing waits."""
    is_end: bool = False
    """The shard is closed, and everything in it was read."""
    is_trimmed: bool = False
    """The position is past the stream's retention: records are lost."""
    problem: str = ""
    """Why it could not be read."""

    def lag_seconds(self, now_micros: int) -> float | None:
        """How old the next unread record is; 0 if nothing waits, ``None`` if that is not known."""
        if self.problem or self.is_trimmed:
            return None
        if self.next_record_micros is None:
            return 0.0
        return max(0.0, (now_micros - self.next_record_micros) / MICROS_PER_SECOND)


@frozen(kw_only=True)
class StreamView:
    """The data table's stream."""

    table_name: str
    stream_id: str | None
    """``None`` if the table's stream is off."""
    expiration_hours: int = 0
    listing: Mapping[str, Shard] | None = None
    """All shards that the stream lists; ``None`` if that could not be read."""
    problem: str = ""
    """Why something of it could not be read."""
    problem_code: str = ""


@frozen(kw_only=True)
class OperatorChange:
    """What an operator last did to a lease."""

    at_micros: int
    who: str
    command: str
    outcome: str


@frozen(kw_only=True, slots=False)
class FleetFacts:
    """Everything that a verdict may rest on. What is derived from it for all shards is worked out once."""

    now_micros: int
    lease_duration_seconds: float
    status_table_name: str
    stream: StreamView
    rows: Mapping[str, RowFacts] = field(factory=dict)
    earlier: Mapping[str, RowFacts] = field(factory=dict)
    """The same rows ``observed_seconds`` before; empty if they were read only once."""
    observed_seconds: float = 0.0
    workers: Mapping[str, WorkerFacts] = field(factory=dict)
    earlier_workers: Mapping[str, WorkerFacts] = field(factory=dict)
    heads: Mapping[str, HeadFacts] = field(factory=dict)
    """By shard; only shards that were asked about."""
    former_rows: Mapping[str, RowFacts] = field(factory=dict)
    """Rows of a former stream of the same data table."""
    former_stream_id: str | None = None
    parked: Mapping[str, int] = field(factory=dict)
    """How many keys have parked records, by shard, if a store of them was named."""
    changes: Mapping[str, OperatorChange] = field(factory=dict)
    """The last change by an operator, by shard, as far back as was looked."""
    problem: str = ""
    """Why the status table could not be read."""
    problem_code: str = ""

    def age_seconds(self, micros: int) -> float:
        """How long ago a stamp was; never negative."""
        return max(0.0, (self.now_micros - micros) / MICROS_PER_SECOND)

    def lease(self, shard_id: str) -> Lease | None:
        """The shard's lease, if its row is one."""
        row = self.rows.get(shard_id)
        return None if row is None else row.lease

    @property
    def trouble(self) -> str:
        """Why the facts are not complete; empty if they are."""
        if self.problem:
            return f"status table {self.status_table_name} cannot be read: {self.problem}"
        if self.stream.problem:
            return f"the stream of table {self.stream.table_name} cannot be read: {self.stream.problem}"
        return ""

    @cached_property
    def leases(self) -> Mapping[str, Lease]:
        """All leases by shard."""
        return {key: row.lease for key, row in self.rows.items() if row.lease is not None}

    @cached_property
    def tree(self) -> ShardTree:
        """All known shards, as rows and listing show them."""
        return ShardTree.of(self.leases.values(), (self.stream.listing or {}).values())

    @property
    def parents(self) -> Mapping[str, frozenset[str]]:
        """The parents of every known shard."""
        return self.tree.parents

    @cached_property
    def circles(self) -> Mapping[str, tuple[str, ...]]:
        """Shards that come before themselves in the stream's list, each with all of its circle."""
        return ShardTree.of((self.stream.listing or {}).values()).circles

    @cached_property
    def children(self) -> Mapping[str, list[str]]:
        """The children of every shard that has some, sorted."""
        return {key: sorted(children) for key, children in self.tree.children.items()}

    @cached_property
    def beats(self) -> Mapping[str, int]:
        """By owner: when it last wrote any of its leases.

        A lease that waits for its new owner was written by the one that handed it over, so it counts for nobody.
        """
        beats: dict[str, int] = {}
        for key, lease in self.leases.items():
            if lease.owner:
                written = 0 if lease.is_handed_over else self.rows[key].beat_micros
                beats[lease.owner] = max(beats.get(lease.owner, 0), written)
        return beats
