from __future__ import annotations

import struct
import tracemalloc
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_examples import EVERYTHING, KEY_A, KEY_CELL, PUT_RECORD, ROWS, UPDATE_CELLS
from wire_pages import compiled, flipped_bits

from streamclient.errors import CodecError
from streamclient.records import NATIVE, SequenceInfo
from streamclient.wire._writer import _write_in_python, write_row
from streamclient.wire.crc8 import crc8
from streamclient.wire.plainbuffer import (
    HEADER,
    Cell,
    CellOperation,
    KeyBound,
    Row,
    decode_row,
    decode_rows,
    decode_value,
    encode_row,
    encode_rows,
    encode_value,
)

FRAMES = {name: frame for name, (frame, _) in ROWS.items()} | {
    "everything": encode_row(EVERYTHING),
    "false": encode_row(Row(KEY_A, (Cell("c", False, timestamp_millis=1),))),  # whose byte may become 2, 4, ...
}

integers = st.integers(-(2**63), 2**63 - 1)
texts = st.text(max_size=40)
keys = st.one_of(integers, texts, st.binary(max_size=150), st.sampled_from(KeyBound))
values = st.one_of(integers, st.floats(allow_nan=False), st.booleans(), texts, st.binary(max_size=150))
stamps = st.none() | integers
put_cells = st.builds(Cell, texts, values, st.just(CellOperation.PUT), stamps)
other_cells = st.builds(Cell, texts, st.none() | values, st.sampled_from([*CellOperation][1:]), stamps)
sequences = st.builds(SequenceInfo, st.integers(0, 2**32 - 1), st.integers(0, 2**63 - 1), st.integers(0, 2**32 - 1))
rows = st.builds(
    Row,
    st.lists(st.tuples(texts, keys), max_size=4).map(tuple),
    st.lists(put_cells | other_cells, max_size=8).map(tuple),
    st.booleans(),
    st.none() | sequences,
)


def outcome(frame: bytes) -> list[Row] | None:
    """The rows, or ``None`` for a refused frame; anything else than ``CodecError`` fails the test."""
    try:
        return decode_rows(frame)
    except CodecError:
        return None


@pytest.mark.parametrize(("frame", "row"), ROWS.values(), ids=ROWS)
def test_frames_of_the_other_sdks_are_read_and_written(frame: bytes, row: Row) -> None:
    assert decode_row(frame) == row
    assert encode_row(row) == frame


@pytest.mark.parametrize(("text", "cell"), UPDATE_CELLS.items())
def test_update_cells_of_the_other_sdks_are_read_and_written(text: str, cell: Cell) -> None:
    """The checksum takes the operation after the timestamp, although the wire has it before."""
    frame = encode_row(Row(KEY_A, (cell,)))

    assert frame[4:-2] == bytes.fromhex(f"01 {KEY_CELL} 02 {text}")
    assert decode_row(frame).cells == (cell,)


class Text(str):
    """What is no plain text is left to Python, which asks it for its bytes."""


odd_keys = st.none() | st.booleans() | st.floats() | st.just(2**63) | st.just("\ud800") | texts.map(Text)
any_keys = st.lists(st.tuples(texts | st.just("\udfff") | texts.map(Text), keys | odd_keys), max_size=3)
any_cells = st.lists(
    st.tuples(
        texts | st.just("\udfff"),
        st.none() | values | odd_keys | st.binary(max_size=9).map(bytearray) | st.just(()),
        st.integers(0, 5),
        st.none() | integers | st.just(2**63),
    ),
    max_size=5,
)


@pytest.mark.slow
@compiled
@settings(deadline=None, max_examples=400)
@given(any_keys, any_cells, st.booleans(), st.none() | sequences)
def test_the_compiled_codec_writes_a_row_as_python_does(
    key: Any, cells: Any, is_deletion: bool, sequence: SequenceInfo | None
) -> None:
    """The same bytes or the same words of refusal; what it could write is not declined."""
    found, expected = (written(write, key, cells, is_deletion, sequence) for write in (write_row, _write_in_python))

    assert found == expected
    made = NATIVE.row_of_cells(tuple(key), tuple(cells), is_deletion)
    usual = {str, int, bytes, bytearray}
    is_usual = all(type(name) is str and type(value) in usual for name, value in key)
    is_usual = is_usual and all(operation <= 4 for _, _, operation, _ in cells)
    is_usual = is_usual and all(type(value) in {*usual, bool, float, type(None)} for _, value, _, _ in cells)
    assert (made is None) == (isinstance(expected, str) or not is_usual)


def written(write: Any, key: Any, cells: Any, is_deletion: bool, sequence: SequenceInfo | None) -> bytes | str:
    parts: list[bytes] = []
    try:
        write(parts, tuple(key), tuple(cells), is_deletion, sequence)
    except CodecError as error:
        return str(error)
    return b"".join(parts)


@compiled
def test_what_is_no_row_is_left_to_python() -> None:
    assert NATIVE is not None
    for key, cells in ((("a",), ()), ((("a", 1, 2),), ()), ((), ((),)), ((), (("c", 1, "0", None),)), ((), (7,))):
        assert NATIVE.row_of_cells(key, cells, False) is None
    for arguments in ((), ([], (), False), ((), [], False)):
        with pytest.raises(TypeError):
            NATIVE.row_of_cells(*arguments)


@pytest.mark.slow
@settings(deadline=None, max_examples=150)
@given(st.lists(rows, max_size=4))
def test_rows_survive_the_round_trip(given_rows: list[Row]) -> None:
    assert decode_rows(encode_rows(given_rows)) == given_rows


def test_types_survive_the_round_trip() -> None:
    """1, 1.0 and True are equal to Python, but not to Tablestore."""
    cells = tuple(Cell(f"c{index}", value) for index, value in enumerate((1, 1.0, True, 0, False, "", b"")))
    decoded = decode_row(encode_row(Row(KEY_A, cells))).cells

    assert [(type(cell.value), cell.value) for cell in decoded] == [(type(cell.value), cell.value) for cell in cells]


@settings(deadline=None, max_examples=100)
@given(values | st.sampled_from(KeyBound))
def test_values_survive_the_round_trip(value: Any) -> None:
    decoded = decode_value(encode_value(value))

    assert (type(decoded), decoded) == (type(value), value)


def test_the_form_without_length_is_type_and_payload() -> None:
    assert encode_value(1).hex(" ") == "00 01 00 00 00 00 00 00 00"
    assert encode_value("ab").hex(" ") == "03 02 00 00 00 61 62"
    assert encode_value(KeyBound.INF_MAX).hex() == "0a"


def test_no_rows_are_no_bytes_and_a_bare_header_is_no_rows() -> None:
    assert encode_rows([]) == b""
    assert decode_rows(b"") == []
    assert decode_rows(HEADER) == []


def test_one_row_means_exactly_one() -> None:
    row = Row(KEY_A)
    for frame in (b"", HEADER, encode_rows([row, row])):
        with pytest.raises(CodecError, match="expected exactly 1"):
            decode_row(frame)


@pytest.mark.parametrize("frame", FRAMES.values(), ids=FRAMES)
def test_truncation_at_every_byte_is_refused(frame: bytes) -> None:
    """Only nothing at all and a bare header are frames, without rows."""
    for size in range(len(frame)):
        assert outcome(frame[:size]) == ([] if size in (0, 4) else None), size


@pytest.mark.slow
@pytest.mark.parametrize("frame", FRAMES.values(), ids=FRAMES)
def test_every_flipped_bit_is_refused_or_lies_in_the_sequence_numbers(frame: bytes) -> None:
    """No checksum covers epoch, timestamp and row index; a flip there changes them and nothing else."""
    original = decode_row(frame)
    unseen = set()
    for position, flipped in enumerate(flipped_bits(frame)):
        decoded = outcome(flipped)
        if decoded is not None:
            (row,) = decoded
            assert evolve(row, sequence=original.sequence) == original
            assert row.sequence != original.sequence
            unseen.add(position // 8)

    assert unseen <= sequence_bytes(frame, original)


def sequence_bytes(frame: bytes, row: Row) -> set[int]:
    """Offsets of the numbers inside the extension, which ends two bytes before the frame does."""
    if row.sequence is None:
        return set()
    tags = len(frame) - 2 - 19
    return {*range(tags + 1, tags + 5), *range(tags + 6, tags + 14), *range(tags + 15, tags + 19)}


@settings(deadline=None, max_examples=300)
@given(st.binary(max_size=120), st.booleans())
def test_any_bytes_give_rows_or_a_codec_error(data: bytes, with_header: bool) -> None:
    outcome(HEADER + b"\x01" + data if with_header else data)


@pytest.mark.slow
@settings(deadline=None, max_examples=300)
@given(st.sampled_from(sorted(FRAMES)), st.lists(st.tuples(st.integers(0, 2000), st.binary(max_size=9)), max_size=4))
def test_damaged_frames_give_rows_or_a_codec_error(name: str, damages: list[tuple[int, bytes]]) -> None:
    frame = FRAMES[name]
    for position, patch in damages:
        start = position % len(frame)
        frame = frame[:start] + patch + frame[start + len(patch) :]
    outcome(frame)


@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=40))
def test_any_bytes_give_a_value_or_a_codec_error(data: bytes) -> None:
    try:
        value = decode_value(data)
    except CodecError:
        return
    assert encode_value(value) == data or isinstance(value, float), "a NaN may change its payload"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("03 05 00 00 00 61", "a length of 5 bytes, expected at most the 1 that follow"),
        ("07 ff ff ff ff", "a length of 4294967295 bytes"),
        ("00 01 00", "ends at byte 3, inside a value"),
        ("02 01 00", "1 more bytes, expected the end of the value"),
        ("03 01 00 00 00 ff", "not UTF-8"),
        ("", "ends at byte 0"),
    ],
)
def test_a_value_is_exactly_one(data: str, message: str) -> None:
    with pytest.raises(CodecError, match=message):
        decode_value(bytes.fromhex(data))


def test_a_lying_length_costs_no_memory() -> None:
    frame = HEADER + bytes.fromhex("01 03 04 ff ff ff ff 70 6b")
    tracemalloc.start()
    try:
        assert outcome(frame) is None
        assert outcome(frame[:7] + bytes.fromhex("02 00 00 00 70 6b 05 ff ff ff ff 03 fa ff ff ff")) is None
        assert tracemalloc.get_traced_memory()[1] < 200_000
    finally:
        tracemalloc.stop()


def test_a_megabyte_value_is_read_and_checked() -> None:
    frame = encode_row(Row(KEY_A, (Cell("c", "x" * 2**20),)))
    assert decode_row(frame).cells[0].value == "x" * 2**20
    assert outcome(frame.replace(b"xxxx", b"xyxx", 1)) is None


BAD_FRAMES = {
    "header": ("75 00 00 01 01 09 00", "header"),
    "row key": ("75 00 00 00 02 09 00", "01, the row's key"),
    "cell name": ("75 00 00 00 01 03 05", "04, the cell's name"),
    "null value": ("75 00 00 00 01 03 04 00 00 00 00 05 01 00 00 00 06 0a 00", "value type 0x06"),
    "boolean 2": ("75 00 00 00 01 03 04 00 00 00 00 05 02 00 00 00 02 02 0a 00", "boolean 2"),
    "operation 2": (f"75 00 00 00 01 {KEY_CELL} 02 03 04 01 00 00 00 63 06 02 0a 00", "operation 0x02"),
    "no value": (f"75 00 00 00 01 {KEY_CELL} 02 03 04 01 00 00 00 63 0a 2e", "neither value nor operation"),
    "row checksum": (f"75 00 00 00 01 {KEY_CELL} 09 00", "row checksum"),
    "cell checksum": (f"75 00 00 00 01 {KEY_CELL[:-2]}d5 09 00", "checksum 0xd5 of cell 'pk'"),
    "text": ("75 00 00 00 01 03 04 01 00 00 00 ff 0a 00", "not UTF-8"),
    "end": ("75 00 00 00 01 03 04 01 00", "ends at byte 9"),
}


@pytest.mark.parametrize(("frame", "message"), BAD_FRAMES.values(), ids=BAD_FRAMES)
def test_errors_say_what_was_found_and_expected(frame: str, message: str) -> None:
    with pytest.raises(CodecError, match=message):
        decode_rows(bytes.fromhex(frame))


@pytest.mark.parametrize("value", [1.5, True])
def test_a_key_is_an_integer_a_string_or_bytes(value: Any) -> None:
    payload = encode_value(value)
    cell = b"\x03\x04\x01\x00\x00\x00k\x05" + struct.pack("<I", len(payload)) + payload
    cell_crc = crc8(payload, crc8(b"k"))
    frame = HEADER + b"\x01" + cell + bytes([0x0A, cell_crc, 0x09, crc8(bytes([cell_crc, 0]))])

    with pytest.raises(CodecError, match="key column 'k'"):
        decode_rows(frame)
    with pytest.raises(CodecError, match="key column 'k'"):
        encode_row(Row((("k", value),)))


def with_extension(content: bytes) -> bytes:
    start = PUT_RECORD.index(b"\x0b\x18\x00\x00\x00")
    return PUT_RECORD[:start] + b"\x0b" + struct.pack("<I", len(content)) + content + PUT_RECORD[-2:]


def test_unknown_extension_entries_are_skipped_by_their_length() -> None:
    """The Java SDK does so; new entries may come."""
    start = PUT_RECORD.index(b"\x0b\x18\x00\x00\x00")
    sequence = PUT_RECORD[start + 5 : start + 29]
    unknown = b"\x2a\x03\x00\x00\x00\x0c\x0b\x09"

    for content in (unknown + sequence, sequence + unknown, unknown + sequence + unknown):
        assert decode_row(with_extension(content)) == decode_row(PUT_RECORD)
    for content in (b"", unknown, sequence + sequence, sequence + unknown[:-1], sequence + b"\x2a\xff\xff\xff\xff"):
        assert outcome(with_extension(content)) is None


def test_a_negative_sequence_timestamp_is_refused() -> None:
    broken = bytearray(PUT_RECORD)
    broken[-2 - 6] |= 0x80
    assert outcome(bytes(broken)) is None


BAD_ROWS = {
    "integer": (Row(KEY_A, (Cell("c", 2**63),)), "64 bits"),
    "text": (Row(KEY_A, (Cell("c", "\ud800"),)), "UTF-8"),
    "name": (Row(KEY_A, (Cell("\ud800", 1),)), "column name"),
    "long name": (Row(KEY_A, (Cell("\ud800" * 300, 1),)), "column name"),
    "no value": (Row(KEY_A, (Cell("c", None),)), "needs a value"),
    "timestamp": (Row(KEY_A, (Cell("c", 1, timestamp_millis=2**63),)), "timestamp"),
    "sequence": (Row(KEY_A, sequence=SequenceInfo(-1, 0, 0)), "sequence"),
    "key": (Row((("pk", None),)), "key column 'pk'"),  # type: ignore[arg-type]
    "type": (Row(KEY_A, (Cell("c", object()),)), "expected int, float"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize(("row", "message"), BAD_ROWS.values(), ids=BAD_ROWS)
def test_what_the_format_cannot_hold_is_not_written(row: Row, message: str) -> None:
    with pytest.raises(CodecError, match=message):
        encode_row(row)


def test_subclasses_are_written_as_their_base() -> None:
    assert encode_value(CellOperation.INCREMENT) == encode_value(4)
    assert encode_value(bytearray(b"ab")) == encode_value(b"ab")


@pytest.mark.parametrize("kind", [b"\x03", b"\x07"], ids=["text", "bytes"])
@pytest.mark.parametrize("length", [0, 3, 5, 2**32 - 1])
def test_the_length_inside_a_value_is_that_of_its_content_whatever_the_checksums_say(kind: bytes, length: int) -> None:
    assert outcome(frame_of_value(kind + struct.pack("<I", length) + b"abcd")) is None
    assert outcome(frame_of_value(kind + struct.pack("<I", 4) + b"abcd")) is not None


def frame_of_value(payload: bytes) -> bytes:
    """A row whose one cell has this value, right or wrong, and whose checksums are right."""
    head = b"\x03\x04" + struct.pack("<I", 1) + b"c\x05" + struct.pack("<I", len(payload))
    checksum, key = crc8(payload, crc8(b"c")), bytes.fromhex(KEY_CELL)
    row_checksum = crc8(bytes([key[-1], checksum, 0]))
    return HEADER + b"\x01" + key + b"\x02" + head + payload + bytes([0x0A, checksum, 0x09, row_checksum])
