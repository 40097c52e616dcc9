"""What a request says of itself, and how many rows an answer holds."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from server_state_driver import HIGHEST, LOWEST, frame, put, stream_driver

from streamclient.server.counters import LONGEST_NAME, MOST_TALLIES, OTHERS, RequestCounters
from streamclient.server.inspection import counted, inspect
from streamclient.server.server_limits import Limits
from streamclient.wire import schema

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

    assert inspect("BatchWriteRow", body).tables == tuple(tables)
    assert inspect("BatchWriteRow", body).rows_written == sum(tables.values())


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

    assert inspect("GetRange", request.SerializeToString()).tables == (name,)


def test_a_created_table_is_named() -> None:
    request = schema.CreateTableRequest()
    request.table_meta.table_name = "orders"
    request.reserved_throughput.capacity_unit.read = 0

    assert inspect("CreateTable", request.SerializeToString()).tables == ("orders",)


def test_stream_operations_name_the_table_of_the_stream() -> None:
    stream_id = "my_orders_1568701257432681"
    describe = schema.DescribeStreamRequest(stream_id=stream_id)
    locate = schema.GetShardIteratorRequest(stream_id=stream_id, shard_id="s")
    iterator = base64.b64encode(bytes((len(stream_id),)) + stream_id.encode() + b"\x05shard\x01p\x00").decode()
    read = schema.GetStreamRecordRequest(shard_iterator=iterator, limit=10)

    assert inspect("DescribeStream", describe.SerializeToString()).tables == ("my_orders",)
    assert inspect("GetShardIterator", locate.SerializeToString()).tables == ("my_orders",)
    assert inspect("GetStreamRecord", read.SerializeToString()).tables == ("my_orders",)


def test_requests_without_table_name_none() -> None:
    assert inspect("ListTable", b"").tables == ()
    assert inspect("ListStream", b"").tables == ()
    assert inspect("Search", b"\x0a\x01x").tables == ()


@settings(deadline=None, max_examples=300)
@given(
    st.sampled_from(["GetRow", "BatchWriteRow", "GetStreamRecord", "DescribeStream", "GetRange", "BatchGetRow"]),
    st.binary(max_size=60),
)
def test_bytes_that_are_no_request_never_raise(operation: str, body: bytes) -> None:
    assert isinstance(inspect(operation, body).tables, tuple)
    assert inspect(operation, body).rows_written >= 0


def test_every_truncation_of_a_request_is_harmless() -> None:
    body = batch_write({"orders": 3, "status": 2})

    assert all(inspect("BatchWriteRow", body[:end]).rows_written <= 5 for end in range(len(body)))


@pytest.mark.parametrize(("row", "expected"), [(b"", 0), (b"row", 1)])
def test_an_absent_row_is_not_counted(row: bytes, expected: int) -> None:
    one = schema.GetRowResponse(row=row)
    one.consumed.capacity_unit.read = 1
    batch = schema.BatchGetRowResponse()
    table = batch.tables.add(table_name="t")
    table.rows.add(is_ok=True, row=row)
    table.rows.add(is_ok=False).error.code = "OTSServerBusy"

    assert counted("GetRow", one.SerializeToString()).rows_read == expected
    assert counted("BatchGetRow", batch.SerializeToString()).rows_read == expected


@pytest.mark.parametrize("count", [0, 3])
def test_rows_of_a_range_and_stream_records_are_counted(count: int) -> None:
    driver = stream_driver(limits=Limits(range_rows=4_999))  # not those of a real service, which counts for itself
    driver.put_each([f"{number}" for number in range(count)], put("c", b"\x09\x09"))
    bounds = {"inclusive_start_primary_key": frame(LOWEST), "exclusive_end_primary_key": frame(HIGHEST)}
    scan = schema.GetRangeRequest(table_name="t", max_versions=1, direction=0, **bounds)
    matrix = schema.DataBlockType.SIMPLE_ROW_MATRIX
    export = schema.BulkExportRequest(table_name="t", columns_to_get=["c"], data_block_type_hint=matrix, **bounds)
    read = schema.GetStreamRecordRequest(shard_iterator=driver.only_iterator())

    for operation, request in {"GetRange": scan, "BulkExport": export, "GetStreamRecord": read}.items():
        assert driver.engine.answer(operation, request.SerializeToString()).rows_read == count, operation


@pytest.mark.parametrize(("operation", "rows"), [("PutRow", 1), ("UpdateRow", 1), ("DeleteRow", 1), ("GetRow", 0)])
def test_single_writes_count_one_row(operation: str, rows: int) -> None:
    assert inspect(operation, b"").rows_written == rows


def test_names_that_are_asked_for_do_not_fill_the_memory() -> None:
    counters = RequestCounters()
    for number in range(MOST_TALLIES + 1_000):
        counters.add("GetRow", (f"{number}",), failed=True)
    counters.add("GetRow", ("x" * 1_000_000,), failed=True)
    counters.add("x" * 1_000_000, (), failed=True)
    counted = counters.counts()

    assert len(counted) == MOST_TALLIES + 1
    assert sum(count.requests for count in counted if count.operation == OTHERS) == 1_002
    assert sum(count.requests for count in counted) == MOST_TALLIES + 1_002


def test_long_names_are_counted_by_their_beginning() -> None:
    counters = RequestCounters()
    counters.add("BatchGetRow", tuple(f"table_{number}" for number in range(1_000)))

    (count,) = counters.counts()
    assert len(count.table) == LONGEST_NAME
    assert count.table.startswith("table_0,table_1,")
