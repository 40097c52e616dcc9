"""The decision of one row write: from the condition to the new row and its record.

This module changes nothing. ``write_batch`` applies the plans. In an atomic batch or a local transaction, plans depend
on each other, and a ``Draft`` holds them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import cast

from attrs import field, frozen

from streamclient.base.times import MILLIS_PER_SECOND
from streamclient.records import ColumnValue, KeyValue
from streamclient.server import refusals
from streamclient.server.conditions import Condition, check_condition
from streamclient.server.keys import encode_key
from streamclient.server.server_limits import INT64_MAX
from streamclient.server.stored_rows import (
    VERSION_BYTES,
    Rows,
    StoredRow,
    Version,
    Versions,
    alive,
    changed_row,
    key_size,
    make_row,
    row_of_put,
    value_size,
)
from streamclient.server.stored_tables import Key, ServedTable, Table, TableOptions, check_key
from streamclient.wire.plainbuffer import Cell, CellOperation, KeyBound, decode_row
from streamclient.wire.puts import Columns, Put, all_cells
from streamclient.wire.schema import DefinedColumnType, OperationType, ReturnType, RowExistenceExpectation

_DEFINED_TYPES: Mapping[type, DefinedColumnType] = MappingProxyType(
    {
        int: DefinedColumnType.INTEGER,
        float: DefinedColumnType.DOUBLE,
        bool: DefinedColumnType.BOOLEAN,
        str: DefinedColumnType.STRING,
        bytes: DefinedColumnType.BLOB,
    }
)


@frozen
class RowWrite:
    """One validated row change, not yet compared with a table."""

    kind: OperationType
    key: Key
    cells: tuple[Cell, ...] = ()
    condition: Condition = field(factory=Condition)
    return_type: ReturnType = ReturnType.NONE
    return_columns: tuple[str, ...] = ()
    size_bytes: int = field(init=False)
    """The size in bytes from which capacity units are computed. A key column that the server will generate counts as an
    integer."""

    @size_bytes.default
    def _size_bytes(self) -> int:
        key = (0 if isinstance(value, KeyBound) else value for _, value in self.key)
        return key_size((name for name, _ in self.key), key) + cells_size(self.cells)

    @property
    def encoded_key(self) -> bytes:
        """The key in its sortable form. Use it only if the write does not generate its key."""
        return encode_key(value for _, value in self.key)

    @property
    def request_bytes(self) -> int:
        """The size in bytes by the rule for requests, which counts the timestamps that the client sent."""
        dated = sum(cell.timestamp_millis is not None for cell in self.cells)
        return self.size_bytes + VERSION_BYTES * dated

    @property
    def generates_key(self) -> bool:
        """Whether the service fills a column of the key."""
        return any(value is KeyBound.AUTO_INCREMENT for _, value in self.key)


class PlainPut:
    """A validated ``RowWrite`` that puts stored values, at most one per column, and returns nothing.

    Nearly all writes are of this kind, and are not decoded: the compiled reader has checked the request's bytes, and
    makes the row and its record of these bytes.
    """

    __slots__ = ("condition", "encoded_key", "put", "request_bytes", "size_bytes")

    kind = OperationType.PUT
    return_type = ReturnType.NONE
    return_columns: tuple[str, ...] = ()
    generates_key = False

    def __init__(self, put: Put, condition: Condition) -> None:
        self.put: Put = put
        self.condition: Condition = condition
        self.encoded_key: bytes = put.encoded_key
        self.size_bytes: int = put.size_bytes
        self.request_bytes: int = put.size_bytes + VERSION_BYTES * put.dated

    @property
    def key(self) -> Key:
        """The names and values of the key. Each access makes them again."""
        key: Key = self.put.key
        return key

    @property
    def cells(self) -> tuple[Cell, ...]:
        """The other cells, in the request's order. Each access makes them again."""
        return decode_row(self.put.frame).cells


AnyWrite = RowWrite | PlainPut


def cells_size(cells: tuple[Cell, ...]) -> int:
    """Return the bytes of the names and values of cells."""
    return sum(
        value_size(cell.name) + (0 if cell.value is None else value_size(cast(ColumnValue, cell.value)))
        for cell in cells
    )


@frozen
class WritePlan:
    """The effect of a write."""

    write: AnyWrite
    encoded_key: bytes
    before: StoredRow | None
    after: StoredRow | None
    made: tuple[Cell, ...] | None = None
    """The cells for the stream record; ``None`` for the whole row."""
    generated: int | None = None
    """The AUTO_INCREMENT value, if this write generates one."""

    @property
    def key(self) -> tuple[KeyValue, ...]:
        """The key's values, including a generated value."""
        return _key_values(self.write, self.generated)

    @property
    def recorded(self) -> tuple[Cell, ...]:
        """The cells of the stream record: puts with timestamps, and deletions.

        An increment becomes the put of its result.
        """
        if self.made is not None or self.after is None:
            return self.made or ()
        return all_cells(self.after.columns)


def _key_values(write: AnyWrite, generated: int | None) -> tuple[KeyValue, ...]:
    return tuple(cast(KeyValue, generated if isinstance(value, KeyBound) else value) for _, value in write.key)


def _check_generated(write: AnyWrite) -> None:
    """Check a write to a table with an AUTO_INCREMENT key column, as far as the check does not depend on the row."""
    expectation = write.condition.expectation
    if write.generates_key:
        if write.kind is OperationType.DELETE:
            raise refusals.GENERATED_DELETE()
        if expectation is not RowExistenceExpectation.IGNORE:
            raise refusals.GENERATED_EXPECTATION(given=expectation.name)
        if write.condition.column_filter is not None:
            raise refusals.GENERATED_CONDITION()
    elif write.kind is not OperationType.DELETE and expectation is RowExistenceExpectation.EXPECT_NOT_EXIST:
        raise refusals.GENERATED_ROW(given=expectation.name)


def _check_defined_types(definition: ServedTable, cells: tuple[Cell, ...]) -> None:
    """Refuse values whose type is not that of their declared attribute column."""
    for cell in cells:
        expected = definition.defined_types.get(cell.name)
        if expected is None or cell.value is None:
            continue
        given = _DEFINED_TYPES[type(cell.value)]
        if given != expected:
            raise refusals.DEFINED_VALUE(name=cell.name, expected=DefinedColumnType(expected).name, given=given.name)


def _check_timestamps(options: TableOptions, cells: tuple[Cell, ...], now_millis: int) -> None:
    deviation = options.deviation_seconds * MILLIS_PER_SECOND
    earliest = now_millis - deviation
    if options.time_to_live_seconds >= 0:
        earliest = max(earliest, now_millis - options.time_to_live_seconds * MILLIS_PER_SECOND)
    for cell in cells:
        given = cell.timestamp_millis
        if given is None or cell.operation is not CellOperation.PUT or earliest <= given < now_millis + deviation:
            continue
        raise refusals.CELL_DEVIATION(name=cell.name)


def check_write(definition: ServedTable, write: AnyWrite, now_micros: int) -> None:
    """Raise ``ServiceError`` unless the write fits the table. The rows of the table do not matter."""
    if not isinstance(write, PlainPut) or not write.put.has_form(definition.key_form):
        check_key(definition, write.key)
    if definition.generates_keys:
        _check_generated(write)
    if write.kind is OperationType.UPDATE and not definition.options.allow_update:
        raise refusals.UPDATE_NOT_ALLOWED()
    if isinstance(write, PlainPut) and not write.put.dated and not definition.defined_types:
        return  # the checks below concern given timestamps and declared types
    cells = write.cells
    _check_defined_types(definition, cells)
    _check_timestamps(definition.options, cells, now_micros // 1000)


def plan_write(
    table: Table, rows: Rows, last_generated: int, write: AnyWrite, now_micros: int, *, ahead_micros: int = 0
) -> WritePlan:
    """Decide which effect a write has on ``rows``. The write must fit the table.

    A wrong clock may have dated versions up to ``ahead_micros``; a new version is newer than they are.

    Raises:
        ServiceError: the condition does not hold, or the write cannot be applied to the present row.
    """
    generated = max(now_micros, last_generated + 1) if write.generates_key else None
    encoded = write.encoded_key if generated is None else encode_key(_key_values(write, generated))
    before = alive(rows.get(encoded), table.key_names, table.expired_before_millis(now_micros))
    if before is None and _names_generated_key(table.definition, write):
        raise refusals.CONDITION_FAILED()
    check_condition(write.condition, table.key_names, before)
    if isinstance(write, PlainPut):
        return WritePlan(write, encoded, before, row_of_put(write.put, now_micros // 1000))
    key = _key_values(write, generated)
    after, recorded = _after(
        write, key, before, table, now_millis=now_micros // 1000, ahead_millis=ahead_micros // 1000
    )
    return WritePlan(write, encoded, before, after, recorded, generated)


def _names_generated_key(definition: ServedTable, write: AnyWrite) -> bool:
    """Return whether a put or update names a generated key. Only the service generates keys, so the row must exist."""
    return definition.generates_keys and write.kind is not OperationType.DELETE and not write.generates_key


def _after(
    write: RowWrite,
    key: tuple[KeyValue, ...],
    before: StoredRow | None,
    table: Table,
    *,
    now_millis: int,
    ahead_millis: int,
) -> tuple[StoredRow | None, tuple[Cell, ...]]:
    """Return the row after the write, and the cells to record."""
    if write.kind is OperationType.DELETE:
        return None, ()
    names, max_versions = table.key_names, table.definition.options.max_versions
    if write.kind is OperationType.PUT:
        columns, recorded = _put(write.cells, now_millis, max_versions)
        return make_row(names, key, columns, now_millis), recorded
    old: Columns = {} if before is None else before.columns
    columns = dict(old)
    recorded = _update(columns, write.cells, now_millis, ahead_millis, max_versions)
    # Deletions alone do not create a row, but an existing row stays, without columns.
    if before is not None:
        return changed_row(before, old, columns, {cell.name for cell in recorded}, now_millis), recorded
    exists = any(cell.operation is CellOperation.PUT for cell in recorded)
    return (make_row(names, key, columns, now_millis) if exists else None), recorded


def _put(
    cells: tuple[Cell, ...], now_millis: int, max_versions: int
) -> tuple[dict[str, tuple[Version, ...]], tuple[Cell, ...]]:
    changing: dict[str, Versions] = {}
    for cell in cells:
        timestamp = now_millis if cell.timestamp_millis is None else cell.timestamp_millis
        changing.setdefault(cell.name, Versions()).put(timestamp, cast(ColumnValue, cell.value))
    columns = {name: versions.sorted() for name, versions in changing.items()}
    recorded = tuple(
        Cell(name, value, timestamp_millis=timestamp) for name in sorted(columns) for timestamp, value in columns[name]
    )
    return {name: versions[:max_versions] for name, versions in columns.items()}, recorded


def _update(
    columns: dict[str, tuple[Version, ...]],
    cells: tuple[Cell, ...],
    now_millis: int,
    ahead_millis: int,
    max_versions: int,
) -> tuple[Cell, ...]:
    """Apply an update's cells in the request's order; return the cells to record, by column name."""
    recorded = []
    changing: dict[str, Versions] = {}
    for cell in cells:
        versions = changing.get(cell.name)
        if versions is None:
            versions = changing[cell.name] = Versions(columns.get(cell.name, ()), max_versions)
        if cell.operation is CellOperation.INCREMENT:
            cell = _incremented(cell, versions, now_millis)  # noqa: PLW2901 - from here on it is the put it amounts to
        elif cell.operation is CellOperation.PUT and cell.timestamp_millis is None:
            dated = now_millis if ahead_millis <= now_millis else _newest_date(versions, now_millis, ahead_millis)
            cell = Cell(cell.name, cell.value, timestamp_millis=dated)  # noqa: PLW2901 - the service dates it
        if cell.operation is CellOperation.DELETE_ALL_VERSIONS:
            changing[cell.name] = Versions((), max_versions)
        elif cell.operation is CellOperation.DELETE_ONE_VERSION:
            versions.delete(cast(int, cell.timestamp_millis))
        else:
            versions.put(cast(int, cell.timestamp_millis), cast(ColumnValue, cell.value))
        recorded.append(cell)
    for name, left in changing.items():
        columns[name] = left.sorted()[:max_versions]
        if not columns[name]:
            del columns[name]
    recorded.sort(key=lambda cell: cell.name)
    return tuple(recorded)


def _newest_date(versions: Versions, now_millis: int, ahead_millis: int) -> int:
    """Return the present time.

    If a wrong clock has dated a version, return a later time: the new version must be the newest.
    """
    newest = versions.newest()
    if newest is None or not now_millis <= newest[0] <= ahead_millis:
        return now_millis
    return min(newest[0] + 1, ahead_millis)


def _incremented(cell: Cell, versions: Versions, now_millis: int) -> Cell:
    """Return an increment as the put of its result, which is never older than the version that it increments."""
    timestamp, current = versions.newest() or (0, 0)
    if isinstance(current, bool) or not isinstance(current, int):
        raise refusals.INCREMENT_COLUMN(name=cell.name)
    result = current + cast(int, cell.value)
    if not -INT64_MAX - 1 <= result <= INT64_MAX:
        raise refusals.INCREMENT_OVERFLOW(name=cell.name)
    return Cell(cell.name, result, timestamp_millis=max(now_millis, timestamp))
