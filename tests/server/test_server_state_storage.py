"""Storage: what was answered is there after a restart, and nothing else is."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from server_state_driver import (
    DELETE,
    EXIST,
    GENERATED_KEY,
    HOUR_SECONDS,
    PUT,
    UPDATE,
    Disk,
    Driver,
    batch_row,
    delete_all,
    increment,
    put,
    table_driver,
)

from streamclient.server.admin_changes import Change, DeleteRow, PutRow
from streamclient.server.keys import encode_key
from streamclient.server.server_errors import DataDirectoryError, ServiceError
from streamclient.server.storage import open_storage
from streamclient.server.storage_memory import MemoryStorage
from streamclient.server.storage_sqlite import _DELETE, DATABASE_FILE, SqliteStorage
from streamclient.server.stored_rows import decode_body, make_row
from streamclient.wire.plainbuffer import KeyBound, decode_row
from streamclient.wire.schema import ReturnType


def test_everything_is_there_after_a_restart(disk: Disk) -> None:
    driver = disk.with_stream(origin=["x"], options={"max_versions": 3})
    stream_id = driver.stream_id()
    driver.put("a", put("x", 1), put("y", b"\x00"), put("z", 2.5))
    driver.update("a", increment("x", 1), delete_all("y"), put("t", True))
    driver.put("b")
    rows = [batch_row(PUT, letter, put("x", letter)) for letter in "cde"]
    driver.write_batch(rows)
    driver.delete("d")
    driver.engine.split_shard("t", at=["c"])
    driver.put("e", put("x", "again"))
    table, versions, records = driver.table(), driver.versions("a", "x"), driver.all_records()
    shards, views = driver.describe_shards(stream_id), driver.engine.shards("t")
    described = driver.call("DescribeTable", table_name="t")

    again = disk.opened()

    assert again.table() == table
    assert again.versions("a", "x") == versions
    assert again.all_records() == records
    assert again.describe_shards(stream_id) == shards
    assert again.engine.shards("t") == views
    assert again.call("DescribeTable", table_name="t") == described


def test_iterators_survive_a_restart(disk: Disk) -> None:
    driver = disk.with_stream()
    driver.put("a")
    driver.put("b")
    _, iterator = driver.page(driver.only_iterator(), limit=1)

    again = disk.opened()

    assert [record.key["pk"] for record in again.pages(iterator)] == ["b"]


def test_trimmed_positions_stay_trimmed_and_are_not_used_again(disk: Disk) -> None:
    driver = disk.with_stream()
    start = driver.only_iterator()
    driver.put("a")
    (before,) = driver.all_records()
    driver.engine.trim("t")

    again = disk.opened()
    again.wall.micros = 0  # even if the machine's clock was set back
    again.put("b")

    assert again.refusal("GetStreamRecord", shard_iterator=start)[1] == "OTSTrimmedDataAccess"
    (after,) = again.all_records()
    assert after.sequence_info > before.sequence_info


def test_expired_records_are_gone_from_the_file(disk: Disk) -> None:
    driver = disk.with_stream()
    driver.put("a")
    driver.clock.advance(25 * HOUR_SECONDS)
    driver.put("b")

    assert disk.rows("records") == 1


def test_expired_iterators_stay_expired(disk: Disk) -> None:
    driver = disk.with_stream()
    old = driver.only_iterator()
    driver.engine.expire_iterators("t")

    again = disk.opened()

    assert again.refusal("GetStreamRecord", shard_iterator=old)[1] == "OTSTrimmedDataAccess"


def test_time_does_not_fall_back_when_the_server_restarts(disk: Disk) -> None:
    driver = disk.with_table(options={"max_versions": 1})
    driver.clock.advance(HOUR_SECONDS)
    driver.put("a", put("x", "old"))

    again = disk.opened()
    again.update("a", put("x", "new"))

    assert again.get("a") == {"x": "new"}


def test_generated_keys_go_on_rising(disk: Disk) -> None:
    driver = disk.with_table(key=GENERATED_KEY)
    key = (("pk", "a"), ("id", KeyBound.AUTO_INCREMENT))
    several = [batch_row(PUT, key, returns=ReturnType.PK) for _ in range(9)]
    made = driver.write_batch(several)
    first = decode_row(made[-1].row).primary_key[1][1]
    for row in made:
        driver.delete(decode_row(row.row).primary_key)

    again = disk.opened()
    again.wall.micros = 0

    second = decode_row(again.put(key, returns=ReturnType.PK).row).primary_key[1][1]
    assert second > first  # type: ignore[operator]


def test_deleted_tables_and_streams_leave_nothing(disk: Disk) -> None:
    driver = disk.with_stream()
    driver.put("a")
    driver.engine.split_shard("t", at=["b"])
    driver.call("DeleteTable", table_name="t")
    again = disk.opened()
    assert again.tables() == []

    assert [disk.rows(name) for name in ("tables", "rows", "streams", "shards", "records")] == [0] * 5


def test_a_failed_batch_row_leaves_nothing_behind(disk: Disk) -> None:
    driver = disk.with_stream()
    rows = [batch_row(PUT, "a", put("x", 1)), batch_row(PUT, "b", put("x", 1), expect=EXIST)]
    driver.write_batch(rows)

    again = disk.opened()

    assert again.table() == {"a": {"x": 1}}
    assert [record.key["pk"] for record in again.all_records()] == ["a"]


def test_a_data_directory_serves_one_server_at_a_time(tmp_path: Path) -> None:
    first = open_storage(tmp_path)
    with pytest.raises(DataDirectoryError, match="in use by another server"):
        open_storage(tmp_path)
    first.close()
    first.close()

    open_storage(tmp_path).close()


def test_a_foreign_file_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / DATABASE_FILE).write_bytes(b"not a database" * 100)
    with pytest.raises(DataDirectoryError, match="is not a database of this server"):
        open_storage(tmp_path)
    assert (tmp_path / DATABASE_FILE).read_bytes() == b"not a database" * 100


def test_a_database_of_another_program_is_left_alone(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / DATABASE_FILE)) as database:
        database.execute("CREATE TABLE theirs (x)")
        database.commit()

    with pytest.raises(DataDirectoryError, match="another program"):
        open_storage(tmp_path)


def test_another_format_is_refused(tmp_path: Path) -> None:
    open_storage(tmp_path).close()
    with closing(sqlite3.connect(tmp_path / DATABASE_FILE)) as database:
        database.execute("PRAGMA user_version = 99")

    with pytest.raises(DataDirectoryError, match="format 99"):
        open_storage(tmp_path)


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(DataDirectoryError, match="cannot use the data directory"):
        open_storage(tmp_path / "file" / "data")


def test_a_commit_is_all_or_nothing(disk: Disk) -> None:
    """A position that is used twice fails the whole commit."""
    driver = disk.with_stream()
    driver.put("a")
    disk.close()
    storage = SqliteStorage(disk.directory)
    stored = storage.load()

    with pytest.raises(sqlite3.IntegrityError):
        storage.commit([*stored.rows, stored.tables[0], *stored.records])

    assert storage.load() == stored
    storage.close()


class RecordingStorage(MemoryStorage):
    """Keeps the changes of the last commit."""

    keeps = True
    changes: tuple[Change, ...] = ()

    def commit(self, changes: Iterable[Change]) -> None:
        self.changes = tuple(changes)

    def rows(self) -> list[Change]:
        return [each for each in self.changes if isinstance(each, PutRow | DeleteRow)]


def test_a_row_is_written_down_once_in_a_commit_however_often_it_changed() -> None:
    """A row of 14 MB that one batch changed 200 times took gigabytes."""
    storage = RecordingStorage()
    driver = table_driver(storage)
    driver.write_batch([batch_row(UPDATE, "a", put("x", number), put("y", 0)) for number in range(200)])
    (row,) = storage.rows()

    assert isinstance(row, PutRow)
    assert decode_body(row.body, row.written_millis).columns["x"][0][1] == 199
    batches = [
        [batch_row(UPDATE, "a", put("x", 1)), batch_row(DELETE, "a"), batch_row(UPDATE, "b", put("x", 1))],
        [batch_row(DELETE, "b"), batch_row(UPDATE, "b", put("x", 2)), batch_row(PUT, "c", put("x", 1))],
    ]
    assert [kinds(driver, storage, batch) for batch in batches] == [["DeleteRow", "PutRow"], ["PutRow", "PutRow"]]


def kinds(driver: Driver, storage: RecordingStorage, batch: list[Any]) -> list[str]:
    assert all(row.is_ok for row in driver.write_batch(batch))
    return [type(change).__name__ for change in storage.rows()]


def test_rows_that_change_before_their_table_goes_leave_nothing(disk: Disk) -> None:
    driver = disk.with_table()
    driver.put("a")
    state = driver.engine._state
    state.put_row(state.table("t"), encode_key(["b"]), make_row(("pk",), ("b",), {}, 1))
    state.drop_table(state.table("t"))
    state.commit()

    assert disk.opened().tables() == []
    assert disk.rows("rows") == 0


class FailingStorage(MemoryStorage):
    """Takes so many commits and no more."""

    keeps = True

    def __init__(self, commits: int) -> None:
        self.commits = commits

    def commit(self, changes: Iterable[Change]) -> None:
        if not self.commits:
            raise OSError("disk full")
        self.commits -= 1


def test_after_a_failed_commit_everything_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    """Memory then has what the storage has not; answering from it would acknowledge what is lost."""
    driver = table_driver(FailingStorage(commits=1))

    with pytest.raises(ServiceError, match="disk full"):
        driver.put("a")
    assert "refusing all requests" in caplog.text
    status, code, text = driver.refusal("ListTable")
    assert (status, code, "restart" in text) == (500, "OTSInternalServerError", True)


@pytest.mark.parametrize("statement", [each for statements in _DELETE.values() for each in statements])
def test_what_is_deleted_is_found_without_a_walk_over_what_stays(tmp_path: Path, statement: str) -> None:
    SqliteStorage(tmp_path).close()
    with closing(sqlite3.connect(tmp_path / DATABASE_FILE)) as database:
        plan = database.execute(f"EXPLAIN QUERY PLAN {statement}", (1,) * statement.count("?")).fetchall()

    assert [step for *_, step in plan if step.startswith("SCAN")] == []
