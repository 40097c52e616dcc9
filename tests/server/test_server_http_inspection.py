"""What is read off request and answer bytes without parsing them, checked against the messages themselves."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamclient.server.inspection import rows_read, rows_written, tables_of
from streamclient.wire import schema
from streamclient.wire.plainbuffer import Cell, Row, encode_rows

names = st.text(min_size=1, max_size=8)


def batch_write(tables: dict[str, int]) -> bytes:
    request = schema.BatchWriteRowRequest()
    for name, rows in tables.items():
        table = request.tables.add(table_name=name)
        for _ in range(rows):
            row = table.rows.add(type=1, row_change=b"change")
            row.condition.row_existence = 0
    return bytes(request.SerializeToString())


@settings(deadline=None, max_examples=50)
@given(st.dictionaries(names, st.integers(0, 5), max_size=4))
def test_a_batch_names_its_tables_and_rows(tables: dict[str, int]) -> None:
    body = batch_write(tables)

    assert tables_of("BatchWriteRow", body) == tuple(tables)
    assert rows_written("BatchWriteRow", body) == sum(tables.values())


@settings(deadline=None, max_examples=50)
@given(name=names, limit=st.integers(-(2**31), 2**31 - 1))
def test_the_table_is_found_among_other_fields(name: str, limit: int) -> None:
    request = schema.GetRangeRequest(
        table_name=name,
        direction=0,
        limit=limit,
        inclusive_start_primary_key=b"start",
        exclusive_end_primary_key=b"end",
    )

    assert tables_of("GetRange", request.SerializeToString()) == (name,)


def test_a_created_table_is_named() -> None:
    request = schema.CreateTableRequest()
    request.table_meta.table_name = "orders"
    request.reserved_throughput.capacity_unit.read = 0

    assert tables_of("CreateTable", request.SerializeToString()) == ("orders",)


def test_stream_operations_name_the_table_of_the_stream() -> None:
    stream_id = "my_orders_1568701257432681"
    describe = schema.DescribeStreamRequest(stream_id=stream_id)
    locate = schema.GetShardIteratorRequest(stream_id=stream_id, shard_id="s")
    iterator = base64.b64encode(bytes((len(stream_id),)) + stream_id.encode() + b"\x05shard\x01p\x00").decode()
    read = schema.GetStreamRecordRequest(shard_iterator=iterator, limit=10)

    assert tables_of("DescribeStream", describe.SerializeToString()) == ("my_orders",)
    assert tables_of("GetShardIterator", locate.SerializeToString()) == ("my_orders",)
    assert tables_of("GetStreamRecord", read.SerializeToString()) == ("my_orders",)


def test_requests_without_table_name_none() -> None:
    assert tables_of("ListTable", b"") == ()
    assert tables_of("ListStream", b"") == ()
    assert tables_of("Search", b"\x0a\x01x") == ()


@settings(deadline=None, max_examples=300)
@given(
    st.sampled_from(["GetRow", "BatchWriteRow", "GetStreamRecord", "DescribeStream", "GetRange", "BatchGetRow"]),
    st.binary(max_size=60),
)
def test_bytes_that_are_no_request_never_raise(operation: str, body: bytes) -> None:
    assert isinstance(tables_of(operation, body), tuple)
    assert rows_written(operation, body) >= 0
    assert rows_read(operation, body) >= 0


def test_every_truncation_of_a_request_is_harmless() -> None:
    body = batch_write({"orders": 3, "status": 2})

    assert all(rows_written("BatchWriteRow", body[:end]) <= 5 for end in range(len(body)))


@settings(deadline=None, max_examples=50)
@given(
    st.lists(
        st.lists(
            st.tuples(names, st.integers(-5, 5) | st.text(max_size=5) | st.binary(max_size=12) | st.booleans()),
            max_size=3,
        ),
        max_size=4,
    )
)
def test_the_rows_of_a_range_are_counted(rows: list[list[tuple[str, int | str | bytes | bool]]]) -> None:
    """Values may hold any byte, also those of tags."""
    block = encode_rows(
        Row((("k", number),), tuple(Cell(name, value, timestamp_millis=9) for name, value in cells))
        for number, cells in enumerate(rows)
    )
    answer = schema.GetRangeResponse(rows=block)
    answer.consumed.capacity_unit.read = 1

    assert rows_read("GetRange", answer.SerializeToString()) == len(rows)


@pytest.mark.parametrize(("row", "expected"), [(b"", 0), (b"row", 1)])
def test_an_absent_row_is_not_counted(row: bytes, expected: int) -> None:
    one = schema.GetRowResponse(row=row)
    one.consumed.capacity_unit.read = 1
    batch = schema.BatchGetRowResponse()
    table = batch.tables.add(table_name="t")
    table.rows.add(is_ok=True, row=row)
    table.rows.add(is_ok=False).error.code = "OTSServerBusy"

    assert rows_read("GetRow", one.SerializeToString()) == expected
    assert rows_read("BatchGetRow", batch.SerializeToString()) == expected


def test_stream_records_are_counted() -> None:
    answer = schema.GetStreamRecordResponse(next_shard_iterator="next")
    for _ in range(3):
        answer.stream_records.add(action_type=1, record=b"record")

    assert rows_read("GetStreamRecord", answer.SerializeToString()) == 3


@pytest.mark.parametrize(("operation", "rows"), [("PutRow", 1), ("UpdateRow", 1), ("DeleteRow", 1), ("GetRow", 0)])
def test_single_writes_count_one_row(operation: str, rows: int) -> None:
    assert rows_written(operation, b"") == rows
