"""Records, a checkpointer and a worker's calls, small enough to read in one go."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from streamclient.interfaces import (
    InitializationInput,
    IPreparedCheckpoint,
    IRecordProcessorCheckpointer,
    IShutdownMarker,
    ProcessRecordsInput,
    ShutdownInput,
)
from streamclient.model import PendingCheckpoint, Progress, ShardInfo, ShutdownReason
from streamclient.records import ColumnOperation, ColumnValue, RecordColumn, RecordType, SequenceInfo, StreamRecord
from streamclient.spark import SparkRecordProcessor, SparkRecordProcessorFactory


def put_cell(name: str, value: ColumnValue, version: int = 1) -> RecordColumn:
    return RecordColumn(name, ColumnOperation.PUT, value, version)


def delete_cell(name: str, version: int | None = None) -> RecordColumn:
    kind = ColumnOperation.DELETE_ALL_VERSION if version is None else ColumnOperation.DELETE_ONE_VERSION
    return RecordColumn(name, kind, None, version)


def change(
    number: int, key: int | str, *cells: RecordColumn, kind: RecordType = RecordType.PUT, epoch: int = 0
) -> StreamRecord:
    """The change with a given number in its shard; the number is also its time in microseconds."""
    return StreamRecord(kind, (("pk", key),), tuple(cells), SequenceInfo(epoch, number, 0))


def put(number: int, key: int | str, **values: ColumnValue) -> StreamRecord:
    return change(number, key, *(put_cell(name, value, number) for name, value in values.items()))


def update(number: int, key: int | str, *cells: RecordColumn, **values: ColumnValue) -> StreamRecord:
    puts = (put_cell(name, value, number) for name, value in values.items())
    return change(number, key, *cells, *puts, kind=RecordType.UPDATE)


def delete(number: int, key: int | str) -> StreamRecord:
    return change(number, key, kind=RecordType.DELETE)


class Marker(IShutdownMarker):
    """Notes that the processor asked for a restart."""

    def __init__(self) -> None:
        self.is_marked = threading.Event()

    def mark_for_process_done(self) -> None:
        raise AssertionError("no Spark processor is ever done with a shard")

    def mark_for_process_restart(self) -> None:
        self.is_marked.set()


class Checkpointer(IRecordProcessorCheckpointer):
    """Stores into the shard's stand-in; can be told to fail before or after it stored."""

    def __init__(self, shard: StoredShard) -> None:
        self.shard = shard
        self.permitted = shard.checkpoint
        self.has_lost_the_lease = False

    @property
    def is_closed(self) -> bool:
        return self.has_lost_the_lease

    def checkpoint(self, checkpoint_value: str | None = None) -> None:
        value = self.permitted if checkpoint_value is None else checkpoint_value
        self.shard.before_checkpoint(value)
        self.shard.checkpoint, self.shard.pending = value, None
        self.shard.checkpoints.append(value)

    def prepare_checkpoint(self, checkpoint_value: str | None, state: bytes) -> IPreparedCheckpoint:
        value = self.permitted if checkpoint_value is None else checkpoint_value
        self.shard.before_prepare(value)
        records = 0 if value == "SHARD_END" else int(value.removeprefix("after ")) - self.shard.start
        self.shard.pending = PendingCheckpoint(value, state, records, 0)
        return Prepared(self, self.shard.pending)

    @property
    def largest_permitted_checkpoint_value(self) -> str:
        return self.permitted


class Prepared(IPreparedCheckpoint):
    """What a checkpointer gave for a first phase."""

    def __init__(self, checkpointer: Checkpointer, pending: PendingCheckpoint) -> None:
        self.checkpointer, self._pending = checkpointer, pending

    @property
    def pending(self) -> PendingCheckpoint:
        return self._pending

    def checkpoint(self) -> None:
        self.checkpointer.checkpoint(self._pending.value)


class StoredShard:
    """A shard with its records and its stored checkpoint: what outlives a worker."""

    def __init__(self, shard_id: str, records: Sequence[StreamRecord] = ()) -> None:
        self.shard_id = shard_id
        self.records = list(records)
        self.checkpoint = "TRIM_HORIZON"
        self.checkpoints: list[str] = []
        self.pending: PendingCheckpoint | None = None
        self.before_prepare: Callable[[str], None] = lambda value: None
        self.before_checkpoint: Callable[[str], None] = lambda value: None

    @property
    def start(self) -> int:
        return 0 if self.checkpoint == "TRIM_HORIZON" else int(self.checkpoint.removeprefix("after "))


class Run:
    """One processor of a shard, driven as a worker drives it."""

    def __init__(
        self,
        factory: SparkRecordProcessorFactory,
        shard: StoredShard,
        epoch: int = 0,
        *,
        progress: Progress | None = None,
        fleet_has_processed: bool = False,
    ) -> None:
        self.shard = shard
        self.processor: SparkRecordProcessor = factory.create_processor()
        self.marker = Marker()
        self.checkpointer = Checkpointer(shard)
        info = ShardInfo(shard.shard_id, "stream", frozenset(), f"tenancy-{id(self)}", epoch)
        before = len(shard.records) if shard.checkpoint == "SHARD_END" else shard.start
        progress = progress or Progress(0, before, 0)
        given = (info, shard.checkpoint, self.checkpointer, self.marker, shard.pending, progress)
        self.processor.initialize(InitializationInput(*given, fleet_has_processed=fleet_has_processed))
        # As a worker does: up to what was prepared and is still not completed, reads end at its very record.
        pending = shard.pending
        self.prepared_to = shard.start + pending.records if pending is not None else 0
        self.read_to = shard.start if shard.checkpoint != "SHARD_END" else len(shard.records)

    def read(self, count: int) -> None:
        """Hand the next records out as one read."""
        if self.read_to < self.prepared_to:
            count = min(count, self.prepared_to - self.read_to)
        records = self.shard.records[self.read_to : self.read_to + count]
        self.read_to += len(records)
        self.give(records, f"after {self.read_to}")

    def give(self, records: Sequence[StreamRecord], position: str) -> None:
        self.checkpointer.permitted = position
        self.processor.process_records(ProcessRecordsInput(tuple(records), self.checkpointer, self.marker))

    def stop(self, reason: ShutdownReason = ShutdownReason.STOLEN) -> None:
        self.processor.shutdown(ShutdownInput(reason, self.checkpointer))


def rows(frame: Any, *names: str) -> list[tuple[Any, ...]]:
    """Some columns of all rows, sorted."""
    return sorted(tuple(row) for row in frame.select(*names).collect())
