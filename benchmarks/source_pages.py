"""A streaming source over pages in memory. It is a module of its own, because each query's planner has to import it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import evolve, frozen

from streamclient import SequenceInfo, Shard
from streamclient.spark import TablestoreDataSource
from streamclient.spark.source.data_source import ChangeStreamReader
from streamclient.tablestore import StreamDescription, StreamStatus, StreamSummary
from streamclient.wire import schema
from streamclient.wire.page_parts import DecodedPage, PageSummary
from streamclient.wire.record_decoding import default_codec

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql.types import StructType

    from benchmarks.shapes import Shape
    from streamclient.spark.source.data_source import RangePartition

_FIRST_MICROS = 1_700_000_000_000_000
_PAGES = "pages.json"

STREAM = "memory"


@frozen
class _Written:
    """The pages of a stream, which its shards have in turn."""

    shards: tuple[str, ...]
    bodies: tuple[bytes, ...]


@lru_cache(maxsize=2)
def _written(directory: str) -> _Written:
    """Return the pages in a directory. Each process reads them from disk only once."""
    about = json.loads((Path(directory) / _PAGES).read_text())
    data = (Path(directory) / "pages").read_bytes()
    ends = [sum(about["sizes"][:number]) for number in range(len(about["sizes"]) + 1)]
    return _Written(tuple(about["shards"]), tuple(data[start:end] for start, end in pairwise(ends)))


@frozen
class MemoryPages:
    """Takes the place of the service: a stream of open shards, whose pages are in the memory of each process."""

    directory: str

    def streams(self) -> MemoryPages:
        """Return this object, which also has the stream operations that the planner calls."""
        return self

    def list_stream(self, table_name: str | None = None) -> Sequence[StreamSummary]:
        """Return the only stream."""
        return [StreamSummary(STREAM, table_name or "", 0)]

    def describe_stream(self, stream_id: str) -> StreamDescription:
        """Return the description of the stream, with the shards for which pages were written."""
        shards = tuple(map(Shard, _written(self.directory).shards))
        return StreamDescription(stream_id, "", 24, 0, StreamStatus.ACTIVE, shards)

    def get_shard_iterator(self, stream_id: str, shard_id: str, timestamp_micros: int | None = None) -> str:
        """Return the iterator of the shard's first page."""
        return str(_written(self.directory).shards.index(shard_id))

    def oldest(self, stream_id: str, shard_id: str) -> str:
        """Return the iterator of the shard's first page."""
        return self.get_shard_iterator(stream_id, shard_id)

    def summary(self, shard_id: str, iterator: str, limit: int) -> PageSummary:
        """Return the summary of the page at ``iterator``, for the planner."""
        return default_codec().summarize_page(self._body(iterator))

    def page(self, iterator: str, limit: int) -> DecodedPage:
        """Return the page at ``iterator``, for executors. Each call decodes the page."""
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
        """Return the pages. They are read from disk now, because each round has a new process for the planner."""
        pages = MemoryPages(self._options.connection.instance)
        _written(pages.directory)
        return pages


_made: dict[tuple[Any, ...], list[RecordBatch]] = {}
"""The batches that this process has made, by the range of records that they have."""


class PreparedReader(ChangeStreamReader):
    """A reader that returns batches which its process made earlier. So only Spark's own work for a source remains."""

    def read(self, partition: RangePartition) -> Iterator[RecordBatch]:
        """Return the batches of a range. They are made in the first call only."""
        part = partition.value
        what = (self._options.connection.instance, tuple(self._columns.names), part.at, part.count)
        if what not in _made:
            _made[what] = list(super().read(partition))
        return iter(_made[what])


class PreparedDataSource(MemoryDataSource):
    """The data source whose reader returns batches that were made earlier."""

    @classmethod
    def name(cls) -> str:
        """Return the name of this format."""
        return "batches"

    def streamReader(self, schema: StructType) -> PreparedReader:  # noqa: N802
        """Return a reader of the columns in ``schema``."""
        return PreparedReader(self._options, self.service(), self._arrow(schema))


def write_pages(shape: Shape, pages: int, directories: Mapping[int, Path]) -> None:
    """Write ``pages`` copies of the shape's page into each of ``directories``, which are by number of shards.

    Each copy has other positions in the stream. The shards have the pages in turn, so positions rise in each shard.
    """
    sizes: dict[int, list[int]] = {shards: [] for shards in directories}
    with ExitStack() as files:
        for directory in directories.values():
            directory.mkdir()
        outs = {
            shards: files.enter_context((directory / "pages").open("wb")) for shards, directory in directories.items()
        }
        for number in range(pages):
            page = schema.GetStreamRecordResponse()
            for micros, record in enumerate(shape.records, _FIRST_MICROS + number * len(shape.records)):
                placed = evolve(record, sequence_info=SequenceInfo(0, micros, 0))
                action, data, _ = default_codec().encode_record(placed)
                page.stream_records.add(action_type=action, record=data)
            for shards, out in outs.items():
                page.next_shard_iterator = str(number + shards)
                sizes[shards].append(out.write(page.SerializeToString()))
    for shards, directory in directories.items():
        names = [f"shard-{number}" for number in range(shards)]
        (directory / _PAGES).write_text(json.dumps({"shards": names, "sizes": sizes[shards]}))
