"""A table as its owner sees it: what each write does in a few lines, and the records that the stream has of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attrs import define, field
from hypothesis import strategies as st

from streamclient.records import ColumnOperation, ColumnValue, RecordColumn, RecordType, SequenceInfo, StreamRecord

SECOND = 1_000_000
STEP = 1_000 * SECOND
"""Between two writes: far above the margin of the clocks, so that a test says which changes a reading may hold."""

KEYS = (("id", 1), ("id", 2), ("id", 3))
COLUMNS = ("a", "b", "B", "_version")
VALUES = st.one_of(
    st.integers(-2, 2),
    st.sampled_from([1.5, 2.0, True, "1", "", b"1", "x\0y", 2**53 + 1]),
)


def cells(*, single: bool) -> st.SearchStrategy[RecordColumn]:
    names, versions = st.sampled_from(COLUMNS), st.integers(1, 6)
    kinds = [
        st.builds(RecordColumn, names, st.just(ColumnOperation.PUT), VALUES, versions),
        st.builds(RecordColumn, names, st.just(ColumnOperation.DELETE_ALL_VERSION)),
    ]
    if single:
        kinds.append(st.builds(RecordColumn, names, st.just(ColumnOperation.DELETE_ONE_VERSION), st.none(), versions))
    return st.one_of(kinds)


@st.composite
def writes(draw: st.DrawFn) -> list[StreamRecord]:
    """Writes in order; the number of a write is its sequence and its time."""
    changed = st.lists(cells(single=draw(st.booleans())), max_size=4)
    made = []
    for number in range(draw(st.integers(0, 12))):
        kind = draw(st.sampled_from(RecordType))
        found = [] if kind is RecordType.DELETE else draw(changed)
        if kind is RecordType.PUT:
            found = [one for one in found if one.operation is ColumnOperation.PUT]
        info = SequenceInfo(0, (number + 1) * STEP, 0)
        made.append(StreamRecord(kind, (draw(st.sampled_from(KEYS)),), tuple(found), info))
    return made


Row = dict[str, dict[int, ColumnValue]]


@define
class TableModel:
    max_versions: int = 1
    rows: dict[Any, Row] = field(factory=dict)

    @classmethod
    def after(cls, records: Sequence[StreamRecord], max_versions: int) -> TableModel:
        made = cls(max_versions)
        for record in records:
            made.write(record)
        return made

    def write(self, record: StreamRecord) -> None:
        key = record.primary_key
        if record.record_type is RecordType.DELETE:
            self.rows.pop(key, None)
            return
        row = {} if record.record_type is RecordType.PUT else self.rows.get(key)
        if row is None:
            if not any(cell.operation is ColumnOperation.PUT for cell in record.columns):
                return
            row = {}
        row = {name: dict(versions) for name, versions in row.items()}
        for cell in record.columns:
            versions = row.setdefault(cell.name, {})
            if cell.operation is ColumnOperation.PUT:
                versions[cell.timestamp_millis or 0] = cell.value  # type: ignore[assignment]
                row[cell.name] = dict(sorted(versions.items())[-self.max_versions :])
            elif cell.operation is ColumnOperation.DELETE_ALL_VERSION:
                row[cell.name] = {}
            else:
                versions.pop(cell.timestamp_millis or 0, None)
        self.rows[key] = {name: versions for name, versions in row.items() if versions}

    def read(self, keys: Sequence[Any]) -> list[StreamRecord]:
        """The rows as a reader gets them."""
        return [
            StreamRecord(
                RecordType.PUT,
                key,
                tuple(
                    RecordColumn(name, ColumnOperation.PUT, value, version)
                    for name, versions in row.items()
                    for version, value in versions.items()
                ),
            )
            for key, row in self.rows.items()
            if key in keys
        ]


def typed(rows: dict[Any, Row]) -> dict[Any, Any]:
    """With types told apart, as 1, 1.0 and True are equal to Python."""
    return {
        key: {
            (name, version): (type(value).__name__, repr(value))
            for name, of in row.items()
            for version, value in of.items()
        }
        for key, row in rows.items()
    }
