"""The comparison of the demo's Delta table with its source table and with the records of the stream.

``deltalake`` and ``pyarrow`` read the Delta table, and this module folds the changes in it into rows. So the package
that wrote the Delta table does not judge it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from itertools import pairwise
from pathlib import Path
from typing import Any

from attrs import frozen
from deltalake import DeltaTable
from streamclient.testing import Delivery, ShardHistory, judge
from tablestore import INF_MAX, INF_MIN, Direction, OTSClient

KEY = ("customer", "order_id")
ATTRIBUTES = ("status", "amount", "items", "gift", "note", "courier", "revision")
PAGE_ROWS = 1_000

Key = tuple[Any, ...]
Row = dict[str, Any]


@frozen
class Outcome:
    """The counts that result from comparing the lake, the table, the stream and the deliveries."""

    acknowledged: int
    """The number of writes that the server acknowledged to the writer."""
    changes: int
    """The number of records in the stream."""
    delivered: int
    """The number of different changes that were delivered to processors."""
    repeats: int
    """The number of deliveries that repeated an earlier delivery, after a worker was killed. Repeated deliveries are
    allowed; duplicates in the lake are not."""
    lost: int
    """The number of changes in the stream that are not in the lake."""
    invented: int
    """The number of changes in the lake that are not in the stream, or whose total is wrong."""
    out_of_order: int
    """The number of changes in a wrong place: delivered before an earlier change of the same key, delivered before the
    parent shard had ended, or in the wrong order in the lake."""
    duplicates_in_lake: int
    table_rows: int
    different_rows: int
    """The number of keys whose row in the table differs from the row that results from the lake's changes."""

    @property
    def is_ok(self) -> bool:
        """Whether the lake is equal to the table, and has every change once and in order."""
        wrong = (self.lost, self.invented, self.out_of_order, self.duplicates_in_lake, self.different_rows)
        return not any(wrong) and self.acknowledged == self.changes == self.delivered > 0

    def last_line(self) -> str:
        """Return the last line that the demo prints, with its verdict."""
        verdict = "ok" if self.is_ok else "failed"
        return (
            f"demo: {verdict} changes={self.changes} delivered={self.delivered} lost={self.lost} "
            f"out_of_order={self.out_of_order} duplicates_in_lake={self.duplicates_in_lake}"
        )


def compare(
    lake: Path,
    *,
    client: OTSClient,
    table: str,
    history: Sequence[ShardHistory],
    deliveries: Sequence[Delivery],
    acknowledged: int,
) -> Outcome:
    """Compare the lake with the stream's history and the source table; return the counts."""
    changes = sorted(_changes(lake), key=lambda change: change["place"])
    stored, truth = Counter(_identity(change) for change in changes), Counter(_truth(history))
    in_table, in_lake = _table(client, table), _fold(changes)
    verdict = judge(history, deliveries)
    return Outcome(
        acknowledged=acknowledged,
        changes=verdict.changes,
        delivered=verdict.distinct,
        repeats=verdict.delivered - verdict.distinct,
        lost=len(truth - stored),
        invented=len(stored.keys() - truth.keys()) + sum(not _has_its_total(change) for change in changes),
        out_of_order=len(verdict.out_of_order) + len(verdict.children_before_parents) + _misplaced(changes),
        duplicates_in_lake=sum(times - 1 for times in stored.values()),
        table_rows=len(in_table),
        different_rows=sum(in_table.get(key) != in_lake.get(key) for key in in_table.keys() | in_lake.keys()),
    )


def _changes(lake: Path) -> Iterator[Row]:
    """Yield the rows of the Delta table. Each row is a change, with its key and its place in the stream added."""
    # With pyarrow's threads, about half of all runs of the demo crash at their end.
    for row in DeltaTable(lake).to_pyarrow_dataset().to_table(use_threads=False).to_pylist():
        yield {**row, "key": _key(row), "place": (row["_epoch"], row["_timestamp"], row["_row_index"])}


def _key(row: Mapping[str, Any]) -> Key:
    return tuple(row[name] for name in KEY)


def _identity(change: Row) -> Key:
    return (change["_shard_id"], *change["place"], *change["key"])


def _truth(history: Sequence[ShardHistory]) -> Iterator[Key]:
    """Yield the identity of every record in ``history``: the shard, the place in the stream, and the key."""
    for shard in history:
        for record in shard.records:
            info = record.sequence_info
            written = datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(microseconds=info.timestamp_micros)
            yield (shard.shard.shard_id, info.epoch, written, info.row_index, *_key(record.key))


def _has_its_total(change: Row) -> bool:
    """Return whether the total of a change is amount times items, or missing if amount or items is missing."""
    if change["amount"] is None or change["items"] is None:
        return change["total"] is None
    return bool(abs(change["total"] - change["amount"] * change["items"]) < 0.01)


def _fold(changes: Sequence[Row]) -> dict[Key, Row]:
    """Return the rows that result from ``changes`` by Tablestore's rules. The oldest change comes first."""
    rows: dict[Key, Row] = {}
    for change in changes:
        key, puts = change["key"], {name: change[name] for name, _ in change["_versions"]}
        if change["_operation"] == "DELETE":
            rows.pop(key, None)
        elif change["_operation"] == "PUT":
            rows[key] = puts
        elif key in rows or puts:
            kept = {name: value for name, value in rows.get(key, {}).items() if name not in change["_deleted_columns"]}
            rows[key] = {**kept, **puts}
    return rows


def _misplaced(changes: Sequence[Row]) -> int:
    """Count the changes with a smaller revision than the previous change of the same key."""
    revisions: dict[Key, list[int]] = {}
    for change in changes:
        if change["revision"] is not None:
            revisions.setdefault(change["key"], []).append(change["revision"])
    return sum(before > after for numbers in revisions.values() for before, after in pairwise(numbers))


def _table(client: OTSClient, table: str) -> dict[Key, Row]:
    """Return the rows of the source table, by primary key."""
    return {
        _key(dict(key)): {name: value for name, value, _ in cells if name in ATTRIBUTES}
        for key, cells in _scan(client, table)
    }


def _scan(client: OTSClient, table: str) -> Iterator[tuple[Any, Any]]:
    start = [(name, INF_MIN) for name in KEY]
    end = [(name, INF_MAX) for name in KEY]
    while start:
        _, start, rows, _ = client.get_range(table, Direction.FORWARD, start, end, limit=PAGE_ROWS, max_version=1)
        for row in rows:
            yield row.primary_key, row.attribute_columns
