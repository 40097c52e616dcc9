"""Rows of the status table: the stored form of a lease, and the condition and columns of a write.

Only this module names the columns that the Java client knows. The layout is the same as in the Java stream client
(``ShardLeaseSerializer``), so that workers of both languages share one table. This package adds its own columns to that
layout (``own_columns``). Laws:

* a row is written whole once, by create; every other write changes only some columns, and is refused if the row is
  absent. So no write can leave a row with fewer than the five columns that the Java client needs;
* cells never carry a timestamp: the service's own clock stamps them, and tools read the stamp as the last heartbeat;
* a row that cannot be read, such as a row of a later version, is left out and stays unchanged; it never fails the scan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from attrs import frozen
from tablestore import (
    INF_MAX,
    INF_MIN,
    ComparatorType,
    CompositeColumnCondition,
    Condition,
    DeleteRowItem,
    LogicalOperator,
    PutRowItem,
    Row,
    RowExistenceExpectation,
    SingleColumnCondition,
    UpdateRowItem,
)

from streamclient.base.reasons import counted
from streamclient.core.leases import LeaseWrite
from streamclient.core.write_rules import RowT, Write, WriteKind
from streamclient.model import Lease
from streamclient.tablestore.own_table import TablePurpose
from streamclient.worker.lease.own_columns import OWN_CELLS, OWN_COLUMNS, read_own

STREAM_ID = "StreamId"
STATUS_TYPE = "StatusType"
STATUS_VALUE = "StatusValue"
LEASE_STATUS_TYPE = "LeaseKey"
"""The ``StatusType`` of every lease row. Rows of other types have another purpose."""

EPOCH_STATUS_TYPE = "ShardEpoch"
"""The ``StatusType`` of the rows that count acquisitions. The Java client reads and deletes only lease rows."""

KEY_SCHEMA = ((STREAM_ID, "STRING"), (STATUS_TYPE, "STRING"), (STATUS_VALUE, "STRING"))
STATUS_TABLE = TablePurpose(
    "status table", "be the status table", "the progress of idle streams", KEY_SCHEMA, is_updated=True
)
"""The purpose of the status table: its key columns with their types, and the words for the table in messages."""

COUNTER = "LeaseCounter"
OWNER = "LeaseOwner"
STEALER = "LeaseStealer"
CHECKPOINT = "Checkpoint"
PARENTS = "ParentShardIds"

COLUMN_TYPES: dict[str, type] = {COUNTER: int, OWNER: str, STEALER: str, CHECKPOINT: str, PARENTS: str}
"""The five attribute columns of every lease row, as in the Java client."""

READY_PROBE_KEY = "NotExistLease"
"""A key that no shard has. A read of this key shows whether the table answers."""

SMALLEST_VALUE: dict[type, Any] = {int: -(2**63), str: ""}
"""The smallest value of each type. A comparison with this value tests whether a column exists."""


@frozen
class UnreadableRow:
    """A row that cannot be read as a lease, and the reason."""

    lease_key: str
    problem: str
    missing_column: str | None = None
    """One of the missing columns, if the row is a remnant with fewer than five columns. The Java client treats a
    remnant as absent, and replaces it when it creates the lease."""
    is_of_unknown_version: bool = False
    """Whether an unknown version of this package wrote the row, for example a newer version."""


def key_of(stream_id: str, lease_key: object, status_type: str = LEASE_STATUS_TYPE) -> list[tuple[str, object]]:
    """Return the primary key of a lease row, or of a row of another type.

    ``lease_key`` may also be ``INF_MIN`` or ``INF_MAX``.
    """
    return [(STREAM_ID, stream_id), (STATUS_TYPE, status_type), (STATUS_VALUE, lease_key)]


def first_key(stream_id: str) -> list[tuple[str, object]]:
    """Return the key at which a scan of one stream's leases starts."""
    return key_of(stream_id, INF_MIN)


def end_key(stream_id: str) -> list[tuple[str, object]]:
    """Return the key at which a scan of one stream's leases ends."""
    return key_of(stream_id, INF_MAX)


def format_parents(parent_shard_ids: Iterable[str]) -> str:
    """Return the ids as the text of a cell: sorted, with a line feed after each id. All clients accept any order."""
    return "".join(f"{parent}\n" for parent in sorted(parent_shard_ids))


def parse_parents(text: str) -> frozenset[str]:
    """Return the ids of a ``ParentShardIds`` cell. A missing line feed at the end and empty lines do no harm."""
    return frozenset(parent for parent in text.split("\n") if parent)


def parse_row(row: Any) -> Lease | UnreadableRow:
    """Return the lease in a row that the SDK has read, or the reason why the row is not a lease.

    Unknown columns are ignored. A row with fewer than five columns is a remnant, as for the Java client: very old
    servers could recreate a part of a row when a renewal raced a delete. This package's own columns are not
    counted, because a remnant may still have them. The Java client counts them. So it takes some remnants for leases,
    and its scan of the table fails. For this reason, too, this package replaces a remnant when it creates the lease
    (see ``row_item``).
    """
    key = {name: value for name, value, *_ in row.primary_key}
    cells = _cells(row)
    lease_key = key[STATUS_VALUE]
    own = read_own(cells, cells.get(CHECKPOINT, ""))
    if own.refusal:
        return UnreadableRow(lease_key, own.refusal, is_of_unknown_version=True)
    missing = [name for name in COLUMN_TYPES if name not in cells]
    if missing and len(cells.keys() - OWN_COLUMNS) < len(COLUMN_TYPES):
        problem = f"it has only {counted(len(cells), 'column')}; it lacks {', '.join(missing)}"
        return UnreadableRow(lease_key, problem, missing_column=missing[0])
    problems = [f"it lacks column {name}" for name in missing] + _wrong_types(cells)
    if not missing and not cells[CHECKPOINT]:
        problems.append(f"column {CHECKPOINT} is empty")
    if problems:
        return UnreadableRow(lease_key, "; ".join(problems))
    return Lease(
        lease_key=lease_key,
        stream_id=key[STREAM_ID],
        owner=cells[OWNER],
        counter=cells[COUNTER],
        stealer=cells[STEALER],
        checkpoint=cells[CHECKPOINT],
        parent_shard_ids=parse_parents(cells[PARENTS]),
        **own.fields,
    )


def own_problems(row: Any) -> str:
    """Return a text about this package's own columns in ``row`` that cannot be read; empty if all can be read.

    Columns that cannot be read count as absent.
    """
    return read_own(_cells(row), "").problems


def _cells(row: Any) -> dict[str, Any]:
    return {name: value for name, value, *_ in row.attribute_columns or ()}


def _wrong_types(cells: dict[str, Any]) -> list[str]:
    """Return a text for each cell of a wrong type. Unlike in Python, a boolean does not count as an integer."""
    return [
        f"column {name} holds {cells[name]!r}, which is not of type {expected.__name__}"
        for name, expected in COLUMN_TYPES.items()
        if name in cells and type(cells[name]) is not expected
    ]


def row_item(write: LeaseWrite, *, remnant: UnreadableRow | None = None) -> Any:
    """Return the write as one row of a BatchWriteRow request.

    ``remnant`` is a known remnant with the key of the write. A CREATE replaces the row if it is still a remnant.
    """
    item = item_of(write, key_of(write.seen.stream_id, write.lease_key), CELLS)
    if write.kind is WriteKind.CREATE and remnant is not None and remnant.missing_column is not None:
        missing = _still_missing(remnant.missing_column)
        return PutRowItem(item.row, Condition(RowExistenceExpectation.EXPECT_EXIST, missing))
    return item


def written_columns(write: LeaseWrite) -> dict[str, object]:
    """Return the columns that a write stores, with ``None`` for a column that it removes; empty for DELETE."""
    return {} if write.result is None else _columns(write.result, write.changes, CELLS)


Cells = Mapping[str, Callable[[RowT], Mapping[str, object]]]
"""Functions that return the columns of a row, one function for each field of the row. The keys are the names of the
fields. The value of a column to remove is ``None``."""

CELLS: Cells[Lease] = {
    "counter": lambda lease: {COUNTER: lease.counter},
    "owner": lambda lease: {OWNER: lease.owner},
    "stealer": lambda lease: {STEALER: lease.stealer},
    "checkpoint": lambda lease: {CHECKPOINT: lease.checkpoint},
    "parent_shard_ids": lambda lease: {PARENTS: format_parents(lease.parent_shard_ids)},
    **OWN_CELLS,
}


def item_of(write: Write[RowT], key: list[tuple[str, object]], cells: Cells[RowT]) -> Any:
    """Return ``write`` as one row of a BatchWriteRow request.

    The written row may be of any type. The rule of the write determines the condition and the columns.
    """
    if write.result is None:
        # An absent row counts as removed, so the row need not exist, and missing columns fulfil the condition.
        condition = Condition(RowExistenceExpectation.IGNORE, _as_expected(write, cells, pass_if_missing=True))
        return DeleteRowItem(Row(key), condition)
    if write.expected is None:
        whole = _columns(write.result, tuple(cells), cells)
        present = [(name, value) for name, value in whole.items() if value is not None]
        return PutRowItem(Row(key, present), Condition(RowExistenceExpectation.EXPECT_NOT_EXIST))
    condition = Condition(RowExistenceExpectation.EXPECT_EXIST, _as_expected(write, cells, pass_if_missing=False))
    columns = _columns(write.result, write.changes, cells)
    changes: dict[str, list[Any]] = {"PUT": [(name, value) for name, value in columns.items() if value is not None]}
    if removed := [name for name, value in columns.items() if value is None]:
        changes["DELETE_ALL"] = removed
    return UpdateRowItem(Row(key, changes), condition)


def _columns(row: RowT, names: tuple[str, ...], cells: Cells[RowT]) -> dict[str, object]:
    return {column: value for name in names for column, value in cells[name](row).items()}


def _as_expected(write: Write[RowT], cells: Cells[RowT], *, pass_if_missing: bool) -> Any:
    """Return the comparisons of a write as one condition on the latest versions of columns.

    The result is ``None`` if the write compares no column.
    """
    expected = write.expected
    compared = {} if expected is None else _columns(expected, write.rule.if_same, cells)
    parts = [
        _absent(name, "")
        if value is None
        else SingleColumnCondition(name, value, ComparatorType.EQUAL, pass_if_missing, True)
        for name, value in compared.items()
    ]
    if len(parts) < 2:
        return parts[0] if parts else None
    return _composite(LogicalOperator.AND, parts)


def _still_missing(column: str) -> Any:
    return _absent(column, SMALLEST_VALUE[COLUMN_TYPES[column]])


def _absent(column: str, smallest: object) -> Any:
    """Return a condition that holds only while the row lacks the column: not (column >= the smallest value).

    This comparison fails for a missing column.
    """
    present = SingleColumnCondition(column, smallest, ComparatorType.GREATER_EQUAL, False, True)
    return _composite(LogicalOperator.NOT, [present])


def _composite(operator: int, parts: Sequence[Any]) -> Any:
    composite = CompositeColumnCondition(operator)
    for part in parts:
        composite.add_sub_condition(part)
    return composite
