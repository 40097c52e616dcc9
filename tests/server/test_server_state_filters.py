"""Filters and conditions: how many nodes, of which shape, what they see of a row, and in which order it is judged."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from server_state_driver import (
    HIGHEST,
    INTEGER_KEY,
    LOWEST,
    PUT,
    Driver,
    batch_row,
    batch_table,
    combined,
    condition_fields,
    frame,
    pagination,
    put,
    single,
    table_driver,
    wrapped,
)

from streamclient.server.server_errors import ServiceError
from streamclient.wire import schema
from streamclient.wire.plainbuffer import encode_value
from streamclient.wire.schema import ComparatorType, FilterType, LogicalOperator, VariantType

AND, OR, NOT = LogicalOperator.AND, LogicalOperator.OR, LogicalOperator.NOT
LEAF = single(ComparatorType.EQUAL, "x", encode_value(1), passes_if_missing=True)
TOO_MANY = "The count of filter exceeds the max: 32."


@pytest.fixture
def driver() -> Driver:
    return table_driver(key=INTEGER_KEY)


ROWS: dict[str, dict[str, Any]] = {
    "zero": {"x": 0, "y": 2},
    "one": {"x": 1, "y": 1},
    "both": {"x": 1, "y": 2},
    "two": {"x": 2},
    "double": {"x": 1.0},
    "true": {"x": True},
    "text": {"x": "1"},
    "bytes": {"x": b"1"},
    "n1": {"x": "<n1>"},
    "n0": {"x": "<n0>"},
    "missing": {"y": 1},
}
WITHOUT_NUMBER = ROWS.keys() - {"n1", "n0"}
IN_BRACKETS = schema.ValueTransferRule(regex="<n([0-9]+)>", cast_type=VariantType.INTEGER)
X1, Y2 = (single(ComparatorType.EQUAL, name, encode_value(value)) for name, value in (("x", 1), ("y", 2)))
PASSING: dict[str, tuple[bytes, Collection[str]]] = {
    **{
        comparator.name: (single(comparator, "x", encode_value(1)), passing)
        for comparator, passing in {
            ComparatorType.EQUAL: {"one", "both"},
            ComparatorType.NOT_EQUAL: {"zero", "two"},
            ComparatorType.GREATER_THAN: {"two"},
            ComparatorType.GREATER_EQUAL: {"one", "both", "two"},
            ComparatorType.LESS_THAN: {"zero"},
            ComparatorType.LESS_EQUAL: {"zero", "one", "both"},
        }.items()
    },
    "EXIST ignores the value": (single(ComparatorType.EXIST, "x"), ROWS.keys() - {"missing"}),
    "NOT_EXIST ignores the value": (single(ComparatorType.NOT_EXIST, "x"), {"missing"}),
    "missing passes": (single(ComparatorType.EQUAL, "x", encode_value(9), passes_if_missing=True), {"missing"}),
    "missing does not pass": (single(ComparatorType.EQUAL, "x", encode_value(9)), set()),
    "AND": (combined(AND, X1, Y2), {"both"}),
    "OR": (combined(OR, X1, Y2), {"zero", "one", "both"}),
    "NOT": (combined(NOT, X1), ROWS.keys() - {"one", "both"}),
    "AND of NOT": (combined(AND, X1, combined(NOT, Y2)), {"one"}),
    "the first group is cast and compared": (
        single(ComparatorType.GREATER_EQUAL, "x", encode_value(1), rule=IN_BRACKETS),
        {"n1"},
    ),
    "EXIST of a value that casts": (single(ComparatorType.EXIST, "x", rule=IN_BRACKETS), {"n0", "n1"}),
    "NOT_EXIST of a value that casts": (single(ComparatorType.NOT_EXIST, "x", rule=IN_BRACKETS), WITHOUT_NUMBER),
}


@pytest.mark.parametrize(("row_filter", "passing"), PASSING.values(), ids=PASSING)
def test_a_filter_lets_rows_pass(row_filter: bytes, passing: Collection[str]) -> None:
    """Values of unlike types satisfy no comparison."""
    driver = table_driver()
    for key, columns in ROWS.items():
        driver.put(key, *(put(name, value) for name, value in columns.items()))

    assert driver.table(filter=row_filter).keys() == set(passing)


def chain(length: int, leaf: bytes = LEAF) -> bytes:
    """``length`` nodes: NOTs around one leaf."""
    for _ in range(length - 1):
        leaf = combined(NOT, leaf)
    return leaf


def refused(driver: Driver, row_filter: bytes, **fields: Any) -> str:
    status, code, text = driver.refusal(
        "GetRow", **{"table_name": "t", "primary_key": frame(1), "max_versions": 1, "filter": row_filter, **fields}
    )
    assert (status, code) == (400, "OTSParameterInvalid")
    return text


@pytest.mark.parametrize(
    "row_filter",
    [chain(32), combined(OR, *[LEAF] * 31), combined(OR, *[combined(AND, LEAF, LEAF)] * 10, LEAF)],
    ids=["a chain", "one composite", "two levels"],
)
def test_thirty_two_nodes_pass_in_reads_and_writes(driver: Driver, row_filter: bytes) -> None:
    driver.put(1, put("x", 1))

    is_negated = row_filter == chain(32)
    assert (driver.get_row(1, filter=row_filter) is None) == is_negated
    driver.put(2, put("x", 1), column_condition=combined(OR, *[LEAF] * 31))
    assert driver.get_row(2) is not None


@pytest.mark.parametrize(
    "row_filter",
    [
        chain(33),
        chain(1000),
        combined(OR, *[LEAF] * 32),
        combined(OR, *[LEAF] * 1000),
        combined(NOT, *[LEAF] * 999),
        combined(AND, *[combined(AND)] * 32),
    ],
    ids=["a chain of 33", "a chain of 1000", "33 wide", "1000 wide", "a wide NOT", "empty composites"],
)
def test_more_nodes_are_refused_whatever_their_shape(driver: Driver, row_filter: bytes) -> None:
    assert refused(driver, row_filter) == TOO_MANY
    assert refused(driver, row_filter, max_versions=None) == TOO_MANY
    condition = condition_fields(column_condition=row_filter)
    assert driver.refusal("PutRow", table_name="t", row=frame(1), **condition)[2] == TOO_MANY
    table = schema.TableInBatchGetRowRequest(table_name="t", primary_key=[frame(1)], filter=row_filter)
    assert driver.refusal("BatchGetRow", tables=[table])[2] == TOO_MANY
    rows = [batch_row(PUT, 1, column_condition=row_filter)]
    assert driver.refusal("BatchWriteRow", tables=[batch_table(rows)])[2] == TOO_MANY


def test_nodes_behind_the_limit_are_not_read(driver: Driver) -> None:
    """What is broken there is never seen."""
    broken = wrapped(FilterType.COMPOSITE_COLUMN_VALUE, schema.ColumnPaginationFilter(offset=1, limit=1))

    assert refused(driver, combined(OR, *[LEAF] * 40, broken)) == TOO_MANY


@pytest.mark.parametrize(
    ("row_filter", "text"),
    [
        (combined(AND, LEAF), "Invalid AND/OR operator: the number of sub-filters must be more than 1."),
        (combined(OR), "Invalid AND/OR operator: the number of sub-filters must be more than 1."),
        (combined(NOT, LEAF, LEAF), "Invalid NOT operator: the number of sub-filters must be 1."),
        (combined(NOT), "Invalid NOT operator: the number of sub-filters must be 1."),
        (combined(OR, LEAF, pagination(0, 1)), "Invalid type of sub-filter: 3."),
        (b"\x08\x09\x12\x00", "Invalid type of filter: 9."),
        (single(cast(ComparatorType, 9), "x"), "Invalid relation operator: 9."),
        (b"\x08\x01", "Deserialize filter failed."),
        (b"\x08\x02\x12\x01\xff", "Deserialize composite filter failed."),
        (b"\x08\x03\x12\x01\xff", "Deserialize column pagination filter failed."),
        (single(ComparatorType.EQUAL, "#"), "Invalid column name: '#'."),
        (combined(NOT, single(ComparatorType.EQUAL, "n" * 256)), f"Invalid column name: '{'n' * 256}'."),
        (
            combined(NOT, single(ComparatorType.EQUAL, "Column", encode_value("v" * 2097153))),
            "The length of attribute column: 'Column' exceeds the MaxLength:2097152 with CurrentLength:2097153.",
        ),
        (
            single(ComparatorType.EQUAL, "Column", encode_value("ü" * 1048577)),
            "The length of attribute column: 'Column' exceeds the MaxLength:2097152 with CurrentLength:2097154.",
        ),
    ],
)
def test_shapes_names_and_values_are_checked(driver: Driver, row_filter: bytes, text: str) -> None:
    assert refused(driver, row_filter) == text
    assert refused(driver, row_filter, columns_to_get=["x"], max_versions=None) == text


def test_a_value_of_two_megabytes_is_compared(driver: Driver) -> None:
    value = "v" * 2097152
    driver.put(1, put("x", value))

    assert driver.get(1, filter=single(ComparatorType.EQUAL, "x", encode_value(value))) == {"x": value}


@given(bound=st.integers(-2, 12), backward=st.booleans())
def test_a_filter_sees_key_columns(bound: int, backward: bool) -> None:
    driver = table_driver(key=INTEGER_KEY)
    for number in range(10):
        driver.put(number, put("x", number % 2))
    below = single(ComparatorType.LESS_THAN, "pk", encode_value(bound))
    is_odd = single(ComparatorType.EQUAL, "x", encode_value(1))
    ends = (HIGHEST, LOWEST) if backward else (LOWEST, HIGHEST)

    def found(row_filter: bytes, **fields: Any) -> list[Any]:
        rows = driver.rows(*ends, backward=backward, filter=row_filter, **fields)
        return sorted(row.primary_key[0][1] for row in rows)

    expected = [number for number in range(10) if number < bound]
    assert found(below) == expected
    assert found(below, columns_to_get=["x"]) == expected
    assert found(combined(AND, below, is_odd)) == [number for number in expected if number % 2]
    assert found(combined(NOT, below)) == [number for number in range(10) if number >= bound]


def test_one_row_is_filtered_by_its_key() -> None:
    driver = table_driver(key=(("pk", "STRING"), ("sk", "BINARY")))
    key = (("pk", "a"), ("sk", b"b"))
    driver.put(key, put("x", 1))

    assert driver.get(key, filter=single(ComparatorType.EQUAL, "sk", encode_value(b"b"))) == {"x": 1}
    assert driver.get(key, filter=single(ComparatorType.NOT_EQUAL, "sk", encode_value(b"b"))) is None
    table = schema.TableInBatchGetRowRequest(
        table_name="t",
        primary_key=[frame(key)],
        max_versions=1,
        filter=single(ComparatorType.GREATER_THAN, "pk", encode_value("a")),
    )
    assert [row.row for row in driver.call("BatchGetRow", tables=[table]).tables[0].rows] == [b""]


def test_a_condition_sees_the_key_of_a_row_that_is_there(driver: Driver) -> None:
    is_1 = single(ComparatorType.EQUAL, "pk", encode_value(1))
    driver.put(1, put("x", 1))
    driver.put(2, put("x", 1))

    driver.update(1, put("x", 2), column_condition=is_1)
    for key in (2, 3):
        with pytest.raises(ServiceError, match="OTSConditionCheckFail"):
            driver.update(key, put("x", 2), column_condition=is_1)

    assert driver.table() == {1: {"x": 2}, 2: {"x": 1}}


@pytest.mark.parametrize("text", ["1_0", " 10", "10 ", "\uff11\uff10", "9" * 20, "nan", "inf", "0x1", "", "1e", "--1"])
@pytest.mark.parametrize("kind", [VariantType.INTEGER, VariantType.DOUBLE])
def test_what_is_no_number_is_not_cast_to_one(driver: Driver, text: str, kind: VariantType) -> None:
    rule = schema.ValueTransferRule(regex="^(?s:(.*))$", cast_type=kind)
    driver.put(1, put("x", text))

    is_cast = driver.get(1, filter=single(ComparatorType.EXIST, "x", rule=rule)) is not None

    assert is_cast is (kind is VariantType.DOUBLE and text == "9" * 20)


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("-9223372036854775808", VariantType.INTEGER, -(2**63)),
        ("+007", VariantType.INTEGER, 7),
        ("-.5e3", VariantType.DOUBLE, -500.0),
        ("12.", VariantType.DOUBLE, 12.0),
    ],
)
def test_numbers_are_cast(driver: Driver, text: str, kind: VariantType, value: float) -> None:
    rule = schema.ValueTransferRule(regex=".*", cast_type=kind)
    driver.put(1, put("x", text))

    assert driver.get(1, filter=single(ComparatorType.EQUAL, "x", encode_value(value), rule=rule)) == {"x": text}


def test_a_filter_sees_columns_outside_the_column_range_as_missing(driver: Driver) -> None:
    driver.put(1, put("a", 1), put("b", 2))
    is_1 = single(ComparatorType.EQUAL, "a", encode_value(1))

    assert driver.get(1, filter=is_1, start_column="a") == {"a": 1, "b": 2}
    assert driver.get(1, filter=is_1, start_column="b") is None


UNLIKE_PERL = [
    ("^(\\d+)$", "12\n", "12", None),
    ("(a\n)$", "a\n\n", "a\n", None),
    ("a\\s(b)", "a\vb", "b", None),
    ("(\\S)", "\v", None, "\v"),
    ("a\\v(b)", "a\nb", "b", None),
    ("(\\d)", "٣", "٣", None),
    ("(\\w)", "é", "é", None),
    ("a\\s(b)", "a\u00a0b", "b", None),
    ("\\b(é)", "é", "é", None),
    ("(a{,2})", "aa", "aa", None),
    ("(a{,2})", "a{,2}", "a", "a{,2}"),
    ("(a*)+", "aa", "", "aa"),
    ("(?U)(a+)", "aa", None, "a"),
]
"""An expression, a value, and the first group that Perl 5.36 and the server find. Perl refuses the last one."""


@pytest.mark.parametrize(("pattern", "value", "perl", "here"), UNLIKE_PERL)
def test_a_regular_expression_may_find_something_else_than_in_perl(
    pattern: str, value: str, perl: str | None, here: str | None
) -> None:
    driver = table_driver()
    driver.put("a", put("x", value))

    def finds(text: str) -> bool:
        rule = schema.ValueTransferRule(regex=pattern, cast_type=3)
        return "a" in driver.table(filter=single(ComparatorType.EQUAL, "x", encode_value(text), rule=rule))

    assert here is None or finds(here)
    assert perl is None or not finds(perl)
