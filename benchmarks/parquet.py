"""Records per second from the server into Parquet through Spark: columns through Arrow against rows without."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import frozen

from benchmarks.report import Line, Round, compare, interleaved, progress
from benchmarks.settings import Settings
from benchmarks.stage import Stage
from benchmarks.tables import ATTRIBUTES, FilledTable
from benchmarks.workers import Meter, make_worker
from streamclient import (
    ClientConfig,
    ColumnOperation,
    InitializationInput,
    IRecordProcessor,
    ProcessRecordsInput,
    ShutdownInput,
    StreamRecord,
)
from streamclient.spark import BatchContext, FileSink, SparkConfig, SparkRecordProcessorFactory, local_session
from streamclient.spark.context import sequence_text
from streamclient.spark.session import running_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from tablestore import OTSClient

PAGE_SIZE = 1_000

NEVER_MILLIS = 600_000
"""Batches here end by their number of records only, so that all candidates write equal ones."""

NEVER_BYTES = 1 << 30

_TABLE_COLUMNS = (
    "customer string, order_id bigint, amount double, city string, items bigint, note string, paid boolean, "
    "status string"
)
_FEW_ADDED = "_operation string, _epoch bigint, _timestamp bigint, _row_index bigint, _shard_id string"
_CELLS = "array<struct<column:string,version:bigint,type:string,value:string>>"
_ALL_ADDED = (
    "_operation string, _sequence string, _epoch bigint, _timestamp timestamp, _row_index bigint, _shard_id string, "
    "_versions map<string,bigint>, _deleted_columns array<string>, _deleted_versions map<string,array<bigint>>, "
    f"_older_versions {_CELLS}, _original_columns {_CELLS}"
)


@frozen
class RowLayout:
    """How a record becomes a row without Arrow."""

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
    """What the columns of ``SparkRecordProcessor`` hold, for records without repeated or original cells."""
    sequence = record.sequence_info
    by_operation: dict[ColumnOperation, list[Any]] = {operation: [] for operation in ColumnOperation}
    for cell in record.columns:
        by_operation[cell.operation].append(cell)
    return (
        *_own_values(record),
        record.record_type.value,
        sequence_text(sequence),
        sequence.epoch,
        datetime.fromtimestamp(sequence.timestamp_micros / 1e6, timezone.utc),
        sequence.row_index,
        shard_id,
        {cell.name: cell.timestamp_millis for cell in by_operation[ColumnOperation.PUT]},
        [cell.name for cell in by_operation[ColumnOperation.DELETE_ALL_VERSION]],
        {cell.name: [cell.timestamp_millis] for cell in by_operation[ColumnOperation.DELETE_ONE_VERSION]},
        [],
        None,
    )


SHORT = RowLayout(f"{_TABLE_COLUMNS}, {_FEW_ADDED}", _short_row)
FULL = RowLayout(f"{_TABLE_COLUMNS}, {_ALL_ADDED}", _full_row)


class RowProcessor(IRecordProcessor):
    """What one writes without this package's Spark part: rows as tuples, a DataFrame of them, Parquet, checkpoint."""

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
        """Remember the shard; reading begins."""
        self._path.mkdir()
        self._meter.start()
        self._shard_id = initialization_input.shard_info.shard_id

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        """Buffer; write and checkpoint once there are enough."""
        self._buffer += process_records_input.records
        if len(self._buffer) >= self._batch:
            self._write()
            process_records_input.checkpointer.checkpoint()

    def shutdown(self, shutdown_input: ShutdownInput) -> None:
        """Nothing: what is buffered was not checkpointed."""

    def _write(self) -> None:
        rows = [self._layout.row(self._shard_id, record) for record in self._buffer]
        frame = self._session.createDataFrame(rows, self._layout.schema)
        frame.write.parquet(str(self._path / f"batch={next(self._numbers)}"))
        self._meter.add(len(self._buffer))
        self._buffer = []


class StartingProcessor(IRecordProcessor):
    """Starts the meter, and passes everything on."""

    def __init__(self, processor: IRecordProcessor, meter: Meter) -> None:
        self._processor = processor
        self._meter = meter

    def initialize(self, initialization_input: InitializationInput) -> None:
        """Reading begins; pass on."""
        self._meter.start()
        self._processor.initialize(initialization_input)

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        """Pass on."""
        self._processor.process_records(process_records_input)

    def shutdown(self, shutdown_input: ShutdownInput) -> None:
        """Pass on."""
        self._processor.shutdown(shutdown_input)


def measure(stage: Stage, settings: Settings) -> list[Line]:
    """Three ways to write equal batches, at each batch size; ratios within one size."""
    table = stage.table(1, settings.stream_records)
    lines: list[Line] = []
    with _session() as session:
        for batch in settings.frame_batches:
            rounds: dict[str, Round] = {
                f"into Parquet, batches of {batch}: rows without Arrow, all columns": partial(
                    _rows_rate, stage.client(), session, table, batch, FULL
                ),
                f"into Parquet, batches of {batch}: rows without Arrow, key, values and 5 more": partial(
                    _rows_rate, stage.client(), session, table, batch, SHORT
                ),
                f"into Parquet, batches of {batch}: SparkRecordProcessorFactory and FileSink": partial(
                    _columns_rate, stage.client(), session, table, batch
                ),
            }
            lines += compare("parquet", "records/s", interleaved(settings.slow_rounds, rounds))
    return lines


@contextmanager
def _session() -> Iterator[SparkSession]:
    is_own = running_session() is None
    progress("starting Spark")
    session = local_session("streamclient-benchmarks")
    try:
        yield session
    finally:
        if is_own:
            session.stop()


def _rows_rate(client: OTSClient, session: SparkSession, table: FilledTable, batch: int, layout: RowLayout) -> float:
    meter = Meter(table.records)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "lake"
        make = partial(RowProcessor, session, layout, batch, path, meter)
        with make_worker(client, table, PAGE_SIZE, make, ClientConfig()) as worker:
            meter.wait(worker)
        _check(session, sorted(path.iterdir()), table.records)
    return meter.rate


def _columns_rate(client: OTSClient, session: SparkSession, table: FilledTable, batch: int) -> float:
    meter = Meter(table.records)
    config = SparkConfig(
        max_records=batch, max_bytes=NEVER_BYTES, max_buffered_bytes=NEVER_BYTES, max_age_millis=NEVER_MILLIS
    )
    with tempfile.TemporaryDirectory() as directory:
        files = FileSink(directory)

        def sink(frame: DataFrame, context: BatchContext) -> None:
            files(frame, context)
            meter.add(context.record_count)

        factory = SparkRecordProcessorFactory(sink, session=session, table=table.definition, config=config)
        with (
            factory,
            make_worker(
                client,
                table,
                PAGE_SIZE,
                lambda: StartingProcessor(factory.create_processor(), meter),
                ClientConfig(),
            ) as worker,
        ):
            meter.wait(worker)
        _check(session, sorted(Path(directory).glob("_shard=*/_start=*")), table.records)
    return meter.rate


def _check(session: SparkSession, directories: Sequence[Path], expected: int) -> None:
    """All records are in the files; outside the measured time."""
    found = session.read.parquet(*map(str, directories)).count()
    if found != expected:
        raise RuntimeError(f"the Parquet files hold {found} records, expected {expected}")
