"""Records for tests, made from plain values: ``put``, ``update`` and ``delete``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from attrs import evolve

from streamclient.base import checks
from streamclient.errors import ConfigurationError
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

RecordKey = KeyValue | Mapping[str, KeyValue]
"""A primary key: the value of the key column ``id``, or the values of all key columns by name, in key order."""

NO_PLACE = SequenceInfo(0, 0, 0)
"""The ``sequence_info`` of a record that is not in a stream."""

VERSION_MILLIS = 0
"""The version of every cell that is made here."""

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
    """Return the record of a put: a row whose attribute columns are ``values``.

    ``put("a", amount=12)`` has the key column ``id``; ``put({"shop": 7, "order": "a"}, amount=12)`` names its key
    columns. The record is in no stream, so its ``sequence_info`` is zero; ``run`` gives it a place.

    Raises:
        ConfigurationError: Tablestore has no such key or value, or a column is a key column too.
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
        key: as for ``put``.
        remove: the names of the removed columns.
        before: the old values of the stream's origin columns; ``None`` if the stream delivers none.
        values: the new values by column.

    Raises:
        ConfigurationError: as from ``put``; or the update changes nothing, or sets and removes the same column.
    """
    checks.names.require("remove", remove)
    if both := values.keys() & set(remove):
        raise ConfigurationError(f"column {min(both)!r} is both set and removed; an update does one of the two")
    if not values and not remove:
        raise ConfigurationError("an update must set or remove a column: give values, or remove=[name]")
    removed = [RecordColumn(name, ColumnOperation.DELETE_ALL_VERSION) for name in remove]
    return _record(RecordType.UPDATE, key, (*_cells(values), *removed), before)


def delete(key: RecordKey, /, *, before: Mapping[str, ColumnValue] | None = None) -> StreamRecord:
    """Return the record of a deletion; ``key`` is as for ``put``, ``before`` as for ``update``.

    Raises:
        ConfigurationError: Tablestore has no such key or value.
    """
    return _record(RecordType.DELETE, key, (), before)


def in_places(records: Iterable[StreamRecord]) -> list[StreamRecord]:
    """Return ``records`` with places. A record without a place gets the place after its predecessor: 1, 2, 3 and so on.

    Raises:
        ConfigurationError: one of ``records`` is not a record, or has a place that is not after its predecessor's.
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
        raise ConfigurationError(f"column {min(both)!r} is a key column, whose value stands in the key alone")
    return StreamRecord(kind, primary_key, columns, NO_PLACE, old)


def _primary_key(key: RecordKey) -> PrimaryKey:
    _key.require("key", key)
    if not isinstance(key, Mapping):
        return (("id", key),)
    return tuple(
        (checks.text.require("the name of a key column", name), _key_value.require(f"key column {name!r}", value))
        for name, value in key.items()
    )


def _cells(values: Mapping[str, ColumnValue]) -> tuple[RecordColumn, ...]:
    return tuple(
        RecordColumn(
            checks.text.require("the name of a column", name),
            ColumnOperation.PUT,
            _column_value.require(f"column {name!r}", value),
            VERSION_MILLIS,
        )
        for name, value in values.items()
    )
