"""The tables and rows that the benchmarks use."""

from __future__ import annotations

import random
from collections.abc import Sequence

from attrs import frozen
from tablestore import (
    BatchWriteRowRequest,
    CapacityUnit,
    Condition,
    OTSClient,
    PutRowItem,
    ReservedThroughput,
    Row,
    RowExistenceExpectation,
    TableInBatchWriteRowItem,
    TableMeta,
    TableOptions,
)

from streamclient import ColumnType
from streamclient.model import TableDefinition
from streamclient.tablestore import StreamSpecification, TablestoreStreamApi

BATCH_ROWS = 200
"""The largest number of rows that the service accepts in one BatchWriteRow."""

KEY = (("customer", ColumnType.STRING), ("order_id", ColumnType.INTEGER))

ATTRIBUTES = {
    "amount": ColumnType.DOUBLE,
    "city": ColumnType.STRING,
    "items": ColumnType.INTEGER,
    "note": ColumnType.STRING,
    "paid": ColumnType.BOOLEAN,
    "status": ColumnType.STRING,
}


@frozen
class FilledTable:
    """A table whose stream has one record per row."""

    name: str
    stream_id: str
    shards: int
    records: int

    @property
    def definition(self) -> TableDefinition:
        """The definition of the table, for processors with Spark."""
        return TableDefinition(self.name, KEY, ATTRIBUTES)


def key_of(number: int, rows: int) -> list[tuple[str, str | int]]:
    """Return the key of row ``number`` of ``rows``. Customers ascend with the numbers, in equal shares."""
    return [("customer", f"customer-{number * 1_000 // rows:03d}"), ("order_id", number)]


def attributes(number: int) -> list[tuple[str, str | int | float | bool]]:
    """Return the columns of an order: six columns of four types, with about 75 bytes of values."""
    return [
        ("amount", number * 0.25),
        ("city", f"city-{number % 97:011d}"),
        ("items", number % 9),
        ("note", f"note-{number:027d}"),
        ("paid", number % 2 == 0),
        ("status", f"status-{number % 5:09d}"),
    ]


def make_table(client: OTSClient, name: str, shards: int, begins: Sequence[int] | None = None) -> str:
    """Create an empty table whose stream has ``shards`` shards; return the stream id.

    The shards begin at the customers with the numbers ``begins``, the first of which is 0. Without ``begins``, all
    shards have equal shares of the customers.
    """
    begins = begins or [1_000 * part // shards for part in range(shards)]
    streams = TablestoreStreamApi(client)
    streams.create_table(
        TableMeta(name, [(column, kind.value) for column, kind in KEY]),
        TableOptions(),
        ReservedThroughput(CapacityUnit(0, 0)),
        stream=StreamSpecification(enable_stream=True, expiration_time_hours=24),
        split_points=[f"customer-{begin:03d}" for begin in begins[1:]],
    )
    stream_id = streams.list_stream(name)[0].stream_id
    found = len(streams.describe_stream(stream_id).shards)
    if found != shards:
        raise RuntimeError(f"the stream of {name} has {found} shards, expected {shards}")
    return stream_id


def fill_table(client: OTSClient, name: str, shards: int, rows: int) -> FilledTable:
    """Create a table, and write ``rows`` rows into it in random order."""
    stream_id = make_table(client, name, shards)
    put_rows(client, name, rows)
    return FilledTable(name, stream_id, shards, rows)


def put_rows(client: OTSClient, name: str, rows: int) -> None:
    """Write ``rows`` rows into a table in random order."""
    numbers = list(range(rows))
    random.Random(1).shuffle(numbers)
    for start in range(0, rows, BATCH_ROWS):
        _put(client, name, numbers[start : start + BATCH_ROWS], rows)


def _put(client: OTSClient, table: str, numbers: list[int], rows: int) -> None:
    condition = Condition(RowExistenceExpectation.IGNORE)
    items = [PutRowItem(Row(key_of(number, rows), attributes(number)), condition) for number in numbers]
    request = BatchWriteRowRequest()
    request.add(TableInBatchWriteRowItem(table, items))
    if not client.batch_write_row(request).is_all_succeed():
        raise RuntimeError(f"the local server refused rows of {table}")
