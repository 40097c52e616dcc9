"""Records per second through the streaming source, beside Spark streaming the same rows from local Parquet files."""

from __future__ import annotations

import json
import shutil
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import count, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import define, evolve, field, frozen

from benchmarks.parquet import spark_session
from benchmarks.report import Line, Round, aimed, compare, interleaved, progress, ratio_of_at_least
from benchmarks.settings import Settings
from benchmarks.shapes import PAGE_RECORDS, Shape, shapes
from benchmarks.stage import Stage
from streamclient import SequenceInfo, Shard
from streamclient.spark import TablestoreDataSource
from streamclient.spark.source.data_source import ChangeStreamReader
from streamclient.tablestore import StreamDescription, StreamStatus, StreamSummary
from streamclient.tablestore.instance import (
    LOCAL_ACCESS_KEY_ID,
    LOCAL_ACCESS_KEY_SECRET,
    LOCAL_ENDPOINT,
    LOCAL_INSTANCE,
)
from streamclient.wire import schema
from streamclient.wire.page_parts import DecodedPage, PageSummary
from streamclient.wire.record_decoding import default_codec

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from streamclient.spark.source.data_source import RangePartition

    Frame = Callable[[], DataFrame]

SCHEMA = """key0 string, key1 bigint, city string, items bigint, amount double, paid boolean, digest binary,
status string, _operation string, _timestamp timestamp"""
"""Ten columns: eight of the first shape, and two of the change."""

FEW_SCHEMA = "key0 string, city string, _timestamp timestamp"

SERVER_SCHEMA = """customer string, order_id bigint, amount double, city string, items bigint, note string,
paid boolean, status string, _operation string, _timestamp timestamp"""
"""Ten columns of the table that other groups read too."""

LEAST = {"noop": 0.8, "parquet": 1.0}
"""The least multiples of Spark's own rate. Its reader decodes as many cells, and the files are in the page cache."""

LEAST_FROM_SERVER = {"noop": 0.7, "parquet": 0.7}

USUAL_BATCHES = 9
"""The number of usual batches. Each has 100,000 records, the number that a query takes from a shard by default."""

LARGE_BATCHES = 3
"""The number of large batches, with three times as many records each."""

SHARDS = 2
"""The shards of a stream that as many tasks read at once: one for each core of a small machine."""

SERVER_BATCHES = 5

MEMORY = "source from pages in memory"

SPARK = "Spark from local Parquet files"

MADE_BEFORE = ", batches made before"

LEAST_OF_FEW = 1.0
"""The least rate of few columns, as a multiple of that of all: a query for fewer columns must not be slower."""

_FIRST_MICROS = 1_700_000_000_000_000
_PAGES = "pages.json"
_STREAM = "memory"


@frozen
class _Written:
    """Pages of a stream, which its shards have in turn."""

    shards: tuple[str, ...]
    bodies: tuple[bytes, ...]


@lru_cache(maxsize=2)
def _written(directory: str) -> _Written:
    """Return the pages in a directory, which each process reads once."""
    about = json.loads((Path(directory) / _PAGES).read_text())
    data = (Path(directory) / "pages").read_bytes()
    ends = [sum(about["sizes"][:number]) for number in range(len(about["sizes"]) + 1)]
    return _Written(tuple(about["shards"]), tuple(data[start:end] for start, end in pairwise(ends)))


@frozen
class MemoryPages:
    """Stands in for the service: a stream of open shards, whose pages each process holds."""

    directory: str

    def streams(self) -> MemoryPages:
        """Return this object, which the planner calls."""
        return self

    def list_stream(self, table_name: str | None = None) -> Sequence[StreamSummary]:
        """Return the only stream."""
        return [StreamSummary(_STREAM, table_name or "", 0)]

    def describe_stream(self, stream_id: str) -> StreamDescription:
        """Describe the stream with the shards that were written."""
        shards = tuple(map(Shard, _written(self.directory).shards))
        return StreamDescription(stream_id, "", 24, 0, StreamStatus.ACTIVE, shards)

    def get_shard_iterator(self, stream_id: str, shard_id: str, timestamp_micros: int | None = None) -> str:
        """Return the iterator of the shard's first page."""
        return str(_written(self.directory).shards.index(shard_id))

    def oldest(self, stream_id: str, shard_id: str) -> str:
        """Return the iterator of the shard's first page."""
        return self.get_shard_iterator(stream_id, shard_id)

    def summary(self, shard_id: str, iterator: str, limit: int) -> PageSummary:
        """Return the summary of a page, for the planner."""
        return default_codec().summarize_page(self._body(iterator))

    def page(self, iterator: str, limit: int) -> DecodedPage:
        """Return a page, decoded at each call, for executors."""
        return default_codec().decode_page(self._body(iterator))

    def _body(self, iterator: str) -> bytes:
        bodies = _written(self.directory).bodies
        if int(iterator) < len(bodies):
            return bodies[int(iterator)]
        return bytes(schema.GetStreamRecordResponse(next_shard_iterator=iterator).SerializeToString())


class MemoryDataSource(TablestoreDataSource):
    """The data source over pages in memory; the option ``instance`` names their directory."""

    @classmethod
    def name(cls) -> str:
        """Return the name of this format."""
        return "pages"

    def service(self) -> Any:
        """Return the pages, read from disk now: a planner is a new process in each round."""
        pages = MemoryPages(self._options.connection.instance)
        _written(pages.directory)
        return pages


_made: dict[tuple[Any, ...], list[RecordBatch]] = {}
"""The batches of ranges that this process has read."""


class PreparedReader(ChangeStreamReader):
    """Returns batches that its process has made before, which leaves only Spark's own work for a source in Python."""

    def read(self, partition: RangePartition) -> Iterator[RecordBatch]:
        """Return the same batches each time."""
        part = partition.value
        what = (self._options.connection.instance, tuple(self._columns.names), part.at, part.count)
        if what not in _made:
            _made[what] = list(super().read(partition))
        return iter(_made[what])


class PreparedDataSource(MemoryDataSource):
    """The data source over batches that were made before."""

    @classmethod
    def name(cls) -> str:
        """Return the name of this format."""
        return "batches"

    def streamReader(self, schema: StructType) -> PreparedReader:  # noqa: N802
        """Return a reader of the columns in ``schema``."""
        return PreparedReader(self._options, self.service(), self._arrow(schema))


@define
class _Queries:
    """Runs queries, and keeps the rate of the first batch of each."""

    session: SparkSession
    directory: Path
    first_batches: dict[str, list[float]] = field(factory=dict)
    """Records per second, by the name of the row."""
    _numbers: Iterator[int] = field(factory=count)

    def source(self, name: str, options: Mapping[str, str], schema: str) -> Frame:
        """Return a frame that reads one of our sources."""
        load: Frame = self.session.readStream.format(name).options(**options).schema(schema).load
        return load

    def copied(self, frame: Frame, name: str, files: int = 1) -> Frame:
        """Copy the records into local files; return a frame that reads them with Spark, ``files`` files per batch."""
        place = self.directory / name
        self._run(frame(), "parquet", place)
        reader = self.session.readStream.schema(frame().schema).option("maxFilesPerTrigger", str(files))
        return partial(reader.parquet, str(place))

    def rate(self, name: str, frame: Frame, sink: str) -> float:
        """Return the rate of a new query without its first batch, in which Java compiles the code."""
        first, *later = self._run(frame(), sink, None)
        self.first_batches.setdefault(name, []).append(_rate_of([first]))
        return _rate_of(later)

    def first_of(self, name: str, _: float) -> str:
        """Return the detail of a row: the rate of the first batches."""
        return f"{statistics.median(self.first_batches[name]):,.0f} in the first batch of a query"

    def _run(self, frame: DataFrame, sink: str, out: Path | None) -> list[Mapping[str, Any]]:
        """Read all existing records; return the progress of each batch with records.

        The query is one that would go on: a query of ``availableNow`` plans all its batches within the first.
        """
        place = self.directory / f"query{next(self._numbers)}"
        writer = frame.writeStream.format(sink).option("checkpointLocation", str(place / "checkpoint"))
        if sink == "parquet":
            writer = writer.option("path", str(out or place / "out"))
        query = writer.start()
        try:
            query.processAllAvailable()
        finally:
            query.stop()
        shutil.rmtree(place)
        batches: list[Mapping[str, Any]] = [json.loads(progress.json) for progress in query.recentProgress]
        return [batch for batch in batches if batch["numInputRows"]]


def measure(stage: Stage, settings: Settings) -> list[Line]:
    """Measure the rate of whole batches, planning and Spark's log included, into a sink without storage and Parquet."""
    lines: list[Line] = []
    with spark_session() as session, tempfile.TemporaryDirectory(prefix="source-") as scratch:
        session.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")
        for source in (TablestoreDataSource, MemoryDataSource, PreparedDataSource):
            session.dataSource.register(source)
        directory = Path(scratch)
        queries = _Queries(session, directory)
        stored = {shards: directory / f"{shards}-shards" for shards in (1, SHARDS)}
        for shards, place in stored.items():
            _write_pages(shapes()[0], settings.source_pages, shards, place)
        compared = [
            *_from_memory(queries, stored, settings.source_pages * PAGE_RECORDS),
            _from_server(queries, stage, settings.worker_records),
        ]
        for sink in settings.source_sinks:
            for one in compared:
                lines += _beside_spark(queries, settings, sink, one)
        lines += _of_few(queries, settings, stored[1])
    return lines


@frozen
class _Comparison:
    """Sources of the same records in batches of the same size. The first is Spark's own."""

    name: str
    batch: int
    frames: Mapping[str, Frame]
    """The frames by the end of their names."""
    least: Mapping[str, float]
    """The least multiple of the first one's rate, by sink."""
    tasks: str = ""
    """The end of the name of Spark's own source if it reads a batch in more than one task."""


def _from_memory(queries: _Queries, stored: Mapping[int, Path], records: int) -> Iterator[_Comparison]:
    for batches in (USUAL_BATCHES, LARGE_BATCHES):
        batch = records // batches
        whole = _connection(instance=str(stored[1])) | {"maxOffsetsPerShard": str(batch)}
        several = _connection(instance=str(stored[SHARDS])) | {"maxOffsetsPerShard": str(batch // SHARDS)}
        halves = whole | {"maxRecordsPerPartition": str(batch // 2)}
        pages = queries.source("pages", whole, SCHEMA)
        frames = {
            SPARK: queries.copied(pages, f"copy{batches}"),
            "": pages,
            ", in two partitions": queries.source("pages", halves, SCHEMA),
            MADE_BEFORE: queries.source("batches", whole, SCHEMA),
        }
        yield _Comparison(MEMORY, batch, frames, LEAST)
        pages = queries.source("pages", several, SCHEMA)
        frames = {SPARK: queries.copied(pages, f"copies{batches}", SHARDS), ", of two shards": pages}
        yield _Comparison(MEMORY, batch, frames, LEAST, ", in two tasks")


def _from_server(queries: _Queries, stage: Stage, records: int) -> _Comparison:
    table = stage.table(1, records)
    batch = records // SERVER_BATCHES
    options = _connection(endpoint=stage.endpoint) | {"table": table.name, "maxOffsetsPerShard": str(batch)}
    changes = queries.source("tablestore", options, SERVER_SCHEMA)
    frames = {SPARK: queries.copied(changes, "server-copy"), "": changes}
    return _Comparison("source from the server", batch, frames, LEAST_FROM_SERVER)


def _beside_spark(queries: _Queries, settings: Settings, sink: str, one: _Comparison) -> list[Line]:
    what = f"to {sink}, batches of {one.batch:,}"
    names = {how: f"{SPARK} {what}{one.tasks}" if how is SPARK else f"{one.name} {what}{how}" for how in one.frames}
    rounds: dict[str, Round] = {
        names[how]: partial(queries.rate, names[how], frame, sink) for how, frame in one.frames.items()
    }
    rates = interleaved(settings.rounds, rounds, is_warmed_up=settings.is_warmed_up)
    aims = {name: ratio_of_at_least(one.least[sink]) for how, name in names.items() if how not in (SPARK, MADE_BEFORE)}
    return aimed(compare("source", "records/s", rates, queries.first_of), aims)


def _of_few(queries: _Queries, settings: Settings, stored: Path) -> list[Line]:
    batch = settings.source_pages * PAGE_RECORDS // USUAL_BATCHES
    options = _connection(instance=str(stored)) | {"maxOffsetsPerShard": str(batch)}
    columns = {"10 columns": SCHEMA, "3 columns": FEW_SCHEMA}
    names = {how: f"source of {how} from pages in memory to noop" for how in columns}
    rounds: dict[str, Round] = {
        name: partial(queries.rate, name, queries.source("pages", options, columns[how]), "noop")
        for how, name in names.items()
    }
    rates = interleaved(settings.rounds, rounds, is_warmed_up=settings.is_warmed_up)
    aims = {names["3 columns"]: ratio_of_at_least(LEAST_OF_FEW)}
    return aimed(compare("source", "records/s", rates, queries.first_of), aims)


def _rate_of(batches: Sequence[Mapping[str, Any]]) -> float:
    records = sum(int(batch["numInputRows"]) for batch in batches)
    return records / (sum(float(batch["durationMs"]["triggerExecution"]) for batch in batches) / 1_000)


def _connection(*, endpoint: str = LOCAL_ENDPOINT, instance: str = LOCAL_INSTANCE) -> dict[str, str]:
    return {
        "endpoint": endpoint,
        "instance": instance,
        "table": _STREAM,
        "accessKeyId": LOCAL_ACCESS_KEY_ID,
        "accessKeySecret": LOCAL_ACCESS_KEY_SECRET,
    }


def _write_pages(shape: Shape, pages: int, shards: int, directory: Path) -> None:
    """Write copies of the shape's page, each at its own positions and after the shard's page before it."""
    progress(f"writing {pages} pages of {shards} shard(s)")
    directory.mkdir()
    sizes = []
    with (directory / "pages").open("wb") as out:
        for number in range(pages):
            page = schema.GetStreamRecordResponse(next_shard_iterator=str(number + shards))
            for place, record in enumerate(shape.records):
                placed = evolve(record, sequence_info=SequenceInfo(0, _FIRST_MICROS + number * PAGE_RECORDS + place, 0))
                action, data, _ = default_codec().encode_record(placed)
                page.stream_records.add(action_type=action, record=data)
            sizes.append(out.write(page.SerializeToString()))
    names = [f"shard-{number}" for number in range(shards)]
    (directory / _PAGES).write_text(json.dumps({"shards": names, "sizes": sizes}))
