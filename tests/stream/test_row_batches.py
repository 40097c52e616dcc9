"""Rows in batches that the service takes, and what each attempt to write one tells of its rows."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tablestore import CapacityUnit, ReservedThroughput, TableMeta, TableOptions

from streamclient.server import Fail, FailRows, FaultRule, LocalTablestore
from streamclient.tablestore.row_batches import Attempt, attempts, batches, send_encoded
from streamclient.tablestore.signed_calls import SignedCalls
from streamclient.wire.plainbuffer import Row, encode_row
from streamclient.wire.rows import Cell
from streamclient.wire.schema import OperationType

Sized = tuple[str, int]


def cut(rows: Iterable[Sized], most_rows: int = 10, most_bytes: int = 1_200) -> list[list[Sized]]:
    return list(batches(rows, lambda row: row[0], lambda row: row[1], most_rows=most_rows, most_bytes=most_bytes))


def keys(rows: list[list[Sized]]) -> list[str]:
    return ["".join(key for key, _ in batch) for batch in rows]


def test_second_row_of_a_key_begins_a_new_batch() -> None:
    assert keys(cut([(key, 1) for key in "abac"])) == ["ab", "ac"]


def test_batches_have_at_most_the_rows_that_were_asked_for() -> None:
    assert keys(cut([(key, 1) for key in "abcde"], 2)) == ["ab", "cd", "e"]


def test_batches_have_at_most_the_bytes_that_the_service_takes_and_a_large_row_goes_alone() -> None:
    assert keys(cut([("a", 500), ("b", 500), ("c", 5_000), ("d", 1)])) == ["ab", "c", "d"]


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 300)), max_size=40), st.integers(1, 5))
def test_batches_keep_every_row_in_order_and_are_as_full_as_they_may_be(rows: list[Sized], most: int) -> None:
    found = cut(rows, most, 400)

    assert [row for batch in found for row in batch] == rows
    for batch in found:
        assert len(batch) == len({key for key, _ in batch}) <= most
        assert sum(size for _, size in batch) <= 400
    for batch, following in pairwise(found):
        key, size = following[0]
        is_known = key in {each for each, _ in batch}
        assert is_known or len(batch) == most or sum(each for _, each in batch) + size > 400


@pytest.fixture
def calls(local: LocalTablestore) -> SignedCalls:
    client = local.client()
    client.create_table(TableMeta("t", [("id", "INTEGER")]), TableOptions(), ReservedThroughput(CapacityUnit(0, 0)))
    return SignedCalls(client)


def put(number: int, value: str = "x") -> tuple[OperationType, bytes]:
    return OperationType.PUT, encode_row(Row((("id", number),), (Cell("v", value),)))


def tried(calls: SignedCalls, numbers: Iterable[int], refused: Iterable[int] = ()) -> list[Attempt[int]]:
    """All attempts to write rows, some of which the service never takes."""
    large = "x" * (2 * 1024 * 1024 + 1)
    return [*attempts(calls, "t", [*numbers], lambda number: put(number, large if number in refused else "x"))]


def test_rows_that_failed_for_a_passing_reason_are_sent_again_alone(local: LocalTablestore, calls: SignedCalls) -> None:
    local.add_fault(FaultRule("BatchWriteRow", FailRows(every=3), times=1))
    first, second = tried(calls, range(6))

    assert (first.sent, len(first.left), first.failures) == (6, 2, 0)
    assert (second.sent, second.left, second.failures) == (2, [], 0)


def test_attempts_in_a_row_without_a_row_written_are_counted(local: LocalTablestore, calls: SignedCalls) -> None:
    local.add_fault(FaultRule("BatchWriteRow", Fail("OTSServerBusy"), times=3))
    assert [each.failures for each in tried(calls, range(2))] == [1, 2, 3, 0]


def test_a_refused_key_is_no_fault_of_the_rows(local: LocalTablestore, calls: SignedCalls) -> None:
    """One request an attempt, not one for each row."""
    local.add_fault(FaultRule("BatchWriteRow", Fail("OTSAuthFailed"), times=2))
    found = tried(calls, range(3))

    assert [(each.failures, len(each.left), each.refused) for each in found] == [(1, 3, []), (2, 3, []), (0, 0, [])]


def test_a_refusal_for_good_is_that_of_the_rows_it_is_of(calls: SignedCalls) -> None:
    """The service refuses the request; the others of its rows are written."""
    (only,) = tried(calls, range(7), refused=[3])
    assert [row for row, _ in only.refused] == [3]
    assert (only.sent, only.left) == (7, [])


def test_a_row_without_an_answer_may_be_written_and_is_sent_again(calls: SignedCalls) -> None:
    class Short(SignedCalls):
        def ask(self, *arguments: object, **keywords: object) -> object:
            answer = super().ask(*arguments, **keywords)  # type: ignore[arg-type]
            del answer.tables[0].rows[1:]
            return answer

    found = send_encoded(Short(calls.client), "t", [put(1), put(2)])

    assert found[0] is None
    assert "lacks this row" in str(found[1])
