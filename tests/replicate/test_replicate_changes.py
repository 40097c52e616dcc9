"""Row changes and their batches."""

from __future__ import annotations

from typing import Any, cast

from streamclient.copying.replication_processors import ReplicationProcessors
from streamclient.copying.table_writer import DestinationWriter, RowChange, changes_of
from streamclient.records import ColumnOperation, RecordColumn, RecordType, SequenceInfo, StreamRecord
from streamclient.wire.plainbuffer import Cell, CellOperation, Row, decode_row


def test_update_without_columns_does_nothing() -> None:
    assert changes_of([StreamRecord(RecordType.UPDATE, (("id", 1),))]) == []


def test_records_keep_their_kinds_keys_and_versions() -> None:
    key = (("id", 1),)
    put_one, remove_one = (
        RecordColumn("a", ColumnOperation.PUT, 1, 5),
        RecordColumn("b", ColumnOperation.DELETE_ALL_VERSION),
    )
    written = {
        RecordType.PUT: ((put_one,), Row(key, (Cell("a", 1, timestamp_millis=5),))),
        RecordType.UPDATE: (
            (put_one, remove_one),
            Row(key, (Cell("a", 1, timestamp_millis=5), Cell("b", None, CellOperation.DELETE_ALL_VERSIONS))),
        ),
        RecordType.DELETE: ((), Row(key, delete_marker=True)),
    }
    for kind, (columns, row) in written.items():
        (change,) = changes_of([StreamRecord(kind, key, columns)])
        assert (change.kind, change.key, change.columns, decode_row(change.row)) == (kind, key, columns, row)


class Writer:
    """Keeps the keys of what it is given."""

    def __init__(self) -> None:
        self.keys: list[Any] = []

    def write(self, changes: list[RowChange], is_lost: Any) -> None:
        self.keys += [value for change in changes for _, value in change.key]


def test_full_data_is_always_wanted_and_changes_up_to_the_end_time() -> None:
    records = [
        StreamRecord(RecordType.PUT, (("id", micros),), (), SequenceInfo(0, micros, 0)) for micros in (0, 10, 11)
    ]

    for end_micros, wanted in ((10, [0, 10]), (None, [0, 10, 11])):
        writer = Writer()
        processors = ReplicationProcessors(cast(DestinationWriter, writer), end_micros)
        processors.copy(records, lambda: False)
        assert writer.keys == wanted
