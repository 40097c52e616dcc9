"""Records as a stream may deliver them, for properties."""

from __future__ import annotations

from attrs import evolve
from hypothesis import strategies as st

from streamclient.records import ColumnOperation, RecordColumn, RecordType, SequenceInfo, StreamRecord

NAMES = st.sampled_from(["a", "A", "b", "_operation", "_key", "公 司.n", "x__00000000", "a__ca978112"])
VALUES = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.booleans(),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
    st.binary(max_size=5),
    st.sampled_from([1, 1.0, "1", b"1", True, "", b"", -0.0, 0.0, 2**53 + 1, "base64:AA==", "true"]),
)
VERSIONS = st.one_of(st.none(), st.integers(0, 2**45))
PUTS = st.builds(RecordColumn, NAMES, st.just(ColumnOperation.PUT), VALUES, VERSIONS)
CELLS = st.one_of(
    PUTS,
    st.builds(RecordColumn, NAMES, st.just(ColumnOperation.DELETE_ONE_VERSION), st.none(), VERSIONS),
    st.builds(RecordColumn, NAMES, st.just(ColumnOperation.DELETE_ALL_VERSION)),
)
SEQUENCES = st.builds(SequenceInfo, st.integers(0, 3), st.integers(0, 2**50), st.integers(0, 9))


@st.composite
def records(draw: st.DrawFn) -> StreamRecord:
    """One with the key columns ``id`` and ``part``; other columns never have a key's name."""
    key = (("id", draw(st.integers(-5, 5))), ("part", draw(st.sampled_from(["", "x", "公"]))))
    cells = tuple(draw(st.lists(CELLS, max_size=5)))
    original = draw(st.one_of(st.none(), st.lists(PUTS, max_size=2).map(tuple)))
    return StreamRecord(draw(st.sampled_from(RecordType)), key, cells, draw(SEQUENCES), original)


BATCHES = st.lists(records(), max_size=6, unique_by=lambda record: (record.sequence_info, record.primary_key))


def decodable(record: StreamRecord) -> StreamRecord:
    """What the service sends: versions with puts, and no cells of a deleted row."""

    def cell(one: RecordColumn) -> RecordColumn:
        if one.operation is ColumnOperation.DELETE_ALL_VERSION:
            return one
        return evolve(one, timestamp_millis=one.timestamp_millis or 0)

    columns = () if record.record_type is RecordType.DELETE else tuple(map(cell, record.columns))
    if record.record_type is RecordType.PUT:
        columns = tuple(one for one in columns if one.operation is ColumnOperation.PUT)
    original = record.original_columns
    return evolve(record, columns=columns, original_columns=None if original is None else tuple(map(cell, original)))
