"""Row changes and their batches."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streamclient.records import ColumnOperation, RecordColumn, RecordType, SequenceInfo, StreamRecord
from streamclient.replicate.changes import ChangeKind, RowChange, batches, change_of, is_wanted


def put(key: str, size: int = 1) -> RowChange:
    return RowChange(ChangeKind.PUT, (("id", key),), (RecordColumn("a", ColumnOperation.PUT, "x" * size, 1),))


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
        assert len(batch) == 1 or sum(change.size_bytes for change in batch) <= size


def test_update_without_columns_does_nothing() -> None:
    assert change_of(StreamRecord(RecordType.UPDATE, (("id", 1),))) is None


def test_records_keep_their_kinds_keys_and_versions() -> None:
    column = RecordColumn("a", ColumnOperation.PUT, 1, 5)
    for kind in RecordType:
        columns = () if kind is RecordType.DELETE else (column,)
        change = change_of(StreamRecord(kind, (("id", 1),), columns))
        assert change == RowChange(ChangeKind[kind.name], (("id", 1),), columns)


def test_full_data_is_always_wanted_and_changes_up_to_the_end_time() -> None:
    def record(micros: int) -> StreamRecord:
        return StreamRecord(RecordType.PUT, (("id", 1),), (), SequenceInfo(0, micros, 0))

    assert [is_wanted(record(micros), 10) for micros in (0, 10, 11)] == [True, True, False]
    assert is_wanted(record(11), None)
