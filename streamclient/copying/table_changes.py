"""From records to row changes. Cells keep the versions of the source, so that writing them again changes nothing."""

from __future__ import annotations

from collections.abc import Sequence

from streamclient.records import PrimaryKey, RecordColumn, RecordType, StreamRecord
from streamclient.wire.record_decoding import writes_of


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
