"""Batches, BulkImport, BulkExport, the matrix form of answers, and the empty lists of what there is none of."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from server_state_driver import (
    DELETE,
    EXIST,
    GENERATED_KEY,
    NOT_EXIST,
    PUT,
    TWO_COLUMN_KEY,
    UPDATE,
    Driver,
    batch_row,
    batch_table,
    delete_all,
    frame,
    increment,
    put,
    refusal_of,
    single,
    stream_driver,
    table_driver,
    values,
)

from streamclient.records import RecordType
from streamclient.server.inspection import inspect
from streamclient.server.row_matrix import encode_matrix
from streamclient.server.server_limits import Limits
from streamclient.server.stored_rows import make_row
from streamclient.wire import schema
from streamclient.wire.crc8 import crc8
from streamclient.wire.plainbuffer import Cell, KeyBound, decode_row, decode_rows, encode_value
from streamclient.wire.schema import ComparatorType, DataBlockType, OperationType, ReturnType

MATRIX = DataBlockType.SIMPLE_ROW_MATRIX
EXPORT_KEY = (("pk1", "STRING"), ("pk2", "INTEGER"), ("pk3", "BINARY"))


@pytest.fixture
def driver() -> Driver:
    return stream_driver()


def imported(kind: OperationType, key: Any, *cells: Cell) -> Any:
    change = frame(key, *cells, delete_marker=kind is DELETE)
    return schema.RowInBulkImportRequest(type=kind, row_change=change)


def test_an_import_puts_merges_and_deletes_in_order(driver: Driver) -> None:
    driver.put_each("ab", put("old", 1))
    rows = [
        imported(PUT, "a", put("x", 1)),
        imported(UPDATE, "b", put("x", 2)),
        imported(UPDATE, "c", put("x", 3)),
        imported(DELETE, "absent"),
        imported(UPDATE, "c", put("y", 4)),
        imported(PUT, "d", put("x", 5)),
        imported(DELETE, "d"),
    ]

    answer = driver.call("BulkImport", table_name="t", rows=rows)

    assert answer.table_name == "t"
    assert [(row.is_ok, row.HasField("error")) for row in answer.rows] == [(True, False)] * 7
    assert driver.table() == {"a": {"x": 1}, "b": {"old": 1, "x": 2}, "c": {"x": 3, "y": 4}}
    kinds = [record.record_type for record in driver.all_records()[2:]]
    assert kinds == [
        *(RecordType.PUT, RecordType.UPDATE, RecordType.UPDATE, RecordType.DELETE),
        *(RecordType.UPDATE, RecordType.PUT, RecordType.DELETE),
    ]


def test_an_import_is_charged_by_bytes() -> None:
    """Key names of 9 bytes, key values of 16; the timestamp counts nothing."""
    driver = Driver()
    driver.create(key=EXPORT_KEY)
    key = (("pk1", "2000"), ("pk2", 7), ("pk3", b"2000"))
    now_millis = driver.clock.now_micros() // 1000
    cells = put("DC1", "2000", now_millis), put("DC2", 5), put("DC3", b"2000")

    rows = [imported(PUT, key, *cells), imported(UPDATE, key, *cells), imported(DELETE, key)]
    answer = driver.call("BulkImport", table_name="t", rows=rows)

    sizes = [row.consumed.capacity_data_size for row in answer.rows]
    assert [(size.read_size, size.write_size) for size in sizes] == [(0, 50), (0, 50), (0, 25)]
    for unit in (row.consumed.capacity_unit for row in answer.rows):
        assert (unit.HasField("read"), unit.read, unit.HasField("write"), unit.write) == (True, 0, True, 0)


def test_each_row_of_an_import_fails_on_its_own(driver: Driver) -> None:
    rows = [imported(PUT, "a", put("x", 1)), imported(PUT, (("pk", 1),), put("x", 1)), imported(PUT, "b")]

    answer = driver.call("BulkImport", table_name="t", rows=rows)

    assert [(row.is_ok, row.error.code, row.error.message) for row in answer.rows] == [
        (True, "", ""),
        (False, "OTSInvalidPK", "Validate PK type fail. Input: VT_INTEGER, Meta: VT_STRING."),
        (True, "", ""),
    ]
    missing = driver.call("BulkImport", table_name="u", rows=rows)
    assert [(row.error.code, row.error.message) for row in missing.rows] == [
        ("OTSObjectNotExist", "Requested table does not exist.")
    ] * 3


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ([], "No operation is specified for table: 't'."),
        ([imported(PUT, "a")] * 201, "Rows count exceeds the upper limit: 200."),
        (
            [imported(PUT, "a", put("x", "v" * 2097152)), imported(PUT, "b", put("x", "v" * 2097147))],
            "The total data size of BulkImport request exceeds the limit, limit size: 4194304, data size: 4194307.",
        ),
        ([imported(PUT, "a", delete_all("x"))], "OpType cannot be given for column name: x in PutRow."),
        ([imported(PUT, "a", put("#", 1))], "Invalid column name: '#'."),
        ([schema.RowInBulkImportRequest(type=4, row_change=frame("a"))], "The modify type is invalid."),
    ],
)
def test_an_import_may_be_refused_as_a_whole(driver: Driver, rows: list[Any], text: str) -> None:
    assert driver.refusal("BulkImport", table_name="t", rows=rows) == (400, "OTSParameterInvalid", text)
    assert driver.table() == {}


def test_two_hundred_rows_are_imported(driver: Driver) -> None:
    rows = [imported(PUT, f"{number:03}", put("x", number)) for number in range(200)]
    request = schema.BulkImportRequest(table_name="t", rows=rows).SerializeToString()

    about = inspect("BulkImport", request)
    assert (about.tables, about.rows_written) == (("t",), 200)
    assert all(row.is_ok for row in driver.call("BulkImport", table_name="t", rows=rows).rows)
    assert len(driver.table()) == 200


def test_there_are_no_search_indexes_and_no_timeseries_tables(driver: Driver) -> None:
    for table in ("", "t", "missing"):
        body = schema.ListSearchIndexRequest(table_name=table or None).SerializeToString()
        assert driver.engine.execute("ListSearchIndex", body) == b""
    assert driver.engine.execute("ListTimeseriesTable", b"") == b""


# The matrix


def decode_matrix(block: bytes) -> tuple[list[str], list[str], bool, list[list[Any]]]:
    """Key names, attribute names, whether keys are entire, and rows; by the table of the layout alone."""
    magic, data_at, options_at, key_count, attribute_count = struct.unpack_from("<4siiii", block)
    assert magic == b"SRM0"
    names, offset = [], 20
    for _ in range(key_count + attribute_count):
        (length,) = struct.unpack_from("<h", block, offset)
        names.append(block[offset + 2 : offset + 2 + length].decode())
        offset += 2 + length
    assert (offset, block[offset], block[offset + 2]) == (options_at, 0x0A, 0x03)
    (count,) = struct.unpack_from("<i", block, offset + 3)
    offset += 7
    assert offset == data_at
    rows = []
    for _ in range(count):
        assert block[offset] == 0x02
        offset += 1
        row = []
        for _ in names:
            value, offset = decode_matrix_value(block, offset)
            row.append(value)
        rows.append(row)
    assert block[offset] == 0x01
    assert block[offset + 1 :] == bytes((crc8(block[: offset + 1]),))
    return names[:key_count], names[key_count:], bool(block[options_at + 1]), rows


def decode_matrix_value(block: bytes, offset: int) -> tuple[Any, int]:
    kind, offset = block[offset], offset + 1
    if kind == 6:
        return None, offset
    if kind == 2:
        return bool(block[offset]), offset + 1
    if kind in (0, 1):
        return struct.unpack_from("<q" if kind == 0 else "<d", block, offset)[0], offset + 8
    (length,) = struct.unpack_from("<i", block, offset)
    data = block[offset + 4 : offset + 4 + length]
    return (data.decode() if kind == 3 else data), offset + 4 + length


WORKED_EXAMPLE = bytes.fromhex(
    "53524d30250000001e00000001000000020000000200706b010063010064"
    "0a0103020000000203010000006100070000000000000006020301000000620602010" + "1c3"
)
NO_ROWS = bytes.fromhex("53524d30250000001e00000001000000020000000200706b0100630100640a010300000000" + "0195")


def test_the_matrix_has_the_bytes_that_the_sdks_read() -> None:
    rows = [
        make_row(("pk",), ("a",), {"c": ((5, 7),)}, 5),
        make_row(("pk",), ("b",), {"d": ((6, True), (5, False))}, 6),
    ]

    assert encode_matrix(("pk",), ("pk",), ("c", "d"), rows, entire_keys=True) == WORKED_EXAMPLE
    assert encode_matrix(("pk",), ("pk",), ("c", "d"), [], entire_keys=True) == NO_ROWS


VALUES = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.booleans(),
    st.text(max_size=5),
    st.binary(max_size=5),
)


@given(st.lists(st.dictionaries(st.sampled_from(["a", "公司", "b.c"]), VALUES), max_size=4))
def test_a_matrix_holds_what_was_stored(rows: list[dict[str, Any]]) -> None:
    stored = [
        make_row(("pk", "sk"), (number, "k"), {name: ((1, value),) for name, value in row.items()}, 1)
        for number, row in enumerate(rows)
    ]

    block = encode_matrix(("pk", "sk"), ("sk",), ("a", "公司"), stored, entire_keys=False)

    expected = [["k", row.get("a"), row.get("公司")] for row in rows]
    assert decode_matrix(block) == (["sk"], ["a", "公司"], False, expected)


def test_a_range_is_answered_as_a_matrix_where_it_can_be() -> None:
    driver = table_driver(key=TWO_COLUMN_KEY, options={"max_versions": 3})
    for number in range(5):
        driver.put((("pk", "a"), ("sk", number)), put("x", number), put("y", str(number)))
    low, high = (("pk", "a"), ("sk", KeyBound.INF_MIN)), (("pk", "a"), ("sk", KeyBound.INF_MAX))
    hint = {"data_block_type_hint": MATRIX, "compress_type_hint": 0}

    page = driver.range_page(low, high, columns_to_get=["y", "x", "absent", "sk"], limit=2, **hint)
    assert page.data_block_type == MATRIX
    assert decode_matrix(page.rows) == (
        ["pk", "sk"],
        ["absent", "x", "y"],
        True,
        [["a", 0, None, 0, "0"], ["a", 1, None, 1, "1"]],
    )
    assert decode_row(page.next_start_primary_key).primary_key == (("pk", "a"), ("sk", 2))
    named = driver.range_page(low, high, columns_to_get=["sk", "x"], return_entire_primary_keys=False, **hint)
    assert decode_matrix(named.rows)[:3] == (["sk"], ["x"], False)
    nothing = driver.range_page(low, high, columns_to_get=["absent"], **hint)
    assert (nothing.data_block_type, decode_matrix(nothing.rows)[3]) == (MATRIX, [])

    for fields in ({}, {"columns_to_get": ["x"], "max_versions": 2}):
        plain = driver.range_page(low, high, **fields, **hint)
        assert plain.data_block_type == DataBlockType.PLAIN_BUFFER
        assert [values(row)["x"] for row in decode_rows(plain.rows)] == list(range(5))


# Export


@pytest.fixture
def exported() -> Driver:
    """Fifty rows of 23 bytes of key, DC1 of 6 and DC2 of 11 bytes, and another column of 6."""
    driver = table_driver(key=EXPORT_KEY)
    for number in range(50):
        key = (("pk1", "abc"), ("pk2", number), ("pk3", b"def"))
        driver.put(key, put("DC2", number), put("DC1", "xyz"), put("DC3", b"uvw"))
    return driver


def export(driver: Driver, start: Any = KeyBound.INF_MIN, end: Any = KeyBound.INF_MAX, **fields: Any) -> Any:
    def bound(value: Any) -> bytes:
        rest = value if isinstance(value, KeyBound) else KeyBound.INF_MIN
        return frame((("pk1", "abc"), ("pk2", value), ("pk3", rest)))

    bounds = {"inclusive_start_primary_key": bound(start), "exclusive_end_primary_key": bound(end)}
    return driver.call("BulkExport", table_name="t", **{**bounds, **fields})


def test_an_export_is_a_matrix_of_the_columns_that_are_named(exported: Driver) -> None:
    answer = export(exported, end=2, columns_to_get=["DC2", "pk2", "absent", "DC1"])

    assert answer.data_block_type == MATRIX
    assert decode_matrix(answer.rows) == (
        ["pk2"],
        ["DC1", "DC2", "absent"],
        False,
        [[0, "xyz", 0, None], [1, "xyz", 1, None]],
    )
    nothing = export(exported, start=99, columns_to_get=["DC1"])
    assert decode_matrix(nothing.rows) == ([], ["DC1"], False, [])


def test_an_export_may_be_rows(exported: Driver) -> None:
    every = export(exported, data_block_type_hint=DataBlockType.PLAIN_BUFFER)
    named = export(exported, end=1, columns_to_get=["DC1"], data_block_type_hint=DataBlockType.PLAIN_BUFFER)

    assert (every.HasField("data_block_type"), every.data_block_type) == (True, DataBlockType.PLAIN_BUFFER)
    assert [values(row) for row in decode_rows(every.rows)] == [
        {"DC1": "xyz", "DC2": number, "DC3": b"uvw"} for number in range(50)
    ]
    (row,) = decode_rows(named.rows)
    assert ([name for name, _ in row.primary_key], values(row)) == (["pk1", "pk2", "pk3"], {"DC1": "xyz"})
    nothing = export(exported, start=99, data_block_type_hint=DataBlockType.PLAIN_BUFFER)
    assert (bool(nothing.rows), decode_rows(nothing.rows)) == (True, [])


def test_an_export_is_charged_for_the_bytes_of_all_scanned_rows(exported: Driver) -> None:
    below_5 = single(ComparatorType.LESS_THAN, "DC2", encode_value(5))
    named = export(exported, columns_to_get=["DC1", "DC2"], filter=below_5)
    whole = export(exported, data_block_type_hint=DataBlockType.PLAIN_BUFFER)

    assert len(decode_matrix(named.rows)[3]) == 5
    key_bytes = 9 + 3 + 8 + 3
    for answer, row_bytes in ((named, key_bytes + 17), (whole, key_bytes + 23)):
        unit, size = answer.consumed.capacity_unit, answer.consumed.capacity_data_size
        assert (unit.read, unit.write, size.read_size, size.write_size) == (0, 0, 50 * row_bytes, 0)


def test_an_export_is_paged() -> None:
    driver = table_driver(limits=Limits(range_rows=20), key=EXPORT_KEY)
    for number in range(50):
        driver.put((("pk1", "abc"), ("pk2", number), ("pk3", b"def")), put("n", number))
    found, start = [], {}
    for _ in range(3):
        answer = export(driver, columns_to_get=["n"], **start)
        found += [row[0] for row in decode_matrix(answer.rows)[3]]
        start = {"inclusive_start_primary_key": answer.next_start_primary_key}

    assert found == list(range(50))
    assert not answer.HasField("next_start_primary_key")


@pytest.mark.parametrize(
    ("fields", "code", "text"),
    [
        ({}, "OTSParameterInvalid", "DBT_SIMPLE_ROW_MATRIX need at least one column to get."),
        (
            {"start": 2, "end": 2, "columns_to_get": ["DC1"]},
            "OTSParameterInvalid",
            "Begin key must less than end key in FORWARD",
        ),
        (
            {"columns_to_get": [f"c{number}" for number in range(1025)]},
            "OTSParameterInvalid",
            "The number of columns from the request exceeds the limit, limit count: 1024, column count: 1025.",
        ),
        (
            {
                "columns_to_get": ["DC1"],
                "inclusive_start_primary_key": frame((("pk1", "a"), ("pk2", 1))),
                "exclusive_end_primary_key": frame((("pk1", "b"), ("pk2", 1))),
            },
            "OTSInvalidPK",
            "Validate PK size fail. Input: 2, Meta: 3.",
        ),
    ],
)
def test_an_export_may_be_refused(exported: Driver, fields: dict[str, Any], code: str, text: str) -> None:
    assert refusal_of(export, exported, **fields) == (400, code, text)


# Batches


def test_batch_results_stand_in_the_order_of_the_request(driver: Driver) -> None:
    driver.create("u")
    driver.put_each(["exists", "gone"], put("x", 1))
    rows = [
        batch_row(PUT, "a", put("x", 1)),
        batch_row(PUT, "exists", put("x", 2), expect=NOT_EXIST),
        batch_row(UPDATE, (("wrong", "b"),), put("x", 1)),
        batch_row(DELETE, "gone"),
    ]
    tables = [
        batch_table([batch_row(PUT, "a")], "missing"),
        batch_table(rows),
        batch_table([batch_row(PUT, "a", put("y", 1), returns=ReturnType.PK)], "u"),
    ]

    answer = driver.call("BatchWriteRow", tables=tables)

    results = {table.table_name: [row.is_ok or row.error.code for row in table.rows] for table in answer.tables}
    assert results == {
        "missing": ["OTSObjectNotExist"],
        "t": [True, "OTSConditionCheckFail", "OTSInvalidPK", True],
        "u": [True],
    }
    assert list(results) == ["missing", "t", "u"]
    assert decode_row(answer.tables[2].rows[0].row).primary_key == (("pk", "a"),)
    assert (driver.table(), driver.table("u")) == ({"a": {"x": 1}, "exists": {"x": 1}}, {"a": {"y": 1}})


def test_one_row_twice_in_a_batch_is_applied_in_order(driver: Driver) -> None:
    driver.write_batch([batch_row(PUT, "a", put("x", 1)), *[batch_row(UPDATE, "a", increment("x", 1))] * 2])

    assert driver.get("a") == {"x": 3}


def test_atomic_batch_is_applied_as_a_whole_or_not_at_all() -> None:
    driver = table_driver(key=TWO_COLUMN_KEY)

    def row(partition: str, number: int, **fields: Any) -> object:
        return batch_row(PUT, (("pk", partition), ("sk", number)), put("x", 1), **fields)

    def errors(*rows: object) -> list[tuple[str, str]]:
        answers = driver.write_batch(rows, is_atomic=True)
        return [(each.error.code, each.error.message) for each in answers]

    failed = ("OTSConditionCheckFail", "Condition check failed.")
    outside = ("OTSDataOutOfRange", "Data out of scope of atomic. Atomic PartKey:a. Data PartKey:b")
    assert errors(row("a", 1), row("a", 2, expect=EXIST)) == [failed] * 2
    assert errors(row("a", 1), row("b", 2), row("c", 3)) == [outside] * 3
    assert errors(row("a", 1), row("b", 2), row("a", 3, expect=EXIST)) == [outside] * 3
    assert driver.table(columns=("pk", "sk")) == {}
    assert errors(row("a", 1), row("a", 2)) == [("", "")] * 2
    assert list(driver.table(columns=("pk", "sk"))) == [("a", 1), ("a", 2)]


def test_an_atomic_batch_that_fails_at_its_own_earlier_row_leaves_nothing() -> None:
    """Each row is judged on what those before it would leave: here the increment meets a text of the same batch."""
    driver = stream_driver()
    driver.put("a", put("n", 1))
    rows = [batch_row(UPDATE, "a", put("n", "text")), batch_row(UPDATE, "a", increment("n", 1))]

    answers = driver.write_batch(rows, is_atomic=True)

    assert [row.is_ok for row in answers] == [False, False]
    assert len({row.error.message for row in answers}) == 1
    assert driver.table() == {"a": {"n": 1}}
    assert len(driver.all_records()) == 1


def test_an_atomic_batch_may_write_one_row_many_times() -> None:
    driver = stream_driver()
    rows = [batch_row(UPDATE, "a", increment("n", 1)) for _ in range(10)]

    answers = driver.write_batch(rows, is_atomic=True)

    assert all(row.is_ok for row in answers)
    assert driver.table() == {"a": {"n": 10}}
    assert [column.value for record in driver.all_records() for column in record.columns] == list(range(1, 11))


def test_an_atomic_batch_generates_different_keys() -> None:
    driver = table_driver(key=GENERATED_KEY)
    key = (("pk", "a"), ("id", KeyBound.AUTO_INCREMENT))
    rows = [batch_row(PUT, key, put("x", number), returns=ReturnType.PK) for number in range(5)]

    answers = driver.write_batch(rows, is_atomic=True)

    keys = [decode_row(row.row).primary_key[1][1] for row in answers]
    assert keys == sorted(set(keys))  # type: ignore[type-var]
    assert len(driver.table(columns=("pk", "id"))) == 5


@given(
    kinds=st.lists(st.tuples(st.sampled_from(["put", "increment", "text", "delete"]), st.integers(0, 2)), min_size=1)
)
def test_an_atomic_batch_does_what_its_rows_do_one_by_one_or_nothing(kinds: list[tuple[str, int]]) -> None:
    def row(kind: str, number: int) -> Any:
        key = (("pk", "a"), ("id", number))
        if kind == "delete":
            return batch_row(DELETE, key)
        cells = {"put": put("n", 5), "increment": increment("n", 1), "text": put("n", "text")}
        return batch_row(UPDATE if kind != "put" else PUT, key, cells[kind])

    rows = [row(*each) for each in kinds][:200]
    one_by_one, atomic = Driver(), Driver()
    for driver in (one_by_one, atomic):
        driver.create_with_stream(key=(("pk", "STRING"), ("id", "INTEGER")))

    results = [one_by_one.write_batch([each])[0].is_ok for each in rows]
    answers = atomic.write_batch(rows, is_atomic=True)

    columns = ("pk", "id")
    assert [each.is_ok for each in answers] == [all(results)] * len(rows)
    assert atomic.table(columns=columns) == (one_by_one.table(columns=columns) if all(results) else {})
    assert len(atomic.all_records()) == (len(rows) if all(results) else 0)


def test_batch_get_answers_each_key_in_order(driver: Driver) -> None:
    driver.put("a", put("x", 1))
    driver.put("b", put("x", 2))
    keys = [frame("b"), frame("absent"), frame((("wrong", "a"),)), frame("a")]
    tables = [
        schema.TableInBatchGetRowRequest(table_name="missing", primary_key=[frame("a")], max_versions=1),
        schema.TableInBatchGetRowRequest(table_name="t", primary_key=keys, max_versions=1),
    ]

    answer = driver.call("BatchGetRow", tables=tables)

    assert [row.error.code for row in answer.tables[0].rows] == ["OTSObjectNotExist"]
    rows = answer.tables[1].rows
    assert [row.is_ok for row in rows] == [True, True, False, True]
    assert [bool(row.row) for row in rows] == [True, False, False, True]
    assert rows[2].error.code == "OTSInvalidPK"
