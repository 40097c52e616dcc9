"""Names of columns and tables: what may be one, counted in bytes, in every place that takes a name."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from server_state_driver import Driver, creation, delete_all, frame, increment, put, single, table_driver

from streamclient.server.server_errors import ServiceError
from streamclient.wire import schema
from streamclient.wire.plainbuffer import decode_row, encode_value
from streamclient.wire.schema import ComparatorType, ReturnType
from tests.column_names import ODD_NAMES

TEXTS = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=20)


@pytest.mark.parametrize("name", ODD_NAMES, ids=range(len(ODD_NAMES)))
def test_an_attribute_may_have_any_name(name: str) -> None:
    driver = Driver()
    creation_fields = creation(
        stream_spec=schema.StreamSpecification(enable_stream=True, expiration_time=24, columns_to_get=[name])
    )
    creation_fields["table_meta"].defined_column.add(name=name, type=1)
    driver.call("CreateTable", **creation_fields)
    driver.put("a", put(name, 1))
    driver.put("b", put("other", 1))
    answer = driver.update("a", increment(name, 4), returns=ReturnType.AFTER_MODIFY, return_columns=[name])
    driver.update("b", put(name, 6), delete_all("other"))

    assert [(cell.name, cell.value) for cell in decode_row(answer.row).cells] == [(name, 5)]
    assert driver.table() == {"a": {name: 5}, "b": {name: 6}}
    assert driver.get("a", columns_to_get=[name, "other"]) == {name: 5}
    assert driver.table(filter=single(ComparatorType.GREATER_THAN, name, encode_value(5))) == {"b": {name: 6}}
    assert list(driver.call("DescribeTable", table_name="t").stream_details.columns_to_get) == [name]
    records = driver.all_records()
    assert [[column.name for column in record.columns] for record in records] == [
        [name],
        ["other"],
        [name],
        sorted([name, "other"]),
    ]
    assert [column.value for column in records[2].original_columns or ()] == [1]


@given(TEXTS)
def test_bytes_count_not_characters(text: str) -> None:
    driver = table_driver()
    name = (text * 256)[:256]
    while len(name.encode()) > 255:
        name = name[:-1]
    is_allowed = not name.startswith("#")

    def refusal(column: str) -> str:
        try:
            driver.put("a", put(column, 1))
        except ServiceError as error:
            return error.message
        return ""

    assert refusal(name) == ("" if is_allowed else f"Invalid column name: '{name}'.")
    too_long = name + "x" * (256 - len(name.encode()))
    assert refusal(too_long) == f"Invalid column name: '{too_long}'."


@pytest.mark.parametrize("name", ["", "0", "#", "中文", "T#", "3t", "-", "t" * 256, "a.b", "a b", "t\n"])
def test_tables_and_keys_have_plain_names(name: str) -> None:
    driver = Driver()

    table = driver.refusal("CreateTable", **creation(name))
    key = driver.refusal("CreateTable", **creation("t", ((name, "STRING"),)))

    assert table == (400, "OTSParameterInvalid", f"Invalid table name: '{name}'.")
    assert key == (400, "OTSParameterInvalid", f"Invalid column name: '{name}'.")


def five_columns() -> tuple[tuple[str, Any], ...]:
    return tuple((f"k{number}", number) for number in range(5))


WRONG_KEYS = [
    pytest.param((), "Cell data broken, empty PK.", id="none"),
    pytest.param(five_columns(), "The number of primary key columns must be in range: [1, 4].", id="five"),
]


@pytest.mark.parametrize(("key", "words"), WRONG_KEYS)
@pytest.mark.parametrize("table", ["t", "missing"])
def test_one_to_four_key_columns_are_asked_for_before_the_table(key: Any, words: str, table: str) -> None:
    driver = table_driver()
    ignore = schema.Condition(row_existence=0)
    read = {"max_versions": 1}
    row, deletion = frame(key, put("x", 1)), frame(key, delete_marker=True)
    batch_keys = schema.TableInBatchGetRowRequest(table_name=table, primary_key=[frame(key)], max_versions=1)
    batch_rows = schema.TableInBatchWriteRowRequest(
        table_name=table, rows=[schema.RowInBatchWriteRowRequest(type=1, row_change=row, condition=ignore)]
    )
    bounds = {"inclusive_start_primary_key": frame(key), "exclusive_end_primary_key": frame(key)}
    requests: list[tuple[str, dict[str, Any]]] = [
        ("PutRow", {"table_name": table, "row": row, "condition": ignore}),
        ("UpdateRow", {"table_name": table, "row_change": row, "condition": ignore}),
        ("DeleteRow", {"table_name": table, "primary_key": deletion, "condition": ignore}),
        ("GetRow", {"table_name": table, "primary_key": frame(key), **read}),
        ("GetRange", {"table_name": table, "direction": 0, **bounds, **read}),
        ("BatchGetRow", {"tables": [batch_keys]}),
        ("BatchWriteRow", {"tables": [batch_rows]}),
        ("BulkImport", {"table_name": table, "rows": [schema.RowInBulkImportRequest(type=1, row_change=row)]}),
        ("BulkExport", {"table_name": table, **bounds}),
        ("StartLocalTransaction", {"table_name": table, "key": frame(key)}),
    ]
    if key:  # several columns have words of their own in a transaction
        requests.pop()

    for operation, fields in requests:
        assert driver.refusal(operation, **fields) == (400, "OTSParameterInvalid", words), operation


def test_a_name_is_judged_before_the_key_is_compared_with_the_table() -> None:
    driver = table_driver()
    row = frame((("other", 7),), put("#", 1))

    assert driver.refusal("PutRow", table_name="t", row=row, condition=schema.Condition(row_existence=0))[2] == (
        "Invalid column name: '#'."
    )
