"""Tables and records to measure with."""

from __future__ import annotations

import random

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

from streamclient.records import ColumnOperation, RecordColumn, RecordType, SequenceInfo, StreamRecord
from streamclient.server import LocalTablestore
from streamclient.stream import StreamSpecification, TablestoreStreamApi

BATCH_ROWS = 200


def attributes(number: int) -> list[tuple[str, str | int | float | bool]]:
    """Six columns of four types, about 100 bytes of values: an order, say."""
    return [
        ("amount", number * 0.25),
        ("city", f"city-{number % 97:011d}"),
        ("items", number % 9),
        ("note", f"note-{number:027d}"),
        ("paid", number % 2 == 0),
        ("status", f"status-{number % 5:09d}"),
    ]


def record(number: int) -> StreamRecord:
    """The same row as a stream record."""
    columns = tuple(
        RecordColumn(name, ColumnOperation.PUT, value, 1_700_000_000_000) for name, value in attributes(number)
    )
    key = (("customer", f"customer-{number % 1000:07d}"), ("order_id", number))
    return StreamRecord(RecordType.PUT, key, columns, SequenceInfo(0, 1_700_000_000_000_000 + number, 0))


def filled_table(local: LocalTablestore, client: OTSClient, table: str, rows: int, shards: int) -> str:
    """A table whose stream holds one record per row, spread over ``shards`` open shards; returns the stream id."""
    streams = TablestoreStreamApi(client)
    meta = TableMeta(table, [("customer", "STRING"), ("order_id", "INTEGER")])
    stream = StreamSpecification(enable_stream=True, expiration_time_hours=24)
    streams.create_table(meta, TableOptions(), ReservedThroughput(CapacityUnit(0, 0)), stream=stream)
    _split_evenly(local, table, shards)
    numbers = list(range(rows))
    random.Random(1).shuffle(numbers)
    for start in range(0, rows, BATCH_ROWS):
        _put(client, table, numbers[start : start + BATCH_ROWS])
    return streams.list_stream(table)[0].stream_id


def _split_evenly(local: LocalTablestore, table: str, shards: int) -> None:
    for part in range(1, shards):
        last = [shard for shard in local.shards(table) if shard.is_open][-1]
        local.split(table, last.shard_id, at=(f"customer-{1000 * part // shards:07d}",))


def _put(client: OTSClient, table: str, numbers: list[int]) -> None:
    condition = Condition(RowExistenceExpectation.IGNORE)
    items = []
    for number in numbers:
        key = [("customer", f"customer-{number % 1000:07d}"), ("order_id", number)]
        items.append(PutRowItem(Row(key, attributes(number)), condition))
    request = BatchWriteRowRequest()
    request.add(TableInBatchWriteRowItem(table, items))
    if not client.batch_write_row(request).is_all_succeed():
        raise RuntimeError(f"the local server refused rows of {table}")
