"""Values that users meet: leases, shards, positions, states, parked records, metrics. All frozen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any

from attrs import asdict, field, frozen

from streamclient.base import checks
from streamclient.base.reasons import BEFORE_READING, Reason, ReasonKind
from streamclient.base.times import utc_text
from streamclient.errors import ConfigurationError
from streamclient.records import ColumnType, PrimaryKey, SequenceInfo, StreamRecord, readable_position


def _frozen_names(names: Iterable[str]) -> frozenset[str]:
    return frozenset(names)


class CheckpointPosition:
    """The two checkpoint values that are not iterators (Java: ``CheckpointPosition``)."""

    TRIM_HORIZON = "TRIM_HORIZON"
    """The oldest record that the stream still keeps."""

    SHARD_END = "SHARD_END"
    """The shard is closed and everything in it was processed; this is what lets its children start."""


@frozen
class PendingCheckpoint:
    """The first half of a two-phase checkpoint: what a sink is about to commit, as stored beside the checkpoint."""

    value: str
    """The position behind the batch."""
    state: bytes
    """What the sink wants to know after a crash, for example the name of its transaction."""
    records: int
    """How many records lie between the stored checkpoint and ``value``: a repeated batch is cut at the same record."""
    epoch: int
    """Epoch of the acquisition that prepared it."""
    last: SequenceInfo | None = field(default=None, eq=False)
    """The last of these records, by which the batch is found though others of it have left the stream meanwhile;
    ``None`` where nobody has stored it. It says no more than the rest, so it makes no difference."""

    def survives(self, value: str, stored: str) -> bool:
        """Whether it is still prepared once ``value`` is the checkpoint in place of ``stored``.

        Whoever stores once more what is stored already says nothing of the batch behind it, which a sink may have
        committed: a processor does so that failed before it looked, and stores its position at its end.
        """
        return value == stored != self.value


@frozen
class Pause:
    """An operator's order to hold a shard without reading it. Python workers obey it; Java workers do not know it."""

    request_id: str
    """New for each order, so that an old answer cannot pass for a new one."""
    by: str
    reason: str
    until_micros: int | None = None
    """Microseconds since 1970 by the clock of whoever obeys; ``None`` until it is resumed."""
    accepts_end: bool = False
    """Whether the order is to believe that the shard has ended. Such an order holds nothing: its time is over from the
    beginning, and it counts for a while from then on."""

    def as_plain(self) -> dict[str, Any]:
        """Its fields, as they are stored and printed: that of the end only where it says something."""
        plain = asdict(self)
        if not self.accepts_end:
            del plain["accepts_end"]
        return plain


@frozen
class Progress:
    """What was processed up to the stored checkpoint; kept beside it, for operators and for balancing by load."""

    record_micros: int
    """Time of the newest processed record, by the service's clock, in microseconds since 1970; 0 before the first."""
    records: int
    """Processed since the lease was created, repetitions included."""
    bytes: int
    """Of the processed records, as read from the service."""


@frozen(eq=True)
class Lease:
    """One row of the status table: who reads one shard, and how far it got.

    A lease is a snapshot. Operations never change it in place; each conditional operation compares the row with the
    snapshot it is given, and a caller that was accepted derives the next snapshot itself.
    """

    lease_key: str
    """The shard id (column ``StatusValue``)."""
    stream_id: str
    owner: str = ""
    """Worker identifier; empty when the lease was never owned."""
    counter: int = 0
    """Optimistic lock and heartbeat: every write of an owner moves it by one."""
    stealer: str = ""
    """Worker that asked for the lease; equal to ``owner`` when it was handed over and not yet picked up."""
    checkpoint: str = CheckpointPosition.TRIM_HORIZON
    """``TRIM_HORIZON``, ``SHARD_END``, or the iterator of the next record to read."""
    parent_shard_ids: frozenset[str] = field(default=frozenset(), converter=_frozen_names)

    # From here on: columns of our own. Java workers leave them alone; they vanish if a row is put anew.
    pending: PendingCheckpoint | None = None
    pause: Pause | None = None
    pause_taken: str = ""
    """The pause that the owner obeys by now, as ``<request id> <owner>``: nothing reads the shard any more."""
    progress: Progress | None = None

    @property
    def is_paused_by_owner(self) -> bool:
        """Whether the present owner has stopped reading because of the present pause."""
        return self.pause is not None and self.pause_taken == f"{self.pause.request_id} {self.owner}"

    @property
    def is_finished(self) -> bool:
        """Whether everything in the shard was processed."""
        return self.checkpoint == CheckpointPosition.SHARD_END

    @property
    def is_marked(self) -> bool:
        """Whether another worker asked its present owner for it."""
        return self.stealer not in ("", self.owner)

    @property
    def is_handed_over(self) -> bool:
        """Whether it waits for the worker named as owner to pick it up."""
        return self.owner != "" and self.stealer == self.owner

    def __str__(self) -> str:
        where = readable_position(self.checkpoint)
        return f"{self.lease_key}({self.owner or '-'}, {self.stealer or '-'}, {self.counter}, {where})"


@frozen
class Shard:
    """One shard: a split leaves two children with one parent; a merge leaves one with a parent and its sibling."""

    shard_id: str
    parent_id: str | None = None
    parent_sibling_id: str | None = None

    @property
    def parent_shard_ids(self) -> frozenset[str]:
        """The parents that the stream names; they may already have left the listing."""
        return frozenset(parent for parent in (self.parent_id, self.parent_sibling_id) if parent)


@frozen
class ShardInfo:
    """The shard that a processor works on."""

    shard_id: str
    stream_id: str
    parent_shard_ids: frozenset[str]
    lease_identifier: str
    """New for each acquisition: the same shard acquired again has another one, however soon, and by whichever worker.
    Processors that follow each other without the lease being acquired in between are told the same."""
    epoch: int = 0
    """Grows with each acquisition by a Python worker, also if the lease's row was deleted or put anew in between: a
    destination that remembers the greatest it has seen can refuse a late writer."""
    table_name: str = ""
    """The data table, as the ``StreamConfig`` names it."""


class ShutdownReason(Enum):
    """Why a processor is asked to stop (Java: ``ShutdownReason``)."""

    ZOMBIE = "ZOMBIE"
    """The lease is lost. Checkpoints are refused; another worker may already be reading."""

    TERMINATE = "TERMINATE"
    """The shard ended. Call ``checkpointer.checkpoint()`` to record it: children wait for that."""

    STOLEN = "STOLEN"
    """The lease is about to be handed to another worker, in balancing or because this worker stops.
    It is still held: a checkpoint works, and the next owner continues from it."""

    PAUSED = "PAUSED"
    """Somebody paused the shard or the worker. The lease stays held: a checkpoint works, and a new processor continues
    from it on this worker or the next owner. The Java client has no such reason."""

    PROCESS_DONE = "PROCESS_DONE"
    """The processor's own marker, ``mark_for_process_done``. Still held: a checkpoint works."""

    PROCESS_RESTART = "PROCESS_RESTART"
    """The processor's own marker, ``mark_for_process_restart``, or its own failure: a new processor will start
    from the stored checkpoint. Still held: a checkpoint works, but never covers a batch that failed."""


class WorkerStatus(Enum):
    """State of a worker (Java: ``WorkerStatus``)."""

    NOT_RUNNING = "NOT_RUNNING"
    RUNNING = "RUNNING"
    SHUTDOWN = "SHUTDOWN"
    ERROR = "ERROR"


class ShardState(Enum):
    """State of one held shard, as ``Worker.shard_statuses`` reports it."""

    WAITING_ON_PARENT_SHARDS = "WAITING_ON_PARENT_SHARDS"
    INITIALIZING = "INITIALIZING"
    """A processor is being made, or will be once what ``reason`` names is over."""

    PROCESSING = "PROCESSING"
    PAUSED = "PAUSED"
    """Held, and not read because somebody said so; ``reason`` says who. The Java client has no such state."""

    SHUTTING_DOWN = "SHUTTING_DOWN"
    SHUTDOWN_COMPLETE = "SHUTDOWN_COMPLETE"


@frozen
class TrimmedRange:
    """Records that were deleted by the stream's retention before they were read: what is known of where they lay."""

    shard_id: str
    position: str
    """Where reading stood: everything from here to ``first_left`` is lost."""
    last_processed_micros: int | None
    """Time of the last record that was processed, by the service's clock, in microseconds since 1970; ``None`` if
    none is known."""
    last_processed: SequenceInfo | None
    """Its place in the shard; ``None`` if an earlier process read it."""
    first_left: SequenceInfo | None
    """Place and time of the oldest record that was still there when the loss was met; ``None`` if there was none."""

    def __str__(self) -> str:
        return (
            f"records behind position {readable_position(self.position)} are past the stream's retention and lost: "
            f"from after {self._last_processed()} up to before {self._first_left()}"
        )

    def _last_processed(self) -> str:
        if self.last_processed is not None:
            return f"the record {self.last_processed} of {utc_text(self.last_processed.timestamp_micros)}"
        if self.last_processed_micros is not None:
            return f"the record of {utc_text(self.last_processed_micros)}"
        return "a position with no processed record known before it"

    def _first_left(self) -> str:
        if self.first_left is None:
            return "whatever comes next, as nothing is left"
        return f"the record {self.first_left} of {utc_text(self.first_left.timestamp_micros)}, the oldest one left"


@frozen
class ShardStatus:
    """What one held shard is doing, and, where it does not move, the named reason."""

    shard_id: str
    state: ShardState
    checkpoint: str
    reason: str = ""
    """Why the shard does not move, naming the parent, error or call it waits for; empty while it moves."""
    failures: int = 0
    """Failures of the processor in a row since the last batch that succeeded."""
    reason_kind: ReasonKind = ReasonKind.NONE
    user_code_seconds: float = 0.0
    """How long the present call into user code has been running; 0.0 when none is."""
    lag_seconds: float | None = None
    """Age of the oldest record that may be unread, so how far the shard is behind; 0.0 when it is caught up, ``None``
    while nothing is known. See ``docs/retention.md`` for the clock it is measured by."""
    time_to_loss_seconds: float | None = None
    """How long the stream still keeps the oldest record that may be unread; ``None`` when nothing is unread, or while
    nothing is known."""
    forecast: str = ""
    """Whether the shard is caught up, when it will be, or when records will be lost; empty while nothing is known."""
    lost: TrimmedRange | None = None
    """What was lost, if the shard stopped for that."""
    reasons: tuple[Reason, ...] = ()
    """What ``reason`` puts into words, for programs; the first one gives ``reason_kind``."""

    @property
    def has_consumer(self) -> bool:
        """Whether the shard has a processor on this worker, or gets one without waiting for anything but time."""
        if self.state in (ShardState.WAITING_ON_PARENT_SHARDS, ShardState.PAUSED, ShardState.SHUTDOWN_COMPLETE):
            return False
        is_about_to_start = self.state is ShardState.INITIALIZING
        return not (is_about_to_start and any(reason.cause in BEFORE_READING for reason in self.reasons))


@checks.explains_names
@frozen
class InitialPosition:
    """Where a shard without a stored checkpoint starts. Use one of the three constructors."""

    kind: str = field(
        validator=checks.Check("one of oldest, latest and timestamp", ("oldest", "latest", "timestamp").__contains__)
    )
    timestamp_micros: int | None = field(default=None, validator=checks.optional(checks.micros))

    def __attrs_post_init__(self) -> None:
        if (self.kind == "timestamp") != (self.timestamp_micros is not None):
            raise ConfigurationError(
                f"timestamp_micros={self.timestamp_micros!r} does not go with kind={self.kind!r}: use "
                "InitialPosition.oldest(), .latest() or .at(micros)"
            )

    @classmethod
    def oldest(cls) -> InitialPosition:
        """Start at the oldest record that the stream still keeps."""
        return cls("oldest")

    @classmethod
    def latest(cls) -> InitialPosition:
        """Start at the moment when the lease is created; children of such shards start at their beginning."""
        return cls("latest")

    @classmethod
    def at(cls, timestamp_micros: int) -> InitialPosition:
        """Start at records written at or after a time in microseconds since 1970; a few earlier ones may come too."""
        return cls("timestamp", timestamp_micros)


class OnFailure(Enum):
    """What happens to a record whose processing keeps failing."""

    RESTART = "RESTART"
    """A new processor starts from the stored checkpoint, after a pause that grows, for ever. Nothing is set aside."""

    STOP_SHARD = "STOP_SHARD"
    """The shard stops and names the record; its lease stays held until somebody decides."""

    PARK = "PARK"
    """The record is stored in the parking store, and the shard goes on behind it."""


@frozen
class ParkedRecord:
    """A record that was set aside because it could not be processed, or because an earlier one of its key was."""

    record_id: str
    """Names the change within its shard: its place in the shard's order and a digest of its content. The ids of a shard
    sort as its records; the same record parked again, after a crash, has the same id, however the pages were cut."""
    stream_id: str
    shard_id: str
    record: StreamRecord
    position: str
    """Where the page with it was read: an iterator, or ``TRIM_HORIZON``."""
    index: int
    """Its place in that page, from 0."""
    generation: int
    """1 in the shard where a record of its key was parked first, and one more in each child shard after that. The
    records of a key are replayed by generation, then by ``record_id``."""
    error: str
    """Type and text of what was raised, or why it was set aside without being tried."""
    traceback: str
    """Where it was raised; empty if it was not tried."""
    attempts: int
    """Calls of ``process_records`` that failed with it; 0 if it was not tried."""
    parked_micros: int
    """When it was parked, in microseconds since 1970 by the clock of the worker's machine."""


class BalanceBy(Enum):
    """What is made even among the workers of a fleet."""

    COUNT = "count"
    """Numbers of leases."""

    RECORDS = "records"
    """Records per second."""

    BYTES = "bytes"
    """Bytes per second, as read from the service."""


@frozen
class ParkedKey:
    """A primary key that has parked records in a shard."""

    key: PrimaryKey
    shard_id: str
    first_record_id: str
    """The smallest of them in this shard."""
    generation: int
    """Theirs."""


class TrimmedDataPolicy(Enum):
    """What to do with a shard whose next records are past retention. Either way it is reported first."""

    STOP_SHARD = "STOP_SHARD"
    """Keep the lease, read nothing, and say so in the shard's status until an operator decides."""

    RESTART_AT_OLDEST = "RESTART_AT_OLDEST"
    """Log the loss and continue with the oldest record that is left."""


class MetricKind(Enum):
    """How the values of a metric are to be read."""

    COUNTER = "counter"
    """Only grows, from zero at the start of the process."""

    GAUGE = "gauge"
    """The present state."""

    HISTOGRAM = "histogram"
    """How long each of many things took, in seconds."""


@frozen(eq=False, repr=False)
class Metric:
    """One thing that is measured. ``streamclient.metrics.metric_table`` has them all; each is equal to itself only."""

    name: str
    """As Prometheus wants it: with the unit at the end, and ``_total`` behind that for a counter."""
    kind: MetricKind
    unit: str
    """In UCUM as OpenTelemetry wants it: ``s``, ``By``, or what is counted, in braces."""
    help: str
    """What one value says, in a sentence."""
    labels: tuple[str, ...]
    """What tells its series apart; every value comes with exactly these."""

    @property
    def dotted_name(self) -> str:
        """As OpenTelemetry wants it: words joined by dots, without unit and ``_total``, which its exporters add."""
        plain = self.name.removesuffix("_total").removesuffix("_seconds").removesuffix("_bytes")
        return plain.replace("_", ".")

    def __repr__(self) -> str:
        return f"<{self.kind.value} {self.name}>"


@frozen
class TableDefinition:
    """Name, key and declared columns of a table, as DescribeTable gives them."""

    table_name: str
    primary_key: tuple[tuple[str, ColumnType], ...]
    """Key columns as (name, type), in key order."""
    defined_columns: Mapping[str, ColumnType] = field(factory=dict)
    """Attribute columns that the table declares; rows may hold others."""
