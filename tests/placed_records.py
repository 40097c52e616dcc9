"""Records at places that a test chooses."""

from __future__ import annotations

from attrs import evolve

from streamclient.records import ColumnValue, SequenceInfo, StreamRecord
from streamclient.testing import put


def make_record(key: str, sequence: int = 0, **columns: ColumnValue) -> StreamRecord:
    """A put of one row with the key column ``id``; ``sequence`` is its time in microseconds."""
    return evolve(put(key, **columns), sequence_info=SequenceInfo(1, sequence, 0))
