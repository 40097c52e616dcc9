"""Operations on single rows through the official Python SDK."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from server_http_tools import sdk_refusal
from tablestore import (
    PK_AUTO_INCR,
    CastType,
    ColumnCondition,
    ComparatorType,
    CompositeColumnCondition,
    Condition,
    LogicalOperator,
    RegexRule,
    ReturnType,
    Row,
    RowExistenceExpectation,
    SingleColumnCondition,
    SingleColumnRegexCondition,
)

from tests.stage import IGNORE

EXIST = Condition(RowExistenceExpectation.EXPECT_EXIST)
NOT_EXIST = Condition(RowExistenceExpectation.EXPECT_NOT_EXIST)
FAILED = (403, "OTSConditionCheckFail", "Condition check failed.")
KEY: list[tuple[str, Any]] = [("pk", "key"), ("n", 1)]


def columns(client: Any, table: str, key: list[tuple[str, Any]] = KEY, **options: Any) -> list[tuple[str, Any]] | None:
    """Names and values, newest version first within a name; None for an absent row."""
    _, row, _ = client.get_row(table, key, **options)
    return None if row is None else [(column[0], column[1]) for column in row.attribute_columns]


VALUES: list[tuple[str, Any]] = [
    ("big", 2**63 - 1),
    ("blob", bytearray(b"\x00\xff")),
    ("double", -1.5),
    ("empty", ""),
    ("flag", True),
    ("negative", -(2**63)),
    ("text", "表格存储"),
]
CHANGES = {"put": [("new", "x")], "delete_all": ["gone"], "increment": [("count", 2), ("fresh", 5)]}
WRITES: dict[str, tuple[list[tuple[str, Any]], list[tuple[str, Any]] | None]] = {
    "every value type comes back": ([("put", VALUES)], VALUES),
    "put replaces the whole row": ([("put", [("a", 1), ("b", 2)]), ("put", [("c", 3)])], [("c", 3)]),
    "a row may have no columns": ([("put", [])], []),
    "delete removes the row": ([("put", [("a", 1)]), ("delete", None)], None),
    "update puts, deletes and increments": (
        [("put", [("gone", 1), ("kept", 2), ("count", 40)]), ("update", CHANGES)],
        [("count", 42), ("fresh", 5), ("kept", 2), ("new", "x")],
    ),
    "update creates the row": ([("update", {"put": [("a", 1)]})], [("a", 1)]),
}


@pytest.mark.parametrize(("writes", "expected"), WRITES.values(), ids=WRITES)
def test_writes_make_the_row(client: Any, table: str, writes: list[Any], expected: Any) -> None:
    for kind, changes in writes:
        getattr(client, f"{kind}_row")(table, Row(KEY, changes), IGNORE)

    assert columns(client, table) == expected


def test_an_absent_row_is_none(client: Any, table: str) -> None:
    consumed, row, token = client.get_row(table, KEY)

    assert (row, token) == (None, b"")
    assert consumed.read == 1


@pytest.mark.parametrize(
    ("options", "names"),
    [({"columns_to_get": ["a", "c"]}, "ac"), ({"start_column": "b", "end_column": "d"}, "bc")],
    ids=["columns", "a range of columns"],
)
def test_a_read_selects_columns(client: Any, table: str, options: dict[str, Any], names: str) -> None:
    client.put_row(table, Row(KEY, [(name, 1) for name in "abcd"]), IGNORE)

    assert columns(client, table, **options) == [(name, 1) for name in names]


NOW = int(time.time() * 1000)


@pytest.mark.parametrize(
    ("ages", "deleted", "options", "expected"),
    [
        ((4, 3, 2, 1), [], {"max_version": 10}, [1, 2, 3]),
        ((4, 3, 2, 1), [], {}, [1]),
        ((3, 2, 1), [2], {"max_version": 10}, [1, 3]),
        ((3, 2, 1), [], {"max_version": None, "time_range": (NOW - 3, NOW - 1)}, [2, 3]),
        ((3, 2, 1), [], {"max_version": None, "time_range": NOW - 2}, [2]),
    ],
    ids=["up to the maximum", "the newest", "without one that is deleted", "of a range of time", "of one time"],
)
def test_versions_are_kept_and_selected(  # noqa: PLR0917 -- one column of the table each
    client: Any, table: str, ages: tuple[int, ...], deleted: list[int], options: dict[str, Any], expected: list[int]
) -> None:
    for age in ages:
        client.update_row(table, Row(KEY, {"put": [("a", age, NOW - age)]}), IGNORE)
    for age in deleted:
        client.update_row(table, Row(KEY, {"delete": [("a", None, NOW - age)]}), IGNORE)

    assert columns(client, table, **options) == [("a", age) for age in expected]


def test_row_existence_is_a_condition(client: Any, table: str) -> None:
    assert sdk_refusal(client.put_row, table, Row(KEY, []), EXIST) == FAILED
    assert sdk_refusal(client.update_row, table, Row(KEY, {"put": [("a", 1)]}), EXIST) == FAILED
    assert sdk_refusal(client.delete_row, table, Row(KEY), EXIST) == FAILED

    client.put_row(table, Row(KEY, [("a", 1)]), NOT_EXIST)

    assert sdk_refusal(client.put_row, table, Row(KEY, []), NOT_EXIST) == FAILED
    assert columns(client, table) == [("a", 1)]


def both(*conditions: ColumnCondition, operator: int = LogicalOperator.AND) -> CompositeColumnCondition:
    composite = CompositeColumnCondition(operator)
    for condition in conditions:
        composite.add_sub_condition(condition)
    return composite


def single(column: str, value: Any, comparator: int, pass_if_missing: bool = True) -> SingleColumnCondition:
    return SingleColumnCondition(column, value, comparator, pass_if_missing)


HOLDING = [
    single("a", 5, ComparatorType.EQUAL),
    single("a", 4, ComparatorType.NOT_EQUAL),
    single("a", 4, ComparatorType.GREATER_THAN),
    single("a", 5, ComparatorType.GREATER_EQUAL),
    single("a", 6, ComparatorType.LESS_THAN),
    single("a", 5, ComparatorType.LESS_EQUAL),
    single("missing", 1, ComparatorType.EQUAL, True),
    single("s", "abc", ComparatorType.GREATER_THAN),
    both(single("a", 5, ComparatorType.EQUAL), single("s", "abd", ComparatorType.EQUAL)),
    both(single("a", 0, ComparatorType.EQUAL), single("s", "abd", ComparatorType.EQUAL), operator=LogicalOperator.OR),
    both(single("a", 0, ComparatorType.EQUAL), operator=LogicalOperator.NOT),
    SingleColumnRegexCondition("coded", ComparatorType.EQUAL, 17, RegexRule(r"^id-(\d+)$", CastType.VT_INTEGER)),
]
FAILING = [
    single("a", 4, ComparatorType.EQUAL),
    single("a", 5, ComparatorType.NOT_EQUAL),
    single("a", 5, ComparatorType.GREATER_THAN),
    single("a", 5, ComparatorType.LESS_THAN),
    single("missing", 1, ComparatorType.EQUAL, False),
    both(single("a", 5, ComparatorType.EQUAL), single("s", "x", ComparatorType.EQUAL)),
    both(single("a", 5, ComparatorType.EQUAL), operator=LogicalOperator.NOT),
    SingleColumnRegexCondition("coded", ComparatorType.GREATER_THAN, 17, RegexRule(r"^id-(\d+)$", CastType.VT_INTEGER)),
]


@pytest.fixture
def described_row(client: Any, table: str) -> None:
    client.put_row(table, Row(KEY, [("a", 5), ("coded", "id-17"), ("s", "abd")]), IGNORE)


@pytest.mark.usefixtures("described_row")
def test_a_column_condition_that_holds_lets_the_write_pass(client: Any, table: str) -> None:
    for number, condition in enumerate(HOLDING):
        full = Condition(RowExistenceExpectation.EXPECT_EXIST, condition)
        client.update_row(table, Row(KEY, {"put": [("written", number)]}), full)
        assert columns(client, table, columns_to_get=["written"]) == [("written", number)]


@pytest.mark.usefixtures("described_row")
def test_a_column_condition_that_fails_refuses_the_write(client: Any, table: str) -> None:
    for condition in FAILING:
        full = Condition(RowExistenceExpectation.IGNORE, condition)
        assert sdk_refusal(client.delete_row, table, Row(KEY), full) == FAILED

    assert columns(client, table, columns_to_get=["a"]) == [("a", 5)]


@pytest.mark.usefixtures("described_row")
def test_a_filter_that_fails_hides_the_row(client: Any, table: str) -> None:
    assert all(columns(client, table, column_filter=condition) is not None for condition in HOLDING)
    assert all(columns(client, table, column_filter=condition) is None for condition in FAILING)


def test_an_auto_increment_key_is_generated_and_returned(client: Any, new_table: Callable[..., str]) -> None:
    table = new_table([("pk", "STRING"), ("id", "INTEGER", PK_AUTO_INCR)])
    row = Row([("pk", "a"), ("id", PK_AUTO_INCR)], [("v", 1)])

    keys = [client.put_row(table, row, IGNORE, ReturnType.RT_PK)[1].primary_key for _ in range(3)]

    identifiers = [key[1][1] for key in keys]
    assert identifiers == sorted(set(identifiers))
    assert columns(client, table, keys[0]) == [("v", 1)]


def test_a_write_to_a_missing_table_is_refused(client: Any) -> None:
    assert sdk_refusal(client.put_row, "missing", Row(KEY, []), IGNORE)[:2] == (404, "OTSObjectNotExist")


@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")
def test_a_body_above_the_limit_is_refused(client: Any, table: str) -> None:
    big = [(f"c{number}", "x" * (1024 * 1024)) for number in range(6)]

    assert sdk_refusal(client.put_row, table, Row(KEY, big), IGNORE)[:2] == (413, "OTSRequestBodyTooLarge")
    assert columns(client, table) is None
