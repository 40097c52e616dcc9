"""The program that one would write without this package's Spark part: tuples of records, a DataFrame, and Parquet."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import frozen

from benchmarks.tables import ATTRIBUTES
from benchmarks.workers import Meter
from streamclient import (
    ColumnOperation,
    InitializationInput,
    IRecordProcessor,
    ProcessRecordsInput,
    ShutdownInput,
    StreamRecord,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TABLE_COLUMNS = (
    "customer string, order_id bigint, amount double, city string, items bigint, note string, paid boolean, "
    "status string"
)
_FEW_ADDED = "_operation string, _epoch bigint, _timestamp bigint, _row_index bigint, _shard_id string"
_CELLS = "array<struct<column:string,version:bigint,type:string,value:string>>"
_ALL_ADDED = (
    "_operation string, _epoch bigint, _timestamp timestamp, _row_index bigint, _shard_id string, _commit bigint, "
    "_versions map<string,bigint>, _deleted_columns array<string>, _deleted_versions map<string,array<bigint>>, "
    f"_older_versions {_CELLS}, _original_columns {_CELLS}, _unfit map<string,struct<type:string,value:string>>"
)


@frozen
class RowLayout:
    """The schema of the rows, and the function that makes a row of a record."""

    schema: str
    row: Callable[[str, StreamRecord], tuple[Any, ...]]


def _own_values(record: StreamRecord) -> Iterator[Any]:
    yield from (value for _, value in record.primary_key)
    puts = {cell.name: cell.value for cell in record.columns if cell.operation is ColumnOperation.PUT}
    yield from (puts.get(name) for name in ATTRIBUTES)


def _short_row(shard_id: str, record: StreamRecord) -> tuple[Any, ...]:
    sequence = record.sequence_info
    added = (record.record_type.value, sequence.epoch, sequence.timestamp_micros, sequence.row_index, shard_id)
    return (*_own_values(record), *added)


def _full_row(shard_id: str, record: StreamRecord) -> tuple[Any, ...]:
    """Return the row that ``SparkRecordProcessor`` makes, for records without repeated or original cells."""
    sequence = record.sequence_info
    by_operation: dict[ColumnOperation, list[Any]] = {operation: [] for operation in ColumnOperation}
    for cell in record.columns:
        by_operation[cell.operation].append(cell)
    return (
        *_own_values(record),
        record.record_type.value,
        sequence.epoch,
        datetime.fromtimestamp(sequence.timestamp_micros / 1e6, timezone.utc),
        sequence.row_index,
        shard_id,
        1,
        {cell.name: cell.timestamp_millis for cell in by_operation[ColumnOperation.PUT]},
        [cell.name for cell in by_operation[ColumnOperation.DELETE_ALL_VERSION]],
        {cell.name: [cell.timestamp_millis] for cell in by_operation[ColumnOperation.DELETE_ONE_VERSION]},
        [],
        [],
        {},
    )


SHORT = RowLayout(f"{_TABLE_COLUMNS}, {_FEW_ADDED}", _short_row)
FULL = RowLayout(f"{_TABLE_COLUMNS}, {_ALL_ADDED}", _full_row)


class RowProcessor(IRecordProcessor):
    """A processor that buffers records, writes each full batch as rows, and stores a checkpoint after it."""

    def __init__(self, session: SparkSession, layout: RowLayout, batch: int, path: Path, meter: Meter) -> None:
        self._session = session
        self._layout = layout
        self._batch = batch
        self._path = path
        self._meter = meter
        self._shard_id = ""
        self._buffer: list[StreamRecord] = []
        self._numbers = itertools.count()

    def initialize(self, initialization_input: InitializationInput) -> None:
        """Start the meter, because reading begins, and remember the shard."""
        self._meter.start()
        self._shard_id = initialization_input.shard_info.shard_id

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        """Buffer the records. Once a batch is full, write it and store a checkpoint."""
        self._buffer += process_records_input.records
        if len(self._buffer) >= self._batch:
            self._write()
            process_records_input.checkpointer.checkpoint()

    def shutdown(self, shutdown_input: ShutdownInput) -> None:
        """Do nothing: records in the buffer are after the checkpoint, so they come again."""

    def _write(self) -> None:
        rows = [self._layout.row(self._shard_id, record) for record in self._buffer]
        frame = self._session.createDataFrame(rows, self._layout.schema)
        frame.write.parquet(str(self._path / f"batch={next(self._numbers)}"))
        self._meter.add(len(self._buffer))
        self._buffer = []
