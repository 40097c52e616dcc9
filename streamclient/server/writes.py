"""The planning of the write of one row: the check of its conditions, the new row, and the stream record.

This module changes no stored data. ``write_batch`` applies the plans. In an atomic batch or a local transaction, plans
depend on each other, and a ``Draft`` collects them.
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
from streamclient.server.work import CELL_WORK, ROW_COLUMN_WORK, pay
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
    """The write of one row as a validated request asks for it, not yet checked against the table."""

    kind: OperationType
    key: Key
    cells: tuple[Cell, ...] = ()
    condition: Condition = field(factory=Condition)
    return_type: ReturnType = ReturnType.NONE
    return_columns: tuple[str, ...] = ()
    size_bytes: int = field(init=False)
    """The size in bytes from which capacity units are computed. An AUTO_INCREMENT column that the server will fill
    counts as an integer."""

    @size_bytes.default
    def _size_bytes(self) -> int:
        key = (0 if isinstance(value, KeyBound) else value for _, value in self.key)
        return key_size((name for name, _ in self.key), key) + cells_size(self.cells)

    @property
    def encoded_key(self) -> bytes:
        """The encoded key. Use it only if ``generates_key`` is false."""
        return encode_key(value for _, value in self.key)

    @property
    def request_bytes(self) -> int:
        """The size in bytes that counts for the limits on requests. It includes the timestamps that the client sent."""
        dated = sum(cell.timestamp_millis is not None for cell in self.cells)
        return self.size_bytes + VERSION_BYTES * dated

    @property
    def generates_key(self) -> bool:
        """Whether the server fills an AUTO_INCREMENT column of the key."""
        return any(value is KeyBound.AUTO_INCREMENT for _, value in self.key)


class PlainPut:
    """A validated put in its usual form, with the attributes of a ``RowWrite``.

    Such a put has at most one value for each column and returns no row. Nearly all writes have this form. The server
    does not decode the put: ``puts.read_put`` has checked its bytes, and ``put`` makes the row and the stream record
    from these bytes.
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
        """The names and values of the key. Each access decodes them."""
        key: Key = self.put.key
        return key

    @property
    def cells(self) -> tuple[Cell, ...]:
        """The cells of attribute columns, in the request's order. Each access decodes them."""
        return decode_row(self.put.frame).cells


AnyWrite = RowWrite | PlainPut


def cells_size(cells: tuple[Cell, ...]) -> int:
    """Return the total size in bytes of the names and values of cells."""
    return sum(
        value_size(cell.name) + (0 if cell.value is None else value_size(cast(ColumnValue, cell.value)))
        for cell in cells
    )


@frozen
class WritePlan:
    """The planned effect of one write: the row before it, the row after it, and the cells for the stream record."""

    write: AnyWrite
    encoded_key: bytes
    before: StoredRow | None
    after: StoredRow | None
    made: tuple[Cell, ...] | None = None
    """The cells for the stream record; ``None`` if the record has all cells of the row after the write."""
    generated: int | None = None
    """The AUTO_INCREMENT value that this write generates; ``None`` if it generates no value."""

    @property
    def key(self) -> tuple[KeyValue, ...]:
        """The key's values, including a generated value."""
        return _key_values(self.write, self.generated)

    @property
    def recorded(self) -> tuple[Cell, ...]:
        """The cells for the stream record: puts with timestamps, and deletions.

        An increment is recorded as a put of its result.
        """
        if self.made is not None or self.after is None:
            return self.made or ()
        return all_cells(self.after.columns)


def _key_values(write: AnyWrite, generated: int | None) -> tuple[KeyValue, ...]:
    return tuple(cast(KeyValue, generated if isinstance(value, KeyBound) else value) for _, value in write.key)


def _check_generated(write: AnyWrite) -> None:
    """Raise ``ServiceError`` if a write to a table with an AUTO_INCREMENT key column can never succeed.

    The checks do not depend on stored rows. If the server must generate the column's value, the write must not be a
    delete, and must not have a condition. If a put or update gives the value itself, it must not expect that the row is
    absent.
    """
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
    """Raise ``ServiceError`` if a value does not have the type that the table declares for its column."""
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
    """Raise ``ServiceError`` if the write does not fit the table's definition. This check ignores stored rows."""
    if not isinstance(write, PlainPut) or not write.put.has_form(definition.key_form):
        check_key(definition, write.key)
    if definition.generates_keys:
        _check_generated(write)
    if write.kind is OperationType.UPDATE and not definition.options.allow_update:
        raise refusals.UPDATE_NOT_ALLOWED()
    if isinstance(write, PlainPut) and not write.put.dated and not definition.defined_types:
        return  # the checks below are only for given timestamps and declared types
    cells = write.cells
    _check_defined_types(definition, cells)
    _check_timestamps(definition.options, cells, now_micros // 1000)


def plan_write(
    table: Table, rows: Rows, last_generated: int, write: AnyWrite, now_micros: int, *, ahead_micros: int = 0
) -> WritePlan:
    """Return the planned effect of a write on ``rows``. The write must have passed ``check_write``.

    ``last_generated`` is the highest AUTO_INCREMENT value up to now; a generated value is higher. ``ahead_micros`` is
    the latest time that a wrong clock may have given to stored versions. The new version of an updated column is
    always the newest version.

    Raises:
        ServiceError: a condition does not hold, or the write cannot be applied to the present row.
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
    """Return whether a put or update gives the value of an AUTO_INCREMENT column itself.

    Such a write is refused if its row does not exist, because only the server generates new values.
    """
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
    """Return the row after the write, and the cells for the stream record. The row is ``None`` if it does not exist."""
    if write.kind is OperationType.DELETE:
        return None, ()
    names, max_versions = table.key_names, table.definition.options.max_versions
    if write.kind is OperationType.PUT:
        put, recorded = _put(write.cells, now_millis, max_versions)
        return make_row(names, key, put, now_millis), recorded
    columns: dict[str, tuple[Version, ...]] = {}
    if before is not None:
        old = before.columns
        _pay_for_columns(old, before.version_count, write.cells)
        columns = dict(old)
    changing, recorded = _update(columns, write.cells, now_millis, ahead_millis, max_versions)
    more_bytes, more_versions = _replace(columns, changing)
    # Deletions of columns do not create a row. But if they delete all columns of an existing row, the row stays.
    if before is not None:
        return changed_row(before, columns, now_millis, more_bytes=more_bytes, more_versions=more_versions), recorded
    exists = any(cell.operation is CellOperation.PUT for cell in recorded)
    return (make_row(names, key, columns, now_millis) if exists else None), recorded


def _pay_for_columns(columns: Columns, version_count: int, cells: tuple[Cell, ...]) -> None:
    """Charge an update for the columns of its row, and for the versions of the columns that ``cells`` change.

    The row after the update has a copy of them. Their number may be far larger than the request. ``version_count`` is
    the number of all versions of the row. Usual numbers cost nothing, because they are paid with the cells.
    """
    paid = CELL_WORK * len(cells) - ROW_COLUMN_WORK * len(columns)
    if version_count <= paid:
        return
    versions = sum(len(columns.get(name, ())) for name in {cell.name for cell in cells})
    if versions > paid:
        what = "An update of a row with %d columns, which changes columns with %d versions"
        pay(versions - paid, what, len(columns), versions)


def _replace(columns: dict[str, tuple[Version, ...]], changing: Mapping[str, Versions]) -> tuple[int, int]:
    """Put the changed columns into ``columns``; return the changes of the row's size and of its number of versions."""
    more_bytes = more_versions = 0
    for name, versions in changing.items():
        columns[name] = versions.sorted()
        if not columns[name]:
            del columns[name]
        more_bytes += versions.more_bytes + versions.more_versions * value_size(name)
        more_versions += versions.more_versions
    return more_bytes, more_versions


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
    columns: Columns, cells: tuple[Cell, ...], now_millis: int, ahead_millis: int, max_versions: int
) -> tuple[dict[str, Versions], tuple[Cell, ...]]:
    """Return the changed versions of each column that an update's cells name, and the cells to record.

    Apply the cells in the request's order. The recorded cells are ordered by name.
    """
    recorded = []
    changing: dict[str, Versions] = {}
    for cell in cells:
        versions = changing.get(cell.name)
        if versions is None:
            versions = changing[cell.name] = Versions(columns.get(cell.name, ()), max_versions, len(cells))
        if cell.operation is CellOperation.INCREMENT:
            cell = _incremented(cell, versions, now_millis)  # noqa: PLW2901 - now the put of the result
        elif cell.operation is CellOperation.PUT and cell.timestamp_millis is None:
            dated = now_millis if ahead_millis <= now_millis else _newest_date(versions, now_millis, ahead_millis)
            cell = Cell(cell.name, cell.value, timestamp_millis=dated)  # noqa: PLW2901 - as the service does
        if cell.operation is CellOperation.DELETE_ALL_VERSIONS:
            versions.delete_all()
        elif cell.operation is CellOperation.DELETE_ONE_VERSION:
            versions.delete(cast(int, cell.timestamp_millis))
        else:
            versions.put(cast(int, cell.timestamp_millis), cast(ColumnValue, cell.value))
        recorded.append(cell)
    recorded.sort(key=lambda cell: cell.name)
    return changing, tuple(recorded)


def _newest_date(versions: Versions, now_millis: int, ahead_millis: int) -> int:
    """Return the timestamp for a new version of a column: normally the present time.

    If a wrong clock gave the newest version a later timestamp, return the next millisecond after that timestamp, but at
    most ``ahead_millis``. So the new version becomes the newest version, or replaces the newest version.
    """
    newest = versions.newest()
    if newest is None or not now_millis <= newest[0] <= ahead_millis:
        return now_millis
    return min(newest[0] + 1, ahead_millis)


def _incremented(cell: Cell, versions: Versions, now_millis: int) -> Cell:
    """Return the cell that an increment stores: a put of the result.

    The timestamp of the cell is not before the timestamp of the incremented version.

    Raises:
        ServiceError: the column's newest value is not an INTEGER, or the result needs more than 64 bits.
    """
    timestamp, current = versions.newest() or (0, 0)
    if isinstance(current, bool) or not isinstance(current, int):
        raise refusals.INCREMENT_COLUMN(name=cell.name)
    result = current + cast(int, cell.value)
    if not -INT64_MAX - 1 <= result <= INT64_MAX:
        raise refusals.INCREMENT_OVERFLOW(name=cell.name)
    return Cell(cell.name, result, timestamp_millis=max(now_millis, timestamp))
