"""A stream in memory that splits, merges and forgets, and a query over it that crashes as Spark's do."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from attrs import define, field

from streamclient.base.times import MICROS_PER_HOUR
from streamclient.destinations.rows.change_rows import ADDED, COMMIT, added_types
from streamclient.errors import DependencyException, ErrorKind, TrimmedDataException
from streamclient.model import Shard
from streamclient.records import ColumnOperation, RecordColumn, RecordType, SequenceInfo, StreamRecord
from streamclient.spark.source.offsets import ShardSlice, StreamOffset
from streamclient.spark.source.partition_reading import RangeReader, StreamPages
from streamclient.spark.source.planner import StreamPlanner
from streamclient.spark.source.source_options import SourceOptions
from streamclient.tablestore.stream_api import StreamDescription, StreamStatus, StreamSummary
from streamclient.wire import schema
from streamclient.wire.page_parts import DecodedPage, PageSummary
from streamclient.wire.record_decoding import default_codec
from tests.at_once import AtOnce

GIVEN = {"endpoint": "http://localhost", "instance": "i", "table": "t", "accessKeyId": "k", "accessKeySecret": "s"}

NOW_MICROS = 1_700_000_000_000_000

COLUMNS = pa.schema(
    [pa.field("pk", pa.int64()), pa.field("v", pa.int64())]
    + [pa.field(name, kind) for name, kind in added_types().items() if name in ADDED and name != COMMIT]
)


def options(**more: str) -> SourceOptions:
    return SourceOptions.read({**GIVEN, **more}, {})


def put(number: int) -> StreamRecord:
    cells = (RecordColumn("v", ColumnOperation.PUT, number, 1),)
    return StreamRecord(RecordType.PUT, (("pk", number),), cells, SequenceInfo(0, NOW_MICROS + number, 0))


@define(eq=False)
class MemoryStream:
    """What planner and executors ask of the service. Iterators are shard and place; what is trimmed is gone."""

    stream_id: str = "stream"
    shards: dict[str, Shard] = field(factory=dict)
    records: dict[str, list[StreamRecord]] = field(factory=dict)
    closed: set[str] = field(factory=set)
    trimmed: dict[str, int] = field(factory=dict)
    hidden: set[str] = field(factory=set)
    """Shards that the listing lacks."""
    gone: set[str] = field(factory=set)
    """Shards that are not there at all."""
    refusal: str = "OTSObjectNotExist"
    """The code of the answer to who reads those."""
    page_records: int = 7
    written: int = 0
    reads: int = 0
    expired: set[str] = field(factory=set)
    """Iterators that the service does not take, though it has the records, until it is asked for new ones."""
    jumps: int = 0
    """How many empty pages, each with another iterator, come before each one with records."""
    hints: bool = False
    """Whether a page says that there is more."""

    def open(self, shard: str, *parents: str) -> str:
        self.shards[shard] = Shard(shard, *parents)
        self.records[shard] = []
        return shard

    @property
    def open_shards(self) -> list[str]:
        return [shard for shard in self.shards if shard not in self.closed]

    def write(self, shard: str, count: int) -> None:
        for _ in range(count):
            self.records[shard].append(put(self.written))
            self.written += 1

    def split(self, shard: str) -> None:
        self.closed.add(shard)
        for half in ("a", "b"):
            self.open(f"{shard}{half}", shard)

    def merge(self, one: str, other: str) -> None:
        self.closed |= {one, other}
        self.open(f"m{len(self.shards)}", one, other)

    # --- the service --------------------------------------------------------------------------------------------------

    def list_stream(self, table_name: str | None = None) -> Sequence[StreamSummary]:
        return [StreamSummary(self.stream_id, "t", 0)]

    def describe_stream(self, stream_id: str) -> StreamDescription:
        listed = tuple(shard for name, shard in self.shards.items() if name not in self.hidden | self.gone)
        return StreamDescription(stream_id, "t", 24, 0, StreamStatus.ACTIVE, listed)

    def get_shard_iterator(self, stream_id: str, shard_id: str, timestamp_micros: int | None = None) -> str:
        self.expired.clear()
        first = self.trimmed.get(shard_id, 0)
        if timestamp_micros is not None:
            stamps = [one.sequence_info.timestamp_micros for one in self.records[shard_id]]
            first = max(first, sum(stamp < timestamp_micros for stamp in stamps))
        return f"{shard_id}/{first}"

    def summary(self, shard_id: str, iterator: str, limit: int) -> PageSummary:
        return default_codec().summarize_page(self._body(iterator, limit))

    def page(self, iterator: str, limit: int) -> DecodedPage:
        return default_codec().decode_page(self._body(iterator, limit))

    def _body(self, iterator: str, limit: int) -> bytes:
        self.reads += 1
        shard, place = iterator.rstrip("+").rsplit("/", 1)
        first = int(place)
        if shard in self.gone:
            raise DependencyException(self.refusal, kind=ErrorKind.PERMANENT, code=self.refusal)
        if first < self.trimmed.get(shard, 0) or iterator in self.expired:
            raise TrimmedDataException("Requested stream data is already trimmed")
        message = schema.GetStreamRecordResponse()
        if iterator.count("+") < self.jumps:
            message.next_shard_iterator = f"{iterator}+"
            if self.hints:
                message.may_more_record = False
            return bytes(message.SerializeToString())
        some = self.records[shard][first : first + min(limit, self.page_records)]
        for record in some:
            action, data, _ = default_codec().encode_record(record)
            message.stream_records.add(action_type=action, record=data)
        last = first + len(some)
        if self.hints:
            message.may_more_record = last < len(self.records[shard])
        if not (shard in self.closed and last == len(self.records[shard])):
            message.next_shard_iterator = iterator if not some else f"{shard}/{last}"
        return bytes(message.SerializeToString())

    def oldest(self, stream_id: str, shard_id: str) -> str:
        return self.get_shard_iterator(stream_id, shard_id)

    def streams(self) -> MemoryStream:
        return self


@define(eq=False)
class AnyQuery:
    """What Spark does with a source: writes the end of a batch down, runs it, maybe again, and commits it."""

    log: list[str] = field(init=False, factory=list)
    """Ends of batches, as text."""
    committed: int = field(init=False, default=0)
    output: list[list[dict[str, Any]]] = field(init=False, factory=list)
    """Rows by batch: those of a batch that is repeated take the place of the first ones."""
    planner: StreamPlanner = field(init=False)
    clock: float = field(init=False, default=0.0)

    def __attrs_post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        """As after a crash: nothing but the log is left."""
        self.planner = self.new_planner()

    def new_planner(self) -> StreamPlanner:
        raise NotImplementedError

    def reader(self) -> RangeReader:
        raise NotImplementedError

    def tick(self) -> float:
        self.clock += 10.0
        return self.clock

    def offset(self, batch: int) -> StreamOffset:
        text = self.log[batch] if batch >= 0 else json.dumps(StreamOffset().to_json())
        return StreamOffset.from_json(json.loads(text))

    def plan(self, most: int | None = None, per_shard: int | None = None) -> bool:
        """Write the end of the next batch down, if there is one."""
        before = self.offset(len(self.log) - 1)
        end = self.planner.latest(before, most, per_shard)
        if end == before:
            return False
        self.log.append(json.dumps(end.to_json()))
        return True

    def run(self) -> None:
        """The last batch, whether or not it ran before."""
        batch = len(self.log) - 1
        rows = [row for part in self.parts(batch) for row in self.rows(part)]
        del self.output[batch:]
        self.output.append(rows)
        self.committed = batch + 1

    def parts(self, batch: int) -> list[ShardSlice]:
        return self.planner.ranges(self.offset(batch - 1), self.offset(batch))

    def rows(self, part: ShardSlice) -> Iterator[dict[str, Any]]:
        for batch in self.reader().read(part):
            assert batch.schema == COLUMNS
            yield from batch.to_pylist()

    def catch_up(self, most: int | None = None, per_shard: int | None = None) -> None:
        while self.plan(most, per_shard):
            self.run()

    def keys(self) -> list[int]:
        return sorted(row["pk"] for rows in self.output for row in rows)


@define(eq=False)
class Query(AnyQuery):
    """Over a stream in memory."""

    stream: MemoryStream
    options: SourceOptions = field(factory=options)
    passed_hours: float = 0.0
    """By the clock of the planner."""

    def new_planner(self) -> StreamPlanner:
        return StreamPlanner(
            self.options,
            self.stream,  # type: ignore[arg-type]
            self.stream.summary,
            now_micros=lambda: NOW_MICROS + self.stream.written + int(self.passed_hours * MICROS_PER_HOUR),
            monotonic=self.tick,
            pool=AtOnce(),  # what was asked for ahead is as old as it can be
        )

    def reader(self) -> RangeReader:
        pages = StreamPages(self.stream, self.options.fails_on_data_loss)  # type: ignore[arg-type]
        return RangeReader(pages, COLUMNS, batch_records=10)


def two_shards(count: int = 0, stream: MemoryStream | None = None) -> MemoryStream:
    stream = stream or MemoryStream()
    for shard in ("s1", "s2"):
        stream.write(stream.open(shard), count)
    return stream
