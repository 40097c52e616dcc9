"""Public values: leases, shards, positions, states, parked records, metrics. All of them are immutable."""

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
    """The position of the oldest record that the stream still keeps."""

    SHARD_END = "SHARD_END"
    """The end of a closed shard: all its records were processed, and its child shards may start."""


@frozen
class PendingCheckpoint:
    """The first half of a two-phase checkpoint, stored beside the checkpoint: a batch will be committed to a sink."""

    value: str
    """The position after the batch, to be stored as the checkpoint."""
    state: bytes
    """The sink's own data for use after a crash, for example the name of its transaction."""
    records: int
    """The number of records between the stored checkpoint and ``value``. With this number, a worker ends the repeated
    batch at the same record."""
    epoch: int
    """The epoch of the acquisition that prepared the checkpoint."""
    last: SequenceInfo | None = field(default=None, eq=False)
    """The position of the last record of the batch; ``None`` if it was not stored.

    With this position a worker finds the batch even if other records of the batch have left the stream meanwhile.
    Comparisons leave the field out, because it repeats the information of other fields."""

    def survives(self, value: str, stored: str) -> bool:
        """Return whether this checkpoint stays prepared when ``value`` replaces ``stored`` as the checkpoint.

        If ``value`` equals ``stored``, the write only repeats the stored position. Such a write says nothing about the
        batch after that position, which the sink may have committed. A processor makes such a write if it fails before
        it has read the pending checkpoint, and then stores its unchanged position in ``shutdown``.
        """
        return value == stored != self.value


@frozen
class Pause:
    """An operator's order to hold a shard without reading it. Java workers do not know such orders."""

    request_id: str
    """The id of this order. Each order has a new id, so ``Lease.pause_taken`` shows which order an owner obeyed."""
    by: str
    reason: str
    until_micros: int | None = None
    """The end of the pause in microseconds since 1970, by the clock of the worker that obeys; ``None`` if the pause
    lasts until an operator ends it."""
    accepts_end: bool = False
    """Whether the order accepts that the shard has ended, although the list of shards does not show the end. Such an
    order pauses nothing, so its ``until_micros`` is already past when an operator writes the order. Workers accept the
    end for some time after ``until_micros``."""

    def as_plain(self) -> dict[str, Any]:
        """Return the fields as they are stored and printed; ``accepts_end`` is left out if it is ``False``."""
        return {name: value for name, value in asdict(self).items() if name != "accepts_end" or value}


@frozen
class RecordOrder:
    """An operator's order to park or drop some records of a shard instead of delivering them.

    The order moves no checkpoint. It stays in the lease's row until the stored checkpoint is after all these records.
    Python workers obey the order; Java workers do not know it.
    """

    request_id: str
    by: str
    reason: str
    at_micros: int
    """The time at which the operator gave the order, in microseconds since 1970."""
    until_micros: int
    """The time at which the order expires, in microseconds since 1970, by the clock of the worker that obeys. By then
    the stream no longer keeps any of the records."""
    record_ids: tuple[str, ...]
    """The ids of the records, in the form of ``ParkedRecord.record_id``."""
    parking_table: str = ""
    """The table in which the records of the order are parked, unless the worker has a parking store of its own."""
    parking_directory: str = ""
    """The directory in which the records of the order are parked. If neither a table nor a directory is given, the
    records are dropped."""

    @property
    def is_skip(self) -> bool:
        """Whether the order drops its records instead of parking them."""
        return not self.parking_table and not self.parking_directory


@frozen
class Progress:
    """The records and bytes processed up to the stored checkpoint, and the time of the newest of these records."""

    record_micros: int
    """The time of the newest processed record, by the service's clock, in microseconds since 1970; 0 before the first
    record."""
    records: int
    """The number of records processed since the lease was created; repeated records count again."""
    bytes: int
    """The size in bytes of the processed records, as the service sent them."""


@frozen(eq=True)
class Lease:
    """One row of the status table: the worker that may read a shard, and how far the shard was processed.

    A lease is a snapshot. Operations never change it in place: each conditional operation compares the row with the
    given snapshot, and after a success the caller derives the next snapshot itself.
    """

    lease_key: str
    """The id of the shard, which is the key of the row (column ``StatusValue``)."""
    stream_id: str
    owner: str = ""
    """The owner's worker identifier; empty if no worker owns the lease."""
    counter: int = 0
    """A number to which every write of an owner adds 1. The number serves as optimistic lock and as heartbeat."""
    stealer: str = ""
    """The worker that asked for the lease. It is equal to ``owner`` after a hand-over, until the new owner picks the
    lease up."""
    checkpoint: str = CheckpointPosition.TRIM_HORIZON
    """``TRIM_HORIZON``, ``SHARD_END``, or the iterator of the next record to read."""
    parent_shard_ids: frozenset[str] = field(default=frozenset(), converter=_frozen_names)

    # Only this package writes the columns below. Java workers leave them unchanged; a row that is created again lacks
    # them.
    pending: PendingCheckpoint | None = None
    pause: Pause | None = None
    pause_taken: str = ""
    """The pause for which the owner has stopped reading the shard, written as ``<request id> <owner>``."""
    progress: Progress | None = None
    orders: tuple[RecordOrder, ...] = ()

    @property
    def is_paused_by_owner(self) -> bool:
        """Whether the present owner has stopped reading because of the present pause."""
        return self.pause is not None and self.pause_taken == f"{self.pause.request_id} {self.owner}"

    @property
    def is_finished(self) -> bool:
        """Whether all records of the shard were processed."""
        return self.checkpoint == CheckpointPosition.SHARD_END

    @property
    def is_marked(self) -> bool:
        """Whether another worker has asked the present owner for the lease."""
        return self.stealer not in ("", self.owner)

    @property
    def is_handed_over(self) -> bool:
        """Whether the previous owner handed the lease over, and the new owner has not picked it up yet."""
        return self.owner != "" and self.stealer == self.owner

    def __str__(self) -> str:
        asked = f", asked for by {self.stealer}" if self.is_marked else ", handed over" if self.is_handed_over else ""
        where = readable_position(self.checkpoint)
        return f"{self.lease_key} (owner {self.owner or 'none'}{asked}, counter {self.counter}, at {where})"


@frozen
class Shard:
    """One shard. A split makes two children of one parent; a merge makes one child of a parent and its sibling."""

    shard_id: str
    parent_id: str | None = None
    parent_sibling_id: str | None = None

    @property
    def parent_shard_ids(self) -> frozenset[str]:
        """The ids of the parents that the stream names. The list of shards may no longer contain these parents."""
        return frozenset(parent for parent in (self.parent_id, self.parent_sibling_id) if parent)


@frozen
class ShardInfo:
    """The shard that a processor works on, and the acquisition to which the processor belongs."""

    shard_id: str
    stream_id: str
    parent_shard_ids: frozenset[str]
    lease_identifier: str
    """An identifier of the acquisition. Each acquisition of the shard has a new identifier, even if the same worker
    acquires the shard again immediately. Processors that follow each other within one acquisition get the same
    identifier."""
    epoch: int = 0
    """A number that grows with each acquisition by a Python worker, even if the lease's row was deleted or created
    again in between. A destination that remembers the greatest epoch can fence late writers."""
    table_name: str = ""
    """The data table, as the ``StreamConfig`` names it."""


class ShutdownReason(Enum):
    """The reason why a processor is asked to stop (Java: ``ShutdownReason``)."""

    ZOMBIE = "ZOMBIE"
    """The lease is lost. Checkpoints are refused; another worker may already be reading."""

    TERMINATE = "TERMINATE"
    """The shard ended. Call ``checkpointer.checkpoint()`` to record the end: the children of the shard wait for it."""

    STOLEN = "STOLEN"
    """The lease is about to be handed over to another worker, for balance or because this worker stops. The lease is
    still held: a checkpoint works, and the next owner continues from it."""

    PAUSED = "PAUSED"
    """An operator paused the shard or the worker. The lease stays held: a checkpoint works, and a new processor
    continues from it on this worker or on the next owner. The Java client does not have this reason."""

    PROCESS_DONE = "PROCESS_DONE"
    """The processor called ``mark_for_process_done``. The lease is still held: a checkpoint works."""

    PROCESS_RESTART = "PROCESS_RESTART"
    """The processor called ``mark_for_process_restart`` or failed: a new processor will start from the stored
    checkpoint. The lease is still held: a checkpoint works, but never covers a failed batch."""


class WorkerStatus(Enum):
    """The state of a worker (Java: ``WorkerStatus``)."""

    NOT_RUNNING = "NOT_RUNNING"
    RUNNING = "RUNNING"
    SHUTDOWN = "SHUTDOWN"
    ERROR = "ERROR"


class ShardState(Enum):
    """The state of one held shard, as ``Worker.shard_statuses`` reports it."""

    WAITING_ON_PARENT_SHARDS = "WAITING_ON_PARENT_SHARDS"
    INITIALIZING = "INITIALIZING"
    """The worker makes a processor now, or will make it once the cause in ``reason`` is over."""

    PROCESSING = "PROCESSING"
    PAUSED = "PAUSED"
    """The shard is held but not read, because an operator paused it; ``reason`` names the operator. The Java client
    does not have this state."""

    SHUTTING_DOWN = "SHUTTING_DOWN"
    SHUTDOWN_COMPLETE = "SHUTDOWN_COMPLETE"


@frozen
class TrimmedRange:
    """Records that the stream's retention deleted before they were read, and the positions around them."""

    shard_id: str
    position: str
    """The position at which reading was to continue: all records from this position to ``first_left`` are lost."""
    last_processed_micros: int | None
    """The service's time of the last processed record, in microseconds since 1970; ``None`` if it is unknown."""
    last_processed: SequenceInfo | None
    """The position of the last processed record in the shard; ``None`` if this process does not know it."""
    first_left: SequenceInfo | None
    """The oldest record that remained when the loss was noticed; ``None`` without one, or if it is not known."""
    is_first_left_known: bool = True
    """False if the search for that record ended at its limit, after many pages without a record."""

    def __str__(self) -> str:
        return (
            f"records after position {readable_position(self.position)} are past the stream's retention and lost: "
            f"from after {self._last_processed()} up to before {self._first_left()}"
        )

    def _last_processed(self) -> str:
        if self.last_processed is not None:
            return f"the record {self.last_processed} of {utc_text(self.last_processed.timestamp_micros)}"
        if self.last_processed_micros is not None:
            return f"the record of {utc_text(self.last_processed_micros)}"
        return "a position with no processed record known before it"

    def _first_left(self) -> str:
        if self.first_left is not None:
            return f"the record {self.first_left} of {utc_text(self.first_left.timestamp_micros)}, the oldest one left"
        nothing, unknown = "the next record to come, as no record is left", "the oldest record left, not known yet"
        return nothing if self.is_first_left_known else unknown


@frozen
class ShardStatus:
    """The activity of one held shard, and the reason if the shard makes no progress."""

    shard_id: str
    state: ShardState
    checkpoint: str
    reason: str = ""
    """The reason why the shard makes no progress. It names the parent, error or call for which the shard waits. Empty
    while the shard makes progress."""
    failures: int = 0
    """The number of failures of the processor since the last successful batch."""
    reason_kind: ReasonKind = ReasonKind.NONE
    user_code_seconds: float = 0.0
    """The duration of the present call into user code; 0.0 when no call is running."""
    lag_seconds: float | None = None
    """The lag: the age of the oldest record that may be unread. It is 0.0 when the shard is caught up, and ``None``
    while it is unknown. ``docs/retention.md`` says which clock measures the lag."""
    time_to_loss_seconds: float | None = None
    """The time for which the stream still keeps the oldest record that may be unread; ``None`` if no record is unread,
    or while the time is unknown."""
    forecast: str = ""
    """A sentence that says when the shard will be caught up, or when records will be lost; empty without a forecast."""
    lost: TrimmedRange | None = None
    """The lost records, if the shard stopped because of a loss."""
    reasons: tuple[Reason, ...] = ()
    """The causes that ``reason`` tells in words, as values for programs. ``reason_kind`` is the kind of the first
    cause."""

    @property
    def has_consumer(self) -> bool:
        """Whether the shard has a consumer on this worker, even while a new processor is awaited after a failure."""
        if self.state in (ShardState.WAITING_ON_PARENT_SHARDS, ShardState.PAUSED, ShardState.SHUTDOWN_COMPLETE):
            return False
        is_about_to_start = self.state is ShardState.INITIALIZING
        return not (is_about_to_start and any(reason.cause in BEFORE_READING for reason in self.reasons))


@checks.explains_names
@frozen
class InitialPosition:
    """The start of a shard without a stored checkpoint. Use one of the three constructors."""

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
        """Start with records written after the worker's start; read later shards from their oldest record."""
        return cls("latest")

    @classmethod
    def at(cls, timestamp_micros: int) -> InitialPosition:
        """Start at records written at or after a time in microseconds since 1970.

        A few earlier records may be delivered, too. The time applies to every shard without a lease. So give the same
        time at each start: a later time skips records of shards that were opened while no worker ran.
        """
        return cls("timestamp", timestamp_micros)


class OnFailure(Enum):
    """The treatment of a record whose processing keeps failing."""

    RESTART = "RESTART"
    """After a growing pause, a new processor starts from the stored checkpoint, however often it fails."""

    STOP_SHARD = "STOP_SHARD"
    """The shard stops, and its status names the record. Its lease stays held until an operator decides."""

    PARK = "PARK"
    """The record is stored in the parking store, and the shard goes on after it."""


@frozen
class ParkedRecord:
    """A record that was parked because its processing failed, or because an earlier record of its key was parked."""

    record_id: str
    """The id of the change within its shard: its position in the shard and a digest of its content. The ids of a shard
    sort like its records. A record that is parked again keeps its id, even if the shard is read in other pages."""
    stream_id: str
    shard_id: str
    record: StreamRecord
    position: str
    """The position at which the record's page was read: an iterator, or ``TRIM_HORIZON``."""
    index: int
    """The index of the record in that page, from 0."""
    generation: int
    """The rank of the shard among the shards with parked records of the key; it may be zero or negative. A child shard
    ranks after its parent. The records of a key are replayed by generation, then by ``record_id``."""
    error: str
    """The type and text of the exception, or the reason for parking the record without trying it."""
    traceback: str
    """The traceback of the exception; empty if the record was not tried."""
    attempts: int
    """The number of failed calls of ``process_records`` with the record; 0 if it was not tried."""
    parked_micros: int
    """The time of parking, in microseconds since 1970 by the clock of the worker's machine."""
    fleet: str = ""
    """The status table of the fleet that parked the record; empty if the record counts as a record of every fleet."""


class BalanceBy(Enum):
    """The quantity that is balanced among the workers of a fleet."""

    COUNT = "count"
    """The number of leases that each worker holds."""

    RECORDS = "records"
    """The number of records that each worker processes per second."""

    BYTES = "bytes"
    """The number of bytes, as the service sends them, that each worker processes per second."""


@frozen
class ParkedKey:
    """A primary key that has parked records in a shard."""

    key: PrimaryKey
    shard_id: str
    first_record_id: str
    """The smallest id of the key's parked records in this shard."""
    generation: int
    """The ``ParkedRecord.generation`` of the key's parked records in this shard."""
    fleet: str = ""
    """The ``ParkedRecord.fleet`` of these records."""


class TrimmedDataPolicy(Enum):
    """The treatment of a shard whose next records have left the stream unread. Each policy first reports the loss."""

    STOP_SHARD = "STOP_SHARD"
    """Keep the lease, read nothing, and report the loss in the shard's status until an operator decides."""

    RESTART_AT_OLDEST = "RESTART_AT_OLDEST"
    """Log the loss and continue with the oldest record that is left."""


class MetricKind(Enum):
    """The kind of a metric, which says what its values mean."""

    COUNTER = "counter"
    """A value that starts at zero with the process and only grows."""

    GAUGE = "gauge"
    """The present value of a quantity that may rise and fall."""

    HISTOGRAM = "histogram"
    """The durations of many events, in seconds."""


@frozen(eq=False, repr=False)
class Metric:
    """A measured quantity, equal only to itself. ``streamclient.metrics.metric_table`` lists all metrics."""

    name: str
    """The name as Prometheus requires it: the unit comes last, followed by ``_total`` in the name of a counter."""
    kind: MetricKind
    unit: str
    """The unit in UCUM, as OpenTelemetry requires it: ``s``, ``By``, or the counted thing in braces."""
    help: str
    """The meaning of one value of the metric, in a sentence."""
    labels: tuple[str, ...]
    """The labels that distinguish the series of the metric. Every value has exactly these labels."""

    @property
    def dotted_name(self) -> str:
        """The name for OpenTelemetry: words joined by dots, without unit and ``_total``, which its exporters add."""
        plain = self.name.removesuffix("_total").removesuffix("_seconds").removesuffix("_bytes")
        return plain.replace("_", ".")

    def __repr__(self) -> str:
        return f"<{self.kind.value} {self.name}>"


@frozen
class TableDefinition:
    """Name, key and declared columns of a table, as DescribeTable gives them."""

    table_name: str
    primary_key: tuple[tuple[str, ColumnType], ...]
    """The key columns as (name, type), in key order."""
    defined_columns: Mapping[str, ColumnType] = field(factory=dict)
    """The attribute columns that the table declares. Rows may have other columns, too."""
