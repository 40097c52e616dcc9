"""Operations on single rows through the official Python SDK."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from tablestore import (
    PK_AUTO_INCR,
    CastType,
    ColumnCondition,
    ComparatorType,
    CompositeColumnCondition,
    Condition,
    LogicalOperator,
    OTSServiceError,
    RegexRule,
    ReturnType,
    Row,
    RowExistenceExpectation,
    SingleColumnCondition,
    SingleColumnRegexCondition,
)

IGNORE = Condition(RowExistenceExpectation.IGNORE)
EXIST = Condition(RowExistenceExpectation.EXPECT_EXIST)
NOT_EXIST = Condition(RowExistenceExpectation.EXPECT_NOT_EXIST)
KEY: list[tuple[str, Any]] = [("pk", "key"), ("n", 1)]


def columns(client: Any, table: str, key: list[tuple[str, Any]] = KEY, **options: Any) -> list[tuple[str, Any]] | None:
    """Names and values, newest version first within a name; None for an absent row."""
    _, row, _ = client.get_row(table, key, **options)
    return None if row is None else [(column[0], column[1]) for column in row.attribute_columns]


def refused(call: Callable[[], Any]) -> tuple[int, str]:
    with pytest.raises(OTSServiceError) as caught:
        call()
    return caught.value.get_http_status(), caught.value.get_error_code()


def test_every_value_type_comes_back(client: Any, table: str) -> None:
    values: list[tuple[str, Any]] = [
        ("big", 2**63 - 1),
        ("blob", bytearray(b"\x00\xff")),
        ("double", -1.5),
        ("empty", ""),
        ("flag", True),
        ("negative", -(2**63)),
        ("text", "表格存储"),
    ]
    client.put_row(table, Row(KEY, values), NOT_EXIST)

    assert columns(client, table) == values


def test_put_replaces_the_whole_row(client: Any, table: str) -> None:
    client.put_row(table, Row(KEY, [("a", 1), ("b", 2)]), IGNORE)
    client.put_row(table, Row(KEY, [("c", 3)]), IGNORE)

    assert columns(client, table) == [("c", 3)]


def test_an_absent_row_is_none(client: Any, table: str) -> None:
    consumed, row, token = client.get_row(table, KEY)

    assert (row, token) == (None, b"")
    assert consumed.read == 1


def test_a_row_may_have_no_columns(client: Any, table: str) -> None:
    client.put_row(table, Row(KEY, []), IGNORE)

    assert columns(client, table) == []


def test_columns_to_get_selects(client: Any, table: str) -> None:
    client.put_row(table, Row(KEY, [("a", 1), ("b", 2), ("c", 3)]), IGNORE)

    assert columns(client, table, columns_to_get=["a", "c"]) == [("a", 1), ("c", 3)]


def test_start_and_end_column_cut_a_wide_row(client: Any, table: str) -> None:
    client.put_row(table, Row(KEY, [("a", 1), ("b", 2), ("c", 3), ("d", 4)]), IGNORE)

    assert columns(client, table, start_column="b", end_column="d") == [("b", 2), ("c", 3)]


def test_delete_removes_the_row(client: Any, table: str) -> None:
    client.put_row(table, Row(KEY, [("a", 1)]), IGNORE)

    client.delete_row(table, Row(KEY), EXIST)

    assert columns(client, table) is None


def test_update_puts_deletes_and_increments(client: Any, table: str) -> None:
    client.put_row(table, Row(KEY, [("gone", 1), ("kept", 2), ("count", 40)]), IGNORE)

    client.update_row(
        table,
        Row(KEY, {"put": [("new", "x")], "delete_all": ["gone"], "increment": [("count", 2), ("fresh", 5)]}),
        EXIST,
    )

    assert columns(client, table) == [("count", 42), ("fresh", 5), ("kept", 2), ("new", "x")]


def test_update_creates_the_row(client: Any, table: str) -> None:
    client.update_row(table, Row(KEY, {"put": [("a", 1)]}), IGNORE)

    assert columns(client, table) == [("a", 1)]


def test_versions_are_kept_up_to_the_maximum(client: Any, table: str) -> None:
    now = int(time.time() * 1000)
    for age in (4, 3, 2, 1):
        client.update_row(table, Row(KEY, {"put": [("a", age, now - age)]}), IGNORE)

    assert columns(client, table, max_version=10) == [("a", 1), ("a", 2), ("a", 3)]
    assert columns(client, table) == [("a", 1)]


def test_one_version_is_deleted_alone(client: Any, table: str) -> None:
    now = int(time.time() * 1000)
    for age in (3, 2, 1):
        client.update_row(table, Row(KEY, {"put": [("a", age, now - age)]}), IGNORE)

    client.update_row(table, Row(KEY, {"delete": [("a", None, now - 2)]}), IGNORE)

    assert columns(client, table, max_version=10) == [("a", 1), ("a", 3)]


def test_a_time_range_selects_versions(client: Any, table: str) -> None:
    now = int(time.time() * 1000)
    for age in (3, 2, 1):
        client.update_row(table, Row(KEY, {"put": [("a", age, now - age)]}), IGNORE)

    assert columns(client, table, max_version=None, time_range=(now - 3, now - 1)) == [("a", 2), ("a", 3)]
    assert columns(client, table, max_version=None, time_range=now - 2) == [("a", 2)]


def test_row_existence_is_a_condition(client: Any, table: str) -> None:
    failed = (403, "OTSConditionCheckFail")
    assert refused(lambda: client.put_row(table, Row(KEY, []), EXIST)) == failed
    assert refused(lambda: client.update_row(table, Row(KEY, {"put": [("a", 1)]}), EXIST)) == failed
    assert refused(lambda: client.delete_row(table, Row(KEY), EXIST)) == failed

    client.put_row(table, Row(KEY, [("a", 1)]), NOT_EXIST)

    assert refused(lambda: client.put_row(table, Row(KEY, []), NOT_EXIST)) == failed
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
        client.update_row(
            table,
            Row(KEY, {"put": [("written", number)]}),
            Condition(RowExistenceExpectation.EXPECT_EXIST, condition),
        )
        assert columns(client, table, columns_to_get=["written"]) == [("written", number)]


@pytest.mark.usefixtures("described_row")
def test_a_column_condition_that_fails_refuses_the_write(client: Any, table: str) -> None:
    for condition in FAILING:
        full = Condition(RowExistenceExpectation.IGNORE, condition)
        assert refused(lambda full=full: client.delete_row(table, Row(KEY), full)) == (403, "OTSConditionCheckFail")

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


def test_no_row_comes_back_unless_asked_for(client: Any, table: str) -> None:
    consumed, row = client.put_row(table, Row(KEY, [("a", 1)]), IGNORE)

    assert row is None
    assert consumed.write == 1


@pytest.mark.parametrize(
    "key",
    [
        [("pk", "a")],
        [("pk", "a"), ("n", "not a number")],
        [("pk", "a"), ("m", 1)],
        [("n", 1), ("pk", "a")],
        [("pk", "a"), ("n", 1), ("extra", 1)],
    ],
)
def test_a_key_that_does_not_fit_the_schema_is_refused(client: Any, table: str, key: list[tuple[str, Any]]) -> None:
    status, code = refused(lambda: client.put_row(table, Row(key, []), IGNORE))

    assert (status, code) in {(400, "OTSInvalidPK"), (400, "OTSParameterInvalid")}


def test_a_write_to_a_missing_table_is_refused(client: Any) -> None:
    assert refused(lambda: client.put_row("missing", Row(KEY, []), IGNORE)) == (404, "OTSObjectNotExist")


@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")
def test_a_cell_above_the_limit_is_refused(client: Any, table: str) -> None:
    status, code = refused(lambda: client.put_row(table, Row(KEY, [("a", "x" * (2 * 1024 * 1024 + 1))]), IGNORE))

    assert (status, code) == (400, "OTSParameterInvalid")


@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")
def test_a_body_above_the_limit_is_refused(client: Any, table: str) -> None:
    big = [(f"c{number}", "x" * (1024 * 1024)) for number in range(6)]

    assert refused(lambda: client.put_row(table, Row(KEY, big), IGNORE)) == (413, "OTSRequestBodyTooLarge")
    assert columns(client, table) is None
