r"""The digest of a commit's records: equal for equal records, whoever computes it, and from whatever layout.

It does not depend on how pages were cut, on the order of cells within a record, on the types of the columns that hold
the values, or on columns that came later. So it can be computed from the records that were read, and again, years
later, from the rows of the table.

Records are put in the order of their sequence; those with equal sequence in the order of their keys. Of the cells that
a record puts into one column, the one with the highest version is the *value*, the others are *older*. What is digested
is a list of sections, each for one column and one type, so that it can be made of whole columns of a table::

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
bytes. A text is the type, a colon, and the value as ``types.text_of`` writes it. Sections without a place are left
out. Within a section places ascend, then versions, then texts.
"""

from __future__ import annotations

import json
import math
import struct
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import sha256
from typing import Any

from streamclient.destinations.types import text_of, type_of
from streamclient.model import ColumnType
from streamclient.records import ColumnOperation, ColumnValue, PrimaryKey, RecordColumn, RecordType, StreamRecord

TITLE = b"streamclient-records-1\n"

NO_VERSION = -(2**63)
"""Stands for an absent version; real ones are milliseconds since 1970."""

_LETTERS = {RecordType.PUT: b"P", RecordType.UPDATE: b"U", RecordType.DELETE: b"D"}

Cell = tuple[int, int, str]
"""Place, version, text."""

_QUIET_NAN = struct.pack("<Q", 0x7FF8000000000000)


def in_order(records: Sequence[StreamRecord]) -> list[StreamRecord]:
    """Records in the order that the digest is defined over."""
    return sorted(records, key=lambda one: (one.sequence_info, _key_order(one.primary_key)))


def _key_order(key: PrimaryKey) -> tuple[tuple[str, str, str], ...]:
    return tuple((name, type_of(value).value, text_of(value)) for name, value in key)


def split_cells(columns: Iterable[RecordColumn]) -> tuple[dict[str, RecordColumn], list[RecordColumn]]:
    """The put cells of one record: the value of each column, and the older ones in the order of name and version."""
    values: dict[str, RecordColumn] = {}
    older: list[RecordColumn] = []
    for cell in columns:
        if cell.operation is not ColumnOperation.PUT:
            continue
        known = values.get(cell.name)
        if known is None:
            values[cell.name] = cell
        elif cell_order(cell) > cell_order(known):
            values[cell.name] = cell
            older.append(known)
        else:
            older.append(cell)
    return values, sorted(older, key=lambda one: (one.name, cell_order(one)))


def cell_order(cell: RecordColumn) -> tuple[int, str]:
    """Order of the cells of one column in one record."""
    return version_number(cell.timestamp_millis), typed_text(cell.value)


def version_number(version: int | None) -> int:
    """A version, or the number that stands for none."""
    return NO_VERSION if version is None else version


def typed_text(value: ColumnValue | None) -> str:
    """Type and text of a value in one; empty for none."""
    return "" if value is None else f"{type_of(value).value}:{text_of(value)}"


def records_digest(records: Sequence[StreamRecord]) -> str:
    """Digest of the records of one shard, as 64 hexadecimal letters. They may come in any order."""
    sections = _Sections()
    ordered = in_order(records)
    for place, record in enumerate(ordered):
        sections.add(place, record)
    digest = sha256(TITLE + struct.pack("<q", len(ordered)))
    for name, body in sorted(sections.bodies(ordered)):
        digest.update(struct.pack("<q", len(name)) + name + struct.pack("<q", len(body)))
        digest.update(body)
    return digest.hexdigest()


class _Sections:
    """Collects cells by section, record by record."""

    def __init__(self) -> None:
        self.values: dict[tuple[str, str, ColumnType], tuple[array[int], list[Any]]] = {}
        self.versions: dict[str, tuple[array[int], array[int]]] = {}
        self.deleted: dict[str, array[int]] = {}
        self.lists: dict[tuple[str, str], list[Cell]] = {}
        self.originals = array("q")

    def add(self, place: int, record: StreamRecord) -> None:
        for name, key in record.primary_key:
            self._value("key", name, place, key)
        values, older = split_cells(record.columns)
        for name, cell in values.items():
            if cell.value is not None:
                self._value("value", name, place, cell.value)
            places, versions = self.versions.setdefault(name, (array("q"), array("q")))
            places.append(place)
            versions.append(version_number(cell.timestamp_millis))
        if len(values) < len(record.columns):
            self._rest(place, record.columns, older)
        if record.original_columns is not None:
            self.originals.append(place)
            self._cells("original", place, record.original_columns)

    def _rest(self, place: int, columns: Iterable[RecordColumn], older: Iterable[RecordColumn]) -> None:
        self._cells("older", place, older)
        for cell in columns:
            if cell.operation is ColumnOperation.DELETE_ALL_VERSION:
                places = self.deleted.setdefault(cell.name, array("q"))
                if not places or places[-1] != place:
                    places.append(place)
            elif cell.operation is ColumnOperation.DELETE_ONE_VERSION:
                self._cells("deleted version", place, (cell,))

    def _value(self, kind: str, name: str, place: int, value: ColumnValue) -> None:
        places, values = self.values.setdefault((kind, name, type_of(value)), (array("q"), []))
        places.append(place)
        values.append(value)

    def _cells(self, kind: str, place: int, cells: Iterable[RecordColumn]) -> None:
        for cell in cells:
            entry = (place, version_number(cell.timestamp_millis), typed_text(cell.value))
            self.lists.setdefault((kind, cell.name), []).append(entry)

    def bodies(self, records: Sequence[StreamRecord]) -> Iterator[tuple[bytes, bytes]]:
        yield _name("operation"), b"".join(_LETTERS[one.record_type] for one in records)
        sequences = [one.sequence_info for one in records]
        numbers = [one.epoch for one in sequences]
        numbers += [one.timestamp_micros for one in sequences]
        yield _name("sequence"), _numbers(numbers + [one.row_index for one in sequences])
        for (kind, name, value_type), (places, values) in self.values.items():
            yield _name(kind, name, value_type.value), _numbers(places) + _BODIES[value_type](values)
        for name, (places, versions) in self.versions.items():
            yield _name("version", name), _numbers(places) + _numbers(versions)
        for name, places in self.deleted.items():
            yield _name("deleted", name), _numbers(places)
        for (kind, name), cells in self.lists.items():
            yield _name(kind, name), _cells_body(sorted(cells), has_texts=kind != "deleted version")
        if self.originals:
            yield _name("originals"), _numbers(self.originals)


def _name(*parts: str) -> bytes:
    return json.dumps(parts, separators=(",", ":")).encode("ascii")


def _numbers(values: Iterable[int]) -> bytes:
    numbers = array("q", values)
    if struct.pack("=q", 1) != struct.pack("<q", 1):
        numbers.byteswap()
    return numbers.tobytes()


def _texts(values: Sequence[bytes]) -> bytes:
    return _numbers(map(len, values)) + b"".join(values)


def _doubles(values: Sequence[float]) -> bytes:
    return b"".join(_QUIET_NAN if math.isnan(value) else struct.pack("<d", value) for value in values)


def _cells_body(cells: Sequence[Cell], *, has_texts: bool) -> bytes:
    body = _numbers(place for place, _, _ in cells) + _numbers(version for _, version, _ in cells)
    return body + _texts([text.encode() for _, _, text in cells]) if has_texts else body


_BODIES: dict[ColumnType, Callable[[Sequence[Any]], bytes]] = {
    ColumnType.INTEGER: _numbers,
    ColumnType.DOUBLE: _doubles,
    ColumnType.BOOLEAN: bytes,
    ColumnType.STRING: lambda values: _texts([value.encode() for value in values]),
    ColumnType.BINARY: _texts,
}
