"""The interfaces that programs implement or are given: processors, checkpointers, lease managers, retry strategies."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
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
    """The values that a worker passes to ``IRecordProcessor.initialize``."""

    shard_info: ShardInfo
    initial_checkpoint: str
    """The position at which the processor's first batch starts: the stored checkpoint."""
    checkpointer: IRecordProcessorCheckpointer
    shutdown_marker: IShutdownMarker
    pending_checkpoint: PendingCheckpoint | None = None
    """A checkpoint that an earlier processor prepared and did not complete.

    To complete that checkpoint, store its ``value`` before ``initialize`` returns. Reading then starts after that
    position. To ignore that checkpoint, do nothing. The same records are then delivered again, in a batch that ends at
    the same record."""
    progress: Progress | None = None
    """The progress up to the stored checkpoint; ``None`` if the lease's row does not contain the progress."""
    lost_after: str | None = None
    """The stored checkpoint, if records after it have left the stream and the loss was accepted; otherwise ``None``.

    An operator or ``ClientConfig.trimmed_data_policy`` accepts a loss. In that case ``initial_checkpoint`` is the
    position of the oldest record that is left."""
    fleet_has_processed: bool = False
    """Whether the status table shows that a worker of the fleet has processed records of any shard. In that case the
    fleet's destination must already exist."""
    is_replay: bool = False
    """Whether the records come from ``replay_parked``, which delivers parked records again, and not from a worker.

    All records have the same key and come in their order. Each call has one record. The sink already has data of newer
    records of the shard. The epoch is 0, and a record may come again after a crash. So do not compare or change the
    epoch and the position that the sink stores. Insert each record under its own identity (``shard_info.shard_id`` and
    ``record.sequence_info``) if it is absent. If the sink cannot do that, raise an error: the records then stay parked,
    and the report of the replay names the error."""


@frozen
class ProcessRecordsInput:
    """One batch of records, as a worker passes it to ``IRecordProcessor.process_records``."""

    records: Sequence[StreamRecord]
    """The records, oldest first; empty only if ``ClientConfig.deliver_empty_batches`` is set.

    The sequence is immutable and equals a tuple of the same records. A worker makes each record object only when it is
    first read."""
    checkpointer: IRecordProcessorCheckpointer
    shutdown_marker: IShutdownMarker
    attempt: int = 0
    """The number of earlier calls of this processor that contained all of these records and failed.

    By default (``ClientConfig.failure_policy``), a new processor follows each failure, so the number stays 0. It counts
    the retries that ``FailurePolicy.retries`` allows."""

    def arrow(self, schema: Mapping[str, ColumnType] | None = None) -> Any:
        """Return the records by column: an object with ``__arrow_c_array__``, such as ``pyarrow.record_batch`` takes.

        There is one row per record, in order. If the batch is a whole read, this method makes no record objects. The
        layout is described in ``streamclient.wire.columns``. ``schema`` names the attribute columns that become Arrow
        columns, and their types; all other cells are listed in one more column. Usable from any thread.

        Raises:
            CodecError: the records are not of one table.
            ConfigurationError: the schema holds a type that Arrow cannot hold, or pyarrow is needed and missing.
                pyarrow is needed if the codec is not compiled, or if the batch is a part of a read.
        """
        return records_by_column(self.records, schema)


@frozen
class ShutdownInput:
    """The values that a worker passes to ``IRecordProcessor.shutdown``."""

    shutdown_reason: ShutdownReason
    checkpointer: IRecordProcessorCheckpointer


class IRecordProcessor(ABC):
    """Processes the records of one shard.

    The calls for one instance never overlap. The worker makes them in its executor, not always in the same thread.
    Records arrive in order, at least once: after a crash, a hand-over or a failure, reading resumes at the last
    checkpoint.

    An exception concerns only this shard; ``ClientConfig.failure_policy`` decides the next step. By default the
    processor gets ``shutdown(PROCESS_RESTART)``, and a new processor starts from the last checkpoint after a pause. A
    policy may deliver records again to the same processor, in the same or in smaller batches. No record is ever
    skipped.
    """

    def initialize(self, initialization_input: InitializationInput) -> None:  # noqa: B027  # most need no preparation
        """Prepare to process the shard; called once, before the other methods. This default does nothing."""

    @abstractmethod
    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        """Process one batch; call ``checkpointer.checkpoint()`` once all records up to its end are safe."""

    def shutdown(self, shutdown_input: ShutdownInput) -> None:  # noqa: B027  # most have nothing to finish
        """Finish the work on the shard; called once, after the last batch.

        The reason in ``shutdown_input`` says whether a checkpoint is still possible.

        If a processor does not override this method, the worker handles the end of a shard (``TERMINATE``) itself. The
        worker stores the end if the processor has stored the position after every batch. Otherwise a buffer of the
        processor may hold records that are not written yet. So the worker does not store the end, and the next
        processor reads the records after the last checkpoint again.
        """


class IRecordProcessorFactory(ABC):
    """Makes the processors: one for each acquisition of a shard, and one for each restart."""

    @abstractmethod
    def create_processor(self) -> IRecordProcessor:
        """Make a new processor.

        The worker calls this method in its executor. An exception counts as a failed start.
        """


class IRecordProcessorCheckpointer(ABC):
    """Records how far a shard was processed. Thread-safe; usable from any thread."""

    @abstractmethod
    def checkpoint(self, checkpoint_value: str | None = None) -> None:
        """Store a position in the lease, and return once the status table has stored it.

        Without ``checkpoint_value``, store ``largest_permitted_checkpoint_value``. A value must be ``SHARD_END`` or a
        position that this checkpointer once named as largest permitted. The stored position does not change what this
        worker reads next.

        Raises:
            ShutdownException: the lease is lost; nothing was stored.
            DependencyException: the status table gave no usable answer; the position may or may not be stored.
            ConfigurationError: the value is not a position of this shard, or is before the stored position.
        """

    @abstractmethod
    def prepare_checkpoint(self, checkpoint_value: str | None, state: bytes) -> IPreparedCheckpoint:
        """Prepare a checkpoint for a commit that a sink will make: the first phase of a two-phase checkpoint.

        This method returns once the prepared checkpoint is stored. Then commit to the sink, and call ``checkpoint()``
        on the returned object. If this process dies in between, the next processor of the shard gets value and state as
        ``InitializationInput.pending_checkpoint``. The next processor then knows exactly which batch may have been
        committed.

        A second call replaces the prepared checkpoint. Storing a checkpoint removes the prepared checkpoint. Only a
        write that repeats the stored position leaves the prepared checkpoint in place. The permitted values, the errors
        and the permitted threads are the same as for ``checkpoint``. ``state`` has at most 64 KiB.
        """

    def store_only_requests(self) -> None:  # noqa: B027  # other checkpointers store nothing by themselves
        """Store only positions that the processor requests. Call this in ``initialize``.

        By default, the worker itself stores a position after records that it has parked or skipped. It does so once the
        shard is caught up and the processor has stored all of its batches. A processor whose sink knows the last stored
        position, and compares it, must call this method. ``prepare_checkpoint`` implies it only from its first call on.
        """

    @property
    @abstractmethod
    def largest_permitted_checkpoint_value(self) -> str:
        """The position after the last batch that the processor was given."""

    @property
    def is_closed(self) -> bool:
        """Whether nothing can be stored any more, because the lease is lost or the processor was shut down.

        Code that waits or works for long should read this property, to stop when its work can no longer be stored. An
        implementation that does not know returns ``False``.
        """
        return False


class IPreparedCheckpoint(ABC):
    """A two-phase checkpoint whose first phase is stored. Thread-safe."""

    @property
    @abstractmethod
    def pending(self) -> PendingCheckpoint:
        """The prepared checkpoint as it was stored."""

    @abstractmethod
    def checkpoint(self) -> None:
        """Store the prepared position as the checkpoint: the second phase.

        This method raises the same errors as ``IRecordProcessorCheckpointer.checkpoint``.
        """


class IShutdownMarker(ABC):
    """Lets a processor end its own work on the shard. Only the first call counts. Usable from any thread."""

    @abstractmethod
    def mark_for_process_done(self) -> None:
        """Stop reading this shard here and release its lease, so that another worker can take it."""

    @abstractmethod
    def mark_for_process_restart(self) -> None:
        """Stop this processor; a new processor starts from the stored checkpoint."""


class ILeaseManager(ABC):
    """Stores the leases of one stream. Implementations are thread-safe.

    Every conditional operation compares the stored row with the given lease, applies its change atomically, and returns
    whether the change was applied. If the row is absent, the change is not applied. ``False`` means that this call
    surely did not apply the change. ``DependencyException`` of kind AMBIGUOUS means that the call may have applied it.

    A worker calls these methods from up to ``renew_thread_pool_size`` threads at a time, and as many more for
    heartbeats. A lease counts from the time before its call. So a call must return within a small part of the lease
    duration, and all leases of a worker must be renewed several times in a lease duration. If the store is too slow for
    that, leases are lost again and again, and the worker's health says so.
    """

    @abstractmethod
    def create_lease_table_if_not_exists(self) -> bool:
        """Create the table of leases if it does not exist; return whether this call created it."""

    @abstractmethod
    def wait_until_lease_table_ready(self) -> bool:
        """Wait until the table of leases answers; return ``False`` if it does not within the configured time."""

    @abstractmethod
    def list_leases(self) -> Sequence[Lease]:
        """Return all leases of the stream, sorted by lease key.

        The result is not an atomic snapshot. Malformed rows are left out and logged.
        """

    @abstractmethod
    def create_lease(self, lease: Lease) -> bool:
        """Store the lease as given if no row has its key. An existing row stays unchanged."""

    @abstractmethod
    def get_lease(self, lease_key: str) -> Lease | None:
        """Return the lease, or ``None`` if its row does not exist."""

    @abstractmethod
    def renew_lease(self, lease: Lease) -> bool:
        """Add 1 to the row's counter, if counter, owner and stealer are as in ``lease``."""

    @abstractmethod
    def take_lease(self, lease: Lease, owner: str, *, checkpoint: str | None = None) -> bool:
        """Set the row's owner, clear the stealer and add 1 to the counter, if counter and owner are as in ``lease``.

        With ``checkpoint``, the same step also writes that value. So a worker restores the checkpoint of a row that
        another program has put back to its initial state.
        """

    @abstractmethod
    def steal_lease(self, lease: Lease, stealer: str) -> bool:
        """Set the row's stealer, if no stealer is set and the owner is as in ``lease``. The counter stays."""

    @abstractmethod
    def transfer_lease(self, lease: Lease, new_owner: str) -> bool:
        """Set owner and stealer to ``new_owner`` and add 1 to the counter, if counter and owner are as in ``lease``."""

    @abstractmethod
    def update_lease(self, lease: Lease, checkpoint: str) -> bool:
        """Set the row's checkpoint and add 1 to its counter, if counter and owner are as in ``lease``.

        The same step also removes the checkpoint that ``prepare_lease`` stored, except in the case that
        ``PendingCheckpoint.survives`` describes.
        """

    def prepare_lease(self, lease: Lease, pending: PendingCheckpoint) -> bool:
        """Set the row's pending checkpoint and add 1 to its counter, if counter and owner are as in ``lease``.

        Override this method to offer two-phase checkpoints; the default raises ``ConfigurationError``.
        """
        raise ConfigurationError(
            f"{type(self).__name__} stores no pending checkpoints: override prepare_lease, or use checkpoint() alone"
        )

    @abstractmethod
    def delete_lease(self, lease: Lease) -> bool:
        """Remove the row, if counter and owner are as in ``lease``. An absent row counts as removed."""

    def draw_epoch(self, lease_key: str) -> int:
        """Return a number greater than all numbers that any process drew before for this key.

        The worker calls this method once per acquisition. Override this default: it returns the row's counter, which
        starts again from a small number when the row is deleted and created again.
        """
        lease = self.get_lease(lease_key)
        if lease is None:
            raise StreamClientException(f"no epoch for lease {lease_key}: its row is gone")
        return lease.counter

    def forget_epoch(self, lease_key: str) -> None:  # noqa: B027  # nothing to forget where nothing is kept
        """Drop the number that ``draw_epoch`` stores for a key. The key's shard has left the stream for good."""

    def renew_leases(self, leases: Sequence[Lease]) -> Sequence[bool | Exception]:
        """Renew ``leases``; return for each lease, in order, the result or the error of ``renew_lease``.

        Override this method to send fewer requests. A worker then calls it with at most 20 leases. All of them count
        from the time before the call. If the method is not overridden, a worker renews each lease in a call of its own.
        """
        answers: list[bool | Exception] = []
        for lease in leases:
            try:
                answers.append(self.renew_lease(lease))
            except Exception as error:
                answers.append(error)
        return answers


class IParkingStore(ABC):
    """Keeps parked records until they are replayed or discarded. Thread-safe.

    Calls may take long: a worker makes them in the executor of the user code, and the shard waits for them. If a method
    raises, the shard's status names the error, and the worker repeats the call. So no record is skipped while a store
    is down. The package has two stores; ``streamclient.testing.check_parking_store`` checks a store of your own.
    """

    @abstractmethod
    def park(self, records: Sequence[ParkedRecord]) -> None:
        """Store ``records``, and return once they would survive a crash.

        A record that is stored already (same stream, shard and ``record_id``) stays as it is. If the call raises, some
        of the records may have been stored. The stores of this package raise if another fleet has parked records of the
        stream.
        """

    @abstractmethod
    def parked(self, stream_id: str | None = None) -> Iterable[ParkedRecord]:
        """Yield the parked records of one stream, or of all streams, sorted by stream, shard and ``record_id``."""

    @abstractmethod
    def remove(self, records: Sequence[ParkedRecord]) -> None:
        """Remove ``records``; absent records are ignored."""

    def parked_keys(self, stream_id: str) -> Iterable[ParkedKey]:
        """Return the keys of a stream that have parked records: one entry for each key, shard and fleet.

        The result covers all records that any worker parked before the call. A worker does not go on if a key belongs
        to another fleet. Override this method if the store can find the keys without reading every record.
        """
        keys: dict[tuple[PrimaryKey, str, str], ParkedKey] = {}
        for parked in self.parked(stream_id):
            # The records come in the order of their record ids, so the first record of each key has the key's smallest
            # id.
            key, shard_id, fleet = parked.record.primary_key, parked.shard_id, parked.fleet
            keys.setdefault(
                (key, shard_id, fleet), ParkedKey(key, shard_id, parked.record_id, parked.generation, fleet)
            )
        return keys.values()

    def still_parked(self, records: Sequence[ParkedRecord]) -> Sequence[ParkedRecord]:
        """Return those of ``records`` that are parked now, in the same order.

        A replay asks before it delivers a record, which another replay or a person may have removed meanwhile. This
        default asks ``parked_keys``, so it may return a removed record if an earlier record of its key is parked, and a
        replay asks it only about once a second. Override this method if the store can look records up by shard and
        ``record_id``.
        """
        first: dict[tuple[str, PrimaryKey, str], str] = {}
        for stream_id in {parked.stream_id for parked in records}:
            for key in self.parked_keys(stream_id):
                place = stream_id, key.key, key.shard_id
                first[place] = min(key.first_record_id, first.get(place, key.first_record_id))
        places = [(parked.stream_id, parked.record.primary_key, parked.shard_id) for parked in records]
        return [
            parked
            for parked, place in zip(records, places, strict=True)
            if place in first and first[place] <= parked.record_id
        ]


class RetryableAction(Enum):
    """The action that is about to be retried. The names are the same as in the Java client."""

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
    """Receives the measurements of a worker; ``streamclient.metrics.metric_table`` names all metrics.

    The worker calls the methods from its own threads, several at a time, including the thread that renews the leases.
    So a method must return immediately: if it blocks for the lease duration, the worker loses all leases. Every call
    passes exactly the labels that the metric declares. If a method raises, the worker logs only the first error, and
    goes on.
    """

    @abstractmethod
    def increment(self, metric: Metric, amount: float = 1, /, **labels: str) -> None:
        """Add ``amount``, which is never negative, to a counter."""

    @abstractmethod
    def set(self, metric: Metric, value: float, /, **labels: str) -> None:
        """Set a gauge to a new value."""

    @abstractmethod
    def observe(self, metric: Metric, seconds: float, /, **labels: str) -> None:
        """Add a duration of ``seconds`` to a histogram."""

    def forget(self, metric: Metric, /, **labels: str) -> None:  # noqa: B027  # not every receiver keeps series
        """End the series with these labels: its shard is no longer held. A later value begins the series again."""


class IRetryStrategy(ABC):
    """Decides whether and when a failed action is tried again (Java: ``IRetryStrategy``). Thread-safe, never sleeps."""

    @abstractmethod
    def should_retry(self, action: RetryableAction, error: Exception, retries: int) -> bool:
        """Return whether to retry ``action`` after ``retries`` retries.

        The client does not ask this method about conditional writes. If the outcome of such a write is unknown, the
        client reads the row, and then decides itself whether to write again.
        """

    @abstractmethod
    def backoff_millis(self, action: RetryableAction, error: Exception, retries: int) -> int:
        """Return the pause before the next retry of ``action``, in milliseconds."""
