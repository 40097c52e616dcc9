r"""The digest of a commit's records, which is the same for equal records on every machine.

The digest depends only on the records. It does not depend on their division into pages, on the order of cells within a
record, on the types of the destination's columns, or on columns that were added later. So a worker can compute it from
the records that it reads, and a proof can compute it years later from the rows of the destination.

Records are sorted by their sequence, and records with equal sequences by their keys. A record may put several cells
into one column. The cell with the highest version has the *value*, and the other cells are *older*. The digest covers a
list of sections, each for one column and one type, so that it can be computed from whole columns of a table::

    "streamclient-records-1\n", number of records, then of each section, sorted by name: length, name, length, body

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
    ["originals"] places of the records that have a list of previous values, even an empty list

A number has 8 bytes, the lowest first. A place is the index of a record, from 0. If a cell has no version, the lowest
number (-2**63) stands for the version. INTEGER and DOUBLE values have 8 bytes (every NaN is the quiet NaN), and a
BOOLEAN value has one byte. STRING and BINARY values are the lengths of all values, followed by the bytes of all values.
A text is the type, a colon, and the value by ``column_types.text_of``. A section without places is left out. Within a
section, cells are sorted by place, then by version, then by text.
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
"""An input of the hash function: bytes, or the buffer of an Arrow array, which need not be copied."""


def records_digest(changes: Iterable[StreamRecord] | ChangeColumns) -> str:
    """Return the digest of one shard's records, as 64 hexadecimal digits. The records may have any order.

    Columns (``page_columns.columns_of_pages``) give the same digest as their records, with a fraction of the CPU time.
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
    """Return the bytes of an array of 8-byte numbers, with the lowest byte of each number first."""
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
    """Return the bytes of all texts or byte strings in ``values``, one after the other and without separators."""
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
