"""The storage in a data directory: one SQLite file, which one server at a time holds.

Two locks exclude other servers. The first lock is on a separate file beside the database (``streamclient.base.locks``).
This lock lasts until this process ends, even if other code in the process opens and closes the database file. The
second lock is SQLite's own, on the database file. It also covers hard links to the file. But it is a POSIX lock, so it
ends when any code in this process opens and closes the file, for example to copy the directory.

The server creates a new database under another name, and renames it when it is complete. So an empty file, or a journal
without its database, means that content was lost. Then the server refuses to start.

Every row has a checksum over all its values. So the server reports a damaged row when it starts, and never serves it.

Every commit is one SQLite transaction in WAL mode. With ``synchronous=NORMAL``, the operating system has the data of a
commit when the commit returns, so the commit survives any end of this process. Only a crash of the whole machine may
lose the last commits. Such a crash loses whole commits, the latest first. See the decision page ``server-storage``.
"""

from __future__ import annotations

import ctypes
import os
import sqlite3
import weakref
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from types import MappingProxyType
from typing import Any

from attrs import astuple, fields, frozen

from streamclient.base.kept_formats import KeptFormat, parse_json
from streamclient.base.locks import HeldLock, LockHeldError
from streamclient.server.admin_changes import (
    AppendRecord,
    Change,
    DeleteRow,
    DropShard,
    DropStream,
    DropTable,
    DropTunnel,
    DropTunnelPart,
    PutRow,
    PutSetting,
    PutShard,
    PutStream,
    PutTable,
    PutTunnelPart,
    StoredState,
    TrimRecords,
)
from streamclient.server.keys import decode_key
from streamclient.server.server_errors import DataDirectoryError

DATABASE_FILE = "tablestore.sqlite3"
LOCK_FILE = "tablestore.lock"
_NEW_SUFFIX = ".new"
"""The suffix of the name of a database that is not yet complete."""
_JOURNAL_SUFFIX = "-wal"

_APPLICATION_ID = 0x53434C54
"""The application id in SQLite's header, the letters SCLT. It marks a file as a database of this server."""
DATA_FORMAT = KeptFormat("the data directory", version=3, oldest=3)
"""The format of the database. SQLite's ``user_version`` has the version. No release wrote version 1 or 2."""

_VACUUM_AFTER = 1_000
"""The number of deleted rows after which the storage returns free pages to the file system."""


@frozen
class _Kind:
    """One SQLite table, whose rows hold changes of one type.

    The table's columns are the fields of the type, and a checksum.
    """

    name: str
    change: type[Any]
    columns: str
    key: str
    """The columns of the table's primary key. ``load`` returns rows in the order of these columns."""
    options: str = ""

    @property
    def definition(self) -> str:
        """The SQL statement that creates the table."""
        return (
            f"CREATE TABLE {self.name} ({self.columns}, checksum INTEGER NOT NULL, PRIMARY KEY ({self.key}))"
            f"{self.options};"
        )

    @property
    def put(self) -> str:
        """The SQL statement that stores a row.

        The statement replaces a row with the same key, except in the table of records: there, the statement fails.
        """
        # If a defect uses a position twice, the second record must not overwrite the first record.
        verb = "INSERT" if self.change is AppendRecord else "INSERT OR REPLACE"
        return f"{verb} INTO {self.name} VALUES ({', '.join('?' * (len(fields(self.change)) + 1))})"


_KINDS = (
    _Kind("settings", PutSetting, "name TEXT NOT NULL, value TEXT NOT NULL", "name", " WITHOUT ROWID"),
    _Kind("tables", PutTable, "table_number INTEGER NOT NULL, document TEXT NOT NULL", "table_number"),
    _Kind(
        "rows",
        PutRow,
        "table_number INTEGER NOT NULL, key BLOB NOT NULL, written_millis INTEGER NOT NULL, body BLOB NOT NULL",
        "table_number, key",
        " WITHOUT ROWID",
    ),
    _Kind("streams", PutStream, "stream_number INTEGER NOT NULL, document TEXT NOT NULL", "stream_number"),
    _Kind(
        "shards",
        PutShard,
        "shard_number INTEGER NOT NULL, stream_number INTEGER NOT NULL, document TEXT NOT NULL",
        "shard_number",
    ),
    _Kind(
        "records",
        AppendRecord,
        "shard_number INTEGER NOT NULL, position INTEGER NOT NULL, timestamp_micros INTEGER NOT NULL, "
        "size_bytes INTEGER NOT NULL, element BLOB NOT NULL",
        "shard_number, position",
        " WITHOUT ROWID",
    ),
    _Kind(
        "tunnel_parts",
        PutTunnelPart,
        "tunnel_id TEXT NOT NULL, kind TEXT NOT NULL, part_id TEXT NOT NULL, document TEXT NOT NULL",
        "tunnel_id, kind, part_id",
        " WITHOUT ROWID",
    ),
)

_SHARDS_BY_STREAM = "CREATE INDEX shards_by_stream ON shards (stream_number)"
"""An index of shards by stream, so that the shards of other streams do not slow down the deletion of a stream."""

_PUT: Mapping[type[Change], str] = MappingProxyType({kind.change: kind.put for kind in _KINDS})

_DELETE: Mapping[type[Change], tuple[str, ...]] = MappingProxyType(
    {
        DropTable: ("DELETE FROM tables WHERE table_number = ?", "DELETE FROM rows WHERE table_number = ?"),
        DeleteRow: ("DELETE FROM rows WHERE table_number = ? AND key = ?",),
        DropStream: (
            "DELETE FROM records WHERE shard_number IN (SELECT shard_number FROM shards WHERE stream_number = ?)",
            "DELETE FROM shards WHERE stream_number = ?",
            "DELETE FROM streams WHERE stream_number = ?",
        ),
        DropShard: (
            "DELETE FROM records WHERE shard_number = ?",
            "DELETE FROM shards WHERE shard_number = ?",
        ),
        TrimRecords: ("DELETE FROM records WHERE shard_number = ? AND position < ?",),
        DropTunnelPart: ("DELETE FROM tunnel_parts WHERE tunnel_id = ? AND kind = ? AND part_id = ?",),
        DropTunnel: ("DELETE FROM tunnel_parts WHERE tunnel_id = ?",),
    }
)
"""The SQL statements for each type of change that deletes data. The parameters of a statement are the change's
fields."""


def checksum(kind: str, values: Sequence[Any]) -> int:
    """Return the checksum over a row's values and the name ``kind`` of its table.

    The values include the key. So a row that moved to another key counts as damaged, too.

    Raises:
        TypeError: a value has a type that is never stored.
    """
    total = zlib.crc32(kind.encode())
    for value in values:
        data = value.encode() if isinstance(value, str) else value if isinstance(value, bytes) else _number(value)
        total = zlib.crc32(data, zlib.crc32(len(data).to_bytes(4, "big"), total))
    return total


def _number(value: Any) -> bytes:
    if not isinstance(value, int):
        raise TypeError(f"{value!r} is not a whole number, a text or bytes")
    return value.to_bytes(8, "big", signed=True)


class SqliteStorage:
    """The open and locked file ``tablestore.sqlite3`` in a data directory."""

    keeps = True

    def __init__(self, directory: Path) -> None:
        """Open or create the database file in ``directory``, and lock it.

        Raises:
            DataDirectoryError: another server holds the file, the file cannot be used, or another program made its
                content.
        """
        self._path = directory / DATABASE_FILE
        try:
            directory.mkdir(parents=True, exist_ok=True)
            file = self._path.resolve()  # so a symbolic link to the file leads to the same lock
            self._lock = HeldLock(file.with_name(LOCK_FILE))
        except LockHeldError as error:
            raise DataDirectoryError(_in_use(directory, f" ({error.holder})")) from error
        except OSError as error:
            raise DataDirectoryError(f"cannot use the data directory {directory}: {error.strerror}") from error
        try:
            _require_whole(file)
            self._database = _open_database(file)
        except BaseException:
            self._lock.release()
            raise
        self._is_open = True
        self._deleted = 0
        _OPEN.add(self)

    def load(self) -> StoredState:
        """Return the whole committed content.

        Raises:
            DataDirectoryError: the content is damaged; the text names the table and the row, if they are known.
        """
        settings, tables, rows, streams, shards, records, parts = (tuple(self._rows(kind)) for kind in _KINDS)
        problems = self._database.execute("PRAGMA quick_check(1)").fetchone()
        if problems != ("ok",):
            raise DataDirectoryError(f"{self._path} is damaged: {' '.join(str(problems[0]).split())}")
        return StoredState(
            settings=settings,
            tables=tables,
            rows=rows,
            streams=streams,
            shards=shards,
            records=records,
            tunnel_parts=parts,
        )

    def _rows(self, kind: _Kind) -> Iterator[Any]:
        last: tuple[Any, ...] | None = None
        try:
            for *values, stored in self._database.execute(f"SELECT * FROM {kind.name} ORDER BY {kind.key}"):
                if _checksum_or_none(kind.name, values) != stored:
                    raise self._damaged(
                        kind, f"{self._place(kind, values)} does not have the checksum it was stored with"
                    )
                last = tuple(values)
                yield kind.change(*values)
        except sqlite3.DatabaseError as error:
            where = "its beginning" if last is None else self._place(kind, last)
            raise self._damaged(kind, f"it cannot be read after {where}: {error}") from error

    def _damaged(self, kind: _Kind, what: str) -> DataDirectoryError:
        return DataDirectoryError(f"{self._path} is damaged: table '{kind.name}': {what}")

    def _place(self, kind: _Kind, values: Sequence[Any]) -> str:
        """Return words that name a row of the table ``kind`` in an error message, even if some values are damaged."""
        if kind.change is PutRow:
            return f"row {_key_text(values[1])} of {self._table_text(values[0])}"
        if kind.change is AppendRecord:
            return f"the stream record at position {values[1]} of shard number {values[0]}{self._shard_text(values[0])}"
        return f"row {', '.join(repr(value) for value in values[: kind.key.count(',') + 1])}"

    def _shard_text(self, number: Any) -> str:
        query = "SELECT streams.document FROM shards JOIN streams USING (stream_number) WHERE shards.shard_number = ?"
        name = self._named(query, number, "table_name")
        return "" if name is None else f" of table '{name}'"

    def _table_text(self, number: Any) -> str:
        name = self._named("SELECT document FROM tables WHERE table_number = ?", number, "name")
        return f"table number {number}" if name is None else f"table '{name}'"

    def _named(self, query: str, number: Any, field: str) -> str | None:
        try:
            (document,) = self._database.execute(query, (number,)).fetchone()
            return str(parse_json(document)[field])
        except (sqlite3.DatabaseError, ValueError, LookupError, TypeError):
            return None

    def commit(self, changes: Iterable[Change]) -> None:
        """Apply all changes in one SQLite transaction."""
        with self._database:
            self._database.execute("BEGIN IMMEDIATE")
            for change in changes:
                self._apply(change)
        if self._deleted >= _VACUUM_AFTER:
            self._deleted = 0
            self._database.execute("PRAGMA incremental_vacuum").fetchall()

    def _apply(self, change: Change) -> None:
        kind = type(change)
        values = astuple(change, recurse=False)
        if kind in _PUT:
            self._database.execute(_PUT[kind], (*values, checksum(_NAMES[kind], values)))
        for statement in _DELETE.get(kind, ()):
            self._deleted += self._database.execute(statement, values).rowcount

    def close(self) -> None:
        """Close the database and release the directory. In a forked child, do neither, because the parent uses both."""
        if self._is_open and self._lock.is_held:
            self._database.close()
            self._lock.release()
        self._is_open = False
        _OPEN.discard(self)

    def leave_to_parent(self) -> None:
        """Keep the database open in this forked child, because closing it would delete the parent's journal."""
        self._is_open = False
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._database))  # garbage collection must not close it either


_OPEN: weakref.WeakSet[SqliteStorage] = weakref.WeakSet()


def _forked() -> None:
    for storage in list(_OPEN):
        storage.leave_to_parent()
    _OPEN.clear()


if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=_forked)


_NAMES: Mapping[type[Change], str] = MappingProxyType({kind.change: kind.name for kind in _KINDS})


def _checksum_or_none(name: str, values: Sequence[Any]) -> int | None:
    try:
        return checksum(name, values)
    except (TypeError, OverflowError):
        return None


def _key_text(key: Any) -> str:
    try:
        return repr(decode_key(bytes(key)))
    except (ValueError, TypeError):
        return repr(key)


def _require_whole(file: Path) -> None:
    """Require that the database file has content; create the database if none of its files exists.

    Raises:
        DataDirectoryError: the file is empty, or only the journal exists, so the content was lost.
    """
    journal = file.with_name(f"{file.name}{_JOURNAL_SUFFIX}")
    if file.exists():
        if file.stat().st_size == 0:
            raise DataDirectoryError(
                f"{file} is empty (0 bytes), so its content was lost: restore it from a copy, or remove the file to "
                "start without data"
            )
    elif journal.exists() and journal.stat().st_size:
        raise DataDirectoryError(
            f"{file} is missing, but its journal {journal.name} is there: restore both from a copy, or remove the "
            "journal to start without data"
        )
    else:
        _create(file)


def _create(file: Path) -> None:
    """Create a database without content. Even if this process ends meanwhile, the file is either complete or absent."""
    new = file.with_name(f"{file.name}{_NEW_SUFFIX}")
    try:
        new.unlink(missing_ok=True)
        with closing(sqlite3.connect(new, isolation_level=None)) as database:
            database.execute("PRAGMA journal_mode = MEMORY")
            database.execute("PRAGMA auto_vacuum = INCREMENTAL")
            database.execute("BEGIN EXCLUSIVE")
            for kind in _KINDS:
                database.execute(kind.definition)
            database.execute(_SHARDS_BY_STREAM)
            database.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
            database.execute(f"PRAGMA user_version = {DATA_FORMAT.version}")
            database.execute("COMMIT")
        new.replace(file)
    except sqlite3.DatabaseError as error:
        raise DataDirectoryError(f"cannot use the data directory {file.parent}: {error}") from error
    except OSError as error:
        raise DataDirectoryError(f"cannot use the data directory {file.parent}: {error.strerror}") from error


def _open_database(path: Path) -> sqlite3.Connection:
    # isolation_level: SqliteStorage begins transactions itself, so that one commit is one transaction.
    # check_same_thread: different threads use the connection, one at a time, under the engine's lock.
    # timeout: waiting would not help, because another server holds the file until its process ends.
    try:
        database = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=0)
    except sqlite3.DatabaseError as error:
        raise DataDirectoryError(f"cannot use the data directory {path.parent}: {error}") from error
    try:
        _prepare(database, path)
    except sqlite3.DatabaseError as error:
        database.close()
        raise DataDirectoryError(_refusal(path, error)) from error
    except BaseException:
        database.close()
        raise
    return database


def _refusal(path: Path, error: sqlite3.DatabaseError) -> str:
    if isinstance(error, sqlite3.OperationalError) and "locked" in str(error):
        return _in_use(path.parent)
    return f"{path} is not a database of this server: {error}"


def _in_use(directory: Path, by: str = "") -> str:
    return f"the data directory {directory} is in use by another server{by}: stop that one, or choose another directory"


def _prepare(database: sqlite3.Connection, path: Path) -> None:
    database.execute("PRAGMA locking_mode = EXCLUSIVE")
    (objects,) = database.execute("SELECT count(*) FROM sqlite_master").fetchone()
    (application_id,) = database.execute("PRAGMA application_id").fetchone()
    (version,) = database.execute("PRAGMA user_version").fetchone()
    if not objects:
        raise DataDirectoryError(
            f"{path} is a database without tables, so its content was lost: restore it from a copy, or remove the "
            "file to start without data"
        )
    if application_id != _APPLICATION_ID:
        raise DataDirectoryError(f"{path} is a database of another program")
    if problem := DATA_FORMAT.problem(version):
        raise DataDirectoryError(f"{path}: {problem}")
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = NORMAL")
    database.execute("BEGIN EXCLUSIVE")
    database.execute("COMMIT")
