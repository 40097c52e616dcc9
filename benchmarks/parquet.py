"""Records per second from the server into files: as rows by hand-written Spark code, and as columns into a Delta table.

The way by columns is also compared with Spark, when it copies the same rows from one local Parquet file into another.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from attrs import frozen

from benchmarks.report import Line, Round, aimed, compare, interleaved, progress, ratio_of_at_least, seconds_of
from benchmarks.rows import FULL, SHORT, RowLayout, RowProcessor
from benchmarks.settings import Settings
from benchmarks.stage import Stage
from benchmarks.tables import FilledTable
from benchmarks.workers import Meter, running_worker
from streamclient import (
    ClientConfig,
    InitializationInput,
    IPreparedCheckpoint,
    IRecordProcessor,
    IRecordProcessorCheckpointer,
    IShutdownMarker,
    PendingCheckpoint,
    ProcessRecordsInput,
    ShardInfo,
    ShutdownInput,
    ShutdownReason,
    StreamRecord,
    TablestoreStreamApi,
)
from streamclient.destinations import Commit, DeltaDestination
from streamclient.model import TableDefinition
from streamclient.spark import BatchContext, SparkConfig, SparkRecordProcessorFactory, Transform, local_session
from streamclient.spark.spark_session import running_session

if TYPE_CHECKING:
    from pyarrow import Table
    from pyspark.sql import DataFrame, SparkSession
    from tablestore import OTSClient

PAGE_SIZE = 1_000

NEVER_MILLIS = 600_000
"""An age of batches that no batch reaches. So batches end by their number of records, and all candidates write equal
batches."""

NEVER_BYTES = 1 << 30


class StartingProcessor(IRecordProcessor):
    """A processor that starts the meter, and passes every call on to another processor."""

    def __init__(self, processor: IRecordProcessor, meter: Meter) -> None:
        self._processor = processor
        self._meter = meter

    def initialize(self, initialization_input: InitializationInput) -> None:
        """Start the meter, because reading begins, and pass the call on."""
        self._meter.start()
        self._processor.initialize(initialization_input)

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        """Pass the call on."""
        self._processor.process_records(process_records_input)

    def shutdown(self, shutdown_input: ShutdownInput) -> None:
        """Pass the call on."""
        self._processor.shutdown(shutdown_input)


class NothingPrepared(IPreparedCheckpoint):
    """The prepared checkpoint of ``NoCheckpointer``, which stores nothing."""

    @property
    def pending(self) -> PendingCheckpoint:
        """A pending checkpoint that this benchmark never reads."""
        return PendingCheckpoint("iterator", b"", 0, 0)

    def checkpoint(self) -> None:
        """Accept the checkpoint and store nothing."""


class NoCheckpointer(IRecordProcessorCheckpointer):
    """Takes the place of the worker's checkpointer when only the way into files is measured."""

    def checkpoint(self, checkpoint_value: str | None = None) -> None:
        """Accept the checkpoint and store nothing."""

    def prepare_checkpoint(self, checkpoint_value: str | None, state: bytes) -> IPreparedCheckpoint:
        """Accept the checkpoint and store nothing."""
        return NothingPrepared()

    @property
    def largest_permitted_checkpoint_value(self) -> str:
        """Any position, because no processor of this benchmark uses it."""
        return "iterator"


class NoMarker(IShutdownMarker):
    """Takes the place of the worker's marker, which no processor of this benchmark uses."""

    def mark_for_process_done(self) -> None:
        """Do nothing."""

    def mark_for_process_restart(self) -> None:
        """Do nothing."""


Feed = Callable[[Callable[[], IRecordProcessor], Meter], None]
"""A function that feeds all records to the processors of a factory, and returns once the meter has counted them."""


@frozen
class RowWriter:
    """A candidate that writes rows by hand-written Spark code, without Arrow."""

    session: SparkSession
    layout: RowLayout
    batch: int

    def write(self, feed: Feed, meter: Meter, directory: Path) -> None:
        """Let ``feed`` feed processors that write into ``directory``."""
        feed(partial(RowProcessor, self.session, self.layout, self.batch, directory, meter), meter)


class MeteredDestination(DeltaDestination):
    """A Delta table that tells the meter how many records it has stored."""

    meter: Meter

    def commit(self, rows: Table, commits: Sequence[Commit]) -> None:
        """Store the commits and count their records."""
        super().commit(rows, commits)
        self.meter.add(sum(commit.count for commit in commits))


@frozen
class ColumnWriter:
    """A candidate that writes columns into a Delta table by this package."""

    session: SparkSession
    table: TableDefinition
    batch: int
    transform: Transform | None = None

    def write(self, feed: Feed, meter: Meter, directory: Path) -> None:
        """Let ``feed`` feed processors that write into ``directory``."""
        destination = MeteredDestination(str(directory))
        destination.meter = meter
        config = SparkConfig(
            max_records=self.batch, max_bytes=NEVER_BYTES, max_buffered_bytes=NEVER_BYTES, max_age_millis=NEVER_MILLIS
        )
        with SparkRecordProcessorFactory(
            destination, self.transform, session=self.session, table=self.table, config=config
        ) as factory:
            feed(lambda: StartingProcessor(factory.create_processor(), meter), meter)


def unchanged(frame: DataFrame, context: BatchContext) -> DataFrame:
    """Return the frame unchanged, which is the least work for Spark."""
    return frame


def measure(stage: Stage, settings: Settings) -> list[Line]:
    """Measure four ways to write equal batches, fed by a worker and from memory. Ratios are within one batch size."""
    table = stage.table(1, settings.stream_records)
    by_worker = partial(_feed_by_worker, stage.client(), table)
    from_memory = partial(_feed_from_memory, _pages_of(stage, table))
    feeds: list[tuple[str, int, Feed]] = [("server", batch, by_worker) for batch in settings.frame_batches]
    feeds.append(("memory", settings.frame_batches[-1], from_memory))
    lines: list[Line] = []
    with spark_session() as session:
        for source, batch, feed in feeds:
            rounds: dict[str, Round] = {
                f"{source} to files, batches of {batch}: {name}": partial(_rate, table.records, feed, writer)
                for name, writer in _writers(session, table.definition, batch).items()
            }
            lines += compare(
                "parquet", "records/s", interleaved(settings.slow_rounds, rounds, is_warmed_up=settings.is_warmed_up)
            )
        loose = partial(_feed_from_memory, [tuple(page) for page in _pages_of(stage, table)])
        feeds_beside = {PAGES: from_memory, LOOSE: loose, "server": by_worker}
        lines += _beside_a_copy(session, table, settings, feeds_beside)
    return lines


PAGES = "pages in memory"
LOOSE = "loose records in memory"
LEAST = {PAGES: 3.0, "server": 0.7}
"""The smallest accepted rates of columns, as multiples of the rate at which Spark copies the rows. A commit of columns
needs no job of Spark."""


def _beside_a_copy(
    session: SparkSession, table: FilledTable, settings: Settings, feeds: Mapping[str, Feed]
) -> list[Line]:
    batch, writer = settings.frame_batches[-1], ColumnWriter(session, table.definition, settings.frame_batches[-1])
    names = {f"processor from {feed}, into Delta, batches of {batch}": feed for feed in feeds}
    with tempfile.TemporaryDirectory() as directory:
        whole, runs = Path(directory) / "rows", count()
        writer.write(feeds[PAGES], Meter(table.records), whole)
        files = [str(path) for path in whole.rglob("*.parquet") if "_delta_log" not in path.parts]
        rounds: dict[str, Round] = {
            "Spark from local Parquet to Parquet, the same rows": lambda: (
                table.records
                / seconds_of(lambda: session.read.parquet(*files).write.parquet(f"{directory}/{next(runs)}"))
            )
        }
        rounds |= {name: partial(_rate, table.records, feeds[feed], writer) for name, feed in names.items()}
        rates = interleaved(settings.slow_rounds, rounds, is_warmed_up=settings.is_warmed_up)
    compared = compare("parquet", "records/s", rates)
    return aimed(compared, {name: ratio_of_at_least(LEAST[feed]) for name, feed in names.items() if feed in LEAST})


def _writers(session: SparkSession, table: TableDefinition, batch: int) -> dict[str, RowWriter | ColumnWriter]:
    return {
        "rows without Arrow, the same 20 columns": RowWriter(session, FULL, batch),
        "rows without Arrow, 13 columns": RowWriter(session, SHORT, batch),
        "SparkRecordProcessorFactory into Delta, through Spark": ColumnWriter(session, table, batch, unchanged),
        "SparkRecordProcessorFactory into Delta, no transform": ColumnWriter(session, table, batch),
    }


@contextmanager
def spark_session() -> Iterator[SparkSession]:
    """Yield the Spark session that runs in this process. If there is no session, yield a new one for the block."""
    is_own = running_session() is None
    progress("starting Spark")
    session = local_session("streamclient-benchmarks")
    try:
        yield session
    finally:
        if is_own:
            session.stop()


def _pages_of(stage: Stage, table: FilledTable) -> list[Sequence[StreamRecord]]:
    """Return the records page by page, as a worker has them: records or columns are made only when they are read."""
    streams = TablestoreStreamApi(stage.client())
    shard = streams.describe_stream(table.stream_id).shards[0].shard_id
    iterator = streams.get_shard_iterator(table.stream_id, shard)
    pages = []
    for _ in range(0, table.records, PAGE_SIZE):
        page = streams.get_stream_record(iterator, PAGE_SIZE)
        pages.append(page.records)
        iterator = page.next_position.text
    return pages


def _rate(expected: int, feed: Feed, writer: RowWriter | ColumnWriter) -> float:
    """Return records per second up to the last written batch, after a check that the files have all records."""
    meter = Meter(expected)
    with tempfile.TemporaryDirectory() as directory:
        writer.write(feed, meter, Path(directory))
        files = [str(path) for path in Path(directory).rglob("*.parquet") if "_delta_log" not in path.parts]
        found = writer.session.read.parquet(*files).count()
    if found != expected:
        raise RuntimeError(f"the Parquet files hold {found} records, expected {expected}")
    return meter.rate


def _feed_by_worker(
    client: OTSClient,
    table: FilledTable,
    factory: Callable[[], IRecordProcessor],
    meter: Meter,
) -> None:
    with running_worker(client, table, PAGE_SIZE, factory, ClientConfig()) as worker:
        meter.wait(worker)


def _feed_from_memory(
    pages: Sequence[Sequence[StreamRecord]], factory: Callable[[], IRecordProcessor], meter: Meter
) -> None:
    checkpointer, marker = NoCheckpointer(), NoMarker()
    processor = factory()
    processor.initialize(
        InitializationInput(ShardInfo("shard", "stream", frozenset(), "tenancy"), "TRIM_HORIZON", checkpointer, marker)
    )
    for page in pages:
        processor.process_records(ProcessRecordsInput(page, checkpointer, marker))
    processor.shutdown(ShutdownInput(ShutdownReason.PROCESS_DONE, checkpointer))
    meter.wait()
