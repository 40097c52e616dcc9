"""Clean-up beside writers: no row lost, no commit forgotten, and no late writer let in."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

from streamclient.destinations import Commit, Day, DeltaDestination, FencedCommit
from streamclient.destinations.commit import LogEntry
from streamclient.destinations.delta import delta_log, maintenance
from streamclient.destinations.delta.delta_log import DeltaLog
from streamclient.destinations.delta.maintenance import carry, clean, compact
from streamclient.destinations.proof.verification import verify
from streamclient.errors import ConfigurationError, DependencyException, StreamClientException
from streamclient.testing.contracts.destination_contract import batch, change, rows_for, store, stored_numbers
from tests.destinations.delta_tables import TABLE_COMMITS, age, filled

pytestmark = pytest.mark.slow


def test_cleaning_removes_old_entries_and_files_and_forgets_no_commit(tmp_path: Path) -> None:
    table = tmp_path / "table"
    destination, last = filled(table, checkpoint_interval=3)
    idle = store(destination, None, [change(500)], shard="idle")
    compact(destination)
    (table / "part-of-a-refused-commit.parquet").write_bytes(b"")
    age(table, 40)
    (table / "part-of-a-commit-on-its-way.parquet").write_bytes(b"")
    cleaned = clean(DeltaDestination(str(table)), keep_hours=24)

    assert cleaned.files == TABLE_COMMITS + 2
    assert (table / "part-of-a-commit-on-its-way.parquet").exists()
    assert cleaned.log_entries >= TABLE_COMMITS - 3
    reopened = DeltaDestination(str(table))
    assert reopened.last_commits(["shard-1", "idle", "new"]) == {"shard-1": last, "idle": idle, "new": None}
    assert verify(reopened, with_rows=True).findings == []
    late = batch(last, [change(9)], epoch=0)
    store(reopened, last, [change(600)])
    with pytest.raises(FencedCommit):
        reopened.commit(rows_for(reopened, [change(9)], late), [late])
    assert stored_numbers(reopened) == [*range(TABLE_COMMITS), 500, 600]


def test_a_writer_that_slept_through_a_cleaning_is_refused(tmp_path: Path) -> None:
    """Its handle is from a version whose entries are cleared away."""
    table = tmp_path / "table"
    sleeper, last = filled(table, checkpoint_interval=3)
    late = batch(last, [change(9)], epoch=1)
    rows = rows_for(sleeper, [change(9)], late)
    quick = DeltaDestination(str(table))
    for number in range(100, 110):
        last = store(quick, last, [change(number)], epoch=2)
    age(table, 40)
    clean(quick)
    with pytest.raises(FencedCommit):
        sleeper.commit(rows, [late])

    assert stored_numbers(sleeper) == [*range(TABLE_COMMITS), *range(100, 110)]


def test_a_writer_that_is_quicker_is_carried_on_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It commits when the log has been read: the entry is refused, and made again."""
    destination, last = filled(tmp_path / "table")
    entries, made = DeltaLog.entries, [last]

    def overtaken(self: DeltaLog, version: int, since: int = 0) -> Iterator[LogEntry]:
        yield from entries(self, version, since)
        if len(made) < 3:
            made.append(store(DeltaDestination(str(tmp_path / "table")), made[-1], [change(100 + len(made))]))

    with monkeypatch.context() as context:
        context.setattr(DeltaLog, "entries", overtaken)
        carry(destination)
    (carried,) = (entry.carried for entry in destination.log() if entry.carried)

    assert carried == (made[2],)
    assert verify(destination, with_rows=True).findings == []


def test_a_cleaning_that_writers_never_let_through_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    destination, last = filled(tmp_path / "table")
    entries, made = DeltaLog.entries, [last]

    def overtaken(self: DeltaLog, version: int, since: int = 0) -> Iterator[LogEntry]:
        yield from entries(self, version, since)
        made.append(store(DeltaDestination(str(tmp_path / "table")), made[-1], [change(100 + len(made))]))

    monkeypatch.setattr(DeltaLog, "entries", overtaken)
    monkeypatch.setattr("streamclient.destinations.delta.maintenance.CARRYING_TRIES", 2)
    with pytest.raises(DependencyException, match="faster than its clean-up 2 times"):
        clean(destination)


def test_what_is_committed_while_a_cleaning_is_frozen_stays_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For so long that the commits are old when it wakes up, between carrying on and clearing away."""
    table = tmp_path / "table"
    destination, last = filled(table)
    newest = [last]

    def freezing(handle: DeltaDestination) -> DeltaTable:
        found = carry(handle)
        newest.append(store(DeltaDestination(str(table)), last, [change(100)]))
        DeltaDestination(str(table)).handle().create_checkpoint()
        age(table, 40)
        return found

    monkeypatch.setattr("streamclient.destinations.delta.maintenance.carry", freezing)
    assert clean(destination).log_entries == TABLE_COMMITS + 1  # with the creation
    reopened = DeltaDestination(str(table))

    assert reopened.last_commits(["shard-1"]) == {"shard-1": newest[1]}
    assert verify(reopened, with_rows=True).findings == []


def test_what_is_committed_while_a_cleaning_is_frozen_keeps_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For so long that they are old when it lists the directory; those that a compaction has let go of, too."""
    table = tmp_path / "table"
    destination, last = filled(table)
    read = maintenance._unused_files
    listed: list[list[str]] = []

    def freezing(handle: DeltaTable, keep_hours: int) -> list[str]:
        if not listed:
            other = DeltaDestination(str(table))
            second = store(other, last, [change(100)])
            compact(other)
            store(other, second, [change(101)])
            for path in table.glob("*.parquet"):
                os.utime(path, (path.stat().st_mtime - 2 * 24 * 3600,) * 2)
        listed.append(read(handle, keep_hours))
        return listed[-1]

    monkeypatch.setattr(maintenance, "_unused_files", freezing)
    files = len([*table.glob("*.parquet")]) + 3
    assert clean(destination, keep_hours=24).files == 0

    assert len(listed[0]) == 3
    assert len([*table.glob("*.parquet")]) == files
    assert stored_numbers(DeltaDestination(str(table))) == [*range(TABLE_COMMITS), 100, 101]


def land_in_a_cleared_place(table: Path, before: Path, number: int, commit: Commit) -> None:
    """As a writer does that was frozen in the very creation of its entry since ``before``, a copy of the table."""
    there = {*before.rglob("*")}
    writer = DeltaDestination(str(before))
    writer.commit(rows_for(writer, [change(number)], commit), [commit])
    for path in {*before.rglob("*")} - there:
        assert not (table / path.relative_to(before)).exists()
        shutil.copy(path, table / path.relative_to(before))


@pytest.mark.parametrize("has_successor", [True, False])
def test_a_commit_that_was_frozen_until_the_log_was_cleared_is_not_called_stored(
    has_successor: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its entry stands where another one had stood, and is not part of the table: it is refused, or stored again."""
    table = tmp_path / "table"
    destination, last = filled(table)
    commit, others = batch(last, [change(77)]), {"shard": "shard-1", "epoch": 2} if has_successor else {"shard": "two"}
    shutil.copytree(table, tmp_path / "before")
    append, clock = DeltaDestination._append, time.time

    def freezing(self: DeltaDestination, *given: Any) -> None:
        monkeypatch.setattr(DeltaDestination, "_append", append)
        newest = last if has_successor else None
        for number in range(100, 110):
            newest = store(DeltaDestination(str(table)), newest, [change(number)], **others)
        age(table, 40)
        clean(DeltaDestination(str(table)))
        land_in_a_cleared_place(table, tmp_path / "before", 77, commit)
        monkeypatch.setattr(time, "time", lambda: clock() + 40 * 24 * 3600)

    monkeypatch.setattr(DeltaDestination, "_append", freezing)
    with pytest.raises(FencedCommit) if has_successor else nullcontext():
        destination.commit(rows_for(destination, [change(77)], commit), [commit])
    monkeypatch.setattr(time, "time", clock)

    wanted = [*range(TABLE_COMMITS), *([] if has_successor else [77]), *range(100, 110)]
    assert stored_numbers(DeltaDestination(str(table))) == wanted


def test_an_entry_that_is_not_part_of_the_table_is_not_carried_on(tmp_path: Path) -> None:
    """It is of the shard's owner, and of a shard that has begun; whoever finds it goes by the table's transactions."""
    table = tmp_path / "table"
    destination, last = filled(table)
    phantoms = [batch(last, [change(77)]), batch(None, [change(77)], shard="new")]
    for commit in phantoms:
        shutil.copytree(table, tmp_path / commit.shard)
    newest = None
    for number in range(100, 105):
        newest = store(destination, newest, [change(number)], shard="two")
    age(table, 40)
    clean(destination)
    for place, commit in enumerate(phantoms):
        first = TABLE_COMMITS + 1
        land_in_a_cleared_place(table, tmp_path / commit.shard, 77, commit)
        entry = table / "_delta_log" / f"{first:020}.json"
        entry.rename(entry.with_name(f"{first + 1 + place:020}.json"))

    for _ in range(2):
        for asked in (["two"], ["shard-1", "new"], ["new"], ["shard-1"]):
            found = destination.last_commits(asked)
            assert found == {one: {"shard-1": last, "two": newest}.get(one) for one in asked}
        destination = DeltaDestination(str(table))
        carry(destination)
    assert list(destination.log())[-1].carried == (last, newest)
    store(destination, last, [change(77)])
    store(destination, None, [change(78)], shard="new")
    assert stored_numbers(destination) == [*range(TABLE_COMMITS), 77, 78, *range(100, 105)]


def race_a_carrying(
    path: Path, monkeypatch: pytest.MonkeyPatch, before_it: Callable[[], object] = lambda: None
) -> tuple[Commit, Commit]:
    """A table whose last entry carries a commit on that a writer has followed since; both commits.

    Nothing here writes such an entry: it has no transactions, by which it would have been refused.
    """
    monkeypatch.setattr(delta_log, "_FIRST_LOOK", 1)
    destination, last = filled(path)
    newest = store(destination, last, [change(100)], epoch=2)
    before_it()
    handle = destination.handle()
    entry = LogEntry("", carried=(last,)).to_json()
    write_deltalake(
        handle,
        pa.schema(handle.schema().to_arrow()).empty_table(),
        mode="append",
        commit_properties=CommitProperties(custom_metadata={delta_log.ENTRY: entry}),
    )
    return last, newest


def test_a_commit_that_a_cleaning_did_not_see_is_not_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is carried on is older than the shard's last commit, and stands behind it."""
    last, newest = race_a_carrying(tmp_path / "table", monkeypatch)
    late, reopened = batch(last, [change(100)], epoch=1), DeltaDestination(str(tmp_path / "table"))

    for asked in (["shard-1"], ["shard-1", "new"]):
        assert DeltaDestination(str(tmp_path / "table")).last_commits(asked)["shard-1"] == newest
    assert reopened.last_commits(["new"]) == {"new": None}
    assert reopened.last_commits(["shard-1"]) == {"shard-1": newest}
    overtaken = batch(last, [change(9)], epoch=1)
    with pytest.raises(FencedCommit):
        reopened.commit(rows_for(reopened, [change(9)], overtaken), [overtaken])
    reopened.commit(rows_for(reopened, [change(100)], late), [late])  # a repeat of what is in
    assert stored_numbers(reopened) == [*range(TABLE_COMMITS), 100]
    assert verify(reopened, with_rows=True).findings == []


def test_a_handle_that_has_only_seen_the_carrying_asks_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opened between the commit and the carrying, and asked for the shard only then."""
    opened = DeltaDestination(str(tmp_path / "table"))
    _, newest = race_a_carrying(tmp_path / "table", monkeypatch, lambda: opened.last_commits(["another"]))

    assert opened.last_commits(["shard-1"]) == {"shard-1": newest}


def test_a_commit_that_is_lost_behind_a_carrying_is_an_error_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    last, _ = race_a_carrying(tmp_path / "table", monkeypatch)
    destination = DeltaDestination(str(tmp_path / "table"))
    destination.handle().create_checkpoint()
    (tmp_path / "table" / "_delta_log" / f"{TABLE_COMMITS + 1:020}.json").unlink()
    again = batch(last, [change(100)], epoch=3)
    for _ in range(3):
        with pytest.raises(StreamClientException, match="no longer holds this commit"):
            destination.last_commits(["shard-1"])
        with pytest.raises(StreamClientException, match="no longer holds this commit"):
            destination.commit(rows_for(destination, [change(100)], again), [again])

    (tmp_path / "table" / "part-of-a-refused-commit.parquet").write_bytes(b"")
    age(tmp_path / "table", 40)
    files, version = {*(tmp_path / "table").rglob("*")}, destination.handle().version()
    with pytest.raises(StreamClientException, match="commit 11 of epoch 2 as the last one of shard shard-1"):
        clean(destination)
    assert ({*(tmp_path / "table").rglob("*")}, destination.handle().version()) == (files, version)


def test_a_kept_handle_does_not_go_on_behind_an_entry_that_it_cannot_read(tmp_path: Path) -> None:
    """Nor from the commit before it; shards whose commits can be read go on."""
    destination, last = filled(tmp_path / "table")
    other = store(destination, None, [change(50)], shard="other")
    store(DeltaDestination(str(tmp_path / "table")), last, [change(100)])
    path = tmp_path / "table" / "_delta_log" / f"{TABLE_COMMITS + 2:020}.json"
    path.write_text(path.read_text().replace('\\"previous\\"', ""))
    for _ in range(2):
        with pytest.raises(StreamClientException, match="no longer holds this commit"):
            destination.last_commits(["shard-1", "other"])

    assert destination.last_commits(["other"]) == {"other": other}


@pytest.mark.parametrize("cleanings", [1, 4])
def test_a_log_that_is_cleared_while_it_is_read_is_read_again(
    cleanings: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table was loaded, and what it would find is carried on in a later version by then; each time anew."""
    table = tmp_path / "table"
    sleeper, last = filled(table)
    newest = store(DeltaDestination(str(table)), last, [change(100)], epoch=2)
    last_commits, cleared_away = DeltaLog.last_commits, []

    def cleared(self: DeltaLog, handle: DeltaTable, shards: Sequence[str]) -> dict[str, Commit | None]:
        if len(cleared_away) < cleanings:
            age(table, 40)
            cleared_away.append(clean(DeltaDestination(str(table))).log_entries)
        return last_commits(self, handle, shards)

    late = batch(last, [change(9)], epoch=1)
    rows = rows_for(sleeper, [change(9)], late)
    monkeypatch.setattr(DeltaLog, "last_commits", cleared)
    assert DeltaDestination(str(table)).last_commits(["shard-1"]) == {"shard-1": newest}
    cleared_away.clear()
    with pytest.raises(FencedCommit):
        sleeper.commit(rows, [late])
    assert len(cleared_away) == cleanings
    assert all(cleared_away)


@pytest.mark.parametrize("young", [0, 4])
def test_a_log_that_is_cleared_while_it_is_proved_is_no_finding(
    young: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its beginning is gone, or all of it; what was carried on stands behind the version that was loaded."""
    table = tmp_path / "table"
    filled(table, checkpoint_interval=3)
    first_version, cleared_away = DeltaLog.first_version, []

    def cleared(self: DeltaLog, version: int) -> int:
        first = first_version(self, version)
        if not cleared_away:
            cleared_away.append(0)
            for path in (table / "_delta_log").glob("0*"):
                if int(path.name[:20]) <= TABLE_COMMITS - young:
                    os.utime(path, (time.time() - 40 * 24 * 3600,) * 2)
            cleared_away.append(clean(DeltaDestination(str(table))).log_entries)
        return first

    monkeypatch.setattr(DeltaLog, "first_version", cleared)
    assert verify(DeltaDestination(str(table)), with_rows=True).findings == []
    assert cleared_away == [0, 5 if young else TABLE_COMMITS + 1]


def test_a_table_that_is_cleared_while_it_is_loaded_is_loaded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had listed its log, and a file is gone when it is to be read."""
    filled(tmp_path / "table")
    errors: list[Exception] = [DeltaError("Object at location 20.checkpoint.parquet not found")] * 3

    def loading(*given: object, **named: object) -> DeltaTable:
        if errors:
            raise errors.pop()
        return DeltaTable(*given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr("deltalake.DeltaTable", loading)
    assert stored_numbers(DeltaDestination(str(tmp_path / "table"))) == list(range(TABLE_COMMITS))
    errors.append(DeltaError("no answer"))
    with pytest.raises(DependencyException, match="no answer"):
        DeltaDestination(str(tmp_path / "table")).columns()


def test_cleaning_keeps_files_that_a_commit_may_be_about_to_use(tmp_path: Path) -> None:
    destination, _ = filled(tmp_path / "table")
    with pytest.raises(ConfigurationError, match="keep_hours"):
        clean(destination, keep_hours=0)


@pytest.mark.parametrize("inner", ["inner", "_day=2024-01-01/inner", "_day=2024-01-01"])
def test_cleaning_touches_no_other_table_in_the_directory(inner: str, tmp_path: Path) -> None:
    table = tmp_path / "table"
    destination, _ = filled(table, partition_by=Day())
    within, _ = filled(table / inner)
    age(table, 40)
    with pytest.raises(ConfigurationError, match="not a file of the table"):
        clean(destination, keep_hours=24)
    assert stored_numbers(within) == stored_numbers(destination) == list(range(TABLE_COMMITS))

    shutil.move(table / inner, tmp_path / "elsewhere")
    assert clean(DeltaDestination(str(table), partition_by=Day()), keep_hours=24).files == 0


def test_the_change_data_of_delta_is_no_other_table(tmp_path: Path) -> None:
    destination, _ = filled(tmp_path / "table")
    handle = destination.handle()
    handle.alter.set_table_properties({"delta.enableChangeDataFeed": "true"})
    rows = pa.concat_tables(destination.rows())
    write_deltalake(handle, rows, mode="overwrite")
    handle.delete("id = 3")
    assert list((tmp_path / "table" / "_change_data").iterdir()) != []
    age(tmp_path / "table", 40)

    assert clean(DeltaDestination(str(tmp_path / "table")), keep_hours=24).files > TABLE_COMMITS


def test_a_file_of_another_kind_is_not_removed(tmp_path: Path) -> None:
    destination, _ = filled(tmp_path / "table")
    (tmp_path / "table" / "notes.txt").write_text("mine")
    age(tmp_path / "table", 40)
    with pytest.raises(ConfigurationError, match=r"notes\.txt"):
        clean(destination, keep_hours=24)

    assert (tmp_path / "table" / "notes.txt").read_text() == "mine"
