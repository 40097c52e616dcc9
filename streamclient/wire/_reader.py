"""The decoding of PlainBuffer rows, from bytes to values. Every length and checksum is verified.

The inner loop checks no bounds, because a read past the end of the bytes raises ``IndexError`` or ``struct.error``. A
slice past the end raises no error and is too short. But a row has a byte after each slice, and the read of this byte
raises the error. ``as_codec_error`` translates these errors.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Any, NoReturn

from streamclient.errors import CodecError
from streamclient.records import ColumnValue, KeyValue, SequenceInfo
from streamclient.wire import _tags as tags
from streamclient.wire._tags import (
    TAG_CELL,
    TAG_CELL_CHECKSUM,
    TAG_CELL_TIMESTAMP,
    TAG_DELETE_MARKER,
    TAG_EXTENSION,
    TAG_ROW_CHECKSUM,
    TAG_ROW_DATA,
    TYPE_BLOB,
    TYPE_BOOLEAN,
    TYPE_DOUBLE,
    TYPE_INTEGER,
    TYPE_STRING,
)
from streamclient.wire.crc8 import AFTER_EIGHT_BYTES, FOLD_FROM_BYTES, PAIRS, TABLE, UNPACK_PAIRS, crc8
from streamclient.wire.rows import CellOperation, KeyBound

RawCell = tuple[str, "ColumnValue | KeyBound | None", int, "int | None"]
"""A decoded cell: its name, its value, the number of its operation (0 is a put), and its timestamp."""

ParsedRow = tuple[tuple[tuple[str, "KeyValue | KeyBound"], ...], list[RawCell], bool, "SequenceInfo | None", int, bool]
"""A decoded row: the key, the cells, the delete marker, the sequence information, the offset after the row, and whether
the row is plain. In a plain row the key has no bound, and each cell is a put with a timestamp that is not negative."""

_u32 = struct.Struct("<I").unpack_from
_i64 = struct.Struct("<q").unpack_from
_nine_bytes = struct.Struct("<BHHHH").unpack_from
_f64 = struct.Struct("<d").unpack_from
_cell_head = struct.Struct("<BBI").unpack_from
_value_head = struct.Struct("<IBq").unpack_from
_extension = struct.Struct("<BIBIBIBqBI").unpack_from
_sequence = struct.Struct("<BIBqBI").unpack_from

_USUAL_EXTENSION = (
    tags.EXTENSION_BYTES,
    tags.TAG_SEQUENCE,
    tags.SEQUENCE_BYTES,
    tags.TAG_SEQUENCE_EPOCH,
    tags.TAG_SEQUENCE_TIMESTAMP,
    tags.TAG_SEQUENCE_ROW_INDEX,
)
_BOUNDS = {bound.value: bound for bound in KeyBound}
_OPERATIONS = frozenset(int(operation) for operation in CellOperation if operation is not CellOperation.PUT)
_SIZED = frozenset((TYPE_STRING, TYPE_BLOB))
_NUMBERS = frozenset((TYPE_INTEGER, TYPE_DOUBLE))
_KEY_TYPES = frozenset((int, str, bytes, KeyBound))


def fail(offset: int, found: object, expected: str) -> NoReturn:
    """Raise a ``CodecError`` that names ``offset``, the fault ``found`` at this offset, and the ``expected`` bytes."""
    raise CodecError(f"at byte {offset}: found {found}, expected {expected}")


READ_ERRORS = (IndexError, struct.error, UnicodeDecodeError)
"""The errors that the functions of this module raise besides ``CodecError``. A caller translates them by
``as_codec_error``."""


def as_codec_error(error: Exception, data: bytes, what: str) -> CodecError:
    """Return the ``CodecError`` for one of ``READ_ERRORS``; ``what`` names the part of ``data`` that was read."""
    if isinstance(error, UnicodeDecodeError):
        return CodecError(f"text inside {what} is not UTF-8: {error}")
    return CodecError(f"the frame ends at byte {len(data)}, inside {what}: expected more bytes")


def _decode_name(raw: bytes) -> tuple[str, int]:
    return raw.decode("utf-8"), crc8(raw)


_cached_name = lru_cache(maxsize=tags.CACHED_NAMES)(_decode_name)


@lru_cache(maxsize=tags.CACHED_STAMPS)
def _stamp(raw: bytes) -> tuple[int, int]:
    """Decode a tag and a timestamp in ``raw``; return the milliseconds, and the checksum without the tag."""
    return _i64(raw, 1)[0], crc8(raw[1:])


@lru_cache(maxsize=tags.CACHED_NAMES)
def _usual_head(raw: bytes) -> tuple[str, int]:
    """Decode the beginning of a cell up to the tag of its value; return the name and the name's checksum.

    Raises:
        IndexError: ``raw`` is not a name that is followed by the tag of a value.
    """
    _, name_tag, size = _cell_head(raw, 0)
    if name_tag != tags.TAG_CELL_NAME or size + 7 != len(raw) or raw[-1] != tags.TAG_CELL_VALUE:
        raise IndexError
    return _decode_name(raw[6:-1])


def read_value(data: bytes, offset: int) -> tuple[ColumnValue | KeyBound, int]:
    """Decode the value whose type byte is at ``offset``; return the value and the offset after it."""
    kind = data[offset]
    if kind == tags.TYPE_STRING or kind == tags.TYPE_BLOB:  # noqa: PLR1714 -- this runs once per cell
        begin = offset + 5
        end = begin + _u32(data, offset + 1)[0]
        if end > len(data):
            fail(offset + 1, f"a length of {end - begin} bytes", f"at most the {len(data) - begin} that follow")
        raw = data[begin:end]
        return (raw if kind == tags.TYPE_BLOB else raw.decode("utf-8")), end
    if kind == tags.TYPE_INTEGER:
        return _i64(data, offset + 1)[0], offset + 9
    if kind == tags.TYPE_DOUBLE:
        return _f64(data, offset + 1)[0], offset + 9
    if kind == tags.TYPE_BOOLEAN:
        if data[offset + 1] > 1:
            fail(offset + 1, f"boolean {data[offset + 1]}", "0 or 1")
        return data[offset + 1] == 1, offset + 2
    if kind in _BOUNDS:
        return _BOUNDS[kind], offset + 1
    fail(offset, f"value type {kind:#04x}", "00 to 03, 07, or 09 to 0b")


def _read_any_cell(data: bytes, offset: int) -> tuple[str, ColumnValue | KeyBound | None, int, int | None, int, int]:
    """Decode the cell whose tag 03 is at ``offset``. It may have any form. If the cell is faulty, raise an error.

    Return the name, value, operation, timestamp, checksum, and the offset after the cell. On the wire, the operation
    comes before the timestamp. In the checksum, the timestamp comes first.
    """
    if data[offset + 1] != tags.TAG_CELL_NAME:
        fail(offset + 1, f"tag {data[offset + 1]:#04x}", "04, the cell's name")
    begin = offset + 6
    offset = begin + _u32(data, offset + 2)[0]
    raw = data[begin:offset]
    tag = data[offset]
    name, crc = _cached_name(raw) if len(raw) <= tags.CACHED_NAME_BYTES else _decode_name(raw)
    value: ColumnValue | KeyBound | None = None
    operation, timestamp = 0, None
    if tag == tags.TAG_CELL_VALUE:
        begin = offset + 5
        value, end = read_value(data, begin)
        if _u32(data, offset + 1)[0] != end - begin:
            fail(offset + 1, f"value length {_u32(data, offset + 1)[0]}", f"{end - begin}, which its content has")
        crc = crc8(data[begin:end], crc)
        offset = end
        tag = data[offset]
    if tag == tags.TAG_CELL_OPERATION:
        operation = data[offset + 1]
        if operation not in _OPERATIONS:
            fail(offset + 1, f"cell operation {operation:#04x}", "01, 03 or 04")
        offset += 2
        tag = data[offset]
    if tag == tags.TAG_CELL_TIMESTAMP:
        timestamp = _i64(data, offset + 1)[0]
        crc = crc8(data[offset + 1 : offset + 9], crc)
        offset += 9
        tag = data[offset]
    if operation:
        crc = TABLE[crc ^ operation]
    if tag != tags.TAG_CELL_CHECKSUM or data[offset + 1] != crc or (value is None and not operation):
        _refuse_cell(data, offset, name, crc)
    return name, value, operation, timestamp, crc, offset + 2


def _refuse_cell(data: bytes, offset: int, name: str, crc: int) -> NoReturn:
    if data[offset] != tags.TAG_CELL_CHECKSUM:
        fail(offset, f"tag {data[offset]:#04x} in cell {name!r}", "0a, the tag of the cell's checksum")
    if data[offset + 1] != crc:
        fail(offset + 1, f"checksum {data[offset + 1]:#04x} of cell {name!r}", f"{crc:#04x}")
    fail(offset, f"cell {name!r} with neither value nor operation", "one of them")


def _read_cells(  # noqa: PLR0912, PLR0915 -- a call for each cell would cost half as much as reading it
    data: bytes, offset: int, row_crc: int
) -> tuple[list[RawCell], bool, int, int]:
    """Decode all cells from ``offset`` on.

    Return the cells, whether each cell is a put with a timestamp, the offset after the cells, and the row's checksum up
    to this offset.

    The decoding of a page spends nearly all its time in this function. So its loop assumes that a cell has the usual
    form, which is a value with an optional timestamp. The loop decodes the cell in as few steps as Python allows, and
    checks the assumption at the end. If the cell is unusual or faulty, ``_read_any_cell`` decodes it a second time.
    """
    cells: list[RawCell] = []
    have_versions = True
    # The timestamp of the previous cell, encoded and decoded. Most cells of a row have the same timestamp.
    stamp, timestamp, stamp_crc = b"", 0, 0
    while data[offset] == TAG_CELL:
        try:
            begin = offset + 7 + data[offset + 2]
            name, crc = _usual_head(data[offset:begin])
            size, kind, number = _value_head(data, begin)
            begin += 4
            end = begin + size
            value: Any = number
            if kind in _SIZED:
                raw = data[begin + 5 : end]
                value = raw if kind == TYPE_BLOB else raw.decode()
                unexplained = size - 5 - (number & 0xFFFFFFFF)
                if size >= FOLD_FROM_BYTES:
                    crc = crc8(data[begin:end], crc)
                else:
                    if size % 2:
                        crc = TABLE[crc ^ kind]
                        begin += 1
                    for pair in UNPACK_PAIRS[size // 2](data, begin):
                        crc = PAIRS[crc ^ pair]
            elif kind == TYPE_BOOLEAN:
                value = number & 0xFF == 1
                unexplained = size - 2 + (number & 0xFE)
                crc = PAIRS[crc ^ TYPE_BOOLEAN ^ value << 8]
            else:
                unexplained = size - 9 if kind in _NUMBERS else -1
                if kind == TYPE_DOUBLE:
                    (value,) = _f64(data, begin + 1)
                first, second, third, fourth, fifth = _nine_bytes(data, begin)
                crc = PAIRS[PAIRS[PAIRS[PAIRS[TABLE[crc ^ first] ^ second] ^ third] ^ fourth] ^ fifth]
            if data[end] == TAG_CELL_TIMESTAMP:
                if data[end : end + 9] != stamp:
                    stamp = data[end : end + 9]
                    timestamp, stamp_crc = _stamp(stamp)
                    have_versions = have_versions and timestamp >= 0
                crc = AFTER_EIGHT_BYTES[crc] ^ stamp_crc
                end += 9
                cell: RawCell = (name, value, 0, timestamp)
            else:
                have_versions = False
                cell = (name, value, 0, None)
            is_usual = not unexplained and data[end + 1] == crc and data[end] == TAG_CELL_CHECKSUM
        except READ_ERRORS:
            is_usual = False
        if is_usual:
            offset = end + 2
        else:
            have_versions = False
            name, value, operation, version, crc, offset = _read_any_cell(data, offset)
            cell = (name, value, operation, version)
        cells.append(cell)
        row_crc = TABLE[row_crc ^ crc]
    return cells, have_versions, offset, row_crc


def read_row(data: bytes, offset: int) -> ParsedRow:
    """Decode the row whose tag 01 is at ``offset``.

    Raises:
        CodecError: the row is malformed. A malformed row can also raise one of ``READ_ERRORS``.
    """
    if data[offset] != tags.TAG_ROW_KEY:
        fail(offset, f"tag {data[offset]:#04x}", "01, the row's key")
    begin = offset + 1
    key_cells, _, offset, row_crc = _read_cells(data, begin, 0)
    key: list[Any] = []
    is_plain = True
    for name, value, operation, timestamp in key_cells:
        if operation or timestamp is not None or value.__class__ not in _KEY_TYPES:
            fail(begin, f"key column {name!r} = {value!r}", "a name with an INTEGER, STRING, BINARY or bound only")
        is_plain = is_plain and value.__class__ is not KeyBound
        key.append((name, value))
    cells: list[RawCell] = []
    if data[offset] == TAG_ROW_DATA:
        cells, have_versions, offset, row_crc = _read_cells(data, offset + 1, row_crc)
        is_plain = is_plain and have_versions
    deleted = data[offset] == TAG_DELETE_MARKER
    offset += deleted
    sequence = None
    if data[offset] == TAG_EXTENSION:
        sequence, offset = _read_extension(data, offset)
    if data[offset] != TAG_ROW_CHECKSUM:
        fail(offset, f"tag {data[offset]:#04x}", "09, the tag of the row's checksum")
    row_crc = TABLE[row_crc ^ deleted]
    if data[offset + 1] != row_crc:
        fail(offset + 1, f"row checksum {data[offset + 1]:#04x}", f"{row_crc:#04x}")
    return tuple(key), cells, deleted, sequence, offset + 2, is_plain


def _read_extension(data: bytes, offset: int) -> tuple[SequenceInfo, int]:
    """Decode a row's extension; return the sequence information and the offset after the extension.

    An extension usually has only sequence information. The function skips other entries, as the Java SDK does.
    """
    _, length, tag, size, epoch_tag, epoch, time_tag, timestamp, index_tag, row_index = _extension(data, offset)
    if (length, tag, size, epoch_tag, time_tag, index_tag) == _USUAL_EXTENSION and timestamp >= 0:
        return SequenceInfo(epoch, timestamp, row_index), offset + 5 + tags.EXTENSION_BYTES
    end = offset + 5 + _u32(data, offset + 1)[0]
    if end > len(data):
        fail(offset + 1, f"an extension up to byte {end}", f"one that ends by byte {len(data)}")
    found: SequenceInfo | None = None
    entry = offset + 5
    while entry < end:
        if data[entry] == tags.TAG_SEQUENCE:
            if found is not None:
                fail(entry, "a second sequence information", "one")
            found = _read_sequence(data, entry)
        entry += 5 + _u32(data, entry + 1)[0]
    if entry != end:
        fail(entry, "an entry that outgrows its extension", f"it to end at byte {end}")
    if found is None:
        fail(offset, "an extension without sequence information", "tag 0c inside")
    return found, end


def _read_sequence(data: bytes, offset: int) -> SequenceInfo:
    """Decode the sequence information whose tag 0c is at ``offset``.

    No checksum covers sequence information. So the function accepts only the known length and tags.
    """
    (length,) = _u32(data, offset + 1)
    epoch_tag, epoch, time_tag, timestamp, index_tag, row_index = _sequence(data, offset + 5)
    form = (length, epoch_tag, time_tag, index_tag)
    known = (tags.SEQUENCE_BYTES, tags.TAG_SEQUENCE_EPOCH, tags.TAG_SEQUENCE_TIMESTAMP, tags.TAG_SEQUENCE_ROW_INDEX)
    if form != known:
        fail(offset, f"sequence information of length and tags {form}", f"{known}")
    if timestamp < 0:
        fail(offset + 11, f"sequence timestamp {timestamp}", "microseconds since 1970, not negative")
    return SequenceInfo(epoch, timestamp, row_index)
