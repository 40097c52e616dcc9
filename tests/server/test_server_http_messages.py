"""Requests that the Python SDK cannot make but other clients do: raw messages over HTTP."""

from __future__ import annotations

import http.client

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from server_http_tools import create_table, error_code, send
from server_state_driver import over_http, put

from streamclient.server import LocalTablestore
from streamclient.server.server_errors import ServiceError
from streamclient.server.validation.message_frames import read_frame
from streamclient.wire.plainbuffer import Cell, KeyBound, Row, decode_row, encode_row

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


@pytest.fixture
def table(local: LocalTablestore) -> str:
    create_table(local)
    return "t"


def test_split_points_cover_the_table(local: LocalTablestore, table: str) -> None:
    """Java demands that the locations' repeats sum to one more than there are points."""
    for number in range(5):
        over_http(local).put(number, put("v", "x" * 1_500_000))

    fields = {"table_name": table, "split_size": 1, "split_size_unit_in_byte": 1024 * 1024}
    answer = over_http(local).call("ComputeSplitPointsBySize", **fields)

    points = [decode_row(point).primary_key for point in answer.split_points]
    assert len(points) >= 3
    assert points == sorted(points)  # type: ignore[type-var]
    assert sum(location.repeat for location in answer.locations) == len(points) + 1
    assert [column.name for column in answer.schema] == ["pk"]


def test_changes_stream_in_the_order_of_their_answers(local: LocalTablestore, table: str) -> None:
    for number in range(5):
        over_http(local).put(number % 2, put("v", str(number)))

    assert [record.columns[0].value for record in over_http(local).all_records()] == list("01234")


def test_garbage_in_a_signed_body_is_a_bad_parameter(
    local: LocalTablestore, connection: http.client.HTTPConnection
) -> None:
    status, _, body = send(local, connection, "GetRow", b"\xff\xff\xff")

    assert (status, error_code(body)) == (400, "OTSParameterInvalid")
