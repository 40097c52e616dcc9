"""One row write: from the condition through the row to the stream record.

``plan_write`` decides everything and changes nothing, so that an atomic batch can be judged before any of it is
applied. ``apply_plan`` then stores the row and appends the record, under the same lock: the order of records is the
order of commits.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, cast

from attrs import evolve, field, frozen

from streamclient.records import ColumnValue, KeyValue, SequenceInfo
from streamclient.server.capacity import units
from streamclient.server.conditions import Condition, check_condition
from streamclient.server.errors import invalid
from streamclient.server.keys import encode_key
from streamclient.server.limits import INT64_MAX
from streamclient.server.rows import (
    KeyNames,
    StoredRow,
    Version,
    Versions,
    alive,
    key_size,
    make_row,
    value_size,
)
from streamclient.server.state import ServerState
from streamclient.server.streams import StoredRecord, Stream
from streamclient.server.tables import Table, TableOptions, check_key
from streamclient.wire import schema
from streamclient.wire.plainbuffer import Cell, CellOperation, KeyBound, Row, encode_row
from streamclient.wire.schema import ActionType, OperationType, ReturnType, RowExistenceExpectation

_MILLIS_PER_SECOND = 1000

_ACTIONS: Mapping[OperationType, ActionType] = MappingProxyType(
    {
        OperationType.PUT: ActionType.PUT_ROW,
        OperationType.UPDATE: ActionType.UPDATE_ROW,
        OperationType.DELETE: ActionType.DELETE_ROW,
    }
)


@frozen
class RowWrite:
    """One validated row change, not yet compared with a table."""

    kind: OperationType
    key: tuple[tuple[str, KeyValue | KeyBound], ...]
    cells: tuple[Cell, ...] = ()
    condition: Condition = field(factory=Condition)
    return_type: ReturnType = ReturnType.NONE
    return_columns: tuple[str, ...] = ()
    size_bytes: int = field(init=False)
    """Size by the capacity rule; a key column yet to be generated counts as an integer."""

    @size_bytes.default
    def _size_bytes(self) -> int:
        key = (0 if isinstance(value, KeyBound) else value for _, value in self.key)
        return key_size((name for name, _ in self.key), key) + _cells_size(self.cells)

    @property
    def generates_key(self) -> bool:
        """Whether the key has a place that the service fills."""
        return any(value is KeyBound.AUTO_INCREMENT for _, value in self.key)


def _cells_size(cells: tuple[Cell, ...]) -> int:
    return sum(
        len(cell.name) + (0 if cell.value is None else value_size(cast(ColumnValue, cell.value))) for cell in cells
    )


@frozen
class Plan:
    """What a write will do."""

    write: RowWrite
    key: tuple[KeyValue, ...]
    encoded_key: bytes
    before: StoredRow | None
    after: StoredRow | None
    recorded: tuple[Cell, ...]
    """The cells of the stream record: puts with timestamps, deletions; increments as puts of their result."""
    generated: int | None
    """The AUTO_INCREMENT value, if this write makes one."""


@frozen
class Outcome:
    """What a write answers."""

    read_units: int
    write_units: int
    row: bytes | None
    """The row that was asked to be returned."""


class WriteBatch:
    """The rows of one request for one table: they share the moment and, in the stream, epoch and timestamp."""

    def __init__(self, state: ServerState, table: Table) -> None:
        self.state = state
        self.table = table
        self.now_micros = state.clock.now_micros()
        self.stream: Stream | None = state.stream_of(table)
        self.timestamp_micros = 0 if self.stream is None else self.stream.next_timestamp(self.now_micros)
        self.row_index = 0

    def execute(self, write: RowWrite) -> Outcome:
        """Plan and apply one row.

        Raises:
            ServiceError: the row does not fit the table, or its condition does not hold. Nothing was changed.
        """
        return apply_plan(self, self.plan(write))

    def plan(self, write: RowWrite) -> Plan:
        """What ``execute`` would do with the table as it is now."""
        return plan_write(self.table, write, self.now_micros)


def _check_generated(table: Table, write: RowWrite) -> None:
    """The rules of tables with an AUTO_INCREMENT key column."""
    if not any(column.auto_increment for column in table.definition.key):
        return
    if write.generates_key:
        if write.kind is OperationType.DELETE:
            raise invalid("PKAutoIncr can't be used for delete operations.")
        if not write.condition.is_trivial:
            raise invalid("Can't set condition when modify row with pk auto increment.")
    elif (
        write.kind is not OperationType.DELETE
        and write.condition.expectation is not RowExistenceExpectation.EXPECT_EXIST
    ):
        raise invalid(
            f"Invalid expect {write.condition.expectation.name} when modify a specific row for table with pk auto "
            "increment: it must be EXPECT_EXIST."
        )


def _check_timestamps(options: TableOptions, cells: tuple[Cell, ...], now_millis: int) -> None:
    deviation = options.deviation_seconds * _MILLIS_PER_SECOND
    earliest = now_millis - deviation
    if options.time_to_live_seconds >= 0:
        earliest = max(earliest, now_millis - options.time_to_live_seconds * _MILLIS_PER_SECOND)
    for cell in cells:
        given = cell.timestamp_millis
        if given is None or cell.operation is not CellOperation.PUT or earliest <= given < now_millis + deviation:
            continue
        raise invalid(
            f"The timestamp of column '{cell.name}' must be in range [{earliest}, {now_millis + deviation}), "
            f"but it is {given}."
        )


def plan_write(table: Table, write: RowWrite, now_micros: int) -> Plan:
    """Decide what a write does to the table as it is now.

    Raises:
        ServiceError: the row does not fit the table, or its condition does not hold.
    """
    definition = table.definition
    now_millis = now_micros // 1000
    check_key(definition, write.key)
    _check_generated(table, write)
    if write.kind is OperationType.UPDATE and not definition.options.allow_update:
        raise invalid("UpdateRow is not allowed: the table's option allow_update is false.")
    _check_timestamps(definition.options, write.cells, now_millis)
    generated = max(now_micros, definition.last_generated + 1) if write.generates_key else None
    key = tuple(cast(KeyValue, generated if isinstance(value, KeyBound) else value) for _, value in write.key)
    encoded = encode_key(key)
    before = alive(table.rows.get(encoded), table.key_names, table.expired_before_millis(now_micros))
    check_condition(write.condition, before)
    after, recorded = _after(write, key, before, table, now_millis)
    return Plan(write, key, encoded, before, after, recorded, generated)


def _after(
    write: RowWrite, key: tuple[KeyValue, ...], before: StoredRow | None, table: Table, now_millis: int
) -> tuple[StoredRow | None, tuple[Cell, ...]]:
    """The row after the write, and the cells to be recorded."""
    if write.kind is OperationType.DELETE:
        return None, ()
    names, max_versions = table.key_names, table.definition.options.max_versions
    if write.kind is OperationType.PUT:
        columns, recorded = _put(write.cells, now_millis, max_versions)
        return make_row(names, key, columns, now_millis), recorded
    columns = {} if before is None else dict(before.columns)
    recorded = _update(columns, write.cells, now_millis, max_versions)
    # Deletions alone do not bring a row into being, but they leave an existing one in being, without columns.
    exists = before is not None or any(cell.operation is CellOperation.PUT for cell in recorded)
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
    columns: dict[str, tuple[Version, ...]], cells: tuple[Cell, ...], now_millis: int, max_versions: int
) -> tuple[Cell, ...]:
    """Apply an update's cells in the request's order; the cells to be recorded, by column name.

    Cells of one column keep their order in the record, as "delete all, then put" is not "put, then delete all".
    """
    recorded = []
    changing: dict[str, Versions] = {}
    for cell in cells:
        versions = changing.get(cell.name)
        if versions is None:
            versions = changing[cell.name] = Versions(columns.get(cell.name, ()), max_versions)
        if cell.operation is CellOperation.INCREMENT:
            cell = _incremented(cell, versions, now_millis)  # noqa: PLW2901 - from here on it is the put it amounts to
        elif cell.operation is CellOperation.PUT and cell.timestamp_millis is None:
            cell = evolve(cell, timestamp_millis=now_millis)  # noqa: PLW2901 - the service dates what the client did not
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


def _incremented(cell: Cell, versions: Versions, now_millis: int) -> Cell:
    """An increment as the put of its result, never older than what it counts on from."""
    timestamp, current = versions.newest() or (0, 0)
    if isinstance(current, bool) or not isinstance(current, int):
        raise invalid(f"Increment needs an INTEGER column, but column '{cell.name}' holds another type.")
    result = current + cast(int, cell.value)
    if not -INT64_MAX - 1 <= result <= INT64_MAX:
        raise invalid(f"Increment of column '{cell.name}' overflows a 64-bit integer.")
    return Cell(cell.name, result, timestamp_millis=max(now_millis, timestamp))


def apply_plan(batch: WriteBatch, plan: Plan) -> Outcome:
    """Do what was planned: store the row, and append the record if the table has a stream."""
    state, table = batch.state, batch.table
    if plan.generated is not None:
        state.define(table, evolve(table.definition, last_generated=plan.generated))
    if plan.after is None:
        state.delete_row(table, plan.encoded_key)
    else:
        state.put_row(table, plan.encoded_key, plan.after)
    if batch.stream is not None:
        _record(batch, batch.stream, plan)
    read_units = 0 if plan.write.condition.is_trivial else units(plan.before.size_bytes if plan.before else 0)
    return Outcome(read_units, units(plan.write.size_bytes), _returned(table.key_names, plan))


def _named_key(names: KeyNames, key: tuple[KeyValue, ...]) -> tuple[tuple[str, KeyValue], ...]:
    return tuple(zip(names, key, strict=True))


def _record(batch: WriteBatch, stream: Stream, plan: Plan) -> None:
    partition = batch.table.partition_of(plan.encoded_key)
    epoch = stream.open_shards[partition].definition.epoch
    sequence = SequenceInfo(epoch, batch.timestamp_micros, batch.row_index)
    batch.row_index += 1
    names = batch.table.key_names
    row = Row(
        _named_key(names, plan.key),
        plan.recorded,
        delete_marker=plan.write.kind is OperationType.DELETE,
        sequence=sequence,
    )
    message = schema.GetStreamRecordResponse()
    record: Any = message.stream_records.add(action_type=_ACTIONS[plan.write.kind], record=encode_row(row))
    origin = _origin(names, stream.definition.origin_columns, plan.before)
    if origin is not None:
        record.origin_record = origin
    size = key_size(names, plan.key) + _cells_size(plan.recorded)
    batch.state.append(stream, partition, StoredRecord(batch.timestamp_micros, size, message.SerializeToString()))


def _newest(row: StoredRow, names: tuple[str, ...]) -> tuple[Cell, ...]:
    """The newest version of each named column that the row has, by name."""
    return tuple(
        Cell(name, row.columns[name][0][1], timestamp_millis=row.columns[name][0][0])
        for name in sorted(set(names))
        if name in row.columns
    )


def _origin(names: KeyNames, origin_columns: tuple[str, ...], before: StoredRow | None) -> bytes | None:
    cells = () if before is None or not origin_columns else _newest(before, origin_columns)
    return encode_row(Row(_named_key(names, before.key), cells)) if before is not None and cells else None


def _returned(names: KeyNames, plan: Plan) -> bytes | None:
    if plan.write.return_type is ReturnType.NONE:
        return None
    cells: tuple[Cell, ...] = ()
    if plan.write.return_type is ReturnType.AFTER_MODIFY and plan.after is not None:
        cells = _newest(plan.after, plan.write.return_columns)
    return encode_row(Row(_named_key(names, plan.key), cells))
