"""Batches and ranges through the official Python SDK."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tablestore import (
    INF_MAX,
    INF_MIN,
    BatchGetRowRequest,
    BatchWriteRowRequest,
    CapacityUnit,
    ComparatorType,
    Condition,
    DeleteRowItem,
    PutRowItem,
    Row,
    RowExistenceExpectation,
    SingleColumnCondition,
    TableInBatchGetRowItem,
    TableInBatchWriteRowItem,
    UpdateRowItem,
)

from tests.stage import IGNORE

EXIST = Condition(RowExistenceExpectation.EXPECT_EXIST)
START: list[tuple[str, Any]] = [("pk", INF_MIN), ("n", INF_MIN)]
END: list[tuple[str, Any]] = [("pk", INF_MAX), ("n", INF_MAX)]


def key(number: int, partition: str = "a") -> list[tuple[str, Any]]:
    return [("pk", partition), ("n", number)]


def write(client: Any, table: str, items: list[Any]) -> Any:
    request = BatchWriteRowRequest()
    request.add(TableInBatchWriteRowItem(table, items))
    return client.batch_write_row(request)


def fill(client: Any, table: str, numbers: range) -> None:
    answer = write(client, table, [PutRowItem(Row(key(n), [("v", n), ("w", -n)]), IGNORE) for n in numbers])
    assert answer.is_all_succeed()


def numbers(rows: list[Any]) -> list[int]:
    return [row.primary_key[1][1] for row in rows]


def test_a_batch_writes_each_row_by_its_kind(client: Any, table: str) -> None:
    fill(client, table, range(3))

    put = PutRowItem(Row(key(9), [("v", 9)]), IGNORE)
    update = UpdateRowItem(Row(key(1), {"put": [("v", 100)], "increment": [("w", 1)]}), IGNORE)
    answer = write(client, table, [put, update, DeleteRowItem(Row(key(2)), IGNORE)])

    assert answer.is_all_succeed()
    _, _, rows, _ = client.get_range(table, "FORWARD", START, END)
    found = [(row.primary_key[1][1], [column[:2] for column in row.attribute_columns]) for row in rows]
    assert found == [(0, [("v", 0), ("w", 0)]), (1, [("v", 100), ("w", 0)]), (9, [("v", 9)])]


def test_rows_of_a_batch_fail_one_by_one(client: Any, table: str) -> None:
    fill(client, table, range(1))

    conditions = (EXIST, EXIST, IGNORE)
    rows = [PutRowItem(Row(key(n), [("v", 1)]), condition) for n, condition in enumerate(conditions)]
    answer = write(client, table, rows)

    results = answer.get_put_by_table(table)
    assert [result.is_ok for result in results] == [True, False, True]
    assert (results[1].error_code, results[1].error_message) == ("OTSConditionCheckFail", "Condition check failed.")
    assert results[0].consumed.write == 1
    assert numbers(client.get_range(table, "FORWARD", START, END)[2]) == [0, 2]


def test_a_batch_read_answers_in_request_order(client: Any, table: str, new_table: Callable[..., str]) -> None:
    other = new_table([("pk", "STRING"), ("n", "INTEGER")])
    fill(client, table, range(4))
    fill(client, other, range(2))
    request = BatchGetRowRequest()
    request.add(TableInBatchGetRowItem(table, [key(3), key(99), key(0)], ["v"], max_version=1))
    request.add(TableInBatchGetRowItem(other, [key(1)], max_version=1))

    answer = client.batch_get_row(request)

    rows = [item.row for item in answer.get_result_by_table(table)]
    assert [row and [column[:2] for column in row.attribute_columns] for row in rows] == [[("v", 3)], None, [("v", 0)]]
    (of_other,) = answer.get_result_by_table(other)
    assert [column[:2] for column in of_other.row.attribute_columns] == [("v", 1), ("w", -1)]


def test_a_batch_read_filters_rows(client: Any, table: str) -> None:
    fill(client, table, range(3))
    request = BatchGetRowRequest()
    only_two = SingleColumnCondition("v", 2, ComparatorType.EQUAL)
    request.add(TableInBatchGetRowItem(table, [key(1), key(2)], column_filter=only_two, max_version=1))

    rows = [item.row for item in client.batch_get_row(request).get_result_by_table(table)]

    assert [row and numbers([row]) for row in rows] == [None, [2]]


@pytest.mark.parametrize(("direction", "first", "last"), [("FORWARD", START, END), ("BACKWARD", END, START)])
def test_pages_of_a_range_join_without_gap_or_repeat(
    client: Any, table: str, direction: str, first: list[tuple[str, Any]], last: list[tuple[str, Any]]
) -> None:
    fill(client, table, range(7))
    found: list[int] = []
    position: Any = first
    while position is not None and len(found) <= 7:
        _, position, rows, _ = client.get_range(table, direction, position, last, limit=3)
        found += numbers(rows)

    assert found == sorted(range(7), reverse=direction == "BACKWARD")


def test_a_range_selects_columns_and_filters_rows(client: Any, table: str) -> None:
    fill(client, table, range(5))
    large = SingleColumnCondition("v", 2, ComparatorType.GREATER_THAN)

    rows = client.get_range(table, "FORWARD", START, END, columns_to_get=["v"], column_filter=large)[2]

    assert [(*numbers([row]), len(row.attribute_columns)) for row in rows] == [(3, 1), (4, 1)]


def test_the_range_iterator_reads_all_pages(client: Any, table: str) -> None:
    if type(client).__name__ == "AsyncFacade":
        pytest.skip("the asynchronous client's iterator is asynchronous; the pages above cover it")
    fill(client, table, range(25))
    consumed = CapacityUnit(0, 0)

    rows = list(client.xget_range(table, "FORWARD", START, END, consumed, count=20))

    assert numbers(rows) == list(range(20))
    assert consumed.read >= 1
