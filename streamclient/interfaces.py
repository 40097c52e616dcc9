"""What users implement or are handed: processors, checkpointers, markers, lease managers, retry strategies."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any

from attrs import frozen

from streamclient.errors import ConfigurationError, StreamClientException
from streamclient.model import (
    Lease,
    Metric,
    ParkedKey,
    ParkedRecord,
    PendingCheckpoint,
    Progress,
    ShardInfo,
    ShutdownReason,
)
from streamclient.records import ColumnType, PrimaryKey, StreamRecord
from streamclient.wire.columns import records_by_column


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
    progress: Progress | None = None
    """What was processed before the stored checkpoint, as far as anybody has stored it."""
    lost_behind: str | None = None
    """The stored checkpoint, if records behind it have left the stream and that is accepted, by somebody or by
    ``ClientConfig.trimmed_data_policy``: ``initial_checkpoint`` is then the oldest record left."""
    is_replay: bool = False
    """Whether these are parked records that ``replay_parked`` delivers again, and not the shard itself.

    All of them are of one key and come in their order, one in each call. They are older than what the sink has of the
    shard, the epoch is 0, and a record may come again after a crash. So compare neither epoch nor position, and leave
    both as they are: insert by the change's own place (``shard_info.shard_id`` and ``record.sequence_info``) if it is
    absent. Raise an error if the sink cannot do that: the records then stay parked, with that reason."""


@frozen
class ProcessRecordsInput:
    """Argument of ``IRecordProcessor.process_records``."""

    records: Sequence[StreamRecord]
    """Oldest first; empty only if ``ClientConfig.deliver_empty_batches`` is set. Immutable; a worker's are made when
    they are first looked at, and compare equal to the tuple of them."""
    checkpointer: IRecordProcessorCheckpointer
    shutdown_marker: IShutdownMarker

    def arrow(self, schema: Mapping[str, ColumnType] | None = None) -> Any:
        """The same records by column: an object with ``__arrow_c_array__``, such as ``pyarrow.record_batch`` takes.

        One row per record, in order. Records of a whole read are not made for it. The layout is that of
        ``streamclient.wire.columns``; a schema names the attribute columns, and their types, that columns are made of,
        all other cells are listed beside them. Any thread.

        Raises:
            CodecError: the records are not of one table.
            ConfigurationError: the schema holds what Arrow cannot, or pyarrow is needed and missing: where the codec is
                not compiled, and for a part of a read.
        """
        return records_by_column(self.records, schema)


@frozen
class ShutdownInput:
    """Argument of ``IRecordProcessor.shutdown``."""

    shutdown_reason: ShutdownReason
    checkpointer: IRecordProcessorCheckpointer


class IRecordProcessor(ABC):
    """Processes the records of one shard.

    Calls for one instance never overlap, and come from the worker's executor, not always on the same thread. Records
    arrive in order, at least once: after a crash, a hand-over or a failure, reading resumes at the last checkpoint.
    An exception concerns only this shard. What follows is the choice of ``ClientConfig.failure_policy``; by default the
    processor gets ``shutdown(PROCESS_RESTART)``, and a new one starts from the last checkpoint after a pause. A policy
    may deliver records again to the same processor, in the same or in smaller batches. No record is ever skipped.
    """

    @abstractmethod
    def initialize(self, initialization_input: InitializationInput) -> None:
        """Prepare to read the shard; called once, before anything else."""

    @abstractmethod
    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        """Process one batch. Call ``checkpointer.checkpoint()`` once everything up to here is safe."""

    @abstractmethod
    def shutdown(self, shutdown_input: ShutdownInput) -> None:
        """Finish; called once, after the last batch. The reason says whether a checkpoint is still possible."""


class IRecordProcessorFactory(ABC):
    """Makes one processor per acquisition of a shard."""

    @abstractmethod
    def create_processor(self) -> IRecordProcessor:
        """Make a new processor. Called in the worker's executor; it may raise, which counts as a failed start."""


RecordProcessorFactory = IRecordProcessorFactory | Callable[[], IRecordProcessor]
"""What ``Worker`` accepts: a factory object or any callable without arguments that makes a processor."""


class IRecordProcessorCheckpointer(ABC):
    """Records how far a shard was processed. Thread-safe; usable from any thread."""

    @abstractmethod
    def checkpoint(self, checkpoint_value: str | None = None) -> None:
        """Store a position in the lease, and return once the status table has it.

        Without a value, stores ``largest_permitted_checkpoint_value``. A value must be a position that this
        checkpointer once named as largest permitted, or ``SHARD_END``; it never moves where reading continues.

        Raises:
            ShutdownException: the lease is lost; nothing was stored.
            DependencyException: the status table gave no usable answer; the position may or may not be stored.
            ConfigurationError: the value is not a position of this shard, or lies before a stored one.
        """

    @abstractmethod
    def prepare_checkpoint(self, checkpoint_value: str | None, state: bytes) -> IPreparedCheckpoint:
        """First phase of a checkpoint in two: store what a sink is about to commit, and return once it is stored.

        Afterwards commit to the sink, then call ``checkpoint()`` on what is returned. If this process dies in between,
        the next processor of the shard finds value and state as ``InitializationInput.pending_checkpoint`` and knows
        exactly one batch that may or may not be committed. Preparing again replaces what was prepared; a stored
        checkpoint removes it, but for one at the position that was stored before. Values, errors and threads as in
        ``checkpoint``; ``state`` has at most 64 KiB.
        """

    @property
    @abstractmethod
    def largest_permitted_checkpoint_value(self) -> str:
        """The position after the last batch that was handed out."""

    @property
    def is_closed(self) -> bool:
        """Whether nothing is stored any more, because the lease is lost or the processor was shut down.

        For code that waits or works for long: what it does then is in vain. An implementation that cannot tell says
        ``False``.
        """
        return False


class IPreparedCheckpoint(ABC):
    """A checkpoint whose first phase is stored. Thread-safe."""

    @property
    @abstractmethod
    def pending(self) -> PendingCheckpoint:
        """What was stored."""

    @abstractmethod
    def checkpoint(self) -> None:
        """Second phase: store the prepared position as the checkpoint. Errors as in ``checkpointer.checkpoint``."""


class IShutdownMarker(ABC):
    """Lets a processor end its own work on the shard. Usable from any thread; the first mark wins."""

    @abstractmethod
    def mark_for_process_done(self) -> None:
        """Stop reading this shard here and release its lease, so that another worker can take it."""

    @abstractmethod
    def mark_for_process_restart(self) -> None:
        """Stop this processor; a new one starts from the stored checkpoint."""


class ILeaseManager(ABC):
    """Stores the leases of one stream. Implementations are thread-safe.

    Every conditional operation compares the stored row with the lease it is given, applies its change atomically, and
    answers whether it was applied. A row that is absent fails every condition. ``False`` means surely not applied by
    this call; ``DependencyException`` with ``kind`` AMBIGUOUS means unknown.
    """

    @abstractmethod
    def create_lease_table_if_not_exists(self) -> bool:
        """Create the store; returns whether this call created it."""

    @abstractmethod
    def wait_until_lease_table_ready(self) -> bool:
        """Wait until the store answers; returns whether it did within the configured time."""

    @abstractmethod
    def list_leases(self) -> Sequence[Lease]:
        """All leases of the stream, by lease key. Not a snapshot. Malformed rows are left out and logged."""

    @abstractmethod
    def create_lease(self, lease: Lease) -> bool:
        """Store the lease as given if no row has its key; an existing row is left as it is."""

    @abstractmethod
    def get_lease(self, lease_key: str) -> Lease | None:
        """The lease, or ``None`` if there is no such row."""

    @abstractmethod
    def renew_lease(self, lease: Lease) -> bool:
        """Counter + 1, if counter, owner and stealer are those of ``lease``."""

    @abstractmethod
    def take_lease(self, lease: Lease, owner: str, *, checkpoint: str | None = None) -> bool:
        """Owner = ``owner``, stealer cleared, counter + 1, if counter and owner are those of ``lease``.

        With ``checkpoint``, that value is written in the same step (restores a row that was reset).
        """

    @abstractmethod
    def steal_lease(self, lease: Lease, stealer: str) -> bool:
        """Stealer = ``stealer``, if the owner is that of ``lease`` and no stealer is set. The counter stays."""

    @abstractmethod
    def transfer_lease(self, lease: Lease, new_owner: str) -> bool:
        """Owner = stealer = ``new_owner``, counter + 1, if counter and owner are those of ``lease``."""

    @abstractmethod
    def update_lease(self, lease: Lease, checkpoint: str) -> bool:
        """Checkpoint = ``checkpoint``, counter + 1, if counter and owner are those of ``lease``.

        What ``prepare_lease`` stored is removed in the same step, unless ``checkpoint`` is stored already and another
        position was prepared: ``PendingCheckpoint.survives``.
        """

    def prepare_lease(self, lease: Lease, pending: PendingCheckpoint) -> bool:
        """Pending = ``pending``, counter + 1, if counter and owner are those of ``lease``.

        Override it to offer two-phase checkpoints; this default refuses them.
        """
        raise ConfigurationError(
            f"{type(self).__name__} stores no pending checkpoints: override prepare_lease, or use checkpoint() alone"
        )

    @abstractmethod
    def delete_lease(self, lease: Lease) -> bool:
        """Remove the row, if counter and owner are those of ``lease``. An absent row counts as removed."""

    def draw_epoch(self, lease_key: str) -> int:
        """A number greater than every one drawn before for this key, by any process; called once per acquisition.

        Override it: this default is the row's counter, which grows only until somebody puts the row anew.
        """
        lease = self.get_lease(lease_key)
        if lease is None:
            raise StreamClientException(f"no epoch for lease {lease_key}: its row is gone")
        return lease.counter

    def forget_epoch(self, lease_key: str) -> None:  # noqa: B027  # nothing to forget where nothing is kept
        """Drop what ``draw_epoch`` keeps for a key whose shard has left the stream for good."""

    def renew_leases(self, leases: Sequence[Lease]) -> Sequence[bool | Exception]:
        """Renew many; one answer per lease, in order. Override where the store can do it in fewer requests."""
        answers: list[bool | Exception] = []
        for lease in leases:
            try:
                answers.append(self.renew_lease(lease))
            except Exception as error:
                answers.append(error)
        return answers


class IParkingStore(ABC):
    """Keeps records that were set aside, until they are replayed or discarded. Thread-safe.

    Calls may take their time: a worker makes them in the executor of the user code, and the shard waits. Whatever a
    method raises is named in the shard's status, and the call is repeated: nothing is skipped while a store is down.
    ``streamclient`` has stores, and ``streamclient.testing.check_parking_store`` checks one of your own.
    """

    @abstractmethod
    def park(self, records: Sequence[ParkedRecord]) -> None:
        """Store records, and return once they would survive a crash.

        One that is already there, by stream, shard and ``record_id``, stays as it is. If it raises, any part of them
        may be stored.
        """

    @abstractmethod
    def parked(self, stream_id: str | None = None) -> Iterable[ParkedRecord]:
        """What is parked, of one stream or of all: by stream and shard, then by ``record_id``."""

    @abstractmethod
    def remove(self, records: Sequence[ParkedRecord]) -> None:
        """Forget records; those that are not there do no harm."""

    def parked_keys(self, stream_id: str) -> Iterable[ParkedKey]:
        """The keys of a stream that have parked records, once for each shard that these are of.

        It includes whatever was parked before the call, by any worker. Override it where the store can do better than
        reading every record.
        """
        keys: dict[tuple[PrimaryKey, str], ParkedKey] = {}
        for parked in self.parked(stream_id):
            # In the order of record ids, so that the first of each is the smallest.
            key = parked.record.primary_key
            keys.setdefault(
                (key, parked.shard_id), ParkedKey(key, parked.shard_id, parked.record_id, parked.generation)
            )
        return keys.values()


class RetryableAction(Enum):
    """What is about to be retried; names as in the Java client."""

    TASK_BLOCK_ON_PARENT_SHARD = "TASK_BLOCK_ON_PARENT_SHARD"
    TASK_INITIALIZE = "TASK_INITIALIZE"
    TASK_PROCESS = "TASK_PROCESS"
    TASK_SHUTDOWN = "TASK_SHUTDOWN"
    TASK_SHARDSYNC = "TASK_SHARDSYNC"
    LEASE_ACTION_CREATE_TABLE_IF_NOT_EXISTS = "LEASE_ACTION_CREATE_TABLE_IF_NOT_EXISTS"
    LEASE_ACTION_WAIT_UNTIL_TABLE_READY = "LEASE_ACTION_WAIT_UNTIL_TABLE_READY"
    LEASE_ACTION_LIST_LEASES = "LEASE_ACTION_LIST_LEASES"
    LEASE_ACTION_CREATE_LEASE = "LEASE_ACTION_CREATE_LEASE"
    LEASE_ACTION_GET_LEASE = "LEASE_ACTION_GET_LEASE"
    LEASE_ACTION_RENEW_LEASE = "LEASE_ACTION_RENEW_LEASE"
    LEASE_ACTION_TAKE_LEASE = "LEASE_ACTION_TAKE_LEASE"
    LEASE_ACTION_STEAL_LEASE = "LEASE_ACTION_STEAL_LEASE"
    LEASE_ACTION_TRANSFER_LEASE = "LEASE_ACTION_TRANSFER_LEASE"
    LEASE_ACTION_DELETE_LEASE = "LEASE_ACTION_DELETE_LEASE"
    LEASE_ACTION_UPDATE_LEASE = "LEASE_ACTION_UPDATE_LEASE"


class IMetrics(ABC):
    """Takes in what a worker measures; ``streamclient.metrics.metric_table`` names it all.

    Called from the worker's own threads, several at a time, the one that renews the leases among them: return at once
    and never wait. A verb that blocks for as long as a lease lasts costs all leases. Every call has exactly the labels
    that the metric names. An error that is raised here is logged once, and does not disturb the worker.
    """

    @abstractmethod
    def increment(self, metric: Metric, amount: float = 1, /, **labels: str) -> None:
        """A counter grew by ``amount``, which is never negative."""

    @abstractmethod
    def set(self, metric: Metric, value: float, /, **labels: str) -> None:
        """A gauge has a new value."""

    @abstractmethod
    def observe(self, metric: Metric, seconds: float, /, **labels: str) -> None:
        """One more value of a histogram."""

    def forget(self, metric: Metric, /, **labels: str) -> None:  # noqa: B027  # not everybody keeps series
        """The series with these labels has ended: its shard is no longer held. It may begin again later."""


class IRetryStrategy(ABC):
    """Decides whether and when a failed action is tried again (Java: ``IRetryStrategy``). Thread-safe, never sleeps."""

    @abstractmethod
    def should_retry(self, action: RetryableAction, error: Exception, retries: int) -> bool:
        """Whether to try again, after ``retries`` retries so far. Conditional writes are read back before a retry."""

    @abstractmethod
    def backoff_millis(self, action: RetryableAction, error: Exception, retries: int) -> int:
        """How long to wait before that retry."""
