"""Storage in a directory: one SQLite file, held by one server at a time.

Every commit is one SQLite transaction in WAL mode. With ``synchronous=NORMAL`` a commit is in the operating system's
hands when it returns: it survives any end of this process. Only a crash of the whole machine may lose the last
commits, and then only whole ones, the latest first. See the page ``server-storage`` of the decisions.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from streamclient.server.changes import (
    AppendRecord,
    Change,
    DeleteRow,
    DropSetting,
    DropStream,
    DropTable,
    PutRow,
    PutSetting,
    PutShard,
    PutStream,
    PutTable,
    StoredState,
    TrimRecords,
)
from streamclient.server.errors import DataDirectoryError

DATABASE_FILE = "tablestore.sqlite3"
LOCK_FILE = "lock"

_APPLICATION_ID = 0x53434C54
"""Marks the file as ours in SQLite's header: the letters SCLT."""
_FORMAT_VERSION = 1

_SCHEMA = """
CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE tables (table_number INTEGER PRIMARY KEY, document TEXT NOT NULL);
CREATE TABLE rows (
    table_number INTEGER NOT NULL, key BLOB NOT NULL, written_millis INTEGER NOT NULL, body BLOB NOT NULL,
    PRIMARY KEY (table_number, key)
) WITHOUT ROWID;
CREATE TABLE streams (stream_number INTEGER PRIMARY KEY, document TEXT NOT NULL);
CREATE TABLE shards (
    shard_number INTEGER PRIMARY KEY, stream_number INTEGER NOT NULL, document TEXT NOT NULL
);
CREATE TABLE records (
    shard_number INTEGER NOT NULL, position INTEGER NOT NULL, timestamp_micros INTEGER NOT NULL,
    size_bytes INTEGER NOT NULL, element BLOB NOT NULL,
    PRIMARY KEY (shard_number, position)
) WITHOUT ROWID;
"""

_Statement = tuple[str, Callable[[Any], tuple[Any, ...]]]

_STATEMENTS: Mapping[type[Change], tuple[_Statement, ...]] = MappingProxyType(
    {
        PutSetting: (("INSERT OR REPLACE INTO settings VALUES (?, ?)", lambda c: (c.name, c.value)),),
        DropSetting: (("DELETE FROM settings WHERE name = ?", lambda c: (c.name,)),),
        PutTable: (("INSERT OR REPLACE INTO tables VALUES (?, ?)", lambda c: (c.table_number, c.document)),),
        DropTable: (
            ("DELETE FROM tables WHERE table_number = ?", lambda c: (c.table_number,)),
            ("DELETE FROM rows WHERE table_number = ?", lambda c: (c.table_number,)),
        ),
        PutRow: (
            (
                "INSERT OR REPLACE INTO rows VALUES (?, ?, ?, ?)",
                lambda c: (c.table_number, c.key, c.written_millis, c.body),
            ),
        ),
        DeleteRow: (("DELETE FROM rows WHERE table_number = ? AND key = ?", lambda c: (c.table_number, c.key)),),
        PutStream: (("INSERT OR REPLACE INTO streams VALUES (?, ?)", lambda c: (c.stream_number, c.document)),),
        DropStream: (
            (
                "DELETE FROM records WHERE shard_number IN (SELECT shard_number FROM shards WHERE stream_number = ?)",
                lambda c: (c.stream_number,),
            ),
            ("DELETE FROM shards WHERE stream_number = ?", lambda c: (c.stream_number,)),
            ("DELETE FROM streams WHERE stream_number = ?", lambda c: (c.stream_number,)),
        ),
        PutShard: (
            (
                "INSERT OR REPLACE INTO shards VALUES (?, ?, ?)",
                lambda c: (c.shard_number, c.stream_number, c.document),
            ),
        ),
        # Not OR REPLACE: a position that is used twice is a defect, and must not overwrite a record.
        AppendRecord: (
            (
                "INSERT INTO records VALUES (?, ?, ?, ?, ?)",
                lambda c: (c.shard_number, c.position, c.timestamp_micros, c.size_bytes, c.element),
            ),
        ),
        TrimRecords: (
            (
                "DELETE FROM records WHERE shard_number = ? AND position < ?",
                lambda c: (c.shard_number, c.before_position),
            ),
        ),
    }
)


class SqliteStorage:
    """A directory with one database, locked while this object is open."""

    keeps = True

    def __init__(self, directory: Path) -> None:
        """Open or create the database.

        Raises:
            DataDirectoryError: the directory cannot be made, is held by another server, or its database is not ours.
        """
        self._directory = directory
        self._lock = _lock_directory(directory)
        try:
            self._database = _open_database(directory / DATABASE_FILE)
        except BaseException:
            os.close(self._lock)
            raise
        self._is_open = True

    def load(self) -> StoredState:
        """All that was committed."""
        return StoredState(
            settings=tuple(self._rows(PutSetting, "SELECT * FROM settings ORDER BY name")),
            tables=tuple(self._rows(PutTable, "SELECT * FROM tables ORDER BY table_number")),
            rows=tuple(self._rows(PutRow, "SELECT * FROM rows ORDER BY table_number, key")),
            streams=tuple(self._rows(PutStream, "SELECT * FROM streams ORDER BY stream_number")),
            shards=tuple(self._rows(PutShard, "SELECT * FROM shards ORDER BY shard_number")),
            records=tuple(self._rows(AppendRecord, "SELECT * FROM records ORDER BY shard_number, position")),
        )

    def _rows(self, change_class: Any, query: str) -> Iterator[Any]:
        for values in self._database.execute(query):
            yield change_class(*values)

    def commit(self, changes: Sequence[Change]) -> None:
        """Apply all changes in one transaction."""
        with self._database:
            self._database.execute("BEGIN IMMEDIATE")
            for change in changes:
                for statement, parameters in _STATEMENTS[type(change)]:
                    self._database.execute(statement, parameters(change))

    def close(self) -> None:
        """Close the database and give the directory free."""
        if self._is_open:
            self._is_open = False
            self._database.close()
            os.close(self._lock)


def _lock_directory(directory: Path) -> int:
    """Hold the directory; the operating system lets go of it however this process ends."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = os.open(directory / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise DataDirectoryError(f"cannot use the data directory {directory}: {error.strerror}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        raise DataDirectoryError(
            f"the data directory {directory} is in use by another server: stop that one, or choose another directory"
        ) from error
    return lock


def _open_database(path: Path) -> sqlite3.Connection:
    # Transactions are begun by hand, so that one commit is one transaction; calls come one at a time, under a lock.
    database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        _prepare(database, path)
    except sqlite3.DatabaseError as error:
        database.close()
        raise DataDirectoryError(f"{path} is not a database of this server: {error}") from error
    except BaseException:
        database.close()
        raise
    return database


def _prepare(database: sqlite3.Connection, path: Path) -> None:
    (objects,) = database.execute("SELECT count(*) FROM sqlite_master").fetchone()
    (application_id,) = database.execute("PRAGMA application_id").fetchone()
    (version,) = database.execute("PRAGMA user_version").fetchone()
    if objects and application_id != _APPLICATION_ID:
        raise DataDirectoryError(f"{path} is a database of another program")
    if objects and version != _FORMAT_VERSION:
        raise DataDirectoryError(f"{path} has format {version}; this version reads format {_FORMAT_VERSION}")
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = NORMAL")
    if not objects:
        database.executescript(
            f"BEGIN; {_SCHEMA} PRAGMA application_id = {_APPLICATION_ID}; "
            f"PRAGMA user_version = {_FORMAT_VERSION}; COMMIT;"
        )
