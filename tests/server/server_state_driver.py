"""Drive an engine without network: real messages in, real messages out."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from streamclient.records import StreamRecord
from streamclient.server.admin_changes import Storage
from streamclient.server.engine import Engine
from streamclient.server.server_clock import Clock
from streamclient.server.server_errors import ServiceError
from streamclient.server.server_limits import DEFAULT_LIMITS, Limits
from streamclient.server.storage import open_storage
from streamclient.server.storage_memory import MemoryStorage
from streamclient.server.storage_sqlite import DATABASE_FILE
from streamclient.wire import schema
from streamclient.wire.plainbuffer import Cell, CellOperation, KeyBound, Row, decode_row, decode_rows, encode_row
from streamclient.wire.record_decoding import PurePythonCodec
from streamclient.wire.schema import (
    ComparatorType,
    Direction,
    FilterType,
    LogicalOperator,
    OperationType,
    PrimaryKeyType,
    ReturnType,
    RowExistenceExpectation,
)
from tests.service_under_test import Address, RealEngine, RealService, real_service

START_MICROS = 1_700_000_000_000_000 if real_service() is None else time.time_ns() // 1_000
"""When the driver's clock begins. A real service has its own, and takes versions near it only."""
HOUR_SECONDS = 3600
PAGES_MAX = 10_000
"""More pages than any test has; a reader that needs more goes in circles."""

INTEGER_KEY = (("pk", "INTEGER"),)
TWO_COLUMN_KEY = (("pk", "STRING"), ("sk", "INTEGER"))
GENERATED_KEY = (("pk", "STRING"), ("id", "INTEGER", "AUTO_INCREMENT"))
LOWEST, HIGHEST = (("pk", KeyBound.INF_MIN),), (("pk", KeyBound.INF_MAX),)
"""The ends of a table with the key column ``pk``."""

PUT, UPDATE, DELETE = OperationType.PUT, OperationType.UPDATE, OperationType.DELETE
EXIST, NOT_EXIST = RowExistenceExpectation.EXPECT_EXIST, RowExistenceExpectation.EXPECT_NOT_EXIST
TRIMMED = (404, "OTSTrimmedDataAccess", "Requested stream data is already trimmed or does not exist.")
MESSAGES = {**schema.OPERATIONS, **schema.TUNNEL_OPERATIONS}
TYPES = {"INTEGER": PrimaryKeyType.INTEGER, "STRING": PrimaryKeyType.STRING, "BINARY": PrimaryKeyType.BINARY}


class ManualWall:
    """A machine clock that only a test moves; each look costs one microsecond."""

    def __init__(self) -> None:
        self.micros = START_MICROS

    def __call__(self) -> int:
        self.micros += 1
        return self.micros


class Driver:
    """An engine on a clock of its own, and one method for each thing that tests ask of it."""

    def __init__(
        self,
        storage: Storage | None = None,
        *,
        limits: Limits = DEFAULT_LIMITS,
        clock: Clock | None = None,
        **options: Any,
    ) -> None:
        service = real_service()
        if service is not None:
            if storage is not None:
                storage.close()
            self._use(service, storage is None and limits is DEFAULT_LIMITS and clock is None and not options)
            return
        self.wall = ManualWall()
        self.clock = Clock(self.wall) if clock is None else clock
        self.engine: Any = Engine(clock=self.clock, storage=storage or MemoryStorage(), limits=limits, **options)

    def _use(self, service: RealService, is_plain: bool) -> None:
        """Drive a real service instead, whose tables go first: each driver begins with none."""
        if not is_plain:
            pytest.skip("a real service has limits, a storage and settings of its own")
        service.clear()
        self.engine = RealEngine(service)

    def __getattr__(self, name: str) -> Any:
        """What a real service has not: a clock that tests move."""
        pytest.skip(f"a real service has no {name!r} that a test could use")

    def call(self, operation: str, **fields: Any) -> Any:
        messages = MESSAGES[operation]
        body = messages.request(**fields).SerializeToString()
        return schema.parse(messages.response, self.engine.execute(operation, body))

    def refusal(self, operation: str, **fields: Any) -> tuple[int, str, str]:
        """Status, code and text of the refusal that the call must end in."""
        return refusal_of(self.call, operation, **fields)

    # Tables

    def create(self, name: str = "t", key: Sequence[tuple[str, ...]] = (("pk", "STRING"),), **fields: Any) -> None:
        self.call("CreateTable", **creation(name, key, **fields))

    def create_with_stream(self, name: str = "t", *, hours: int = 24, origin: Sequence[str] = (), **fields: Any) -> str:
        specification = schema.StreamSpecification(enable_stream=True, expiration_time=hours, columns_to_get=origin)
        self.create(name, stream_spec=specification, **fields)
        return self.stream_id(name)

    def tables(self) -> list[str]:
        return list(self.call("ListTable").table_names)

    # Rows

    def put(self, key: Any, *cells: Cell, table: str = "t", **fields: Any) -> Any:
        return self.call("PutRow", table_name=table, row=frame(key, *cells), **condition_fields(**fields))

    def put_each(self, keys: Iterable[Any], *cells: Cell, **fields: Any) -> None:
        """Put a row for each key, in this order."""
        for key in keys:
            self.put(key, *cells, **fields)

    def update(self, key: Any, *cells: Cell, table: str = "t", **fields: Any) -> Any:
        return self.call("UpdateRow", table_name=table, row_change=frame(key, *cells), **condition_fields(**fields))

    def delete(self, key: Any, table: str = "t", **fields: Any) -> Any:
        return self.call(
            "DeleteRow", table_name=table, primary_key=frame(key, delete_marker=True), **condition_fields(**fields)
        )

    def write_batch(self, rows: Sequence[Any], **fields: Any) -> Any:
        """The answers to the rows of a batch for table ``t``."""
        return self.call("BatchWriteRow", tables=[batch_table(rows)], **fields).tables[0].rows

    def get_row(self, key: Any, table: str = "t", **fields: Any) -> Row | None:
        answer = self.call("GetRow", table_name=table, primary_key=frame(key), **{"max_versions": 1, **fields})
        return decode_row(answer.row) if answer.row else None

    def get(self, key: Any, table: str = "t", **fields: Any) -> dict[str, Any] | None:
        """Values by column, the newest version of each; ``None`` if there is no row."""
        row = self.get_row(key, table, **fields)
        return None if row is None else values(row)

    def versions(self, key: Any, column: str, table: str = "t") -> list[tuple[int | None, Any]]:
        row = self.get_row(key, table, max_versions=1000)
        return [] if row is None else [(cell.timestamp_millis, cell.value) for cell in row.cells if cell.name == column]

    def range_page(self, start: Any, end: Any, table: str = "t", *, backward: bool = False, **fields: Any) -> Any:
        return self.call(
            "GetRange",
            table_name=table,
            direction=Direction.BACKWARD if backward else Direction.FORWARD,
            inclusive_start_primary_key=frame(start),
            exclusive_end_primary_key=frame(end),
            **{"max_versions": 1, **fields},
        )

    def rows(self, start: Any, end: Any, table: str = "t", **fields: Any) -> list[Row]:
        """All rows of a range, over as many pages as it takes."""
        found: list[Row] = []
        for _ in range(PAGES_MAX):
            answer = self.range_page(start, end, table, **fields)
            found += decode_rows(answer.rows)
            if not answer.HasField("next_start_primary_key"):
                return found
            start = decode_row(answer.next_start_primary_key).primary_key
        raise AssertionError("the range does not end")

    def table(self, name: str = "t", columns: Sequence[str] = ("pk",), **fields: Any) -> dict[Any, dict[str, Any]]:
        """The whole table: values by column, by key."""
        lowest = tuple((column, KeyBound.INF_MIN) for column in columns)
        highest = tuple((column, KeyBound.INF_MAX) for column in columns)
        return {plain_key(row): values(row) for row in self.rows(lowest, highest, name, **fields)}

    # Streams

    def stream_id(self, table: str = "t") -> str:
        (stream,) = self.call("ListStream", table_name=table).streams
        return str(stream.stream_id)

    def describe_shards(self, stream_id: str, **fields: Any) -> list[Any]:
        """All shards of a stream, over as many pages as it takes."""
        shards: list[Any] = []
        for _ in range(PAGES_MAX):
            answer = self.call("DescribeStream", stream_id=stream_id, **fields)
            shards += answer.shards
            if not answer.HasField("next_shard_id"):
                return shards
            fields["inclusive_start_shard_id"] = answer.next_shard_id
        raise AssertionError("the listing does not end")

    def iterator(self, stream_id: str, shard_id: str, **fields: Any) -> str:
        answer = self.call("GetShardIterator", stream_id=stream_id, shard_id=shard_id, **fields)
        assert not answer.HasField("next_token")
        return str(answer.shard_iterator)

    def only_iterator(self, **fields: Any) -> str:
        """An iterator of the only shard of table ``t``."""
        stream_id = self.stream_id()
        (shard,) = self.describe_shards(stream_id)
        return self.iterator(stream_id, shard.shard_id, **fields)

    def page(self, iterator: str | None, **fields: Any) -> tuple[tuple[StreamRecord, ...], str | None]:
        request = schema.GetStreamRecordRequest(shard_iterator=iterator, **fields)
        body = self.engine.execute("GetStreamRecord", request.SerializeToString())
        page = PurePythonCodec().decode_page(body)
        assert page.may_more_record is bool(page.records)
        return page.records, page.next_shard_iterator

    def pages(self, iterator: str | None, **fields: Any) -> Iterator[StreamRecord]:
        """All records from an iterator to the end of its shard, or to the present."""
        for _ in range(PAGES_MAX):
            records, following = self.page(iterator, **fields)
            yield from records
            if following is None or following == iterator:
                return
            iterator = following
        raise AssertionError("the shard does not end")

    def records(self, stream_id: str, shard_id: str, **fields: Any) -> list[StreamRecord]:
        return list(self.pages(self.iterator(stream_id, shard_id), **fields))

    def all_records(self, stream_id: str | None = None) -> list[StreamRecord]:
        """Records of all shards, each shard after its parents."""
        stream_id = stream_id or self.stream_id()
        ordered = parents_first(self.describe_shards(stream_id))
        return [record for shard in ordered for record in self.records(stream_id, shard.shard_id)]


def table_driver(
    storage: Storage | None = None, *, limits: Limits = DEFAULT_LIMITS, clock: Clock | None = None, **fields: Any
) -> Driver:
    """A driver whose engine has one table."""
    driver = Driver(storage, limits=limits, clock=clock)
    driver.create(**fields)
    return driver


def stream_driver(
    storage: Storage | None = None, *, limits: Limits = DEFAULT_LIMITS, clock: Clock | None = None, **fields: Any
) -> Driver:
    """A driver whose engine has one table, with a stream."""
    driver = Driver(storage, limits=limits, clock=clock)
    driver.create_with_stream(**fields)
    return driver


def over_http(service: Address) -> Driver:
    """A driver of a server behind HTTP; each call has a connection of its own."""
    driver = Driver.__new__(Driver)
    driver.engine = RealEngine(service)
    return driver


class Disk:
    """A data directory, and the driver whose engine has it open; on a machine clock that goes on."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._driver: Driver | None = None

    def opened(self) -> Driver:
        """The same data in a new engine."""
        before = self._driver
        self.close()
        self._driver = Driver(open_storage(self.directory))
        if before is not None:
            self._driver.wall.micros = before.wall.micros
        return self._driver

    def with_table(self, **fields: Any) -> Driver:
        driver = self.opened()
        driver.create(**fields)
        return driver

    def with_stream(self, **fields: Any) -> Driver:
        driver = self.opened()
        driver.create_with_stream(**fields)
        return driver

    def rows(self, table: str) -> int:
        """Close the engine, and count the rows of a table of the database."""
        self.close()
        with closing(sqlite3.connect(self.directory / DATABASE_FILE)) as database:
            return int(database.execute(f"SELECT count(*) FROM {table}").fetchone()[0])

    def close(self) -> None:
        if self._driver is not None:
            self._driver.engine.close()
            self._driver = None


def refusal_of(act: Callable[..., object], *arguments: Any, **fields: Any) -> tuple[int, str, str]:
    """Status, code and text of the refusal in which ``act`` must end."""
    try:
        answer = act(*arguments, **fields)
    except ServiceError as error:
        return error.http_status, error.code, error.message
    raise AssertionError(f"{act} was not refused: {answer}")


def creation(name: str = "t", key: Sequence[tuple[str, ...]] = (("pk", "STRING"),), **fields: Any) -> dict[str, Any]:
    """Fields of a CreateTable request; key columns are (name, type) or (name, type, "AUTO_INCREMENT").

    ``options`` are those that are not the usual ones; ``None`` leaves one out.
    """
    columns = [
        schema.PrimaryKeySchema(name=column[0], type=TYPES[column[1]], option=1 if len(column) > 2 else None)
        for column in key
    ]
    options = {"time_to_live": -1, "max_versions": 1, **fields.pop("options", {})}
    return {
        "table_meta": schema.TableMeta(table_name=name, primary_key=columns),
        "reserved_throughput": schema.ReservedThroughput(capacity_unit=schema.CapacityUnit(read=0, write=0)),
        "table_options": schema.TableOptions(**options),
        **fields,
    }


def frame(key: Any, *cells: Cell, delete_marker: bool = False) -> bytes:
    """A row; a plain value stands for the key column ``pk``."""
    primary_key = key if isinstance(key, tuple) else (("pk", key),)
    return encode_row(Row(primary_key, cells, delete_marker=delete_marker))


def condition_fields(
    expect: RowExistenceExpectation = RowExistenceExpectation.IGNORE,
    column_condition: bytes | None = None,
    returns: ReturnType | None = None,
    return_columns: Sequence[str] = (),
    **more: Any,
) -> dict[str, Any]:
    fields = {"condition": schema.Condition(row_existence=expect, column_condition=column_condition), **more}
    if returns is not None:
        fields["return_content"] = schema.ReturnContent(return_type=returns, return_column_names=return_columns)
    return fields


def batch_row(kind: OperationType, key: Any, *cells: Cell, **fields: Any) -> Any:
    row = frame(key, *cells, delete_marker=kind is OperationType.DELETE)
    return schema.RowInBatchWriteRowRequest(type=kind, row_change=row, **condition_fields(**fields))


def batch_table(rows: Sequence[Any], table: str = "t") -> Any:
    return schema.TableInBatchWriteRowRequest(table_name=table, rows=rows)


def single(
    comparator: ComparatorType,
    column: str,
    value: bytes = b"\x00" + bytes(8),
    *,
    passes_if_missing: bool = False,
    latest_only: bool = True,
    rule: Any = None,
) -> bytes:
    message = schema.SingleColumnValueFilter(
        comparator=comparator,
        column_name=column,
        column_value=value,
        filter_if_missing=not passes_if_missing,
        latest_version_only=latest_only,
        value_trans_rule=rule,
    )
    return wrapped(FilterType.SINGLE_COLUMN_VALUE, message)


def combined(operator: LogicalOperator, *filters: bytes) -> bytes:
    parts = [schema.Filter.FromString(each) for each in filters]
    message = schema.CompositeColumnValueFilter(combinator=operator, sub_filters=parts)
    return wrapped(FilterType.COMPOSITE_COLUMN_VALUE, message)


def pagination(offset: int, limit: int) -> bytes:
    return wrapped(FilterType.COLUMN_PAGINATION, schema.ColumnPaginationFilter(offset=offset, limit=limit))


def wrapped(kind: FilterType, message: Any) -> bytes:
    return bytes(schema.Filter(type=kind, filter=message.SerializeToString()).SerializeToString())


def put(name: str, value: Any, timestamp_millis: int | None = None) -> Cell:
    return Cell(name, value, timestamp_millis=timestamp_millis)


def increment(name: str, delta: int) -> Cell:
    return Cell(name, delta, CellOperation.INCREMENT)


def delete_one(name: str, timestamp_millis: int) -> Cell:
    return Cell(name, None, CellOperation.DELETE_ONE_VERSION, timestamp_millis)


def delete_all(name: str) -> Cell:
    return Cell(name, None, CellOperation.DELETE_ALL_VERSIONS)


def values(row: Row) -> dict[str, Any]:
    """The first cell of each column, which is the newest."""
    return {cell.name: cell.value for cell in reversed(row.cells)}


def letters(records: Iterable[StreamRecord]) -> list[Any]:
    """The key column ``pk`` of each record."""
    return [record.key["pk"] for record in records]


def plain_key(row: Row) -> Any:
    key = tuple(value for _, value in row.primary_key)
    return key[0] if len(key) == 1 else key


def parents_first(shards: Sequence[Any]) -> list[Any]:
    """Shards ordered by lineage alone, whatever the order of the listing."""
    waiting = {shard.shard_id: shard for shard in sorted(shards, key=lambda shard: shard.shard_id)}
    ordered: list[Any] = []
    while waiting:
        ready = [
            shard
            for shard in waiting.values()
            if shard.parent_id not in waiting and shard.parent_sibling_id not in waiting
        ]
        assert ready, "shards are their own ancestors"
        ordered += ready
        for shard in ready:
            del waiting[shard.shard_id]
    return ordered
