"""Our codec against the frames of the official Python SDK, in both directions."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tablestore import INF_MAX, INF_MIN, PK_AUTO_INCR
from tablestore.plainbuffer.plain_buffer_builder import PlainBufferBuilder
from tablestore.plainbuffer.plain_buffer_coded_stream import PlainBufferCodedInputStream
from tablestore.plainbuffer.plain_buffer_stream import PlainBufferInputStream

from streamclient.errors import CodecError
from streamclient.wire.plainbuffer import (
    Cell,
    CellOperation,
    KeyBound,
    Row,
    decode_row,
    encode_row,
    encode_rows,
    encode_value,
)

names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,20}", fullmatch=True)
integers = st.integers(-(2**63), 2**63 - 1)
texts = st.text(max_size=60)
blobs = st.binary(max_size=150)
keys = st.lists(st.tuples(names, st.one_of(integers, texts, blobs)), min_size=1, max_size=4)
values = st.one_of(integers, st.floats(allow_nan=False), st.booleans(), texts, blobs)
puts = st.lists(st.tuples(names, values, st.none() | st.integers(0, 2**50)), min_size=1, max_size=6)


def for_sdk(value: Any) -> Any:
    return bytearray(value) if isinstance(value, bytes) else value


def read_with_sdk(frame: bytes) -> tuple[Any, Any]:
    result: tuple[Any, Any] = PlainBufferCodedInputStream(PlainBufferInputStream(frame)).read_row()
    return result


@pytest.mark.slow
@settings(deadline=None, max_examples=100)
@given(keys, puts)
def test_put_frames_of_the_sdk_are_ours_byte_for_byte(
    key: list[tuple[str, Any]], cells: list[tuple[str, Any, int | None]]
) -> None:
    columns = [
        (name, for_sdk(value)) if stamp is None else (name, for_sdk(value), stamp) for name, value, stamp in cells
    ]
    frame = bytes(PlainBufferBuilder.serialize_for_put_row([(name, for_sdk(value)) for name, value in key], columns))
    row = Row(tuple(key), tuple(Cell(name, value, timestamp_millis=stamp) for name, value, stamp in cells))

    assert decode_row(frame) == row
    assert encode_row(row) == frame


@pytest.mark.slow
@settings(deadline=None, max_examples=100)
@given(keys, puts)
def test_the_sdk_reads_our_rows(key: list[tuple[str, Any]], cells: list[tuple[str, Any, int | None]]) -> None:
    row = Row(tuple(key), tuple(Cell(name, value, timestamp_millis=stamp or 0) for name, value, stamp in cells))
    read_key, read_cells = read_with_sdk(encode_row(row))

    assert [(name, value) for name, value in read_key] == key
    assert [tuple(cell) for cell in read_cells] == [(name, value, stamp or 0) for name, value, stamp in cells]


def test_the_sdk_reads_our_frames_of_several_rows() -> None:
    rows = [Row((("pk", number),), (Cell("c", f"v{number}", timestamp_millis=number),)) for number in range(5)]
    read = PlainBufferCodedInputStream(PlainBufferInputStream(encode_rows(rows))).read_rows()

    assert [(row.primary_key, row.attribute_columns) for row in read] == [
        ([("pk", number)], [("c", f"v{number}", number)]) for number in range(5)
    ]


def test_update_frames_of_the_sdk_are_ours_byte_for_byte() -> None:
    frame = bytes(
        PlainBufferBuilder.serialize_for_update_row(
            [("pk", "a")],
            {
                "PUT": [("e", "x"), ("f", 1.5, 77)],
                "DELETE": [("c", None, 5)],
                "DELETE_ALL": ["d"],
                "INCREMENT": [("n", 1)],
            },
        )
    )
    row = decode_row(frame)

    assert set(row.cells) == {
        Cell("e", "x"),
        Cell("f", 1.5, timestamp_millis=77),
        Cell("c", None, CellOperation.DELETE_ONE_VERSION, 5),
        Cell("d", None, CellOperation.DELETE_ALL_VERSIONS),
        Cell("n", 1, CellOperation.INCREMENT),
    }
    assert encode_row(row) == frame


FRAMES: dict[str, tuple[Any, Row]] = {
    "delete": (
        PlainBufferBuilder.serialize_for_delete_row([("pk", "a"), ("n", 5)]),
        Row((("pk", "a"), ("n", 5)), delete_marker=True),
    ),
    "bounds and generated keys": (
        PlainBufferBuilder.serialize_primary_key([("a", INF_MIN), ("b", INF_MAX), ("c", PK_AUTO_INCR)]),
        Row((("a", KeyBound.INF_MIN), ("b", KeyBound.INF_MAX), ("c", KeyBound.AUTO_INCREMENT))),
    ),
}


@pytest.mark.parametrize(("frame", "row"), FRAMES.values(), ids=FRAMES)
def test_frames_of_the_sdk_are_ours_byte_for_byte(frame: Any, row: Row) -> None:
    assert decode_row(bytes(frame)) == row
    assert encode_row(row) == bytes(frame)


@pytest.mark.parametrize("value", [5, -1, 2.5, True, "é", b"\x00\x01"])
def test_filter_values_of_the_sdk_are_ours_byte_for_byte(value: Any) -> None:
    assert bytes(PlainBufferBuilder.serialize_column_value(for_sdk(value))) == encode_value(value)


def test_a_non_ascii_name_written_by_the_sdk_is_refused_not_guessed() -> None:
    """The SDK writes the number of characters as the length in bytes."""
    try:
        frame = bytes(PlainBufferBuilder.serialize_for_put_row([("pk", 1)], [("имя", 1)]))
    except Exception as error:
        pytest.skip(f"this SDK refuses the name itself: {error!r}")
    with pytest.raises(CodecError):
        decode_row(frame)
