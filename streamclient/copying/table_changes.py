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

from streamclient.records import PrimaryKey, RecordColumn, RecordType, StreamRecord
from streamclient.wire.record_decoding import writes_of

BATCH_BYTES = 3 * 1024 * 1024
"""The service takes 4 MB in one BatchWriteRow; what each row has around it stays below the rest."""


class RowChange:
    """One change of one row of the destination: a record of the source, as the bytes that write it.

    The record itself is made only if somebody asks for what is in it.
    """

    __slots__ = ("_place", "_records", "identity", "kind", "row")

    def __init__(
        self, kind: RecordType, identity: bytes, row: bytes, records: Sequence[StreamRecord], place: int
    ) -> None:
        self.kind = kind
        """PUT, UPDATE or DELETE of the row."""
        self.identity = identity
        """The key, as far as telling it from others."""
        self.row = row
        """As the request takes it, its cells in the order of the log. No condition: that order decides."""
        self._records = records
        self._place = place

    @property
    def key(self) -> PrimaryKey:
        """The key of the row."""
        return self._records[self._place].primary_key

    @property
    def columns(self) -> tuple[RecordColumn, ...]:
        """What is done to its columns."""
        return self._records[self._place].columns

    def __repr__(self) -> str:
        return f"<{self.kind.value} of row {self.key!r}>"


def changes_of(records: Sequence[StreamRecord]) -> list[RowChange]:
    """What records do to the destination, in order; updates without columns do nothing, and are left out.

    Raises:
        CodecError: a record was made by hand and cannot be encoded.
    """
    return [
        RowChange(kind, identity, row, records, place)
        for place, (kind, identity, row) in enumerate(writes_of(records))
        if row
    ]


def batches(changes: Iterable[RowChange], most_rows: int, most_bytes: int = BATCH_BYTES) -> Iterator[list[RowChange]]:
    """Cut changes into batches, in order. A second change of a key begins a new batch.

    Worked example: changes of the keys a b a c with room for ten rows give [a b] and [a c].
    """
    batch: list[RowChange] = []
    keys: set[bytes] = set()
    size = 0
    for change in changes:
        grown = size + len(change.row)
        if batch and (len(batch) >= most_rows or grown > most_bytes or change.identity in keys):
            yield batch
            batch, keys, grown = [], set(), len(change.row)
        batch.append(change)
        keys.add(change.identity)
        size = grown
    if batch:
        yield batch
