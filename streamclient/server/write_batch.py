"""The execution of one request's writes to one table.

Outside a transaction, each write stores a row and appends a record. Both happen under the same lock, so that the order
of records is the order of commits. In a transaction, the writes are only planned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from attrs import frozen

from streamclient.records import KeyValue, SequenceInfo
from streamclient.server import refusals
from streamclient.server.capacity import units
from streamclient.server.drafts import Draft
from streamclient.server.local_transactions import Transaction
from streamclient.server.server_state import ServerState
from streamclient.server.stored_rows import KeyNames, Rows, StoredRow, key_size
from streamclient.server.stored_streams import ShardLog, Stream
from streamclient.server.stored_tables import Table
from streamclient.server.writes import AnyWrite, PlainPut, WritePlan, cells_size, check_write, plan_write
from streamclient.wire import schema
from streamclient.wire.plainbuffer import Cell, Row, encode_row
from streamclient.wire.schema import ActionType, OperationType, ReturnType, RowExistenceExpectation

_ACTIONS: Mapping[OperationType, ActionType] = MappingProxyType(
    {
        OperationType.PUT: ActionType.PUT_ROW,
        OperationType.UPDATE: ActionType.UPDATE_ROW,
        OperationType.DELETE: ActionType.DELETE_ROW,
    }
)


@frozen
class WriteResult:
    """The result of writing one row, for the answer."""

    read_units: int
    write_units: int
    row: bytes | None
    """The PlainBuffer row that the request asks the server to return; ``None`` if it asks for no row."""


class WriteBatch:
    """The writes of one request to one table. Their rows share one time, and their records one sequence timestamp.

    In a transaction, the batch only adds the planned writes to the transaction.
    """

    def __init__(self, state: ServerState, table: Table, transaction: Transaction | None = None) -> None:
        self._state = state
        self._table = table
        self._transaction = transaction
        self._now_micros = state.clock.now_micros()
        self._stream: Stream | None = state.stream_of(table)
        self._timestamp_micros = 0 if self._stream is None else self._stream.next_timestamp(self._now_micros)
        self._row_index = 0
        self._may_hold_expired = True

    def execute(self, write: AnyWrite) -> WriteResult:
        """Execute the write of one row.

        Raises:
            ServiceError: the row does not fit the table, another transaction holds the row, or a condition of the
                write does not hold. Nothing was changed.
        """
        self._admit(write)
        self._check_size(write.size_bytes)
        if self._transaction is None:
            return self._take(self._plan(self._table.rows, self._state.last_generated, write))
        draft = self._transaction.draft
        plan = self._plan(draft.rows, self._state.last_generated, write)
        self._state.transactions.require_room(draft.memory_of(plan))
        return self._take(plan)

    def execute_all(self, writes: Sequence[AnyWrite]) -> list[WriteResult]:
        """Execute the writes of all rows, or none of them. Each write sees the results of the earlier writes.

        Raises:
            ServiceError: a row is refused; the error is the refusal of the first such row. Nothing was changed.
        """
        below = None if self._transaction is None else self._transaction.draft
        draft = Draft(self._table, None if below is None else below.rows, self._state.last_generated)
        for write in writes:
            self._admit(write)
            draft.add(self._plan(draft.rows, draft.last_generated, write))
        self._check_size(draft.size_bytes)
        if self._transaction is not None:
            self._state.transactions.require_room(draft.held_bytes)
        return [self._take(plan) for plan in draft.plans]

    def _plan(self, rows: Rows, last_generated: int, write: AnyWrite) -> WritePlan:
        plan = plan_write(
            self._table, rows, last_generated, write, self._now_micros, ahead_micros=self._state.ahead_micros
        )
        if plan.made is not None and plan.after is not None:  # a plain put cannot exceed the limit
            limit, size = self._state.limits.stored_row_bytes, self._table.size_of(plan.after)
            if size > limit:
                raise refusals.ROW_SIZE(limit=limit, size=size)
        return plan

    def apply(self, plans: Sequence[WritePlan]) -> None:
        """Execute the planned writes of a transaction, as one batch."""
        for plan in plans:
            self._apply(plan)

    def _admit(self, write: AnyWrite) -> None:
        check_write(self._table.definition, write, self._now_micros)
        if self._transaction is not None:
            self._transaction.check_scope(self._table, write.key)
        elif self._state.transactions.are_open and self._state.transactions.is_locked(
            self._table, write.key, self._now_micros
        ):
            raise refusals.ROW_CONFLICT()

    def _check_size(self, size_bytes: int) -> None:
        if self._transaction is None:
            return
        limit = self._state.limits.transaction_bytes
        if self._transaction.draft.size_bytes + size_bytes > limit:
            raise refusals.TRANSACTION_SIZE(limit=limit)

    def _take(self, plan: WritePlan) -> WriteResult:
        if self._transaction is None:
            self._apply(plan)
        else:
            self._state.transactions.add(self._transaction, plan)
        return WriteResult(_read_units(self._table, plan), units(plan.write.size_bytes), _returned(self._table, plan))

    def _apply(self, plan: WritePlan) -> None:
        state, table = self._state, self._table
        if plan.generated is not None:
            state.last_generated = plan.generated
        if self._stream is not None:
            self._record(self._stream, plan)
        if plan.after is None:
            state.delete_row(table, plan.encoded_key)
        else:
            state.put_row(table, plan.encoded_key, plan.after)

    def _record(self, stream: Stream, plan: WritePlan) -> None:
        """Append the stream record of a write. If the record has the whole row, keep the row only in the record."""
        if self._may_hold_expired:
            self._may_hold_expired = False
            self._state.forget_expired(stream)
        shard = stream.open_shards[self._table.partition_of(plan.encoded_key)]
        origin = _origin(self._table.key_names, stream.definition.origin_columns, plan.before)
        if isinstance(plan.write, PlainPut) and plan.after is not None and origin is None:
            size = plan.write.size_bytes
            element = self._put_element(plan.write, plan.after, shard)
        else:
            recorded = plan.recorded
            size = key_size(self._table.key_names, plan.key) + cells_size(recorded)
            element = self._element(plan, recorded, origin, shard)
            is_whole = plan.write.kind is OperationType.PUT and origin is None
            if is_whole and plan.after is not None and len(recorded) == plan.after.version_count:
                plan.after.keep_in(element)
        self._row_index += 1
        self._state.append(stream, shard, self._timestamp_micros, size, element)

    def _put_element(self, write: PlainPut, after: StoredRow, shard: ShardLog) -> bytes:
        element: bytes = write.put.record(
            after.written_millis, shard.definition.epoch, self._timestamp_micros, self._row_index
        )
        after.keep_in(element)
        return element

    def _element(self, plan: WritePlan, recorded: tuple[Cell, ...], origin: bytes | None, shard: ShardLog) -> bytes:
        row = Row(
            _named_key(self._table.key_names, plan.key),
            recorded,
            delete_marker=plan.write.kind is OperationType.DELETE,
            sequence=SequenceInfo(shard.definition.epoch, self._timestamp_micros, self._row_index),
        )
        message = schema.GetStreamRecordResponse()
        record: Any = message.stream_records.add(action_type=_ACTIONS[plan.write.kind], record=encode_row(row))
        if origin is not None:
            record.origin_record = origin
        return bytes(message.SerializeToString())


def _read_units(table: Table, plan: WritePlan) -> int:
    """Return the read units of a write; only its conditions cost read units.

    A condition on the row's existence reads the key. A condition on columns reads the whole row.
    """
    condition = plan.write.condition
    if condition.is_trivial:
        return 0
    if condition.column_filter is not None:
        return units(0 if plan.before is None else plan.before.size_bytes)
    if condition.expectation is not RowExistenceExpectation.IGNORE:
        return units(key_size(table.key_names, plan.key))
    return 0


def _named_key(names: KeyNames, key: tuple[KeyValue, ...]) -> tuple[tuple[str, KeyValue], ...]:
    return tuple(zip(names, key, strict=True))


def _newest(row: StoredRow, names: tuple[str, ...]) -> tuple[Cell, ...]:
    """Return the newest version of each column in ``names`` that the row has, ordered by name."""
    columns = row.columns
    return tuple(
        Cell(name, columns[name][0][1], timestamp_millis=columns[name][0][0])
        for name in sorted(set(names))
        if name in columns
    )


def _origin(names: KeyNames, origin_columns: tuple[str, ...], before: StoredRow | None) -> bytes | None:
    cells = () if before is None or not origin_columns else _newest(before, origin_columns)
    return encode_row(Row(_named_key(names, before.key), cells)) if before is not None and cells else None


def _returned(table: Table, plan: WritePlan) -> bytes | None:
    if plan.write.return_type is ReturnType.NONE:
        return None
    cells: tuple[Cell, ...] = ()
    if plan.write.return_type is ReturnType.AFTER_MODIFY and plan.after is not None:
        cells = _newest(plan.after, plan.write.return_columns)
    return encode_row(Row(_named_key(table.key_names, plan.key), cells))
