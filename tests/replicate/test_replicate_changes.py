"""Row changes and their batches, and records that are written twice."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import pytest
from tablestore import OTSClient
from tablestore import Row as SdkRow

from streamclient.copying.differences import compare_tables
from streamclient.copying.replication_end import wanted_count
from streamclient.copying.replication_processors import ReplicationProcessors
from streamclient.copying.source_table import SourceTable
from streamclient.copying.table_writer import DestinationWriter, RowChange, changes_of, parts_of
from streamclient.copying.target_table import WIDEST_DEVIATION_SECONDS
from streamclient.records import ColumnOperation, RecordColumn, RecordType, SequenceInfo, StreamRecord
from streamclient.server import LocalTablestore
from streamclient.tablestore import TablestoreStreamApi
from streamclient.tablestore.ranges import TableScan, record_of
from streamclient.tablestore.signed_calls import SignedCalls
from streamclient.wire.plainbuffer import Cell, CellOperation, Row, decode_row
from tests.stage import IGNORE, make_table

NO_SOURCE = cast(SourceTable, None)
"""The source of processors whose records delete no single version, so that no row is read from it."""


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


def test_full_data_is_always_wanted_and_changes_before_the_first_one_after_the_end_time() -> None:
    records = [
        StreamRecord(RecordType.PUT, (("id", micros),), (), SequenceInfo(0, micros, 0)) for micros in (0, 10, 11, 9)
    ]

    assert [wanted_count(records, end) for end in (8, 9, 10, 11)] == [1, 1, 2, 4]
    assert wanted_count((), 10) == 0


def test_only_the_deletion_of_a_single_version_is_told_as_such() -> None:
    one = RecordColumn("a", ColumnOperation.DELETE_ONE_VERSION, None, 5)
    every = RecordColumn("b", ColumnOperation.DELETE_ALL_VERSION)
    like = RecordColumn("c", ColumnOperation.PUT, b"\x06\x03", 5)
    records = [StreamRecord(RecordType.UPDATE, (("id", 1),), cells) for cells in ((every, like), (like, one), (one,))]

    assert [change.deletes_one_version for change in changes_of(records)] == [False, True, True]


# --- records that are written twice -----------------------------------------------------------------------------------


class Copied:
    """Two tables of one server, the records of the first one's stream, and processors that write them to the second."""

    def __init__(self, local: LocalTablestore, versions: int, kept_versions: int) -> None:
        self.client: OTSClient = local.client()
        make_table(self.client, "from", [("id", "INTEGER")], max_version=versions, max_time_deviation=WIDEST)
        make_table(self.client, "to", [("id", "INTEGER")], max_version=kept_versions, max_time_deviation=WIDEST)
        self._api = TablestoreStreamApi(self.client)
        stream = self._api.list_stream("from")[0].stream_id
        self._position = self._api.get_shard_iterator(stream, local.shards("from")[0].shard_id)
        self._records: list[StreamRecord] = []
        writer = DestinationWriter(SignedCalls(self.client), "to", 200)
        self._processors = ReplicationProcessors(writer, SourceTable(self.client, "from"))

    def change(self, changed: Mapping[str, Sequence[tuple[Any, ...]]], key: int = 1) -> None:
        self.client.update_row("from", SdkRow([("id", key)], dict(changed)), IGNORE)

    def widen(self, key: int) -> None:
        """Give a row more columns than one write may have."""
        for numbers in (range(800), range(800, 1_600)):
            self.change({"PUT": [(f"c{number:04}", number) for number in numbers]}, key)

    def records(self) -> list[StreamRecord]:
        """All records until now."""
        while (page := self._api.get_stream_record(self._position)).records:
            self._records += page.records
            self._position = page.next_position.text
        return self._records

    def write(self, records: Sequence[StreamRecord]) -> None:
        self._processors.copy(records, lambda: False)

    def differences(self) -> list[str]:
        return [str(each) for each in compare_tables(self.client, "from", self.client, "to")]


WIDEST = WIDEST_DEVIATION_SECONDS


@pytest.fixture
def local() -> Iterator[LocalTablestore]:
    with LocalTablestore() as running:
        yield running


@pytest.mark.parametrize(
    ("versions", "steps"),
    [
        (2, [{"PUT": [("a", 9, 9)]}, {"DELETE": [("a", None, 9)]}, {"PUT": [("a", 6, 6)]}]),
        (1, [{"PUT": [("a", 1, 1)]}, {"DELETE": [("a", None, 5)]}]),
        (1, [{"PUT": [("a", 1, 1), ("b", 1, 1)], "DELETE": [("a", None, 5)]}]),
    ],
    ids=["a put pushes out a version", "a put of an old version stays", "both in one record"],
)
def test_the_deletion_of_a_single_version_may_be_written_twice(
    versions: int, steps: list[dict[str, Any]], local: LocalTablestore
) -> None:
    copied = Copied(local, versions, versions)
    copied.change({"PUT": [("a", 4, 4), ("a", 5, 5)][-versions:]})
    for step in steps:
        copied.change(step)
    records = copied.records()
    for begin in (0, 1, 0):
        for record in records[begin:]:
            copied.write([record])
        assert copied.differences() == []
    copied.write(records)
    assert copied.differences() == []


def test_a_deletion_shows_no_version_that_only_the_destination_has_kept(local: LocalTablestore) -> None:
    copied = Copied(local, 1, 3)
    for number in (4, 5):
        copied.change({"PUT": [("a", number, number)]})
        copied.write(copied.records()[-1:])
    copied.change({"DELETE": [("a", None, 5)]})
    copied.write(copied.records()[-1:])

    assert copied.differences() == []


def test_a_row_that_is_gone_when_it_is_read_is_removed(local: LocalTablestore) -> None:
    copied = Copied(local, 1, 1)
    copied.change({"PUT": [("a", 4, 4)]})
    copied.write(copied.records())
    copied.change({"DELETE": [("a", None, 4)]})
    copied.client.delete_row("from", SdkRow([("id", 1)]), IGNORE)
    copied.write(copied.records()[1:2])

    assert copied.differences() == []


@pytest.mark.parametrize("seed", [0, 2, 4, 5])
def test_processors_that_start_again_at_any_record_end_with_the_rows_of_the_source(
    seed: int, local: LocalTablestore
) -> None:
    dice = random.Random(seed)
    versions = dice.choice([1, 2, 3])
    copied = Copied(local, versions, versions + dice.choice([0, 1]))

    def change() -> None:
        key, kind = dice.randrange(25), dice.random()
        put, one = ("a", dice.randrange(1_000), 1 + dice.randrange(5)), ("a", None, 1 + dice.randrange(5))
        if kind < 0.05:
            copied.client.delete_row("from", SdkRow([("id", key)]), IGNORE)
        elif kind < 0.1:
            copied.client.put_row("from", SdkRow([("id", key)], [put]), IGNORE)
        elif kind < 0.15:
            copied.change({"DELETE_ALL": ["a"]}, key)
        else:
            copied.change({"PUT": [put]} if kind < 0.6 else {"DELETE": [one], "PUT": [put][: int(kind < 0.7)]}, key)

    checkpoint = 0
    for _ in range(10):
        for _ in range(dice.randrange(30)):
            change()
        for _ in range(dice.randrange(3)):  # the process dies before it stores a checkpoint
            records = copied.records()[checkpoint:]
            copied.write(records[: dice.randrange(len(records) + 1)])
        records = copied.records()[checkpoint:][: dice.randrange(20)]
        copied.write(records)
        checkpoint += len(records)
    copied.write(copied.records()[checkpoint:])

    assert copied.differences() == []


# --- rows that no single write makes ----------------------------------------------------------------------------------


def test_a_change_is_cut_only_if_the_service_does_not_accept_it_at_once() -> None:
    cells = tuple(RecordColumn(f"c{number:04}", ColumnOperation.PUT, number, 5) for number in range(2_049))
    halves = tuple(RecordColumn(name, ColumnOperation.PUT, "x" * 2_000_000, 5) for name in ("a", "b", "c"))
    expected = {
        (RecordType.PUT, cells[:1_024]): [(RecordType.PUT, 1_024)],
        (RecordType.PUT, halves[:2]): [(RecordType.PUT, 2)],
        (RecordType.PUT, cells): [(RecordType.PUT, 1_024), (RecordType.UPDATE, 1_024), (RecordType.UPDATE, 1)],
        (RecordType.UPDATE, cells[:1_025]): [(RecordType.UPDATE, 1_024), (RecordType.UPDATE, 1)],
        (RecordType.PUT, halves): [(RecordType.PUT, 1), (RecordType.UPDATE, 1), (RecordType.UPDATE, 1)],
        (RecordType.DELETE, ()): [(RecordType.DELETE, 0)],
    }
    for (kind, columns), parts in expected.items():
        (change,) = changes_of([StreamRecord(kind, (("id", 1),), columns)])
        made = list(parts_of(change))
        assert [(part.kind, len(part.columns)) for part in made] == parts
        assert tuple(column for part in made for column in part.columns) == columns
        assert {part.identity for part in made} == {change.identity}


def test_a_row_that_is_too_wide_or_too_large_for_one_write_is_written_in_parts(local: LocalTablestore) -> None:
    copied = Copied(local, 10, 10)
    copied.widen(1)
    for name in "abc":
        copied.change({"PUT": [(name, "x" * 2_000_000, 5)]}, 2)
    for version in range(10):
        local.advance_clock(1.0)
        copied.change({"PUT": [(f"c{number:03}", version) for number in range(120)]}, 3)
    scan = TableScan(calls=SignedCalls(copied.client), table="from", key=["id"], max_versions=10)
    records = [record_of(row) for row in scan.rows()]
    other = RecordColumn("other", ColumnOperation.PUT, 1, 5)
    for _ in range(2):
        copied.write([StreamRecord(RecordType.PUT, (("id", key),), (other,)) for key in (1, 2, 3)])
        copied.write(records)
        assert copied.differences() == []


def test_a_row_that_loses_a_version_and_is_too_wide_is_written_in_parts(local: LocalTablestore) -> None:
    copied = Copied(local, 2, 2)
    copied.widen(1)
    copied.change({"PUT": [("gone", 1, 5)]})
    copied.change({"DELETE": [("gone", None, 5)]})

    copied.write(copied.records())
    assert copied.differences() == []


@pytest.mark.parametrize("place", [0, 1_500])
def test_a_row_of_which_a_part_is_refused_is_kept_as_a_whole(local: LocalTablestore, place: int) -> None:
    kept: list[RowChange] = []
    copied = Copied(local, 1, 1)
    cells = [RecordColumn(f"c{number:04}", ColumnOperation.PUT, number, 5) for number in range(2_100)]
    cells[place] = RecordColumn("large", ColumnOperation.PUT, "x" * (2 * 1024 * 1024 + 1), 5)
    records = [StreamRecord(RecordType.PUT, (("id", key),), columns) for key, columns in ((1, tuple(cells)), (2, ()))]
    writer = DestinationWriter(SignedCalls(copied.client), "to", 200, lambda change, error: kept.append(change))
    writer.write(changes_of(records))

    assert [(change.kind, change.key, len(change.columns)) for change in kept] == [
        (RecordType.PUT, (("id", 1),), 2_100)
    ]
    assert writer.counts.refused_rows == 1
    _, row, _ = copied.client.get_row("to", [("id", 1)])
    assert (0 if row is None else len(row.attribute_columns)) == (0 if place == 0 else 1_024)
    assert copied.client.get_row("to", [("id", 2)])[1] is not None
