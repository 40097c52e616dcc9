r"""The digest of a commit's records: equal for equal records, on every machine and from every layout.

The digest does not depend on how pages were cut, on the order of cells within a record, on the types of the columns
that hold the values, or on columns that came later. So it can be computed from the records when they are read, and
years later from the rows of the table.

Records are sorted by their sequence, and records with equal sequence by their keys. A record may put several cells into
one column. The cell with the highest version is the *value*; the others are *older*. The digest covers a list of
sections, each for one column and one type, so that it can be computed from whole columns of a table::

    "streamclient-records-1\n", number of records, then each section by its name: length, name, length, body

    name (JSON)                body
    ["operation"]              a letter per record: P, U or D
    ["sequence"]               epochs, timestamps in microseconds, row indexes
    ["key", column, type]      places, values
    ["value", column, type]    places, values
    ["version", column]        places, versions of the values in milliseconds
    ["deleted", column]        places of the records that delete all versions
    ["deleted version", column]  places, versions
    ["older", column]          places, versions, texts
    ["original", column]       places, versions, texts
    ["originals"]              places of the records that have previous values at all, even none

Numbers have 8 bytes, the lowest first; a place is the record's index from 0; an absent version is the lowest number.
INTEGER and DOUBLE values have 8 bytes (every NaN is the quiet one), BOOLEAN one. STRING and BINARY are lengths, then
bytes. A text is the type, a colon, and the value as ``column_types.text_of`` writes it. Sections without a place are
left out. Within a section places ascend, then versions, then texts.
"""

from __future__ import annotations

import json
import struct
import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from streamclient.destinations.destination_packages import compute, pyarrow
from streamclient.destinations.rows.column_layout import Cell, ChangeColumns, as_columns, integers
from streamclient.records import ColumnType, StreamRecord

if TYPE_CHECKING:
    from pyarrow import Array

TITLE = b"streamclient-records-1\n"

_QUIET_NAN = struct.pack("=Q", 0x7FF8000000000000)

_Bytes = Any
"""The input of a hash: bytes, or the memory of an array, which is not copied."""


def records_digest(changes: Iterable[StreamRecord] | ChangeColumns) -> str:
    """Return the digest of one shard's records, in any order, as 64 hexadecimal letters.

    Columns (``page_columns.columns_of_pages``) give the same digest as their records, at a small part of the cost.
    """
    columns = as_columns(changes)
    digest = sha256(TITLE + struct.pack("<q", columns.count))
    for name, body in sorted(_sections(columns), key=lambda section: section[0]):
        length = sum(memoryview(part).nbytes for part in body)
        digest.update(struct.pack("<q", len(name)) + name + struct.pack("<q", length))
        for part in body:
            digest.update(part)
    return digest.hexdigest()


def _sections(columns: ChangeColumns) -> Iterator[tuple[bytes, Sequence[_Bytes]]]:
    letters = compute().utf8_slice_codeunits(columns.operations, 0, 1)
    yield _name("operation"), [_content(letters)]
    yield _name("sequence"), [_numbers(numbers) for numbers in columns.sequences]
    for (kind, name, value_type), cells in columns.values.items():
        yield _name(kind, name, value_type.value), [_numbers(cells.places), *_values(value_type, cells.values)]
    for name, cells in columns.versions.items():
        yield _name("version", name), [_numbers(cells.places), _numbers(cells.values)]
    for name, places in columns.deleted.items():
        yield _name("deleted", name), [_numbers(places)]
    for (kind, name), listed in columns.lists.items():
        yield _name(kind, name), _cells_body(listed, has_texts=kind != "deleted version")
    if len(columns.originals):
        yield _name("originals"), [_numbers(columns.originals)]


def _name(*parts: str) -> bytes:
    return json.dumps(parts, separators=(",", ":")).encode("ascii")


def _values(value_type: ColumnType, values: Array) -> Sequence[_Bytes]:
    pa, pc = pyarrow(), compute()
    if value_type is ColumnType.INTEGER:
        return [_numbers(values)]
    if value_type is ColumnType.DOUBLE:
        is_nan = pc.is_nan(values)
        if is_nan.true_count:
            quiet = pa.Array.from_buffers(pa.float64(), 1, [None, pa.py_buffer(_QUIET_NAN)])
            values = pc.if_else(is_nan, quiet[0], values)
        return [_numbers(values)]
    if value_type is ColumnType.BOOLEAN:
        return [_fixed(values.cast(pa.uint8()), 1)]
    return [_numbers(pc.binary_length(values).cast(pa.int64())), _content(values)]


def _numbers(values: Array) -> _Bytes:
    """Return the memory of 8-byte numbers, the lowest byte first."""
    content = _fixed(values, 8)
    if sys.byteorder == "little":
        return content
    numbers = array("q", bytes(content))
    numbers.byteswap()
    return numbers.tobytes()


def _fixed(values: Array, width: int) -> _Bytes:
    content = values.buffers()[1]
    return b"" if content is None else content.slice(values.offset * width, len(values) * width)


def _content(values: Array) -> _Bytes:
    """Return the concatenated bytes of all texts."""
    _, ends, content = values.buffers()
    if not len(values) or content is None:
        return b""
    start, end = (
        struct.unpack_from("=i", ends, 4 * place)[0] for place in (values.offset, values.offset + len(values))
    )
    return content.slice(start, end - start)


def _cells_body(cells: Sequence[Cell], *, has_texts: bool) -> Sequence[_Bytes]:
    body = [_numbers(integers(place for place, _, _ in cells)), _numbers(integers(version for _, version, _ in cells))]
    if not has_texts:
        return body
    texts = [text.encode() for _, _, text in cells]
    return [*body, _numbers(integers(map(len, texts))), b"".join(texts)]
