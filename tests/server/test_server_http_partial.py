"""Partial failure of batches: rows taken out, errors put in, everything else as the engine answered."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamclient.server.fault_rules import FailRows
from streamclient.server.partial import execute_partially
from streamclient.server.server_errors import ServiceError
from streamclient.wire import schema

shapes = st.lists(st.integers(0, 4), max_size=4)
"""Rows per table."""


class RecordingEngine:
    """Answers each row with its own payload, as the real one answers by position."""

    def __init__(self) -> None:
        self.seen: list[list[bytes]] | None = None

    def execute(self, operation: str, body: bytes) -> bytes:
        request = schema.parse(schema.OPERATIONS[operation].request, body)
        answer = schema.OPERATIONS[operation].response()
        self.seen = []
        for table in request.tables:
            answered = answer.tables.add(table_name=table.table_name)
            payloads = list(table.primary_key) if operation == "BatchGetRow" else [row.row_change for row in table.rows]
            self.seen.append(payloads)
            for payload in payloads:
                answered.rows.add(is_ok=True, row=payload)
        return bytes(answer.SerializeToString())


def write_request(shape: list[int]) -> Any:
    request = schema.BatchWriteRowRequest()
    for number, rows in enumerate(shape):
        table = request.tables.add(table_name=f"t{number}")
        for row in range(rows):
            table.rows.add(type=1, row_change=f"{number}.{row}".encode()).condition.row_existence = 0
    return request


def read_request(shape: list[int]) -> Any:
    request = schema.BatchGetRowRequest()
    for number, rows in enumerate(shape):
        table = request.tables.add(table_name=f"t{number}", columns_to_get=["c"])
        table.primary_key.extend(f"{number}.{row}".encode() for row in range(rows))
        table.token.extend(b"token" for _ in range(rows))
    return request


@settings(deadline=None, max_examples=80)
@given(shape=shapes, harm=st.builds(FailRows, st.sets(st.integers(0, 12), min_size=1)), reads=st.booleans())
def test_each_row_fails_or_is_executed_by_its_position(shape: list[int], harm: FailRows, reads: bool) -> None:
    engine = RecordingEngine()
    operation = "BatchGetRow" if reads else "BatchWriteRow"
    request = read_request(shape) if reads else write_request(shape)

    body = execute_partially(operation, request.SerializeToString(), harm, "Server is busy.", engine.execute)

    answer = schema.parse(schema.OPERATIONS[operation].response, body)
    assert [table.table_name for table in answer.tables] == [f"t{number}" for number in range(len(shape))]
    position = 0
    for number, (table, rows) in enumerate(zip(answer.tables, shape, strict=True)):
        assert len(table.rows) == rows
        for index, row in enumerate(table.rows):
            if harm.harms(position):
                assert (row.is_ok, row.error.code, row.error.message) == (False, "OTSServerBusy", "Server is busy.")
            else:
                assert (row.is_ok, row.row) == (True, f"{number}.{index}".encode())
            position += 1


def test_rows_that_fail_do_not_reach_the_engine() -> None:
    engine = RecordingEngine()

    execute_partially(
        "BatchWriteRow", write_request([3, 2]).SerializeToString(), FailRows(rows=(1, 3)), "no", engine.execute
    )

    assert engine.seen == [[b"0.0", b"0.2"], [b"1.1"]]


def test_if_all_rows_fail_nothing_is_executed() -> None:
    engine = RecordingEngine()

    execute_partially("BatchWriteRow", write_request([2]).SerializeToString(), FailRows(every=1), "no", engine.execute)

    assert engine.seen is None


@pytest.mark.parametrize("row", [0, 1, 2])
def test_an_atomic_batch_fails_whole(row: int) -> None:
    engine = RecordingEngine()
    request = write_request([3])
    request.is_atomic = True

    body = execute_partially("BatchWriteRow", request.SerializeToString(), FailRows((row,)), "no", engine.execute)

    (table,) = schema.parse(schema.BatchWriteRowResponse, body).tables
    assert [(answer.is_ok, answer.error.code, answer.error.message) for answer in table.rows] == [
        (False, "OTSServerBusy", "no")
    ] * 3
    assert engine.seen is None


def test_an_atomic_batch_without_a_failing_row_is_executed() -> None:
    engine = RecordingEngine()
    request = write_request([3])
    request.is_atomic = True

    execute_partially("BatchWriteRow", request.SerializeToString(), FailRows((3,)), "no", engine.execute)

    assert engine.seen == [[b"0.0", b"0.1", b"0.2"]]


def test_errors_of_the_whole_request_pass_through() -> None:
    def refuse(operation: str, body: bytes) -> bytes:
        raise ServiceError(404, "OTSObjectNotExist", "Requested table does not exist.")

    with pytest.raises(ServiceError, match="OTSObjectNotExist"):
        execute_partially("BatchWriteRow", write_request([2]).SerializeToString(), FailRows((0,)), "no", refuse)


def test_a_body_that_is_no_batch_is_left_to_the_engine() -> None:
    def refuse(operation: str, body: bytes) -> bytes:
        raise ServiceError(400, "OTSParameterInvalid", f"{len(body)} bytes")

    with pytest.raises(ServiceError, match="7 bytes"):
        execute_partially("BatchWriteRow", b"garbage", FailRows((0,)), "no", refuse)
