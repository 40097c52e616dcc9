"""Records per second through the streaming source, beside Spark streaming the same rows from a local Parquet file."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import count, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import evolve, frozen

from benchmarks.parquet import spark_session
from benchmarks.report import Line, Round, aimed, compare, interleaved, progress, ratio_of_at_least
from benchmarks.settings import Settings
from benchmarks.shapes import PAGE_RECORDS, Shape, shapes
from benchmarks.stage import Stage
from streamclient.datasource import TablestoreDataSource
from streamclient.datasource.source import ChangeStreamReader
from streamclient.model import Shard
from streamclient.records import SequenceInfo
from streamclient.stream.api import StreamDescription, StreamStatus, StreamSummary
from streamclient.tablestore.connect import (
    LOCAL_ACCESS_KEY_ID,
    LOCAL_ACCESS_KEY_SECRET,
    LOCAL_ENDPOINT,
    LOCAL_INSTANCE,
)
from streamclient.wire import schema
from streamclient.wire.pages import DecodedPage, PageSummary
from streamclient.wire.records import default_codec

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from streamclient.datasource.source import RangePartition

SCHEMA = """key0 string, key1 bigint, city string, items bigint, amount double, paid boolean, digest binary,
status string, _operation string, _timestamp timestamp"""
"""Ten columns: those of the first shape, and two of the change."""

FEW_SCHEMA = "key0 string, city string, _timestamp timestamp"

SERVER_SCHEMA = """customer string, order_id bigint, amount double, city string, items bigint, note string,
paid boolean, status string, _operation string, _timestamp timestamp"""
"""The same number, of the table that other groups read too."""

LEAST = {"noop": 0.8, "parquet": 1.0}
"""Of Spark's own rate: its reader decodes as many cells, and a file's bytes come from the page cache."""

LEAST_FROM_SERVER = 0.7

LEAST_OF_FEW = 1.0
"""Of the rate of all columns: who asks for less must not pay more."""

_FIRST_MICROS = 1_700_000_000_000_000
_PAGES = "pages.json"
_STREAM = "memory"


@lru_cache(maxsize=1)
def _bodies(directory: str) -> tuple[bytes, ...]:
    """The pages, read once by each process."""
    sizes: list[int] = json.loads((Path(directory) / _PAGES).read_text())
    data = (Path(directory) / "pages").read_bytes()
    ends = [sum(sizes[:number]) for number in range(len(sizes) + 1)]
    return tuple(data[start:end] for start, end in pairwise(ends))


@frozen
class MemoryPages:
    """In place of the service: one open shard, whose pages each process holds."""

    directory: str

    def streams(self) -> MemoryPages:
        """For the planner."""
        return self

    def list_stream(self, table_name: str | None = None) -> Sequence[StreamSummary]:
        """One."""
        return [StreamSummary(_STREAM, table_name or "", 0)]

    def describe_stream(self, stream_id: str) -> StreamDescription:
        """One shard."""
        return StreamDescription(stream_id, "", 24, 0, StreamStatus.ACTIVE, (Shard("shard"),))

    def get_shard_iterator(self, stream_id: str, shard_id: str, timestamp_micros: int | None = None) -> str:
        """The first page."""
        return "0"

    def oldest(self, stream_id: str, shard_id: str) -> str:
        """The first page."""
        return "0"

    def summary(self, shard_id: str, iterator: str, limit: int) -> PageSummary:
        """For the planner."""
        return default_codec().summarize_page(self._body(iterator))

    def page(self, iterator: str, limit: int) -> DecodedPage:
        """For executors: a page, decoded each time."""
        return default_codec().decode_page(self._body(iterator))

    def _body(self, iterator: str) -> bytes:
        bodies = _bodies(self.directory)
        if int(iterator) < len(bodies):
            return bodies[int(iterator)]
        return bytes(schema.GetStreamRecordResponse(next_shard_iterator=iterator).SerializeToString())


class MemoryDataSource(TablestoreDataSource):
    """The data source over such pages; the option ``endpoint`` names their directory."""

    @classmethod
    def name(cls) -> str:
        """Beside the real one."""
        return "pages"

    def service(self) -> Any:
        """The pages, which each process reads from disk now: a planner is a new process in each round."""
        pages = MemoryPages(self._options.connection.endpoint)
        _bodies(pages.directory)
        return pages


_made: dict[tuple[Any, ...], list[RecordBatch]] = {}
"""Batches of ranges, in each process that has read them."""


class PreparedReader(ChangeStreamReader):
    """Hands out batches that its process has made before: what is left is Spark's own work for a source in Python."""

    def read(self, partition: RangePartition) -> Iterator[RecordBatch]:
        """The same batches each time."""
        part = partition.value
        what = (self._options.connection.endpoint, tuple(self._columns.names), part.at, part.count)
        if what not in _made:
            _made[what] = list(super().read(partition))
        return iter(_made[what])


class PreparedDataSource(MemoryDataSource):
    """The data source over such batches."""

    @classmethod
    def name(cls) -> str:
        """Beside the one over pages."""
        return "batches"

    def streamReader(self, schema: StructType) -> PreparedReader:  # noqa: N802
        """With the columns that are asked for."""
        return PreparedReader(self._options, self.service(), self._arrow(schema))


def measure(stage: Stage, settings: Settings) -> list[Line]:
    """Into nothing and into Parquet, one partition; the rate of whole batches, planning and log included."""
    lines: list[Line] = []
    with spark_session() as session, tempfile.TemporaryDirectory(prefix="source-") as scratch:
        session.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")
        session.dataSource.register(TablestoreDataSource)
        session.dataSource.register(MemoryDataSource)
        session.dataSource.register(PreparedDataSource)
        directory = Path(scratch)
        records = settings.source_pages * PAGE_RECORDS
        _write_pages(shapes()[0], settings.source_pages, directory)
        memory = _connection(str(directory)) | {"maxOffsetsPerShard": str(records)}
        changes = session.readStream.format("pages").options(**memory).schema(SCHEMA).load
        in_two = memory | {"maxRecordsPerPartition": str(records // 2)}
        halves = session.readStream.format("pages").options(**in_two).schema(SCHEMA).load
        prepared = session.readStream.format("batches").options(**memory).schema(SCHEMA).load
        copy = str(directory / "copy")
        _run(changes(), "parquet", directory, "first", copy)
        table = stage.table(1, settings.stream_records)
        server = _connection(stage.endpoint) | {"table": table.name, "maxOffsetsPerShard": str(settings.stream_records)}
        from_server = session.readStream.format("tablestore").options(**server).schema(SERVER_SCHEMA).load
        server_copy = str(directory / "server-copy")
        _run(from_server(), "parquet", directory, "first-server", server_copy)
        kept, kept_server = (
            partial(session.readStream.schema(one().schema).parquet, place)
            for one, place in ((changes, copy), (from_server, server_copy))
        )
        runs = count()
        for sink in settings.source_sinks:
            # Beside as many rows each, as a batch has a fixed price that a small one hardly earns.
            for name, of, parquet, ratio, reads in (
                (
                    "source from pages in memory",
                    records,
                    kept,
                    LEAST[sink],
                    {"": changes, ", in two partitions": halves, ", batches made before": prepared},
                ),
                ("source from the server", settings.stream_records, kept_server, LEAST_FROM_SERVER, {"": from_server}),
            ):
                frames = {f"Spark from a local Parquet file of {of:,} records to {sink}": parquet}
                frames |= {f"{name} to {sink}{how}": read for how, read in reads.items()}
                rounds: dict[str, Round] = {
                    each: partial(_rate, frame, sink, directory, runs) for each, frame in frames.items()
                }
                rates = interleaved(settings.slow_rounds, rounds, is_warmed_up=settings.is_warmed_up)
                compared = compare("source", "records/s", rates, partial(_detail, of))
                lines += aimed(compared, {f"{name} to {sink}": ratio_of_at_least(ratio)})
        few = session.readStream.format("pages").options(**memory).schema(FEW_SCHEMA).load
        of_few = "source of 3 columns from pages in memory to noop"
        rounds = {
            "source of 10 columns from pages in memory to noop": partial(_rate, changes, "noop", directory, runs),
            of_few: partial(_rate, few, "noop", directory, runs),
        }
        rates = interleaved(settings.slow_rounds, rounds, is_warmed_up=settings.is_warmed_up)
        lines += aimed(compare("source", "records/s", rates), {of_few: ratio_of_at_least(LEAST_OF_FEW)})
    return lines


def _detail(records: int, name: str, figure: float) -> str:
    return f"{records} records of 10 columns"


def _connection(endpoint: str) -> dict[str, str]:
    return {
        "endpoint": endpoint or LOCAL_ENDPOINT,
        "instance": LOCAL_INSTANCE,
        "table": _STREAM,
        "accessKeyId": LOCAL_ACCESS_KEY_ID,
        "accessKeySecret": LOCAL_ACCESS_KEY_SECRET,
    }


def _write_pages(shape: Shape, pages: int, directory: Path) -> None:
    """Each page in its own place in the stream."""
    progress(f"writing {pages} pages")
    sizes = []
    with (directory / "pages").open("wb") as out:
        for number in range(pages):
            page = schema.GetStreamRecordResponse(next_shard_iterator=str(number + 1))
            for place, record in enumerate(shape.records):
                placed = evolve(record, sequence_info=SequenceInfo(0, _FIRST_MICROS + number * PAGE_RECORDS + place, 0))
                action, data, _ = default_codec().encode_record(placed)
                page.stream_records.add(action_type=action, record=data)
            sizes.append(out.write(page.SerializeToString()))
    (directory / _PAGES).write_text(json.dumps(sizes))


def _rate(frame: Callable[[], DataFrame], sink: str, directory: Path, runs: Any) -> float:
    name = f"run{next(runs)}"
    done = _run(frame(), sink, directory, name, str(directory / f"{name}-out"))
    return float(done["numInputRows"]) / (float(done["durationMs"]["triggerExecution"]) / 1_000)


def _run(frame: DataFrame, sink: str, directory: Path, name: str, out: str) -> Mapping[str, Any]:
    """Everything that is there, in one batch; gives that batch's progress."""
    writer = frame.writeStream.format(sink).option("checkpointLocation", str(directory / f"{name}-checkpoint"))
    if sink == "parquet":
        writer = writer.option("path", out)
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    batches: list[Mapping[str, Any]] = [json.loads(one.json) for one in query.recentProgress]
    return max(batches, key=lambda one: int(one["numInputRows"]))
