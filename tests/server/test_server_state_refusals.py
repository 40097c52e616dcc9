"""Refusals in the words of the service, written out: ``test_server_refusals`` compares with the server's own table."""

from __future__ import annotations

from typing import Any

import pytest
from refusal_cases import (
    AND,
    DATED_DELETION,
    DELETION,
    HIGH,
    IGNORE,
    IS_1,
    LOW,
    MARKED,
    NOT,
    OPTIONS,
    TIMES,
    VALUED_DELETION,
    batch_get,
    batch_write,
    conditional,
    conditional_put,
    create_table,
    delete_row,
    get_range,
    get_row,
    of_unknown_key_type,
    put_row,
    update_row,
    update_table,
    with_capacity,
)
from server_state_driver import (
    PUT,
    TWO_COLUMN_KEY,
    UPDATE,
    Driver,
    batch_row,
    batch_table,
    combined,
    creation,
    frame,
    increment,
    pagination,
    put,
    refusal_of,
    single,
    table_driver,
)

from streamclient.server.server_limits import Limits
from streamclient.wire import schema
from streamclient.wire.plainbuffer import KeyBound
from streamclient.wire.schema import ComparatorType

MISSING = (404, "OTSObjectNotExist", "Requested table does not exist.")


@pytest.fixture
def driver() -> Driver:
    return table_driver()


KEY_COLUMNS = "The number of primary key columns must be in range: [1, 4]."
LIFETIME = "TimeToLive cannot be 0 or less than -1."
RETENTION = "The expiration time of stream must be in range: [1, 168] hours."
STAMP = "Timestamp must be in range [0, INT64_MAX/1000)."
NO_VERSION = "No version condition is specified."

INVALID = [
    (create_table(table_meta=schema.TableMeta(table_name="1x")), "Invalid table name: '1x'."),
    (create_table(*[(f"k{n}", "STRING") for n in range(5)]), KEY_COLUMNS),
    (create_table(("p-k", "STRING")), "Invalid column name: 'p-k'."),
    (of_unknown_key_type(5), "BOOLEAN is an invalid type for the primary key."),
    (of_unknown_key_type(9), "9 is an invalid type for the primary key."),
    (create_table(("a", "STRING"), ("a", "STRING")), "Duplicated primary key name: 'a'."),
    (create_table(("a", "INTEGER", "AUTO_INCREMENT")), "First primary key can't be auto increment, table: new."),
    (
        create_table(("a", "STRING"), ("b", "STRING", "AUTO_INCREMENT")),
        "AUTO_INCREMENT primary key must be integer.",
    ),
    (create_table(options={"time_to_live": None}), "Time-to-live is missing while creating table."),
    (create_table(options={"max_versions": None}), "MaxVersions is missing while creating table."),
    (with_capacity(read=1), "Both read and write capacity unit are required to create table."),
    (with_capacity(write=1), "Both read and write capacity unit are required to create table."),
    (
        create_table(("a", "STRING"), ("b", "INTEGER", "AUTO"), ("c", "INTEGER", "AUTO")),
        "AUTO_INCREMENT primary key count must <= 1",
    ),
    (put_row(put("old", 1, 5)), "Invalid timestamp. Cell:old."),
    (get_row(primary_key=frame("a", delete_marker=True)), "Delete marker cannot be given."),
    (("tunnel/delete", {"table_name": "t", "tunnel_name": "n"}), "tunnel not exist: 'n'."),
    (
        ("BulkImport", {"table_name": "t", "rows": [schema.RowInBulkImportRequest(type=4, row_change=frame("a"))]}),
        "The modify type is invalid.",
    ),
    (create_table(options={"time_to_live": 0}), LIFETIME),
    (create_table(options={"time_to_live": -2}), LIFETIME),
    (create_table(options={"time_to_live": 86399}), "TimeToLive must be -1 or at least 86400 seconds."),
    (create_table(options={"max_versions": 0}), "The maximum versions cannot be less than or equal to 0"),
    (
        create_table(options={"deviation_cell_version_in_sec": -1}),
        "The maximum deviation must be in range [0, INT64_MAX/1000000].",
    ),
    (create_table(stream_spec=schema.StreamSpecification(enable_stream=True, expiration_time=0)), RETENTION),
    (create_table(stream_spec=schema.StreamSpecification(enable_stream=True, expiration_time=169)), RETENTION),
    (update_table(), "No parameter is specified in the request of UpdateTable."),
    (update_table(table_options=OPTIONS()), "No parameter is specified in table options."),
    (
        update_table(table_options=OPTIONS(update_full_row=True)),
        "The table options of UpdateTable cannot contain updateFullRow: it is fixed at creation.",
    ),
    (("DescribeTable", {"table_name": ""}), "Invalid table name: ''."),
    (("ListStream", {"table_name": "-"}), "Invalid table name: '-'."),
    (put_row(put("#", 1)), "Invalid column name: '#'."),
    (put_row(put("#公司", 1)), "Invalid column name: '#公司'."),
    (put_row(put("", 1)), "Invalid column name: ''."),
    (put_row(put("公" * 86, 1)), f"Invalid column name: '{'公' * 86}'."),
    (get_row(columns_to_get=["x", "# "]), "Invalid column name: '# '."),
    (
        create_table(stream_spec=schema.StreamSpecification(enable_stream=True, columns_to_get=["#o"])),
        "Invalid column name: '#o'.",
    ),
    (put_row(put("n" * 256, 1)), f"Invalid column name: '{'n' * 256}'."),
    (put_row(put("pk", 1)), "Duplicated attribute column name with primary key column: 'pk'."),
    (put_row(increment("x", 1)), "OpType cannot be given for column name: x in PutRow."),
    (put_row(put("x", float("nan"))), "NaN can't be set to double value."),
    (put_row(put("x", float("-inf"))), "Infinity can't be set to double value."),
    (put_row(put("x", 1, -1)), STAMP),
    (put_row(put("x", 1, (2**63 - 1) // 1000)), STAMP),
    (
        put_row(key="k" * 1025),
        "The length of primary key column: 'pk' exceeds the MaxLength:1024 with CurrentLength:1025.",
    ),
    (
        put_row(put("c", "v" * 2097153)),
        "The length of attribute column: 'c' exceeds the MaxLength:2097152 with CurrentLength:2097153.",
    ),
    (
        put_row(*[put(f"c{n}", 1) for n in range(1025)]),
        "The number of attribute columns exceeds the limit, limit count: 1024, column count: 1025.",
    ),
    (
        put_row(*[put(f"c{n}", "v" * 2097152) for n in range(2)]),
        "The total data size of PutRow request exceeds the limit, limit size: 4194304, data size: 4194311.",
    ),
    (put_row(key=(("pk", LOW),)), "VT_INF_MIN is an invalid type for the primary key."),
    (put_row(key=(("pk", "a"), ("pk", "b"))), "Duplicated primary key name: 'pk'."),
    (
        put_row(row=frame("a", delete_marker=True)),
        "Invalid request of put/update row: unexpected RowDeleteMarker in request.",
    ),
    (put_row(condition=schema.Condition(row_existence=3)), "Invalid row-existence expectation: 3."),
    (conditional_put(b"\x08\x01\x12\x01\xff"), "Deserialize relation filter failed."),
    (conditional_put(combined(AND, IS_1)), "Invalid AND/OR operator: the number of sub-filters must be more than 1."),
    (conditional_put(combined(NOT, IS_1, IS_1)), "Invalid NOT operator: the number of sub-filters must be 1."),
    (conditional_put(combined(AND, *[IS_1] * 32)), "The count of filter exceeds the max: 32."),
    (conditional_put(pagination(0, 1)), "ColumnPaginationFilter can't be used as the condition of a write."),
    (update_row(), "Attribute column is missing."),
    (batch_write(batch_table([batch_row(UPDATE, "a")])), "Invalid update row request: missing cells in request."),
    (update_row(DELETION), "Timestamp must be given when type is DELETE_ONE_VERSION."),
    (update_row(DATED_DELETION), "Timestamp cannot be given when type is DELETE_ALL_VERSION."),
    (update_row(VALUED_DELETION), "Column value cannot be given when type is DELETE_ONE_VERSION, DELETE_ALL_VERSION."),
    (update_row(row_change=MARKED), "Invalid request of put/update row: unexpected RowDeleteMarker in request."),
    (delete_row(is_marked=False), "Invalid request of delete row: missing RowDeleteMarker in request"),
    (delete_row(put("x", 1)), "Invalid delete row request: unexpected cells in request"),
    (get_row(max_versions=None), NO_VERSION),
    (get_range("a", "b", max_versions=None), NO_VERSION),
    (batch_get(frame("a")), "No version condition is specified while querying row."),
    (
        get_row(time_range=TIMES(specific_time=1)),
        "Specific tiemstamp and max versions cannot be given at the same time.",
    ),
    (
        get_row(max_versions=None, time_range=TIMES(specific_time=1, start_time=1, end_time=2)),
        "Specific tiemstamp and time range cannot be given at the same time.",
    ),
    (
        get_row(time_range=TIMES(specific_time=1, start_time=1, end_time=2)),
        "Specific timestamp, time range and max versions cannot be given at the same time.",
    ),
    (get_row(max_versions=0), "Invalid max versions: 0. Reason: Max versions must be positive."),
    (get_row(time_range=TIMES(start_time=1)), "Start and end time must be given at the same time."),
    (
        get_row(columns_to_get=[f"c{n}" for n in range(1025)]),
        "The number of columns from the request exceeds the limit, limit count: 1024, column count: 1025.",
    ),
    (get_row(primary_key=frame("a", put("x", 1))), "Attribute column cannot be given while reading data."),
    (get_row(primary_key=frame((("pk", HIGH),))), "VT_INF_MAX is an invalid type for the primary key."),
    (get_row(filter=pagination(-1, 1)), "Offset in ColumnPaginationFilter must be greater than or equal to 0."),
    (get_row(filter=pagination(0, 0)), "Limit in ColumnPaginationFilter must be greater than 0."),
    (
        get_row(filter=single(ComparatorType.EQUAL, "x", rule=schema.ValueTransferRule(regex="("))),
        "Invalid regex in value transfer rule: missing ): (.",
    ),
    (get_range("a", "b", limit=0), "The limit must be greater than 0."),
    (get_range("b", "b"), "Begin key must less than end key in FORWARD"),
    (get_range("a", "b", direction=1), "Begin key must more than end key in BACKWARD"),
    (get_range("a", "b", direction=2), "Invalid direction: 2."),
    (batch_write(), "No row is specified in BatchWriteRow."),
    (batch_write(batch_table([])), "No operation is specified for table: 't'."),
    (batch_write(batch_table([conditional()]), batch_table([conditional()])), "Duplicated table name: 't'."),
    (batch_write(batch_table([conditional()] * 201)), "Rows count exceeds the upper limit: 200."),
    (
        batch_write(batch_table([conditional(), conditional(2)])),
        "Repeated rows do not support row exist expectation check in BatchModify.",
    ),
    (
        batch_write(batch_table([conditional(), conditional(column_condition=IS_1)])),
        "Repeated rows do not support row condition check in BatchModify.",
    ),
    (("BatchGetRow", {}), "No row specified in the request of BatchGetRow."),
    (batch_get(*[frame("a")] * 101, max_versions=1), "Rows count exceeds the upper limit: 100."),
    (
        ("BatchGetRow", {"tables": batch_get(frame("a"), max_versions=1)[1]["tables"] * 2}),
        "Duplicated table name: 't'.",
    ),
]


@pytest.mark.parametrize(("request_", "text"), INVALID, ids=[text[:60] for _, text in INVALID])
def test_invalid_parameters_have_their_texts(driver: Driver, request_: tuple[str, dict[str, Any]], text: str) -> None:
    operation, fields = request_
    driver.put("a", put("kept", 1))

    assert driver.refusal(operation, **fields) == (400, "OTSParameterInvalid", text)
    assert driver.table() == {"a": {"kept": 1}}
    assert driver.tables() == ["t"]


WRONG_KEYS = [
    ((("other", "a"),), "Validate PK name fail. Input: other, Meta: pk."),
    ((("pk", "a"), ("sk", "b")), "Validate PK size fail. Input: 2, Meta: 1."),
    ((("pk", 1),), "Validate PK type fail. Input: VT_INTEGER, Meta: VT_STRING."),
    ((("pk", b"a"),), "Validate PK type fail. Input: VT_BLOB, Meta: VT_STRING."),
]


@pytest.mark.parametrize(("key", "text"), WRONG_KEYS)
def test_keys_that_do_not_fit_the_table(driver: Driver, key: Any, text: str) -> None:
    for operation, fields in (
        put_row(key=key),
        update_row(put("x", 1), key=key),
        delete_row(primary_key=frame(key, delete_marker=True)),
        get_row(primary_key=frame(key)),
        get_range(key, (("pk", HIGH),)),
        get_range((("pk", LOW),), key),
    ):
        assert driver.refusal(operation, **fields) == (400, "OTSInvalidPK", text), operation


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ((("pk", "a"),), "Validate PK size fail. Input: 1, Meta: 2."),
        ((("pk", "a"), ("sk", 1), ("more", 1)), "Validate PK size fail. Input: 3, Meta: 2."),
        ((("pk", "a"), ("other", 1)), "Validate PK name fail. Input: other, Meta: sk."),
        ((("sk", 1), ("pk", "a")), "Validate PK name fail. Input: sk, Meta: pk."),
        ((("pk", "a"), ("sk", "b")), "Validate PK type fail. Input: VT_STRING, Meta: VT_INTEGER."),
    ],
    ids=["too few", "too many", "another name", "another order", "another type"],
)
def test_each_column_of_a_key_must_fit(driver: Driver, key: Any, text: str) -> None:
    driver.create("two", TWO_COLUMN_KEY)
    operation, fields = put_row(key=key, table_name="two")

    assert driver.refusal(operation, **fields) == (400, "OTSInvalidPK", text)


def test_placeholder_outside_an_auto_increment_column(driver: Driver) -> None:
    operation, fields = put_row(key=(("pk", KeyBound.AUTO_INCREMENT),))

    assert driver.refusal(operation, **fields)[1] == "OTSInvalidPK"


@pytest.mark.parametrize(
    ("operation", "fields"),
    [
        put_row(table_name="u"),
        update_row(put("x", 1), table_name="u"),
        delete_row(table_name="u"),
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
    existing = (409, "OTSObjectAlreadyExist", "Requested table already exists.")

    assert driver.refusal("CreateTable", **creation()) == existing


def test_a_damaged_row_is_refused(driver: Driver) -> None:
    row = bytearray(frame("a", put("x", 1)))
    row[-1] ^= 1

    status, code, text = driver.refusal("PutRow", table_name="t", row=bytes(row), condition=IGNORE)

    assert (status, code) == (400, "OTSParameterInvalid")
    assert text.startswith("Cell data broken")


TOO_LARGE = "The total data size of BatchWriteRow request exceeds the limit,"


def test_batch_size_is_limited() -> None:
    driver = table_driver(limits=Limits(batch_write_bytes=100))
    rows = [batch_row(PUT, "a", put("x", "v" * 97))]

    assert refusal_of(driver.write_batch, rows)[2] == f"{TOO_LARGE} limit size: 100, data size: 101."


def test_a_cell_with_a_timestamp_makes_a_request_larger() -> None:
    """Three rows of key name 2, key value 98, column name 50, a value, and 8 for the timestamp."""
    driver = table_driver()
    now_millis = driver.clock.now_micros() // 1000

    def rows(*sizes: int) -> list[Any]:
        return [
            batch_row(PUT, str(number) * 98, put("c" * 50, "v" * size, now_millis)) for number, size in enumerate(sizes)
        ]

    refused = (400, "OTSParameterInvalid", f"{TOO_LARGE} limit size: 4194304, data size: 4194305.")
    assert refusal_of(driver.write_batch, rows(1397945, 1397943, 1397943)) == refused
    driver.write_batch(rows(1397944, 1397943, 1397943))
    cells = put("c", "v" * 2097152, now_millis), put("d", "v" * 2097135, now_millis)
    for operation, fields in (put_row(*cells, key="k"), update_row(*cells, key="k")):
        text = f"{TOO_LARGE.replace('BatchWriteRow', operation)} limit size: 4194304, data size: 4194308."
        assert driver.refusal(operation, **fields)[2] == text


def test_one_large_row_makes_a_batch_too_large(driver: Driver) -> None:
    row = batch_row(PUT, "k", put("c", "v" * 2097152), put("d", "v" * 2097152))

    assert refusal_of(driver.write_batch, [row])[2].startswith(TOO_LARGE)
