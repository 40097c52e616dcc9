"""Requests that the Python SDK cannot make but other clients do: raw messages over HTTP."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from server_http_tools import Address, ask, connect, create_table, send, stream_elements

from streamclient.server import LocalTablestore
from streamclient.server.server_errors import ServiceError
from streamclient.server.validation.message_frames import read_frame
from streamclient.wire import schema
from streamclient.wire.plainbuffer import Cell, CellOperation, KeyBound, Row, decode_row, encode_row

rows = st.builds(
    lambda key, cells: Row((("pk", key),), tuple(Cell(name, value) for name, value in cells)),
    st.integers(-(2**63), 2**63 - 1) | st.text(max_size=6) | st.binary(max_size=6) | st.just(KeyBound.INF_MIN),
    st.lists(st.tuples(st.text("abc", min_size=1, max_size=3), st.integers(0, 3) | st.binary(max_size=4)), max_size=3),
)


@settings(deadline=None, max_examples=300)
@given(row=rows, padding=st.integers(0, 40))
def test_zero_bytes_after_a_row_are_ignored(row: Row, padding: int) -> None:
    """The Node SDK sends what it reserved and did not need; a row may itself end in a zero."""
    assert read_frame(encode_row(row) + bytes(padding)) == row


def test_padding_is_told_from_a_checksum_of_zero() -> None:
    """Among 2,000 rows some have the checksum 0."""
    frames = [encode_row(Row((("pk", number),))) for number in range(2000)]

    assert any(frame.endswith(b"\x09\x00") for frame in frames)
    assert all(read_frame(frame + bytes(3)) == decode_row(frame) for frame in frames)


@settings(deadline=None, max_examples=100)
@given(row=rows, padding=st.binary(min_size=1, max_size=5).filter(any))
def test_anything_else_after_a_row_is_refused(row: Row, padding: bytes) -> None:
    with pytest.raises(ServiceError, match="Cell data broken"):
        read_frame(encode_row(row) + padding)


def put(local: LocalTablestore, number: int, value: str) -> None:
    row = encode_row(Row((("pk", number),), (Cell("v", value),)))
    ask(local, "PutRow", table_name="t", row=row, condition=schema.Condition(row_existence=0))


@pytest.fixture
def table(local: LocalTablestore) -> str:
    connection = connect(local)
    create_table(local, connection)
    connection.close()
    return "t"


def test_split_points_cover_the_table(local: LocalTablestore, table: str) -> None:
    """Java demands that the locations' repeats sum to one more than there are points."""
    for number in range(5):
        put(local, number, "x" * 1_500_000)

    answer = ask(local, "ComputeSplitPointsBySize", table_name=table, split_size=1, split_size_unit_in_byte=1024 * 1024)

    points = [decode_row(point).primary_key for point in answer.split_points]
    assert len(points) >= 3
    assert points == sorted(points)  # type: ignore[type-var]
    assert sum(location.repeat for location in answer.locations) == len(points) + 1
    assert [column.name for column in answer.schema] == ["pk"]


def test_an_update_returns_the_columns_it_modified(local: LocalTablestore, table: str) -> None:
    put(local, 1, "x")
    change = encode_row(Row((("pk", 1),), (Cell("count", 5, CellOperation.INCREMENT),)))
    wanted = schema.ReturnContent(return_type=schema.ReturnType.AFTER_MODIFY, return_column_names=["count"])

    answer = ask(
        local,
        "UpdateRow",
        table_name=table,
        row_change=change,
        condition=schema.Condition(row_existence=0),
        return_content=wanted,
    )

    assert [(cell.name, cell.value) for cell in decode_row(answer.row).cells] == [("count", 5)]


def test_answers_hold_the_fields_that_other_sdks_need(local: LocalTablestore, table: str) -> None:
    """Go and Node fail without a table status; Go panics without stream details."""
    described = ask(local, "DescribeTable", table_name=table)
    updated = ask(local, "UpdateTable", table_name=table, table_options=schema.TableOptions(max_versions=2))

    assert described.table_status == schema.TableStatus.ACTIVE
    assert updated.HasField("stream_details")
    for options in (described.table_options, updated.table_options):
        assert options.HasField("time_to_live")
        assert options.HasField("deviation_cell_version_in_sec")
    unit = described.reserved_throughput_details.capacity_unit
    assert (unit.HasField("read"), unit.HasField("write")) == (True, True)


def test_changes_stream_in_the_order_of_their_answers(local: LocalTablestore, table: str) -> None:
    for number in range(5):
        put(local, number % 2, str(number))

    assert [decode_row(element.record).cells[0].value for element in stream_elements(local, table)] == list("01234")


def test_garbage_in_a_signed_body_is_a_bad_parameter(local: Address) -> None:
    connection = connect(local)
    status, _, body = send(local, connection, "GetRow", b"\xff\xff\xff")
    connection.close()

    error = schema.parse(schema.Error, body)
    assert (status, error.code) == (400, "OTSParameterInvalid")
