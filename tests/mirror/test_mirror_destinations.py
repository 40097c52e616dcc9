"""Every destination that replaces rows keeps the contract, and the contract finds those that do not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from streamclient.copying.mirror_writer import MirrorWriter
from streamclient.copying.source_table import COPY
from streamclient.destinations import Commit, DeltaDestination, Key, PostgresDestination
from streamclient.destinations.delta import delta_rows
from streamclient.destinations.delta.maintenance import compact
from streamclient.destinations.folding.fold import copied, empty_rows, stored_keys
from streamclient.destinations.folding.row_changes import CLOCKS_MARGIN_MICROS, TableRule, cells_of
from streamclient.destinations.memory_destination import MemoryDestination, MemoryPlace
from streamclient.destinations.postgres.postgres_rows import COLUMNS_MAX
from streamclient.records import ColumnOperation, ColumnType, RecordColumn, RecordType, SequenceInfo, StreamRecord
from streamclient.testing.contracts.destination_contract import batch
from streamclient.testing.contracts.merging_contract import (
    MERGING_SCENARIOS,
    check_merging_destination,
    check_merging_scenario,
)
from tests.destinations.postgres_server import PostgresServer


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer() as started:
        yield started


@pytest.mark.parametrize("scenario", MERGING_SCENARIOS)
def test_memory_merges_by_the_contract(scenario: str) -> None:
    place = MemoryPlace()
    check_merging_scenario(scenario, lambda name, application: MemoryDestination(place, application=application))


@pytest.mark.parametrize("way", ["overwritten", "merged", "partitioned"])
@pytest.mark.parametrize("scenario", MERGING_SCENARIOS)
def test_delta_merges_by_the_contract(scenario: str, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if way == "merged":
        monkeypatch.setattr(delta_rows, "OVERWRITTEN_BYTES_MAX", 0)

    def make(name: str, application: str) -> DeltaDestination:
        return DeltaDestination(
            str(tmp_path / name),
            application=application,
            partition_by=Key("id") if way == "partitioned" else None,
            answer_seconds=120.0,
        )

    check_merging_scenario(scenario, make)


def delta_with(path: Path, *files: Sequence[int]) -> tuple[DeltaDestination, Commit]:
    """A table with a file of each of these sequences of keys."""
    destination, last = DeltaDestination(str(path), answer_seconds=120.0), None
    destination.key_by(["id"])
    for numbers in files:
        last = batch(last, [])
        destination.commit(numbered(numbers, "old"), [last])
    assert last is not None
    return destination, last


def numbered(numbers: Sequence[int], text: str) -> Any:
    return pa.table({"id": pa.array(numbers, pa.int64()), "text": pa.repeat(pa.scalar(text), len(numbers))})


def texts_of(destination: DeltaDestination) -> dict[int, str]:
    lines = [line for table in destination.rows() for line in table.to_pylist()]
    assert len({line["id"] for line in lines}) == len(lines), "a key is there twice"
    return {line["id"]: line["text"] for line in lines}


@pytest.mark.parametrize("touched", [[1, 3], [1]], ids=["every file", "one file"])
def test_rows_that_another_writer_adds_during_a_merge_are_seen_by_it(touched: list[int], tmp_path: Path) -> None:
    """By itself, delta-rs lets an overwriting in behind rows that it has not seen."""
    destination, last = delta_with(tmp_path, [1, 2], [3, 4])
    given: list[int] = []

    def fold(present: Any) -> Any:
        given.append(present.num_rows)
        if len(given) == 1:
            other = destination.another()
            other.commit(numbered([9], "beside"), [batch(None, [], shard="shard-2")])
        return numbered([*touched, 9], "new")

    destination.merge(numbered([*touched, 9], "").select(["id"]), fold, [batch(last, [])])

    assert given == [len(touched), len(touched) + 1]
    assert texts_of(destination) == {**dict.fromkeys([1, 2, 3, 4], "old"), **dict.fromkeys([*touched, 9], "new")}


@pytest.mark.parametrize("touched", [[1, 3], [1]], ids=["every file", "one file"])
def test_a_compaction_during_a_merge_has_it_made_again(touched: list[int], tmp_path: Path) -> None:
    destination, last = delta_with(tmp_path, [1, 2], [3, 4])
    results, given = [], []

    def fold(present: Any) -> Any:
        given.append(present.num_rows)
        if not results:
            results.append(compact(destination.another()))
        return numbered(touched, "new")

    destination.merge(numbered(touched, "").select(["id"]), fold, [batch(last, [])])

    assert [(one.files_before, one.files_after) for one in results] == [(2, 1)]
    assert given == [len(touched)] * 2
    assert texts_of(destination) == {**dict.fromkeys([1, 2, 3, 4], "old"), **dict.fromkeys(touched, "new")}


def test_files_without_one_of_the_keys_stay_as_they_are(tmp_path: Path) -> None:
    destination, last = delta_with(tmp_path, [1, 2], [3, 4], [5, 6])
    before = set(destination.handle().file_uris())

    destination.merge(numbered([3, 4], "").select(["id"]), lambda present: numbered([3], "new"), [batch(last, [])])

    assert len(before & set(destination.handle().file_uris())) == 2
    assert texts_of(destination) == {1: "old", 2: "old", 3: "new", 5: "old", 6: "old"}


@pytest.mark.parametrize("most", [0, 1 << 30], ids=["merged", "overwritten"])
def test_the_outermost_numbers_are_keys_like_others(most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta_rows, "OVERWRITTEN_BYTES_MAX", most)
    ends = [-(1 << 63), (1 << 63) - 1]
    destination, last = delta_with(tmp_path, [*ends, 0])

    for number in ends:
        keys, rows = numbered([number], "").select(["id"]), numbered([number], "new")
        last = batch(last, [])
        destination.merge(keys, lambda present, rows=rows: rows, [last])

    assert texts_of(destination) == {**dict.fromkeys(ends, "new"), 0: "old"}


@pytest.mark.parametrize("scenario", MERGING_SCENARIOS)
def test_postgres_merges_by_the_contract(scenario: str, server: PostgresServer) -> None:
    check_merging_scenario(
        scenario,
        lambda name, application: PostgresDestination(
            server.conninfo, name, application=application, answer_seconds=60.0
        ),
    )


class ForgetsMergesOfNothing(MemoryDestination):
    """As Delta's MERGE does by itself."""

    def merge(self, keys: Any, fold: Callable[[Any], Any], commits: Sequence[Commit]) -> None:
        if keys.num_rows:
            super().merge(keys, fold, commits)


class AddsWithoutRemoving(MemoryDestination):
    def merge(self, keys: Any, fold: Callable[[Any], Any], commits: Sequence[Commit]) -> None:
        super().merge(keys.slice(0, 0), lambda present: fold(present.slice(0, 0)), commits)


@pytest.mark.parametrize(
    ("broken", "named"),
    [
        (ForgetsMergesOfNothing, "a merge that changes nothing is remembered"),
        (AddsWithoutRemoving, "rows are replaced added and removed in one step"),
    ],
)
def test_a_destination_that_merges_wrongly_is_found_out(broken: type[MemoryDestination], named: str) -> None:
    places: dict[str, MemoryPlace] = {}

    def make(name: str, application: str) -> MemoryDestination:
        return broken(places.setdefault(name, MemoryPlace()), application=application)

    with pytest.raises(AssertionError, match=named):
        check_merging_destination(make)


@pytest.mark.parametrize("key", ["plain", "with\0NUL"])
def test_what_postgres_keeps_beside_its_columns_expires_like_the_rest(key: str, server: PostgresServer) -> None:
    """Values of more columns than it can have, and a text that it cannot hold."""
    rule = TableRule(("id",), ttl_millis=1_000_000, declared={"id": ColumnType.STRING})
    destination = PostgresDestination(server.conninfo, f"expiring_{key[:4]}_{len(key)}")
    destination.key_by(stored_keys(rule))
    destination.commit(empty_rows(rule), [batch(None, [], shard=COPY)])
    names = [f"c{number:03}" for number in range(COLUMNS_MAX + 10)]
    old, new = 1_000_000, 2_000_000

    def row(key: str, last: int) -> StreamRecord:
        cells = [RecordColumn(name, ColumnOperation.PUT, 7, old) for name in names[:-1]]
        cells.append(RecordColumn(names[-1], ColumnOperation.PUT, 8, last))
        return StreamRecord(RecordType.PUT, (("id", key),), tuple(cells), SequenceInfo(1, 1, 1))

    columns = destination.columns()
    assert columns is not None
    rows = copied([row(key, new), row(f"{key} too", old)], old * 1_000, columns, rule)
    destination.commit(rows, [batch(None, [], shard=f"{COPY}/0")])
    writer = MirrorWriter(None, destination, rule)  # type: ignore[arg-type]
    writer.expire((old + 1_000_000 + 1) * 1_000 + CLOCKS_MARGIN_MICROS)
    (left,) = [one for table in destination.rows() for one in cells_of(table, rule.key)]
    destination.close()

    assert (left.key, left.cells) == ((key,), {names[-1]: {new: 8}})
