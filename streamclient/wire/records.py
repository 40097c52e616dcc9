"""Stream records on the wire, behind one small interface.

``RecordCodec`` is all that the rest of the package knows; a faster codec takes the place of ``PurePythonCodec`` by
being returned from ``default_codec``.

What a record may hold is what the Java SDK accepts: a put has a value and a timestamp, a deletion of one
version has a timestamp, a deletion of all versions has neither, increments do not occur, DELETE has no cells.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NoReturn, Protocol

from attrs import frozen

from streamclient.errors import CodecError
from streamclient.records import (
    ColumnOperation,
    ColumnValue,
    KeyValue,
    RecordColumn,
    RecordType,
    SequenceInfo,
    StreamRecord,
)
from streamclient.wire import schema
from streamclient.wire._reader import READ_ERRORS, CellMaker, ParsedRow, as_codec_error, fail, read_row
from streamclient.wire._tags import HEADER
from streamclient.wire._writer import CellParts, write_row
from streamclient.wire.rows import CellOperation, KeyBound
from streamclient.wire.schema import ActionType


@frozen
class DecodedPage:
    """One GetStreamRecord response."""

    records: tuple[StreamRecord, ...]
    """Oldest first."""
    next_shard_iterator: str | None
    """``None`` (never empty) once the shard is closed and everything was read."""
    may_more_record: bool | None
    """The service's hint that more records wait; ``None`` where it gives none."""


class RecordCodec(Protocol):
    """Bytes to records and back. Implementations are stateless as seen from outside, and thread-safe."""

    def decode_page(self, body: bytes) -> DecodedPage:
        """Decode a GetStreamRecord response body; ``CodecError`` if any part is corrupt, and no record then."""

    def encode_record(self, record: StreamRecord) -> tuple[int, bytes, bytes | None]:
        """Encode for the message StreamRecord: action type, record, origin record."""


class PurePythonCodec:
    """The codec that always works, and the readable statement of what a faster one must do."""

    def decode_page(self, body: bytes) -> DecodedPage:
        """Decode a GetStreamRecord response body; ``CodecError`` if any part is corrupt, and no record then."""
        message = schema.parse(schema.GetStreamRecordResponse, body)
        records: list[StreamRecord] = []
        for entry in message.stream_records:
            try:
                records.append(decode_record(entry.action_type, entry.record, entry.origin_record))
            except CodecError as error:
                raise CodecError(
                    f"record {len(records)} of a page of {len(message.stream_records)}: {error}"
                ) from error
        return DecodedPage(
            tuple(records),
            message.next_shard_iterator or None,
            message.may_more_record if message.HasField("may_more_record") else None,
        )

    def encode_record(self, record: StreamRecord) -> tuple[int, bytes, bytes | None]:
        """Encode for the message StreamRecord: action type, record, origin record.

        Raises:
            CodecError: the record is none that a stream can hold, such as a put without timestamp.
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


_NO_SEQUENCE = SequenceInfo(0, 0, 0)
_PURE_PYTHON = PurePythonCodec()


def default_codec() -> RecordCodec:
    """The fastest codec that this installation has. The same object each time; safe to share between threads."""
    return _PURE_PYTHON


_ACTIONS = {
    RecordType.PUT: ActionType.PUT_ROW,
    RecordType.UPDATE: ActionType.UPDATE_ROW,
    RecordType.DELETE: ActionType.DELETE_ROW,
}
_OPERATION_NUMBERS = {
    ColumnOperation.PUT: CellOperation.PUT,
    ColumnOperation.DELETE_ONE_VERSION: CellOperation.DELETE_ONE_VERSION,
    ColumnOperation.DELETE_ALL_VERSION: CellOperation.DELETE_ALL_VERSIONS,
}


def decode_record(action_type: int, data: bytes, origin: bytes, *, needs_sequence: bool = True) -> StreamRecord:
    """One record of a page. Only rows of a tunnel's full data have no sequence information; theirs is all zero."""
    known = _DECODERS.get(action_type)
    if known is None:
        raise CodecError(
            f"action type {action_type} is unknown, expected 1 (PUT_ROW), 2 (UPDATE_ROW) or 3 (DELETE_ROW)"
        )
    record_type, make_column, may_have_marker = known
    key, columns, deleted, sequence, _ = _read_only_row(data, make_column, "the record")
    if not key:
        raise CodecError("a record without primary key, expected at least one key column")
    if deleted and not may_have_marker:
        raise CodecError(f"a {record_type.value} record with delete marker, expected one in DELETE records only")
    if sequence is None and needs_sequence:
        raise CodecError("a record without sequence information, expected the extension 0b before the checksum")
    originals = _decode_origin(origin, key) if origin else None
    return StreamRecord(record_type, _plain_key(key), tuple(columns), sequence or _NO_SEQUENCE, originals)


def _decode_origin(data: bytes, key: tuple[tuple[str, KeyValue | KeyBound], ...]) -> tuple[RecordColumn, ...]:
    """Previous cells; the key cells may be left out, but if present must be those of the record."""
    origin_key, columns, deleted, _, _ = _read_only_row(data, _put_column, "the origin record")
    if deleted or origin_key not in ((), key):
        raise CodecError(f"an origin record of key {origin_key!r}, expected {key!r} without delete marker")
    return tuple(columns)


def _read_only_row(data: bytes, make_column: CellMaker[RecordColumn], what: str) -> ParsedRow[RecordColumn]:
    if data[:4] != HEADER:
        fail(0, f"header {data[:4].hex(' ')} of {what}", HEADER.hex(" "))
    try:
        row = read_row(data, len(HEADER), make_column)
    except READ_ERRORS as error:
        raise as_codec_error(error, data, what) from error
    if row[4] != len(data):
        fail(row[4], f"{len(data) - row[4]} more bytes", f"the end of {what}: it holds exactly one row")
    return row


def _plain_key(key: tuple[tuple[str, KeyValue | KeyBound], ...]) -> tuple[tuple[str, KeyValue], ...]:
    plain: list[tuple[str, KeyValue]] = []
    for column in key:
        name, value = column
        if isinstance(value, KeyBound):
            raise CodecError(f"key column {name!r} = {value.name}, expected a stored value")
        plain.append((name, value))
    return tuple(plain)


def _bad_column(name: str, operation: int, found: str, expected: str) -> NoReturn:
    raise CodecError(f"column {name!r} with operation {operation} has {found}, expected {expected}")


def _put_column(name: str, value: ColumnValue | KeyBound | None, operation: int, timestamp: int | None) -> RecordColumn:
    if operation != 0 or value is None or isinstance(value, KeyBound) or timestamp is None or timestamp < 0:
        _refuse_put(name, value, operation, timestamp)
    return RecordColumn(name, ColumnOperation.PUT, value, timestamp)


def _refuse_put(name: str, value: ColumnValue | KeyBound | None, operation: int, timestamp: int | None) -> NoReturn:
    if operation != CellOperation.PUT:
        _bad_column(name, operation, "another operation than put", "puts only in PUT records and origin records")
    if value is None or isinstance(value, KeyBound):
        _bad_column(name, operation, f"value {value}", "an INTEGER, DOUBLE, BOOLEAN, STRING or BINARY")
    _bad_column(name, operation, f"timestamp {timestamp}", "one that is not negative")


def _updated_column(
    name: str, value: ColumnValue | KeyBound | None, operation: int, timestamp: int | None
) -> RecordColumn:
    if operation == CellOperation.PUT:
        return _put_column(name, value, operation, timestamp)
    if operation == CellOperation.INCREMENT:
        _bad_column(name, operation, "an increment", "a put of the result: streams hold no increments")
    if value is not None:
        _bad_column(name, operation, f"value {value!r}", "none: it deletes")
    if operation == CellOperation.DELETE_ALL_VERSIONS:
        if timestamp is not None:
            _bad_column(name, operation, f"timestamp {timestamp}", "none: it deletes all versions")
        return RecordColumn(name, ColumnOperation.DELETE_ALL_VERSION)
    if timestamp is None or timestamp < 0:
        _bad_column(name, operation, f"timestamp {timestamp}", "that of the deleted version")
    return RecordColumn(name, ColumnOperation.DELETE_ONE_VERSION, None, timestamp)


def _no_column(name: str, value: ColumnValue | KeyBound | None, operation: int, timestamp: int | None) -> RecordColumn:
    _bad_column(name, operation, "come with a DELETE record", "none")


_DECODERS: dict[int, tuple[RecordType, CellMaker[RecordColumn], bool]] = {
    ActionType.PUT_ROW: (RecordType.PUT, _put_column, False),
    ActionType.UPDATE_ROW: (RecordType.UPDATE, _updated_column, False),
    ActionType.DELETE_ROW: (RecordType.DELETE, _no_column, True),
}


def _cells(columns: Iterable[RecordColumn], *, puts_only: bool) -> Iterator[CellParts]:
    check = _put_column if puts_only else _updated_column
    for column in columns:
        operation = int(_OPERATION_NUMBERS[column.operation])
        check(column.name, column.value, operation, column.timestamp_millis)
        yield column.name, column.value, operation, column.timestamp_millis


def _encode_origin(record: StreamRecord) -> bytes | None:
    if record.original_columns is None:
        return None
    parts = [HEADER]
    write_row(parts, record.primary_key, _cells(record.original_columns, puts_only=True), False, None)
    return b"".join(parts)
