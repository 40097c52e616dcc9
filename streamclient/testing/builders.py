"""Records for tests, made from plain values: ``put``, ``update`` and ``delete``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from attrs import evolve

from streamclient.base import checks
from streamclient.errors import CodecError, ConfigurationError
from streamclient.records import (
    ColumnOperation,
    ColumnValue,
    KeyValue,
    PrimaryKey,
    RecordColumn,
    RecordType,
    SequenceInfo,
    StreamRecord,
)
from streamclient.server.server_errors import ServiceError
from streamclient.server.server_limits import DEFAULT_LIMITS
from streamclient.server.stored_tables import check_key_values
from streamclient.server.validation.message_frames import check_value
from streamclient.wire.plainbuffer import encode_value

RecordKey = KeyValue | Mapping[str, KeyValue]
"""A primary key: the value of the key column ``id``, or the values of all key columns by name, in key order."""

NO_PLACE = SequenceInfo(0, 0, 0)
"""The ``sequence_info`` of a record that is not in a stream."""

VERSION_MILLIS = 0
"""The version of every cell in the records of this module: a timestamp in milliseconds since 1970."""

_key_value = checks.Check(
    "an int, a str or bytes", lambda value: checks.is_whole(value) or isinstance(value, str | bytes)
)
_key = checks.Check(
    "the value of the key column id, or a mapping of one or more key columns",
    lambda value: bool(value) if isinstance(value, Mapping) else _key_value.fits(value),
)
_column_value = checks.Check(
    "an int, a float, a bool, a str or bytes", lambda value: isinstance(value, int | float | str | bytes)
)
_columns = checks.Check("a mapping of columns or None", lambda value: value is None or isinstance(value, Mapping))


def put(key: RecordKey, /, **values: ColumnValue) -> StreamRecord:
    """Return the record of a put that writes a row with the attribute columns ``values``.

    ``put("a", amount=12)`` has the key column ``id``; ``put({"shop": 7, "order": "a"}, amount=12)`` names its key
    columns. The record is not in a stream yet, so its ``sequence_info`` is zero until
    ``streamclient.testing.run`` sets it.

    Raises:
        ConfigurationError: Tablestore does not support the key or a value, or a column is also a key column.
    """
    return _record(RecordType.PUT, key, _cells(values))


def update(
    key: RecordKey,
    /,
    *,
    remove: Sequence[str] = (),
    before: Mapping[str, ColumnValue] | None = None,
    **values: ColumnValue,
) -> StreamRecord:
    """Return the record of an update that sets ``values`` and removes all versions of the columns ``remove``.

    Args:
        key: the primary key, in the forms that ``put`` takes.
        remove: the names of the removed columns.
        before: the old values of the origin columns, which are the columns whose old values the stream delivers;
            ``None`` if the stream delivers no old values.
        values: the new values by column.

    Raises:
        ConfigurationError: Tablestore does not support the key or a value, a column is also a key column, a column is
            both set and removed, or the update changes nothing.
    """
    checks.names.require("remove", remove)
    if both := values.keys() & set(remove):
        raise ConfigurationError(f"column {min(both)!r} is both set and removed; an update does one of the two")
    if not values and not remove:
        raise ConfigurationError("an update must set or remove a column: give values, or remove=[name]")
    removed = [RecordColumn(name, ColumnOperation.DELETE_ALL_VERSION) for name in remove]
    return _record(RecordType.UPDATE, key, (*_cells(values), *removed), before)


def delete(key: RecordKey, /, *, before: Mapping[str, ColumnValue] | None = None) -> StreamRecord:
    """Return the record of a row's deletion.

    Args:
        key: the primary key, in the forms that ``put`` takes.
        before: the old values of the origin columns, as for ``update``.

    Raises:
        ConfigurationError: Tablestore does not support the key or a value.
    """
    return _record(RecordType.DELETE, key, (), before)


def in_places(records: Iterable[StreamRecord]) -> list[StreamRecord]:
    """Return ``records`` as one shard would hold them: each with a ``sequence_info`` after its predecessor's.

    A record that already has a ``sequence_info`` keeps it. Any other record gets the microsecond after its
    predecessor's; the first record gets microsecond 1.

    Raises:
        ConfigurationError: one of ``records`` is not a record, or its ``sequence_info`` is not after its predecessor's.
    """
    placed: list[StreamRecord] = []
    last = SequenceInfo(1, 0, 0)
    for number, record in enumerate(records):
        place = _stream_record.require(f"records[{number}]", record).sequence_info
        if place == NO_PLACE:
            place = SequenceInfo(last.epoch, last.timestamp_micros + 1, 0)
        elif placed and place <= last:
            raise ConfigurationError(
                f"records[{number}] must be after its predecessor in the shard, but its sequence_info is {place} and "
                f"its predecessor's {last}; leave sequence_info out, or let it grow"
            )
        placed.append(evolve(record, sequence_info=place))
        last = place
    return placed


_stream_record = checks.Check(
    "a StreamRecord, as put, update and delete make it", lambda value: isinstance(value, StreamRecord)
)


def _record(
    kind: RecordType,
    key: RecordKey,
    columns: tuple[RecordColumn, ...],
    before: Mapping[str, ColumnValue] | None = None,
) -> StreamRecord:
    _columns.require("before", before)
    old = None if before is None else _cells(before)
    primary_key = _primary_key(key)
    names = {column.name for column in (*columns, *(old or ()))}
    if both := names & dict(primary_key).keys():
        raise ConfigurationError(f"column {min(both)!r} is a key column; give its value only in the key")
    return StreamRecord(kind, primary_key, columns, NO_PLACE, old)


def _primary_key(key: RecordKey) -> PrimaryKey:
    _key.require("key", key)
    columns = key if isinstance(key, Mapping) else {"id": key}
    return tuple(_key_column(name, value) for name, value in columns.items())


def _key_column(name: str, value: KeyValue) -> tuple[str, KeyValue]:
    checks.text.require("the name of a key column", name)
    _key_value.require(f"key column {name!r}", value)
    _require_writable(f"key column {name!r}", value, lambda: check_key_values(((name, value),), DEFAULT_LIMITS))
    return name, value


def _cells(values: Mapping[str, ColumnValue]) -> tuple[RecordColumn, ...]:
    return tuple(_cell(name, value) for name, value in values.items())


def _cell(name: str, value: ColumnValue) -> RecordColumn:
    checks.text.require("the name of a column", name)
    _column_value.require(f"column {name!r}", value)
    _require_writable(f"column {name!r}", value, lambda: check_value(name, value, DEFAULT_LIMITS))
    return RecordColumn(name, ColumnOperation.PUT, value, VERSION_MILLIS)


def _require_writable(column: str, value: ColumnValue, check: Callable[[], None]) -> None:
    """Raise ``ConfigurationError`` if the local Tablestore cannot write ``value``. ``check`` is its own check."""
    try:
        encode_value(value)
        check()
    except (CodecError, ServiceError) as error:
        why = error.message if isinstance(error, ServiceError) else error
        raise ConfigurationError(f"{column} cannot have the value {checks.shown(value)}: {why}") from error
