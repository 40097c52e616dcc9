"""Tables: creating, changing, describing, cutting, and the order and texts of refusals."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from server_state_driver import (
    TWO_COLUMN_KEY,
    Driver,
    creation,
    delete_all,
    frame,
    increment,
    put,
    refusal_of,
    stream_driver,
    table_driver,
)

from streamclient.server.engine import OPERATIONS
from streamclient.server.server_limits import Limits
from streamclient.wire import schema
from streamclient.wire.plainbuffer import KeyBound, decode_row, encode_value

MISSING = (404, "OTSObjectNotExist", "Requested table does not exist.")
LOW, HIGH = KeyBound.INF_MIN, KeyBound.INF_MAX


@pytest.fixture
def driver() -> Driver:
    return table_driver()


def test_describe_table_leaves_out_nothing_that_an_sdk_reads(driver: Driver) -> None:
    """Go and Node fail on a missing status, and Go on missing numbers or stream details."""
    answer = driver.call("DescribeTable", table_name="t")

    assert answer.table_status == 1
    assert [field.name for field, _ in answer.table_options.ListFields()] == [
        "time_to_live",
        "max_versions",
        "deviation_cell_version_in_sec",
        "allow_update",
        "update_full_row",
    ]
    unit = answer.reserved_throughput_details.capacity_unit
    assert (unit.HasField("read"), unit.HasField("write")) == (True, True)
    assert answer.reserved_throughput_details.HasField("last_increase_time")
    assert [field.name for field, _ in answer.stream_details.ListFields()] == ["enable_stream"]


def test_update_table_answers_with_everything(driver: Driver) -> None:
    answer = driver.call("UpdateTable", table_name="t", table_options=schema.TableOptions(max_versions=7))

    assert answer.table_options.max_versions == 7
    assert answer.table_options.time_to_live == -1
    assert [field.name for field, _ in answer.stream_details.ListFields()] == ["enable_stream"]
    assert driver.call("DescribeTable", table_name="t").table_options == answer.table_options


def test_throughput_changes_are_dated(driver: Driver) -> None:
    driver.clock.advance(1000)
    unit = schema.CapacityUnit(read=5)
    answer = driver.call(
        "UpdateTable", table_name="t", reserved_throughput=schema.ReservedThroughput(capacity_unit=unit)
    )
    details = answer.reserved_throughput_details

    assert (details.capacity_unit.read, details.capacity_unit.write) == (5, 0)
    assert details.last_increase_time > driver.call("DescribeTable", table_name="t").creation_time // 1_000_000
    assert not details.HasField("last_decrease_time")


def test_definitions_come_back_as_given() -> None:
    driver = Driver()
    key = (("pk", "STRING"), ("number", "INTEGER", "AUTO_INCREMENT"), ("blob", "BINARY"))
    request = creation(key=key, options={"time_to_live": 86400, "max_versions": 2, "deviation_cell_version_in_sec": 9})
    request["table_meta"].defined_column.add(name="c", type=4)
    driver.call("CreateTable", **request)

    answer = driver.call("DescribeTable", table_name="t")

    assert answer.table_meta == request["table_meta"]
    options = answer.table_options
    assert (options.time_to_live, options.max_versions, options.deviation_cell_version_in_sec) == (86400, 2, 9)


def test_deleted_table_is_gone_and_its_name_free(driver: Driver) -> None:
    driver.put("a", put("x", 1))
    driver.call("DeleteTable", table_name="t")

    assert driver.tables() == []
    assert driver.refusal("DescribeTable", table_name="t") == MISSING
    driver.create()
    assert driver.table() == {}


def test_tables_are_listed_by_name(driver: Driver) -> None:
    for name in ("z", "a"):
        driver.create(name)

    assert driver.tables() == ["a", "t", "z"]


def test_split_points_cut_the_table_in_pieces_of_the_wanted_size() -> None:
    driver = table_driver(limits=Limits(split_unit_bytes=1), key=TWO_COLUMN_KEY)
    for partition in "abcd":
        for number in range(10):
            driver.put((("pk", partition), ("sk", number)), put("x", "v" * 100))

    answer = driver.call("ComputeSplitPointsBySize", table_name="t", split_size=1000, split_size_unit_in_byte=1)

    points = [decode_row(point).primary_key for point in answer.split_points]
    assert (("pk", "b"),) in [point[:1] for point in points]
    assert all(len(point) in (1, 2) for point in points)
    assert points == sorted(points)
    assert [location.repeat for location in answer.locations] == [len(points) + 1]
    assert len(answer.locations[0].location) == 32
    assert [column.name for column in answer.schema] == ["pk", "sk"]


@pytest.mark.parametrize(
    ("size", "unit", "text"),
    [
        (0, None, "The split_size should be greater than 0."),
        (0, 0, "The split_size should be greater than 0."),
        (1000, 0, "The split_size_unit_in_byte should be greater equal than: 1048576"),
        (1000, 1048575, "The split_size_unit_in_byte should be greater equal than: 1048576"),
    ],
)
def test_pieces_have_a_size(driver: Driver, size: int, unit: int | None, text: str) -> None:
    fields = {"table_name": "t", "split_size": size, "split_size_unit_in_byte": unit}

    assert driver.refusal("ComputeSplitPointsBySize", **fields) == (400, "OTSParameterInvalid", text)


def test_an_empty_table_is_one_piece(driver: Driver) -> None:
    answer = driver.call("ComputeSplitPointsBySize", table_name="t", split_size=1)

    assert list(answer.split_points) == []
    assert [location.repeat for location in answer.locations] == [1]
    assert answer.consumed.capacity_unit.read == 1


@pytest.mark.parametrize(
    ("rows", "limit", "points", "units"),
    [("abc", None, 2, 4), ("abcdefgh", None, 7, 9), ("abcdefgh", 3, 3, 5)],
    ids=["three pieces cost four units", "eight pieces", "a limit of points"],
)
def test_split_points_are_counted(rows: str, limit: int | None, points: int, units: int) -> None:
    driver = table_driver(limits=Limits(split_unit_bytes=1))
    driver.put_each(rows, put("x", 1))
    fields = {"table_name": "t", "split_size": 1, "split_size_unit_in_byte": 1, "split_point_limit": limit}

    answer = driver.call("ComputeSplitPointsBySize", **fields)

    assert (len(answer.split_points), answer.consumed.capacity_unit.read) == (points, units)


@pytest.mark.parametrize("operation", sorted(OPERATIONS))
def test_bytes_that_are_no_message_are_refused(operation: str) -> None:
    status, code, text = refusal_of(Driver().engine.execute, operation, b"\xff\xff\xff")

    assert (status, code) == (400, "OTSParameterInvalid")
    assert text.startswith("Cannot deserialize the request data")


@pytest.mark.parametrize("operation", ["CreateIndex", "CreateSearchIndex", "SQLQuery", "PutTimeseriesData"])
def test_operations_that_exist_elsewhere_are_refused_by_name(operation: str) -> None:
    unsupported = (400, "OTSParameterInvalid", f"Unsupported operation: {operation}.")

    assert refusal_of(Driver().engine.execute, operation, b"") == unsupported


def test_there_is_a_quota_of_tables() -> None:
    exhausted = (403, "OTSQuotaExhausted", "Number of tables exceeds the quota:1.")

    assert table_driver(limits=Limits(tables=1)).refusal("CreateTable", **creation("u")) == exhausted


@pytest.mark.parametrize("value", [True, False])
def test_update_full_row_is_set_at_creation_and_never_again(value: bool) -> None:
    driver = table_driver(options={"update_full_row": value, "allow_update": not value})

    def described() -> tuple[bool, bool, bool]:
        options = driver.call("DescribeTable", table_name="t").table_options
        return options.HasField("update_full_row"), options.update_full_row, options.allow_update

    assert described() == (True, value, not value)
    for given in (True, False):
        options = schema.TableOptions(update_full_row=given, max_versions=5)
        status, code, text = driver.refusal("UpdateTable", table_name="t", table_options=options)
        assert (status, code, "contain updateFullRow" in text) == (400, "OTSParameterInvalid", True)
    answer = driver.call("UpdateTable", table_name="t", table_options=schema.TableOptions(max_versions=2))
    assert (answer.table_options.update_full_row, answer.table_options.max_versions) == (value, 2)
    assert described() == (True, value, not value)


@pytest.mark.parametrize(("value", "given"), [(b"x", "BLOB"), ("x", "STRING"), (True, "BOOLEAN"), (1.5, "DOUBLE")])
def test_a_defined_column_takes_values_of_its_type(value: Any, given: str) -> None:
    driver = Driver()
    request = creation()
    request["table_meta"].defined_column.add(name="DC2", type=1)
    driver.call("CreateTable", **request)
    text = f"Invalid column type for column DC2 expect VT_INTEGER actual VT_{given}"

    assert refusal_of(driver.put, "a", put("DC2", value)) == (400, "OTSParameterInvalid", text)
    rows = [schema.RowInBulkImportRequest(type=1, row_change=frame("a", put("DC2", value)))]
    (row,) = driver.call("BulkImport", table_name="t", rows=rows).rows
    assert (row.is_ok, row.error.code, row.error.message) == (False, "OTSParameterInvalid", text)
    driver.update("a", put("DC2", 1), put("other", value))
    driver.update("a", increment("DC2", 1))
    driver.update("a", delete_all("DC2"))
    assert driver.table() == {"a": {"other": value}}


def test_defined_columns_are_at_most_thirty_two() -> None:
    driver = Driver()
    request = creation()
    for number in range(33):
        request["table_meta"].defined_column.add(name=f"c{number}", type=1)

    assert driver.refusal("CreateTable", **request)[2] == "The number of defined columns must be in range: [0, 32]."
    del request["table_meta"].defined_column[32:]
    driver.call("CreateTable", **request)


def partitions(*points: Any) -> list[Any]:
    places = [KeyBound.INF_MIN, *points, KeyBound.INF_MAX]
    return [schema.PartitionRange(begin=encode_value(begin), end=encode_value(end)) for begin, end in pairwise(places)]


TOO_LONG = "The value of partition range exceeds the MaxLength:64 with CurrentLength:65."


@pytest.mark.parametrize(
    ("kind", "points", "text"),
    [
        ("STRING", tuple("abcdefghij"), "The count of partitions cannot be greater than 10"),
        ("INTEGER", (-(2**63),), "The value of partition range can not be INT64_MIN or INT64_MAX."),
        ("INTEGER", (0, 2**63 - 1), "The value of partition range can not be INT64_MIN or INT64_MAX."),
        ("STRING", ("",), "The value of partition range can not be empty string."),
        ("BINARY", (b"",), "The value of partition range can not be empty binary."),
        ("STRING", ("公" * 21 + "ab",), TOO_LONG),
        ("BINARY", (b"x" * 65,), TOO_LONG),
        ("STRING", (1,), "The value type of partition does not match with primary key."),
        ("INTEGER", ("1",), "The value type of partition does not match with primary key."),
    ],
)
def test_split_points_of_a_new_table_have_rules(kind: str, points: tuple[Any, ...], text: str) -> None:
    request = creation(key=(("pk", kind),), partitions=partitions(*points))

    assert Driver().refusal("CreateTable", **request) == (400, "OTSParameterInvalid", text)


@pytest.mark.parametrize(
    ("kind", "points"),
    [("STRING", tuple("abcdefghi")), ("INTEGER", (-(2**63) + 1, 2**63 - 2)), ("BINARY", (b"\x00", b"x" * 64))],
)
def test_nine_split_points_make_ten_partitions(kind: str, points: tuple[Any, ...]) -> None:
    driver = table_driver(key=(("pk", kind),), partitions=partitions(*points))

    splits = driver.call("DescribeTable", table_name="t").shard_splits
    assert [decode_row(split).primary_key for split in splits] == [(("pk", point),) for point in points]


def test_what_the_server_does_not_have_is_named(driver: Driver) -> None:
    index = schema.IndexMeta(name="i", index_update_mode=0, index_type=0)
    status, code, text = driver.refusal("CreateTable", **creation("u", index_metas=[index]))

    assert (status, code, "secondary indexes" in text) == (400, "OTSParameterInvalid", True)


def test_go_sends_an_expiration_when_switching_off(driver: Driver) -> None:
    specification = schema.StreamSpecification(enable_stream=False, expiration_time=0)

    driver.call("UpdateTable", table_name="t", stream_spec=specification)

    assert not driver.call("DescribeTable", table_name="t").stream_details.enable_stream


def test_a_refused_update_changes_no_part() -> None:
    driver = stream_driver()
    fields = {
        "table_options": schema.TableOptions(max_versions=9),
        "stream_spec": schema.StreamSpecification(enable_stream=True, expiration_time=48),
    }

    assert driver.refusal("UpdateTable", table_name="t", **fields)[1] == "OTSParameterInvalid"
    assert driver.call("DescribeTable", table_name="t").table_options.max_versions == 1


def test_batch_get_of_no_rows_answers_with_none(driver: Driver) -> None:
    empty = schema.TableInBatchGetRowRequest(table_name="t", max_versions=1)

    (answer,) = driver.call("BatchGetRow", tables=[empty]).tables

    assert (answer.table_name, list(answer.rows)) == ("t", [])


def test_a_closed_engine_refuses_and_says_so(driver: Driver) -> None:
    driver.engine.close()

    assert driver.refusal("ListTable") == (500, "OTSInternalServerError", "The server was closed.")
