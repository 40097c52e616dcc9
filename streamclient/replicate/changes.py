"""From records to row changes, and from row changes to batches that the service takes.

Laws:

* cells keep the versions that they have in the source, so that writing them again changes nothing;
* changes of one key are written in the order of the log: never two of them in one batch, never a later one while an
  earlier one is not written;
* a batch has at most the rows and bytes of one BatchWriteRow; a single change above that goes alone, and is the
  service's to refuse.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import Enum

from attrs import frozen

from streamclient.records import ColumnOperation, ColumnValue, KeyValue, RecordColumn, RecordType, StreamRecord

Key = tuple[tuple[str, KeyValue], ...]

BATCH_BYTES = 3 * 1024 * 1024
"""The service takes 4 MB in one BatchWriteRow; names, tags and checksums of the encoding stay below the rest."""

CELL_OVERHEAD_BYTES = 32
"""What a cell takes beside its name and value: tags, lengths, timestamp, checksum."""


class ChangeKind(Enum):
    """What is done to a row."""

    PUT = "put"
    UPDATE = "update"
    DELETE = "delete"


@frozen
class RowChange:
    """One change of one row of the destination."""

    kind: ChangeKind
    key: Key
    columns: tuple[RecordColumn, ...] = ()

    @property
    def size_bytes(self) -> int:
        """Upper bound of what it adds to a request."""
        key = sum(len(name.encode()) + _size(value) + CELL_OVERHEAD_BYTES for name, value in self.key)
        return key + sum(
            len(column.name.encode()) + _size(column.value) + CELL_OVERHEAD_BYTES for column in self.columns
        )


_KINDS = {
    RecordType.PUT: ChangeKind.PUT,
    RecordType.UPDATE: ChangeKind.UPDATE,
    RecordType.DELETE: ChangeKind.DELETE,
}


def change_of(record: StreamRecord) -> RowChange | None:
    """What a record does to the destination; ``None`` for an update without columns, which does nothing."""
    if record.record_type is RecordType.UPDATE and not record.columns:
        return None
    return RowChange(_KINDS[record.record_type], record.primary_key, record.columns)


def is_wanted(record: StreamRecord, end_micros: int | None) -> bool:
    """Whether a record belongs to the copy: full data always, changes up to the end time."""
    return end_micros is None or record.sequence_info.timestamp_micros <= end_micros


def batches(changes: Iterable[RowChange], most_rows: int, most_bytes: int = BATCH_BYTES) -> Iterator[list[RowChange]]:
    """Cut changes into batches, in order. A second change of a key begins a new batch.

    Worked example: changes of the keys a b a c with room for ten rows give [a b] and [a c].
    """
    batch: list[RowChange] = []
    keys: set[Key] = set()
    size = 0
    for change in changes:
        grown = size + change.size_bytes
        if batch and (len(batch) >= most_rows or grown > most_bytes or change.key in keys):
            yield batch
            batch, keys, grown = [], set(), change.size_bytes
        batch.append(change)
        keys.add(change.key)
        size = grown
    if batch:
        yield batch


def is_put(column: RecordColumn) -> bool:
    """Whether the cell writes a value."""
    return column.operation is ColumnOperation.PUT


def keys_of(changes: Sequence[RowChange]) -> set[Key]:
    """The keys of some changes."""
    return {change.key for change in changes}


def _size(value: ColumnValue | KeyValue | None) -> int:
    if isinstance(value, str):
        return len(value.encode())
    return len(value) if isinstance(value, bytes) else 8
