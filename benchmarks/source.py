"""Records per second through the streaming source, beside Spark's own stream of the same rows from Parquet files."""

from __future__ import annotations

import json
import shutil
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import define, field, frozen

from benchmarks.parquet import spark_session
from benchmarks.report import Line, Round, aimed, compare, interleaved, progress, ratio_of_at_least
from benchmarks.settings import Settings
from benchmarks.shapes import PAGE_RECORDS, shapes
from benchmarks.source_pages import STREAM, MemoryDataSource, PreparedDataSource, write_pages
from benchmarks.stage import Stage
from streamclient.spark import TablestoreDataSource
from streamclient.tablestore.instance import (
    LOCAL_ACCESS_KEY_ID,
    LOCAL_ACCESS_KEY_SECRET,
    LOCAL_ENDPOINT,
    LOCAL_INSTANCE,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    Frame = Callable[[], DataFrame]

SCHEMA = """key0 string, key1 bigint, city string, items bigint, amount double, paid boolean, digest binary,
status string, _operation string, _timestamp timestamp"""
"""The schema of a query on the first shape: eight columns of its rows, and two columns about the change."""

FEW_SCHEMA = "key0 string, city string, _timestamp timestamp"

SERVER_SCHEMA = """customer string, order_id bigint, amount double, city string, items bigint, note string,
paid boolean, status string, _operation string, _timestamp timestamp"""
"""The schema of a query on the table of the server, which other groups read, too: eight columns, and two about the
change."""

LEAST = {"noop": 0.8, "parquet": 1.0}
"""The smallest accepted rates by sink, as multiples of Spark's own rate. Spark decodes as many cells, and its files are
in the page cache."""

LEAST_FROM_SERVER = {"noop": 0.7, "parquet": 0.7}

USUAL_BATCHES = 6
"""The number of usual batches. Each has 100,000 records, which a query takes from a shard by default."""

LARGE_BATCHES = 2
"""The number of large batches, each with three times as many records. The first batch is not part of the rate."""

SHARDS = 2
"""The number of shards of a stream that is read by one task for each shard, at the same time."""

SERVER_BATCHES = 5

MEMORY = "source from pages in memory"

SPARK = "Spark from local Parquet files"

MADE_BEFORE = ", batches made before"

LEAST_OF_FEW = 1.0
"""The smallest accepted rate with few columns, as a multiple of the rate with all columns. A query for fewer columns
must not be slower."""


@define
class _Queries:
    """Runs queries, and remembers the rate of the first batch of each query."""

    session: SparkSession
    directory: Path
    first_batches: dict[str, list[float]] = field(factory=dict)
    """The records per second of the first batch of each query, by the name of its row in the table."""
    _numbers: Iterator[int] = field(factory=count)

    def source(self, name: str, options: Mapping[str, str], schema: str) -> Frame:
        """Return a frame that reads one of this package's sources. Its queries share it, because loading takes long."""
        load: Frame = self.session.readStream.format(name).options(**options).schema(schema).load
        return cache(load)

    def copied(self, frame: Frame, name: str, files: int = 1) -> Frame:
        """Copy the records of ``frame`` into local files; return a frame that reads ``files`` of them per batch."""
        place = self.directory / name
        self._run(frame(), "parquet", place)
        reader = self.session.readStream.schema(frame().schema).option("maxFilesPerTrigger", str(files))
        return partial(reader.parquet, str(place))

    def rate(self, name: str, frame: Frame, sink: str) -> float:
        """Run a new query; return its rate without the first batch, in which Java compiles the code."""
        first, *later = self._run(frame(), sink, None)
        self.first_batches.setdefault(name, []).append(_rate_of([first]))
        return _rate_of(later)

    def first_of(self, name: str, _: float) -> str:
        """Return the detail of a row in the table: the rate of the first batches."""
        return f"{statistics.median(self.first_batches[name]):,.0f} in the first batch of a query"

    def _run(self, frame: DataFrame, sink: str, out: Path | None) -> list[Mapping[str, Any]]:
        """Read all existing records; return the progress of each batch with records.

        The query does not use ``availableNow``, because such a query plans all its batches in the first one.
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
    """Measure the rate of whole batches, with planning and Spark's log, into a sink without storage and Parquet."""
    lines: list[Line] = []
    with spark_session() as session, tempfile.TemporaryDirectory(prefix="source-") as scratch:
        session.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")
        for source in (TablestoreDataSource, MemoryDataSource, PreparedDataSource):
            session.dataSource.register(source)
        directory = Path(scratch)
        queries = _Queries(session, directory)
        stored = {shards: directory / f"{shards}-shards" for shards in (1, SHARDS)}
        progress(f"writing {settings.source_pages} pages")
        write_pages(shapes()[0], settings.source_pages, stored)
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
    """Sources that read the same records in batches of the same size. The first one is Spark's own source."""

    name: str
    batch: int
    frames: Mapping[str, Frame]
    """The frames of the sources, by the end of their rows' names."""
    least: Mapping[str, float]
    """The smallest accepted multiple of the first source's rate, by sink."""
    tasks: str = ""
    """The end of the name of Spark's own source, if it reads a batch in several tasks."""


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
    rates = _rates(settings, rounds)
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
    rates = _rates(settings, rounds)
    aims = {names["3 columns"]: ratio_of_at_least(LEAST_OF_FEW)}
    return aimed(compare("source", "records/s", rates, queries.first_of), aims)


def _rates(settings: Settings, rounds: dict[str, Round]) -> dict[str, list[float]]:
    """Return the rates of the rounds, without a round to warm up: each query warms up with its own first batch."""
    return interleaved(settings.slow_rounds, rounds, is_warmed_up=False)


def _rate_of(batches: Sequence[Mapping[str, Any]]) -> float:
    records = sum(int(batch["numInputRows"]) for batch in batches)
    return records / (sum(float(batch["durationMs"]["triggerExecution"]) for batch in batches) / 1_000)


def _connection(*, endpoint: str = LOCAL_ENDPOINT, instance: str = LOCAL_INSTANCE) -> dict[str, str]:
    return {
        "endpoint": endpoint,
        "instance": instance,
        "table": STREAM,
        "accessKeyId": LOCAL_ACCESS_KEY_ID,
        "accessKeySecret": LOCAL_ACCESS_KEY_SECRET,
    }
