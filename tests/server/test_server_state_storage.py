"""Storage: what was answered is there after a restart, and nothing else is."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path

import pytest
from server_state_driver import HOUR_SECONDS, Driver, batch_row, batch_table, delete_all, increment, put

from streamclient.server.admin_changes import Change
from streamclient.server.server_errors import DataDirectoryError, ServiceError
from streamclient.server.storage import open_storage
from streamclient.server.storage_memory import MemoryStorage
from streamclient.server.storage_sqlite import _DELETE, DATABASE_FILE, SqliteStorage
from streamclient.wire.plainbuffer import KeyBound, decode_row
from streamclient.wire.schema import OperationType, ReturnType, RowExistenceExpectation


def reopened(driver: Driver, directory: Path) -> Driver:
    """The same data in a new engine, on a machine clock that goes on."""
    driver.engine.close()
    again = Driver(open_storage(directory))
    again.wall.micros = driver.wall.micros
    return again


def test_everything_is_there_after_a_restart(tmp_path: Path) -> None:
    driver = Driver(open_storage(tmp_path))
    stream_id = driver.create_with_stream(origin=["x"], options={"max_versions": 3})
    driver.put("a", put("x", 1), put("y", b"\x00"), put("z", 2.5))
    driver.update("a", increment("x", 1), delete_all("y"), put("t", True))
    driver.put("b")
    rows = [batch_row(OperationType.PUT, letter, put("x", letter)) for letter in "cde"]
    driver.call("BatchWriteRow", tables=[batch_table(rows)])
    driver.delete("d")
    driver.engine.split_shard("t", at=["c"])
    driver.put("e", put("x", "again"))
    table, versions, records = driver.table(), driver.versions("a", "x"), driver.all_records()
    shards, views = driver.describe_shards(stream_id), driver.engine.shards("t")
    described = driver.call("DescribeTable", table_name="t")

    again = reopened(driver, tmp_path)

    assert again.table() == table
    assert again.versions("a", "x") == versions
    assert again.all_records() == records
    assert again.describe_shards(stream_id) == shards
    assert again.engine.shards("t") == views
    assert again.call("DescribeTable", table_name="t") == described
    again.engine.close()


def test_iterators_survive_a_restart(tmp_path: Path) -> None:
    driver = Driver(open_storage(tmp_path))
    driver.create_with_stream()
    driver.put("a")
    driver.put("b")
    _, iterator = driver.page(driver.only_iterator(), limit=1)
    assert iterator is not None

    again = reopened(driver, tmp_path)

    assert [record.key["pk"] for record in again.pages(iterator)] == ["b"]
    again.engine.close()


def test_trimmed_positions_stay_trimmed_and_are_not_used_again(tmp_path: Path) -> None:
    driver = Driver(open_storage(tmp_path))
    driver.create_with_stream()
    start = driver.only_iterator()
    driver.put("a")
    (before,) = driver.all_records()
    driver.engine.trim("t")

    again = reopened(driver, tmp_path)
    again.wall.micros = 0  # even if the machine's clock was set back
    again.put("b")

    assert again.refusal("GetStreamRecord", shard_iterator=start)[1] == "OTSTrimmedDataAccess"
    (after,) = again.all_records()
    assert after.sequence_info > before.sequence_info
    again.engine.close()


def test_expired_records_are_gone_from_the_file(tmp_path: Path) -> None:
    driver = Driver(open_storage(tmp_path))
    driver.create_with_stream()
    driver.put("a")
    driver.clock.advance(25 * HOUR_SECONDS)
    driver.put("b")

    driver.engine.close()

    with sqlite3.connect(tmp_path / DATABASE_FILE) as database:
        (count,) = database.execute("SELECT count(*) FROM records").fetchone()
    database.close()
    assert count == 1


def test_expired_iterators_stay_expired(tmp_path: Path) -> None:
    driver = Driver(open_storage(tmp_path))
    driver.create_with_stream()
    old = driver.only_iterator()
    driver.engine.expire_iterators("t")

    again = reopened(driver, tmp_path)

    assert again.refusal("GetStreamRecord", shard_iterator=old)[1] == "OTSTrimmedDataAccess"
    again.engine.close()


def test_time_does_not_fall_back_when_the_server_restarts(tmp_path: Path) -> None:
    driver = Driver(open_storage(tmp_path))
    driver.create(options={"max_versions": 1})
    driver.clock.advance(HOUR_SECONDS)
    driver.put("a", put("x", "old"))

    again = reopened(driver, tmp_path)
    again.update("a", put("x", "new"))

    assert again.get("a") == {"x": "new"}
    again.engine.close()


def test_generated_keys_go_on_rising(tmp_path: Path) -> None:
    driver = Driver(open_storage(tmp_path))
    driver.create(key=(("pk", "STRING"), ("id", "INTEGER", "AUTO_INCREMENT")))
    key = (("pk", "a"), ("id", KeyBound.AUTO_INCREMENT))
    several = [batch_row(OperationType.PUT, key, returns=ReturnType.PK) for _ in range(9)]
    made = driver.call("BatchWriteRow", tables=[batch_table(several)]).tables[0].rows
    first = decode_row(made[-1].row).primary_key[1][1]
    for row in made:
        driver.delete(decode_row(row.row).primary_key)

    again = reopened(driver, tmp_path)
    again.wall.micros = 0

    second = decode_row(again.put(key, returns=ReturnType.PK).row).primary_key[1][1]
    assert isinstance(first, int)
    assert isinstance(second, int)
    assert second > first
    again.engine.close()


def test_deleted_tables_and_streams_leave_nothing(tmp_path: Path) -> None:
    driver = Driver(open_storage(tmp_path))
    driver.create_with_stream()
    driver.put("a")
    driver.engine.split_shard("t", at=["b"])
    driver.call("DeleteTable", table_name="t")
    again = reopened(driver, tmp_path)
    assert list(again.call("ListTable").table_names) == []
    again.engine.close()

    with sqlite3.connect(tmp_path / DATABASE_FILE) as database:
        counts = [
            database.execute(f"SELECT count(*) FROM {name}").fetchone()[0]
            for name in ("tables", "rows", "streams", "shards", "records")
        ]
    database.close()
    assert counts == [0] * 5


def test_a_failed_batch_row_leaves_nothing_behind(tmp_path: Path) -> None:
    driver = Driver(open_storage(tmp_path))
    driver.create_with_stream()
    rows = [
        batch_row(OperationType.PUT, "a", put("x", 1)),
        batch_row(OperationType.PUT, "b", put("x", 1), expect=RowExistenceExpectation.EXPECT_EXIST),
    ]
    driver.call("BatchWriteRow", tables=[batch_table(rows)])

    again = reopened(driver, tmp_path)

    assert again.table() == {"a": {"x": 1}}
    assert [record.key["pk"] for record in again.all_records()] == ["a"]
    again.engine.close()


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
    database = sqlite3.connect(tmp_path / DATABASE_FILE)
    database.execute("CREATE TABLE theirs (x)")
    database.commit()
    database.close()

    with pytest.raises(DataDirectoryError, match="another program"):
        open_storage(tmp_path)


def test_another_format_is_refused(tmp_path: Path) -> None:
    open_storage(tmp_path).close()
    database = sqlite3.connect(tmp_path / DATABASE_FILE)
    database.execute("PRAGMA user_version = 99")
    database.close()

    with pytest.raises(DataDirectoryError, match="format 99"):
        open_storage(tmp_path)


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(DataDirectoryError, match="cannot use the data directory"):
        open_storage(tmp_path / "file" / "data")


def test_a_commit_is_all_or_nothing(tmp_path: Path) -> None:
    """A position that is used twice fails the whole commit."""
    driver = Driver(open_storage(tmp_path))
    driver.create_with_stream()
    driver.put("a")
    driver.engine.close()
    storage = SqliteStorage(tmp_path)
    stored = storage.load()

    with pytest.raises(sqlite3.IntegrityError):
        storage.commit([*stored.rows, stored.tables[0], *stored.records])

    assert storage.load() == stored
    storage.close()


class FailingStorage(MemoryStorage):
    """Takes so many commits and no more."""

    keeps = True

    def __init__(self, commits: int) -> None:
        self.commits = commits

    def commit(self, changes: Sequence[Change]) -> None:
        if not self.commits:
            raise OSError("disk full")
        self.commits -= 1


def test_after_a_failed_commit_everything_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    """Memory then has what the storage has not; answering from it would acknowledge what is lost."""
    driver = Driver(FailingStorage(commits=1))
    driver.create()

    with pytest.raises(ServiceError, match="disk full"):
        driver.put("a")
    assert "refusing all requests" in caplog.text
    status, code, text = driver.refusal("ListTable")
    assert (status, code, "restart" in text) == (500, "OTSInternalServerError", True)


@pytest.mark.parametrize("statement", [each for statements in _DELETE.values() for each in statements])
def test_what_is_deleted_is_found_without_a_walk_over_what_stays(tmp_path: Path, statement: str) -> None:
    SqliteStorage(tmp_path).close()
    database = sqlite3.connect(tmp_path / DATABASE_FILE)
    plan = database.execute(f"EXPLAIN QUERY PLAN {statement}", (1,) * statement.count("?")).fetchall()
    database.close()

    assert [step for *_, step in plan if step.startswith("SCAN")] == []
