"""Values that users meet: leases, shards, callback inputs, reasons and states. All frozen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING

from attrs import field, frozen

from streamclient.records import StreamRecord

if TYPE_CHECKING:
    from streamclient.interfaces import IRecordProcessorCheckpointer, IShutdownMarker


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


@frozen
class Pause:
    """An operator's order to hold a shard without reading it. Python workers obey it; Java workers do not know it."""

    request_id: str
    """New for each order, so that an old answer cannot pass for a new one."""
    by: str
    reason: str
    until_micros: int | None = None
    """Microseconds since 1970 by the clock of whoever obeys; ``None`` until it is resumed."""


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
        return f"{self.lease_key}({self.owner or '-'}, {self.stealer or '-'}, {self.counter}, {self.checkpoint})"


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
    """New for each acquisition: the same shard acquired again is another tenancy."""
    epoch: int = 0
    """Grows with each acquisition by a Python worker, also if the lease's row was deleted or put anew in between: a
    destination that remembers the greatest it has seen can refuse a late writer."""


@frozen
class InitializationInput:
    """Argument of ``IRecordProcessor.initialize``."""

    shard_info: ShardInfo
    initial_checkpoint: str
    """Where reading starts: the stored checkpoint."""
    checkpointer: IRecordProcessorCheckpointer
    shutdown_marker: IShutdownMarker
    pending_checkpoint: PendingCheckpoint | None = None
    """What an earlier processor prepared and nobody completed. Either complete it, by storing its ``value`` before
    ``initialize`` returns: reading then starts behind it. Or leave it: the next batches end at that very record."""


@frozen
class ProcessRecordsInput:
    """Argument of ``IRecordProcessor.process_records``."""

    records: Sequence[StreamRecord]
    """Oldest first; empty only if ``ClientConfig.deliver_empty_batches`` is set."""
    checkpointer: IRecordProcessorCheckpointer
    shutdown_marker: IShutdownMarker


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
    PROCESSING = "PROCESSING"
    SHUTTING_DOWN = "SHUTTING_DOWN"
    SHUTDOWN_COMPLETE = "SHUTDOWN_COMPLETE"


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
    user_code_seconds: float = 0.0
    """How long the present call into user code has been running; 0.0 when none is."""


@frozen
class InitialPosition:
    """Where a shard without a stored checkpoint starts. Use one of the three constructors."""

    kind: str
    timestamp_micros: int | None = None

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


class TrimmedDataPolicy(Enum):
    """What to do with a shard whose next records are past retention. Either way it is reported first."""

    STOP_SHARD = "STOP_SHARD"
    """Keep the lease, read nothing, and say so in the shard's status until an operator decides."""

    RESTART_AT_OLDEST = "RESTART_AT_OLDEST"
    """Log the loss and continue with the oldest record that is left."""


@frozen
class ShutdownInput:
    """Argument of ``IRecordProcessor.shutdown``."""

    shutdown_reason: ShutdownReason
    checkpointer: IRecordProcessorCheckpointer


class ColumnType(Enum):
    """Type of a column as the table definition names it."""

    INTEGER = "INTEGER"
    DOUBLE = "DOUBLE"
    BOOLEAN = "BOOLEAN"
    STRING = "STRING"
    BINARY = "BINARY"


@frozen
class TableDefinition:
    """Name, key and declared columns of a table, as DescribeTable gives them."""

    table_name: str
    primary_key: tuple[tuple[str, ColumnType], ...]
    """Key columns as (name, type), in key order."""
    defined_columns: Mapping[str, ColumnType] = field(factory=dict)
    """Attribute columns that the table declares; rows may hold others."""
