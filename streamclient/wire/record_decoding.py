"""The decoding and encoding of stream records.

Other modules use only the interface ``RecordCodec``. ``default_codec`` returns the compiled codec if this installation
has it. Otherwise it returns a codec in Python with the same results. ``docs/decisions/native-codec.md`` says how tests
keep the results of the two codecs equal.

The cells of a record have the form that the Java SDK defines. A put has a value and a timestamp. A deletion of one
version has only a timestamp. A deletion of all versions has no value and no timestamp. Increments do not occur, and a
DELETE record has no cells.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from attrs import frozen

from streamclient.errors import CodecError
from streamclient.records import (
    NATIVE,
    ColumnOperation,
    ColumnType,
    KeyValue,
    RecordColumn,
    RecordType,
    SequenceInfo,
    StreamRecord,
    record_of_cells,
)
from streamclient.wire import _tags as tags
from streamclient.wire import schema
from streamclient.wire._reader import READ_ERRORS, ParsedRow, RawCell, as_codec_error, fail, read_row
from streamclient.wire._tags import HEADER
from streamclient.wire._writer import CellParts, write_row
from streamclient.wire.columns import checked_schema, record_batch, value_batch
from streamclient.wire.page_parts import DecodedPage, PageRecords, PageSummary, Rows, TunnelPage
from streamclient.wire.plainbuffer import OPERATIONS, RowWrite, write_of
from streamclient.wire.rows import CellOperation, KeyBound
from streamclient.wire.schema import ActionType

if TYPE_CHECKING:
    from streamclient.wire._native import Page


@frozen
class _ReadRecords:
    """The content of a page that the codec in Python has decoded: its records, and their sizes in bytes."""

    _records: tuple[StreamRecord, ...]
    _sizes: tuple[int, ...]

    @property
    def record_count(self) -> int:
        return len(self._records)

    @property
    def disorder(self) -> int:
        places = [record.sequence_info for record in self._records]
        return next((row for row in range(1, len(places)) if places[row] <= places[row - 1]), 0)

    def record(self, row: int, /) -> StreamRecord:
        return self._records[row]

    def records(self, rows: Rows, /) -> Iterator[StreamRecord]:
        return map(self._records.__getitem__, rows)

    def sequence(self, row: int, /) -> SequenceInfo:
        return self._records[row].sequence_info

    def size(self, rows: Rows, /) -> int:
        return sum([self._sizes[row] for row in rows])

    def writes(self, rows: Rows, /) -> list[RowWrite]:
        return [write_of(self._records[row]) for row in rows]

    def arrow(self, schema: Mapping[str, ColumnType] | None, rows: Rows) -> Any:
        return record_batch(tuple(self.records(rows)), schema)

    def values(self, schema: Mapping[str, ColumnType], rows: Rows) -> Any | None:
        return value_batch(tuple(self.records(rows)), schema)


@frozen
class _NativePage:
    """The content of a page that the compiled codec has verified: the page's bytes, and an index of its cells."""

    _page: Page

    @property
    def record_count(self) -> int:
        return self._page.record_count

    @property
    def disorder(self) -> int:
        return self._page.disorder

    def record(self, row: int, /) -> StreamRecord:
        return self._page.record(row)

    def records(self, rows: Rows, /) -> Iterator[StreamRecord]:
        return self._page.records(rows)

    def sequence(self, row: int, /) -> SequenceInfo:
        return self._page.sequence(row)

    def size(self, rows: Rows, /) -> int:
        return self._page.size(rows)

    def writes(self, rows: Rows, /) -> list[RowWrite]:
        return self._page.writes(rows)

    def arrow(self, schema: Mapping[str, ColumnType] | None, rows: Rows) -> Any:
        columns = self._page.columns(None if schema is None else _numbered(schema), rows)
        if columns is None:  # ``record_batch`` raises an error that names the fault
            return record_batch(tuple(self.records(rows)), schema)
        return columns

    def values(self, schema: Mapping[str, ColumnType], rows: Rows) -> Any | None:
        return self._page.values(_numbered(schema), rows)


class RecordCodec(Protocol):
    """The interface of a codec, for decoding and encoding stream records. Codecs are thread-safe."""

    def decode_page(self, body: bytes) -> DecodedPage:
        """Decode the body of a GetStreamRecord response. If any part is corrupt, raise a ``CodecError``."""

    def summarize_page(self, body: bytes) -> PageSummary:
        """Count the records in the body of a GetStreamRecord response; decode only the last record.

        If the last record or the message around the records is corrupt, raise a ``CodecError``.
        """

    def decode_tunnel_page(self, body: bytes) -> TunnelPage:
        """Decode the body of a ReadRecords response. If any part is corrupt, raise a ``CodecError``."""

    def encode_record(self, record: StreamRecord) -> tuple[int, bytes, bytes | None]:
        """Encode a record; return the fields of the message StreamRecord: action type, record and origin record."""


class PurePythonCodec:
    """The codec in Python, which works in every installation. The compiled codec must have the same results."""

    def decode_page(self, body: bytes) -> DecodedPage:
        """Decode the body of a GetStreamRecord response. If any part is corrupt, raise a ``CodecError``."""
        message = schema.parse(schema.GetStreamRecordResponse, body)
        records = _read_entries(message.stream_records, needs_sequence=True)
        read_units = message.consumed.capacity_unit.read
        return DecodedPage(records, message.next_shard_iterator or None, _hint(message), read_units)

    def summarize_page(self, body: bytes) -> PageSummary:
        """Count the records in the body of a GetStreamRecord response; decode only the last record.

        If the last record or the message around the records is corrupt, raise a ``CodecError``.
        """
        message = schema.parse(schema.GetStreamRecordResponse, body)
        count = len(message.stream_records)
        records = _read_entries(message.stream_records[-1:], needs_sequence=True, before=max(0, count - 1))
        last = records.sequence_info(-1) if count else None
        return PageSummary(count, last, message.next_shard_iterator or None, _hint(message))

    def decode_tunnel_page(self, body: bytes) -> TunnelPage:
        """Decode the body of a ReadRecords response. If any part is corrupt, raise a ``CodecError``."""
        message = schema.parse(schema.ReadRecordsResponse, body)
        records = _read_entries(message.records, needs_sequence=False)
        return TunnelPage(records, message.next_token, _hint(message), len(body))

    def encode_record(self, record: StreamRecord) -> tuple[int, bytes, bytes | None]:
        """Encode a record; return the fields of the message StreamRecord: action type, record and origin record.

        Raises:
            CodecError: no stream can contain ``record``, for example because a put has no timestamp.
        """
        if not record.primary_key:
            raise CodecError(f"cannot encode {record}: a record needs a primary key")
        deletes = record.record_type is RecordType.DELETE
        if deletes and record.columns:
            raise CodecError(f"cannot encode {record}: a DELETE record has no columns")
        cells = _cells(record.columns, puts_only=record.record_type is RecordType.PUT)
        parts = [HEADER]
        write_row(parts, record.primary_key, cells, deletes, record.sequence_info)
        return int(_ACTIONS[record.record_type]), b"".join(parts), _encode_origin(record)


def _read_entries(entries: Any, *, needs_sequence: bool, before: int = 0) -> PageRecords:
    """Decode ``entries``, records of a page. ``before`` is the number of the page's records before ``entries``."""
    records: list[StreamRecord] = []
    sizes: list[int] = []
    try:
        for entry in entries:
            data, origin = entry.record, entry.origin_record
            records.append(decode_record(entry.action_type, data, origin, needs_sequence))
            sizes.append(len(data) + len(origin))
    except CodecError as error:
        place = before + len(records)
        raise CodecError(f"record {place} of a page of {before + len(entries)}: {error}") from error
    return PageRecords(_ReadRecords(tuple(records), tuple(sizes)))


def _hint(message: Any) -> bool | None:
    return message.may_more_record if message.HasField("may_more_record") else None


class NativeCodec(PurePythonCodec):
    """The compiled codec, which decodes pages many times faster than the codec in Python.

    The compiled code declines pages that are faulty, or valid but unusual. For these pages, this class calls the codec
    in Python, so only that codec needs error texts (see docs/decisions/native-codec.md).
    """

    def __init__(self, native: Any) -> None:
        self._codec = native.Codec(tuple(RecordType), tuple(ColumnOperation))

    def decode_page(self, body: bytes) -> DecodedPage:
        """Decode the body of a GetStreamRecord response. If any part is corrupt, raise a ``CodecError``."""
        page = self._codec.decode(bytes(body), False)
        if page is None:
            return super().decode_page(body)
        return DecodedPage(PageRecords(_NativePage(page)), page.next or None, page.may_more_record, page.read_units)

    def summarize_page(self, body: bytes) -> PageSummary:
        """Count the records in the body of a GetStreamRecord response; decode only the last record.

        If the last record or the message around the records is corrupt, raise a ``CodecError``.
        """
        found = self._codec.summarize(bytes(body))
        if found is None:
            return super().summarize_page(body)
        count, page = found
        return PageSummary(count, page.sequence(0) if count else None, page.next or None, page.may_more_record)

    def decode_tunnel_page(self, body: bytes) -> TunnelPage:
        """Decode the body of a ReadRecords response. If any part is corrupt, raise a ``CodecError``."""
        page = self._codec.decode(bytes(body), True)
        if page is None:
            return super().decode_tunnel_page(body)
        return TunnelPage(PageRecords(_NativePage(page)), page.next, page.may_more_record, len(body))


_NO_SEQUENCE = SequenceInfo(0, 0, 0)
_TYPE_NUMBERS = {
    ColumnType.INTEGER: tags.TYPE_INTEGER,
    ColumnType.DOUBLE: tags.TYPE_DOUBLE,
    ColumnType.BOOLEAN: tags.TYPE_BOOLEAN,
    ColumnType.STRING: tags.TYPE_STRING,
    ColumnType.BINARY: tags.TYPE_BLOB,
}


def _numbered(schema: Mapping[str, ColumnType]) -> tuple[tuple[str, int], ...]:
    return tuple((name, _TYPE_NUMBERS[kind]) for name, kind in checked_schema(schema).items())


_CODEC = PurePythonCodec() if NATIVE is None else NativeCodec(NATIVE)


def default_codec() -> RecordCodec:
    """Return the fastest codec of this installation. All calls return the same object, which threads may share."""
    return _CODEC


def writes_of(records: Sequence[StreamRecord]) -> list[RowWrite]:
    """Return for each record the write that repeats the record's change in another table.

    If ``records`` is a ``PageRecords``, the function makes no record objects.
    """
    return records.writes() if isinstance(records, PageRecords) else [write_of(record) for record in records]


_ACTIONS = {kind: ActionType[f"{kind.name}_ROW"] for kind in RecordType}
_RECORD_TYPES = {int(action): record_type for record_type, action in _ACTIONS.items()}
_OPERATIONS = {int(number): operation for operation, number in OPERATIONS.items()}


def decode_record(action_type: int, data: bytes, origin: bytes, needs_sequence: bool) -> StreamRecord:
    """Decode one record of a page, where ``data`` is its row, and ``origin`` has the row's cells before the change.

    If ``needs_sequence`` is false, the row may lack sequence information, as rows of a tunnel's full data do. The
    record then gets sequence information with zeros.
    """
    record_type = _RECORD_TYPES.get(action_type)
    if record_type is None:
        raise CodecError(
            f"action type {action_type} is unknown, expected 1 (PUT_ROW), 2 (UPDATE_ROW) or 3 (DELETE_ROW)"
        )
    key, cells, deleted, sequence, _, is_plain = _read_only_row(data, "the record")
    if not is_plain or record_type is RecordType.DELETE:
        _check_cells(cells, _CHECKS[record_type])
        _check_key(key)
    if not key:
        raise CodecError("a record without primary key, expected at least one key column")
    if deleted and record_type is not RecordType.DELETE:
        raise CodecError(f"a {record_type.value} record with delete marker, expected one in DELETE records only")
    if sequence is None and needs_sequence:
        raise CodecError("a record without sequence information, expected the extension 0b before the checksum")
    originals = _decode_origin(origin, key) if origin else None
    plain_key: Any = key  # the key has no KeyBound, because is_plain is true or _check_key has passed
    return record_of_cells(record_type, plain_key, cells, sequence or _NO_SEQUENCE, originals, make=_columns)


def _decode_origin(data: bytes, key: tuple[tuple[str, KeyValue | KeyBound], ...]) -> tuple[RecordColumn, ...]:
    """Decode the row ``data``, which has the cells before a change. The row's key must be ``key`` or missing."""
    origin_key, cells, deleted, _, _, _ = _read_only_row(data, "the origin record")
    _check_cells(cells, _check_put)
    if deleted or origin_key not in ((), key):
        raise CodecError(f"an origin record of key {origin_key!r}, expected {key!r} without delete marker")
    return _columns(cells)


def _read_only_row(data: bytes, what: str) -> ParsedRow:
    if data[:4] != HEADER:
        fail(0, f"header {data[:4].hex(' ')} of {what}", HEADER.hex(" "))
    try:
        row = read_row(data, len(HEADER))
    except READ_ERRORS as error:
        raise as_codec_error(error, data, what) from error
    if row[4] != len(data):
        fail(row[4], f"{len(data) - row[4]} more bytes", f"the end of {what}: it holds exactly one row")
    return row


def _columns(cells: Iterable[tuple[str, Any, int, int | None]]) -> tuple[RecordColumn, ...]:
    return tuple([RecordColumn(name, _OPERATIONS[number], value, stamp) for name, value, number, stamp in cells])


def _check_key(key: tuple[tuple[str, KeyValue | KeyBound], ...]) -> None:
    for name, value in key:
        if isinstance(value, KeyBound):
            raise CodecError(f"key column {name!r} = {value.name}, expected a stored value")


def _bad_column(name: str, operation: int, found: str, expected: str) -> NoReturn:
    raise CodecError(f"column {name!r} with operation {operation} has {found}, expected {expected}")


def _check_cells(cells: Iterable[RawCell], check: Check) -> None:
    """Raise ``CodecError`` if a record must not have one of its ``cells``, by the ``check`` for the record's type.

    Most cells are puts with a timestamp. The loop itself checks these cells, and calls ``check`` only for others.
    """
    for name, value, operation, timestamp in cells:
        if operation or timestamp is None or timestamp < 0 or value.__class__ is KeyBound or check is _check_none:
            check(name, value, operation, timestamp)


def _check_put(name: str, value: object, operation: int, timestamp: int | None) -> None:
    if operation != CellOperation.PUT:
        _bad_column(name, operation, "another operation than put", "only puts in PUT records and origin records")
    if value is None or isinstance(value, KeyBound):
        _bad_column(name, operation, f"value {value}", "an INTEGER, DOUBLE, BOOLEAN, STRING or BINARY")
    if timestamp is None or timestamp < 0:
        _bad_column(name, operation, f"timestamp {timestamp}", "one that is not negative")


def _check_update(name: str, value: object, operation: int, timestamp: int | None) -> None:
    if operation == CellOperation.PUT:
        _check_put(name, value, operation, timestamp)
        return
    if operation == CellOperation.INCREMENT:
        _bad_column(name, operation, "an increment", "a put of the result: streams hold no increments")
    if value is not None:
        _bad_column(name, operation, f"value {value!r}", "none: it deletes")
    if operation == CellOperation.DELETE_ALL_VERSIONS:
        if timestamp is not None:
            _bad_column(name, operation, f"timestamp {timestamp}", "none: it deletes all versions")
    elif timestamp is None or timestamp < 0:
        _bad_column(name, operation, f"timestamp {timestamp}", "that of the deleted version")


def _check_none(name: str, value: object, operation: int, timestamp: int | None) -> None:
    _bad_column(name, operation, "come with a DELETE record", "none")


Check = Callable[[str, object, int, "int | None"], None]
"""A function for one type of records, such as PUT. It raises ``CodecError`` if records of this type must not have a
given cell. Its arguments are the cell's name, value, operation and timestamp."""

_CHECKS: dict[RecordType, Check] = {
    RecordType.PUT: _check_put,
    RecordType.UPDATE: _check_update,
    RecordType.DELETE: _check_none,
}


def _cells(columns: Iterable[RecordColumn], *, puts_only: bool) -> Iterator[CellParts]:
    check = _check_put if puts_only else _check_update
    for column in columns:
        operation = int(OPERATIONS[column.operation])
        check(column.name, column.value, operation, column.timestamp_millis)
        yield column.name, column.value, operation, column.timestamp_millis


def _encode_origin(record: StreamRecord) -> bytes | None:
    if record.original_columns is None:
        return None
    parts = [HEADER]
    write_row(parts, record.primary_key, _cells(record.original_columns, puts_only=True), False, None)
    return b"".join(parts)
