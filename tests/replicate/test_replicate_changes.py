"""Row changes and their batches."""

from __future__ import annotations

from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from streamclient.copying.replication_processors import ReplicationProcessors
from streamclient.copying.table_changes import RowChange, batches, changes_of
from streamclient.copying.table_writer import DestinationWriter
from streamclient.records import ColumnOperation, RecordColumn, RecordType, SequenceInfo, StreamRecord
from streamclient.wire.plainbuffer import Cell, CellOperation, Row, decode_row


def put(key: str, size: int = 1) -> RowChange:
    column = RecordColumn("a", ColumnOperation.PUT, "x" * size, 1)
    return changes_of([StreamRecord(RecordType.PUT, (("id", key),), (column,))])[0]


def keys(batch: list[RowChange]) -> str:
    return "".join(str(value) for change in batch for _, value in change.key)


def test_second_change_of_a_key_begins_a_new_batch() -> None:
    assert [keys(batch) for batch in batches(map(put, "abac"), 10)] == ["ab", "ac"]


def test_batches_have_at_most_the_rows_that_were_asked_for() -> None:
    assert [keys(batch) for batch in batches(map(put, "abcde"), 2)] == ["ab", "cd", "e"]


def test_batches_have_at_most_the_bytes_that_the_service_takes_and_a_large_row_goes_alone() -> None:
    changes = [put("a", 400), put("b", 400), put("c", 5_000), put("d", 1)]

    assert [keys(batch) for batch in batches(changes, 10, 1_200)] == ["ab", "c", "d"]


@given(st.lists(st.sampled_from("abcdef"), max_size=40), st.integers(1, 5), st.integers(50, 800))
def test_batches_keep_every_change_in_order_and_no_key_twice(names: list[str], rows: int, size: int) -> None:
    changes = [put(name, number % 300) for number, name in enumerate(names)]
    cut = list(batches(changes, rows, size))

    assert [change for batch in cut for change in batch] == changes
    for batch in cut:
        assert len(keys(batch)) == len(set(keys(batch))) <= rows
        assert len(batch) == 1 or sum(len(change.row) for change in batch) <= size


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

    def write(self, changes: list[RowChange]) -> None:
        self.keys += [value for change in changes for _, value in change.key]


def test_full_data_is_always_wanted_and_changes_up_to_the_end_time() -> None:
    records = [
        StreamRecord(RecordType.PUT, (("id", micros),), (), SequenceInfo(0, micros, 0)) for micros in (0, 10, 11)
    ]

    for end_micros, wanted in ((10, [0, 10]), (None, [0, 10, 11])):
        writer = Writer()
        processors = ReplicationProcessors(cast(DestinationWriter, writer), end_micros)
        processors.copy(records)
        assert writer.keys == wanted
        counts = processors.counts
        assert (counts.base_records, counts.stream_records) == (1, len(wanted) - 1)
        assert (counts.records_after_end, counts.newest_micros) == (3 - len(wanted), 11)
