"""Tables: creating, changing, describing, cutting, and the order and texts of refusals."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from server_state_driver import (
    Driver,
    batch_row,
    batch_table,
    combined,
    condition_fields,
    creation,
    delete_all,
    delete_one,
    frame,
    increment,
    pagination,
    put,
    single,
)

from streamclient.server.engine import OPERATIONS
from streamclient.server.server_limits import Limits
from streamclient.wire import schema
from streamclient.wire.plainbuffer import Cell, CellOperation, KeyBound, decode_row, encode_value
from streamclient.wire.schema import ComparatorType, LogicalOperator, OperationType, RowExistenceExpectation

MISSING = (404, "OTSObjectNotExist", "Requested table does not exist.")
LOW, HIGH = KeyBound.INF_MIN, KeyBound.INF_MAX


@pytest.fixture
def driver() -> Driver:
    driver = Driver()
    driver.create()
    return driver


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
    assert answer.stream_details.enable_stream is False
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

    assert list(driver.call("ListTable").table_names) == []
    assert driver.refusal("DescribeTable", table_name="t") == MISSING
    driver.create()
    assert driver.table() == {}


def test_tables_are_listed_by_name(driver: Driver) -> None:
    for name in ("z", "a"):
        driver.create(name)

    assert list(driver.call("ListTable").table_names) == ["a", "t", "z"]


def test_split_points_cut_the_table_in_pieces_of_the_wanted_size() -> None:
    driver = Driver(limits=Limits(split_unit_bytes=1))
    driver.create(key=(("pk", "STRING"), ("sk", "INTEGER")))
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
    ("fields", "text"),
    [
        ({"split_size": 0}, "The split_size should be greater than 0."),
        ({"split_size": 0, "split_size_unit_in_byte": 0}, "The split_size should be greater than 0."),
        (
            {"split_size": 1000, "split_size_unit_in_byte": 0},
            "The split_size_unit_in_byte should be greater equal than: 1048576",
        ),
        (
            {"split_size": 1000, "split_size_unit_in_byte": 1048575},
            "The split_size_unit_in_byte should be greater equal than: 1048576",
        ),
    ],
)
def test_pieces_have_a_size(driver: Driver, fields: dict[str, int], text: str) -> None:
    assert driver.refusal("ComputeSplitPointsBySize", table_name="t", **fields) == (400, "OTSParameterInvalid", text)


def test_three_pieces_cost_four_units() -> None:
    driver = Driver(limits=Limits(split_unit_bytes=1))
    driver.create()
    for letter in "abc":
        driver.put(letter, put("x", 1))

    answer = driver.call("ComputeSplitPointsBySize", table_name="t", split_size=1, split_size_unit_in_byte=1)

    assert (len(answer.split_points), answer.consumed.capacity_unit.read) == (2, 4)


def test_an_empty_table_is_one_piece(driver: Driver) -> None:
    answer = driver.call("ComputeSplitPointsBySize", table_name="t", split_size=1)

    assert list(answer.split_points) == []
    assert [location.repeat for location in answer.locations] == [1]
    assert answer.consumed.capacity_unit.read == 1


def test_split_points_can_be_limited() -> None:
    driver = Driver(limits=Limits(split_unit_bytes=1))
    driver.create()
    for letter in "abcdefgh":
        driver.put(letter, put("x", 1))
    fields = {"table_name": "t", "split_size": 1, "split_size_unit_in_byte": 1}

    assert len(driver.call("ComputeSplitPointsBySize", **fields).split_points) == 7
    assert len(driver.call("ComputeSplitPointsBySize", **fields, split_point_limit=3).split_points) == 3


def test_unknown_operation_is_named() -> None:
    status, code, text = refusal_of(lambda driver: driver.engine.execute("CreateIndex", b""))

    assert (status, code, text) == (400, "OTSParameterInvalid", "Unsupported operation: CreateIndex.")


def refusal_of(act: Callable[[Driver], Any]) -> tuple[int, str, str]:
    from streamclient.server.server_errors import ServiceError

    with pytest.raises(ServiceError) as caught:
        act(Driver())
    return caught.value.http_status, caught.value.code, caught.value.message


@pytest.mark.parametrize("operation", sorted(OPERATIONS))
def test_bytes_that_are_no_message_are_refused(operation: str) -> None:
    status, code, text = refusal_of(lambda driver: driver.engine.execute(operation, b"\xff\xff\xff"))

    assert (status, code) == (400, "OTSParameterInvalid")
    assert text.startswith("Cannot deserialize the request data")


@pytest.mark.parametrize("operation", ["CreateIndex", "CreateSearchIndex", "SQLQuery", "PutTimeseriesData"])
def test_operations_that_exist_elsewhere_are_refused_by_name(operation: str) -> None:
    assert operation in refusal_of(lambda driver: driver.engine.execute(operation, b""))[2]


# Refusals: a request, changes to it, and the text that answers it

IGNORE = schema.Condition(row_existence=0)


def put_row(*cells: Cell, key: Any = "a", **fields: Any) -> tuple[str, dict[str, Any]]:
    return "PutRow", {"table_name": "t", "row": frame(key, *cells), "condition": IGNORE, **fields}


def update_row(*cells: Cell, key: Any = "a", **fields: Any) -> tuple[str, dict[str, Any]]:
    return "UpdateRow", {"table_name": "t", "row_change": frame(key, *cells), "condition": IGNORE, **fields}


def get_row(**fields: Any) -> tuple[str, dict[str, Any]]:
    return "GetRow", {"table_name": "t", "primary_key": frame("a"), "max_versions": 1, **fields}


def get_range(start: Any, end: Any, **fields: Any) -> tuple[str, dict[str, Any]]:
    bounds = {"inclusive_start_primary_key": frame(start), "exclusive_end_primary_key": frame(end)}
    return "GetRange", {"table_name": "t", "direction": 0, "max_versions": 1, **bounds, **fields}


def batch_write(*tables: Any, **fields: Any) -> tuple[str, dict[str, Any]]:
    return "BatchWriteRow", {"tables": tables, **fields}


def conditional(expect: int = 0, **fields: Any) -> Any:
    return batch_row(OperationType.PUT, "a", expect=RowExistenceExpectation(expect), **fields)


def update_table(**fields: Any) -> tuple[str, dict[str, Any]]:
    return "UpdateTable", {"table_name": "t", **fields}


def create_table(*key: tuple[str, ...], **fields: Any) -> tuple[str, dict[str, Any]]:
    return "CreateTable", creation("new", key or (("pk", "STRING"),), **fields)


def of_unknown_key_type(number: int) -> tuple[str, dict[str, Any]]:
    """Sent as a number that the enumeration of the Python SDK has, and ours does not."""
    operation, fields = create_table()
    key = schema.PrimaryKeySchema.FromString(b"\x0a\x02pk\x10" + bytes((number,)))
    fields["table_meta"].ClearField("primary_key")
    fields["table_meta"].primary_key.append(key)
    return operation, fields


DELETION = Cell("x", None, CellOperation.DELETE_ONE_VERSION)
DATED_DELETION = Cell("x", None, CellOperation.DELETE_ALL_VERSIONS, 5)
VALUED_DELETION = Cell("x", 1, CellOperation.DELETE_ALL_VERSIONS)
IS_1 = single(ComparatorType.EQUAL, "x")
BAD_FILTER = b"\x08\x01\x12\x01\xff"
STREAM = schema.StreamSpecification

INVALID = [
    (create_table(), {"table_meta": schema.TableMeta(table_name="1x")}, "Invalid table name: '1x'."),
    (
        create_table(*[(f"k{n}", "STRING") for n in range(5)]),
        {},
        "The number of primary key columns must be in range: [1, 4].",
    ),
    (create_table(("p-k", "STRING")), {}, "Invalid column name: 'p-k'."),
    (of_unknown_key_type(5), {}, "BOOLEAN is an invalid type for the primary key."),
    (of_unknown_key_type(9), {}, "9 is an invalid type for the primary key."),
    (create_table(("a", "STRING"), ("a", "STRING")), {}, "Duplicated primary key name: 'a'."),
    (create_table(("a", "INTEGER", "AUTO_INCREMENT")), {}, "The first primary key column can't be AUTO_INCREMENT."),
    (
        create_table(("a", "STRING"), ("b", "STRING", "AUTO_INCREMENT")),
        {},
        "AUTO_INCREMENT primary key column must be INTEGER: 'b'.",
    ),
    (create_table(options={"time_to_live": 0}), {}, "TimeToLive cannot be 0 or less than -1."),
    (create_table(options={"time_to_live": -2}), {}, "TimeToLive cannot be 0 or less than -1."),
    (create_table(options={"time_to_live": 86399}), {}, "TimeToLive must be -1 or at least 86400 seconds."),
    (create_table(options={"max_versions": 0}), {}, "The maximum versions cannot be less than or equal to 0"),
    (
        create_table(options={"deviation_cell_version_in_sec": -1}),
        {},
        "The deviation of cell version must be in range [0, INT64_MAX/1000000].",
    ),
    (
        create_table(stream_spec=STREAM(enable_stream=True, expiration_time=0)),
        {},
        "The expiration time of stream must be in range: [1, 168] hours.",
    ),
    (
        create_table(stream_spec=STREAM(enable_stream=True, expiration_time=169)),
        {},
        "The expiration time of stream must be in range: [1, 168] hours.",
    ),
    (update_table(), {}, "No parameter is specified in the request of UpdateTable."),
    (update_table(table_options=schema.TableOptions()), {}, "No parameter is specified in table options."),
    (
        update_table(table_options=schema.TableOptions(update_full_row=True)),
        {},
        "The table options of UpdateTable cannot contain updateFullRow: it is fixed at creation.",
    ),
    (("DescribeTable", {"table_name": ""}), {}, "Invalid table name: ''."),
    (("ListStream", {"table_name": "-"}), {}, "Invalid table name: '-'."),
    (put_row(put("#", 1)), {}, "Invalid column name: '#'."),
    (put_row(put("#公司", 1)), {}, "Invalid column name: '#公司'."),
    (put_row(put("", 1)), {}, "Invalid column name: ''."),
    (put_row(put("公" * 86, 1)), {}, f"Invalid column name: '{'公' * 86}'."),
    (get_row(columns_to_get=["x", "# "]), {}, "Invalid column name: '# '."),
    (
        create_table(stream_spec=STREAM(enable_stream=True, columns_to_get=["#o"])),
        {},
        "Invalid column name: '#o'.",
    ),
    (put_row(put("n" * 256, 1)), {}, f"Invalid column name: '{'n' * 256}'."),
    (put_row(put("pk", 1)), {}, "Duplicated attribute column name with primary key column: 'pk'."),
    (put_row(increment("x", 1)), {}, "OpType cannot be given for column name: x in PutRow."),
    (put_row(put("x", float("nan"))), {}, "NaN can't be set to double value."),
    (put_row(put("x", float("-inf"))), {}, "Infinity can't be set to double value."),
    (put_row(put("x", 1, -1)), {}, "Timestamp must be in range [0, INT64_MAX/1000)."),
    (put_row(put("x", 1, (2**63 - 1) // 1000)), {}, "Timestamp must be in range [0, INT64_MAX/1000)."),
    (
        put_row(key="k" * 1025),
        {},
        "The length of primary key column: 'pk' exceeds the MaxLength:1024 with CurrentLength:1025.",
    ),
    (
        put_row(put("c", "v" * 2097153)),
        {},
        "The length of attribute column: 'c' exceeds the MaxLength:2097152 with CurrentLength:2097153.",
    ),
    (
        put_row(*[put(f"c{n}", 1) for n in range(1025)]),
        {},
        "The number of attribute columns exceeds the limit, limit count: 1024, column count: 1025.",
    ),
    (
        put_row(*[put(f"c{n}", "v" * 2097152) for n in range(2)]),
        {},
        "The total data size of PutRow request exceeds the limit, limit size: 4194304, data size: 4194311.",
    ),
    (put_row(key=(("pk", LOW),)), {}, "VT_INF_MIN is an invalid type for the primary key."),
    (put_row(key=(("pk", "a"), ("pk", "b"))), {}, "Duplicated primary key name: 'pk'."),
    (
        put_row(),
        {"row": frame("a", delete_marker=True)},
        "Invalid request of put row: unexpected RowDeleteMarker in request.",
    ),
    (put_row(), {"condition": schema.Condition(row_existence=3)}, "Invalid row existence expectation: 3."),
    (put_row(), condition_fields(column_condition=BAD_FILTER), "Deserialize relation filter failed."),
    (
        put_row(),
        condition_fields(column_condition=combined(LogicalOperator.AND, IS_1)),
        "Invalid AND/OR operator: the number of sub-filters must be more than 1.",
    ),
    (
        put_row(),
        condition_fields(column_condition=combined(LogicalOperator.NOT, IS_1, IS_1)),
        "Invalid NOT operator: the number of sub-filters must be 1.",
    ),
    (
        put_row(),
        condition_fields(column_condition=combined(LogicalOperator.AND, *[IS_1] * 32)),
        "The count of filter exceeds the max: 32.",
    ),
    (
        put_row(),
        condition_fields(column_condition=pagination(0, 1)),
        "ColumnPaginationFilter can't be used as the condition of a write.",
    ),
    (update_row(), {}, "Invalid update row request: missing cells in request"),
    (update_row(DELETION), {}, "Timestamp must be given when type is DELETE_ONE_VERSION."),
    (update_row(DATED_DELETION), {}, "Timestamp cannot be given when type is DELETE_ALL_VERSION."),
    (
        update_row(VALUED_DELETION),
        {},
        "Column value cannot be given when type is DELETE_ONE_VERSION, DELETE_ALL_VERSION.",
    ),
    (
        update_row(),
        {"row_change": frame("a", put("x", 1), delete_marker=True)},
        "Invalid request of update row: unexpected RowDeleteMarker in request.",
    ),
    (
        ("DeleteRow", {"table_name": "t", "primary_key": frame("a"), "condition": IGNORE}),
        {},
        "Invalid request of delete row: missing RowDeleteMarker in request",
    ),
    (
        (
            "DeleteRow",
            {"table_name": "t", "primary_key": frame("a", put("x", 1), delete_marker=True), "condition": IGNORE},
        ),
        {},
        "Invalid delete row request: unexpected cells in request",
    ),
    (get_row(max_versions=None), {}, "No version condition is specified."),
    (get_range("a", "b", max_versions=None), {}, "No version condition is specified."),
    (
        ("BatchGetRow", {"tables": [schema.TableInBatchGetRowRequest(table_name="t", primary_key=[frame("a")])]}),
        {},
        "No version condition is specified while querying row.",
    ),
    (
        get_row(time_range=schema.TimeRange(specific_time=1)),
        {},
        "Specific tiemstamp and max versions cannot be given at the same time.",
    ),
    (
        get_row(max_versions=None, time_range=schema.TimeRange(specific_time=1, start_time=1, end_time=2)),
        {},
        "Specific tiemstamp and time range cannot be given at the same time.",
    ),
    (
        get_row(time_range=schema.TimeRange(specific_time=1, start_time=1, end_time=2)),
        {},
        "Specific timestamp, time range and max versions cannot be given at the same time.",
    ),
    (get_row(max_versions=0), {}, "The maximum versions must be greater than 0."),
    (get_row(time_range=schema.TimeRange(start_time=1)), {}, "Start and end time must be given at the same time."),
    (
        get_row(columns_to_get=[f"c{n}" for n in range(1025)]),
        {},
        "The number of columns from the request exceeds the limit, limit count: 1024, column count: 1025.",
    ),
    (get_row(primary_key=frame("a", put("x", 1))), {}, "Attribute column cannot be given while reading data."),
    (get_row(primary_key=frame((("pk", HIGH),))), {}, "VT_INF_MAX is an invalid type for the primary key."),
    (get_row(filter=pagination(-1, 1)), {}, "Offset in ColumnPaginationFilter must be greater than or equal to 0."),
    (get_row(filter=pagination(0, 0)), {}, "Limit in ColumnPaginationFilter must be greater than 0."),
    (
        get_row(filter=single(ComparatorType.EQUAL, "x", rule=schema.ValueTransferRule(regex="("))),
        {},
        "Invalid regex in value transfer rule: missing ): (.",
    ),
    (get_range("a", "b", limit=0), {}, "The limit must be greater than 0."),
    (get_range("b", "b"), {}, "Begin key must less than end key in FORWARD"),
    (get_range("a", "b", direction=1), {}, "Begin key must more than end key in BACKWARD"),
    (get_range("a", "b", direction=2), {}, "Invalid direction: 2."),
    (batch_write(), {}, "No row is specified in BatchWriteRow."),
    (batch_write(batch_table([])), {}, "No operation is specified for table: 't'."),
    (batch_write(batch_table([conditional()]), batch_table([conditional()])), {}, "Duplicated table name: 't'."),
    (batch_write(batch_table([conditional()] * 201)), {}, "Rows count exceeds the upper limit: 200."),
    (
        batch_write(batch_table([conditional(), conditional(2)])),
        {},
        "Repeated rows do not support row exist expectation check in BatchModify.",
    ),
    (
        batch_write(batch_table([conditional(), conditional(column_condition=IS_1)])),
        {},
        "Repeated rows do not support row condition check in BatchModify.",
    ),
    (("BatchGetRow", {}), {}, "No row specified in the request of BatchGetRow."),
    (
        (
            "BatchGetRow",
            {
                "tables": [
                    schema.TableInBatchGetRowRequest(table_name="t", primary_key=[frame("a")] * 101, max_versions=1)
                ]
            },
        ),
        {},
        "Rows count exceeds the upper limit: 100.",
    ),
]


@pytest.mark.parametrize(("request_", "changes", "text"), INVALID, ids=[case[2][:60] for case in INVALID])
def test_invalid_parameters_have_their_texts(
    driver: Driver, request_: tuple[str, dict[str, Any]], changes: dict[str, Any], text: str
) -> None:
    operation, fields = request_
    driver.put("a", put("kept", 1))

    assert driver.refusal(operation, **{**fields, **changes}) == (400, "OTSParameterInvalid", text)
    assert driver.table() == {"a": {"kept": 1}}
    assert list(driver.call("ListTable").table_names) == ["t"]


WRONG_KEYS = [
    ((("other", "a"),), "Validate PK name fail. Input: other, Meta: pk."),
    ((("pk", "a"), ("sk", "b")), "Validate PK size fail. Input: 2, Meta: 1."),
    ((("pk", 1),), "Validate PK type fail. Input: VT_INTEGER, Meta: VT_STRING."),
    ((("pk", b"a"),), "Validate PK type fail. Input: VT_BLOB, Meta: VT_STRING."),
]


@pytest.mark.parametrize(("key", "text"), WRONG_KEYS)
def test_keys_that_do_not_fit_the_table(driver: Driver, key: Any, text: str) -> None:
    deletion = {"table_name": "t", "primary_key": frame(key, delete_marker=True), "condition": IGNORE}
    for operation, fields in (
        put_row(key=key),
        update_row(put("x", 1), key=key),
        ("DeleteRow", deletion),
        get_row(primary_key=frame(key)),
        get_range(key, (("pk", HIGH),)),
        get_range((("pk", LOW),), key),
    ):
        assert driver.refusal(operation, **fields) == (400, "OTSInvalidPK", text), operation


def test_placeholder_outside_an_auto_increment_column(driver: Driver) -> None:
    operation, fields = put_row(key=(("pk", KeyBound.AUTO_INCREMENT),))

    assert driver.refusal(operation, **fields)[1] == "OTSInvalidPK"


@pytest.mark.parametrize(
    ("operation", "fields"),
    [
        put_row(table_name="u"),
        update_row(put("x", 1), table_name="u"),
        ("DeleteRow", {"table_name": "u", "primary_key": frame("a", delete_marker=True), "condition": IGNORE}),
        get_row(table_name="u"),
        get_range("a", "b", table_name="u"),
        ("DescribeTable", {"table_name": "u"}),
        ("DeleteTable", {"table_name": "u"}),
        ("UpdateTable", {"table_name": "u", "table_options": schema.TableOptions(max_versions=1)}),
        ("ComputeSplitPointsBySize", {"table_name": "u", "split_size": 1}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_unknown_tables_are_not_found(driver: Driver, operation: str, fields: dict[str, Any]) -> None:
    assert driver.refusal(operation, **fields) == MISSING


def test_an_existing_name_is_refused(driver: Driver) -> None:
    assert driver.refusal("CreateTable", **creation()) == (
        409,
        "OTSObjectAlreadyExist",
        "Requested table already exists.",
    )


def test_there_is_a_quota_of_tables() -> None:
    driver = Driver(limits=Limits(tables=1))
    driver.create()

    assert driver.refusal("CreateTable", **creation("u")) == (
        403,
        "OTSQuotaExhausted",
        "Number of tables exceeds the quota:1.",
    )


def test_a_damaged_row_is_refused(driver: Driver) -> None:
    row = bytearray(frame("a", put("x", 1)))
    row[-1] ^= 1

    status, code, text = driver.refusal("PutRow", table_name="t", row=bytes(row), condition=IGNORE)

    assert (status, code) == (400, "OTSParameterInvalid")
    assert text.startswith("Cell data broken")


def test_batch_size_is_limited() -> None:
    driver = Driver(limits=Limits(batch_write_bytes=100))
    driver.create()
    rows = [batch_row(OperationType.PUT, "a", put("x", "v" * 97))]

    assert driver.refusal("BatchWriteRow", tables=[batch_table(rows)])[2] == (
        "The total data size of BatchWriteRow request exceeds the limit, limit size: 100, data size: 101."
    )


def test_a_cell_with_a_timestamp_makes_a_request_larger() -> None:
    """Three rows of key name 2, key value 98, column name 50, a value, and 8 for the timestamp."""
    driver = Driver()
    driver.create(key=(("pk", "STRING"),))
    now_millis = driver.clock.now_micros() // 1000

    def rows(*sizes: int) -> list[Any]:
        return [
            batch_row(OperationType.PUT, str(number) * 98, put("c" * 50, "v" * size, now_millis))
            for number, size in enumerate(sizes)
        ]

    too_large = batch_table(rows(1397945, 1397943, 1397943))
    assert driver.refusal("BatchWriteRow", tables=[too_large]) == (
        400,
        "OTSParameterInvalid",
        "The total data size of BatchWriteRow request exceeds the limit, limit size: 4194304, data size: 4194305.",
    )
    driver.call("BatchWriteRow", tables=[batch_table(rows(1397944, 1397943, 1397943))])
    names = ("PutRow", "row"), ("UpdateRow", "row_change")
    for operation, field in names:
        row = frame("k", put("c", "v" * 2097152, now_millis), put("d", "v" * 2097135, now_millis))
        text = driver.refusal(operation, table_name="t", condition=IGNORE, **{field: row})[2]
        assert text == (
            f"The total data size of {operation} request exceeds the limit, limit size: 4194304, data size: 4194308."
        )


def test_one_large_row_makes_a_batch_too_large(driver: Driver) -> None:
    row = batch_row(OperationType.PUT, "k", put("c", "v" * 2097152), put("d", "v" * 2097152))

    text = driver.refusal("BatchWriteRow", tables=[batch_table([row])])[2]

    assert text.startswith("The total data size of BatchWriteRow request exceeds the limit")


@pytest.mark.parametrize("value", [True, False])
def test_update_full_row_is_set_at_creation_and_never_again(value: bool) -> None:
    driver = Driver()
    driver.create(options={"update_full_row": value, "allow_update": not value})

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


@pytest.mark.parametrize(
    ("value", "expected", "given"),
    [(b"x", "INTEGER", "BLOB"), ("x", "INTEGER", "STRING"), (True, "INTEGER", "BOOLEAN"), (1.5, "INTEGER", "DOUBLE")],
)
def test_a_defined_column_takes_values_of_its_type(value: Any, expected: str, given: str) -> None:
    driver = Driver()
    request = creation()
    request["table_meta"].defined_column.add(name="DC2", type=1)
    driver.call("CreateTable", **request)
    text = f"Invalid column type for column DC2 expect VT_{expected} actual VT_{given}"

    operation, fields = put_row(put("DC2", value))
    assert driver.refusal(operation, **fields) == (400, "OTSParameterInvalid", text)
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


@pytest.mark.parametrize(
    ("kind", "points", "text"),
    [
        ("STRING", tuple("abcdefghij"), "The count of partitions cannot be greater than 10"),
        ("INTEGER", (-(2**63),), "The value of partition range can not be INT64_MIN or INT64_MAX."),
        ("INTEGER", (0, 2**63 - 1), "The value of partition range can not be INT64_MIN or INT64_MAX."),
        ("STRING", ("",), "The value of partition range can not be empty string."),
        ("BINARY", (b"",), "The value of partition range can not be empty binary."),
        (
            "STRING",
            ("公" * 21 + "ab",),
            "The value of partition range exceeds the MaxLength:64 with CurrentLength:65.",
        ),
        ("BINARY", (b"x" * 65,), "The value of partition range exceeds the MaxLength:64 with CurrentLength:65."),
        ("STRING", (1,), "The value type of partition does not match with primary key."),
        ("INTEGER", ("1",), "The value type of partition does not match with primary key."),
    ],
)
def test_split_points_of_a_new_table_have_rules(kind: str, points: tuple[Any, ...], text: str) -> None:
    driver = Driver()
    request = creation(key=(("pk", kind),), partitions=partitions(*points))

    assert driver.refusal("CreateTable", **request) == (400, "OTSParameterInvalid", text)


@pytest.mark.parametrize(
    ("kind", "points"),
    [("STRING", tuple("abcdefghi")), ("INTEGER", (-(2**63) + 1, 2**63 - 2)), ("BINARY", (b"\x00", b"x" * 64))],
)
def test_nine_split_points_make_ten_partitions(kind: str, points: tuple[Any, ...]) -> None:
    driver = Driver()
    driver.create(key=(("pk", kind),), partitions=partitions(*points))

    splits = driver.call("DescribeTable", table_name="t").shard_splits
    assert [decode_row(split).primary_key for split in splits] == [(("pk", point),) for point in points]


def test_what_the_server_does_not_have_is_named(driver: Driver) -> None:
    index = schema.IndexMeta(name="i", index_update_mode=0, index_type=0)
    for operation, fields, word in (("CreateTable", creation("u", index_metas=[index]), "secondary indexes"),):
        status, code, text = driver.refusal(operation, **fields)
        assert (status, code, word in text) == (400, "OTSParameterInvalid", True)


def test_go_sends_an_expiration_when_switching_off(driver: Driver) -> None:
    specification = schema.StreamSpecification(enable_stream=False, expiration_time=0)

    driver.call("UpdateTable", table_name="t", stream_spec=specification)

    assert not driver.call("DescribeTable", table_name="t").stream_details.enable_stream


def test_a_refused_update_changes_no_part() -> None:
    driver = Driver()
    driver.create_with_stream()
    fields = {
        "table_options": schema.TableOptions(max_versions=9),
        "stream_spec": schema.StreamSpecification(enable_stream=True, expiration_time=48),
    }

    assert driver.refusal("UpdateTable", table_name="t", **fields)[1] == "OTSParameterInvalid"
    assert driver.call("DescribeTable", table_name="t").table_options.max_versions == 1


def test_deletions_of_one_version_need_no_present_version(driver: Driver) -> None:
    driver.update("a", put("x", 1), delete_one("y", 5), delete_all("z"))

    assert driver.get("a") == {"x": 1}


def test_batch_get_names_each_table_once(driver: Driver) -> None:
    table = schema.TableInBatchGetRowRequest(table_name="t", primary_key=[frame("a")], max_versions=1)

    assert driver.refusal("BatchGetRow", tables=[table, table])[2] == "Duplicated table name: 't'."


def test_batch_get_of_no_rows_answers_with_none(driver: Driver) -> None:
    empty = schema.TableInBatchGetRowRequest(table_name="t", max_versions=1)

    (answer,) = driver.call("BatchGetRow", tables=[empty]).tables

    assert (answer.table_name, list(answer.rows)) == ("t", [])


def test_a_closed_engine_refuses_and_says_so(driver: Driver) -> None:
    driver.engine.close()

    assert driver.refusal("ListTable") == (500, "OTSInternalServerError", "The server was closed.")
