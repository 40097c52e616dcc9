"""The digests by which PostgreSQL finds rows by their key, and the renewal of the digests of earlier versions.

An index takes neither NUL nor long texts, so rows have a digest of their key: the SHA-256 of ``streamclient-key-1`` and
a line feed, followed by the values as ``column_types.encoded`` writes them, in the order of the key.

Earlier versions stored the digest of Python's ``repr``, in the column ``_key``. Such a digest depends on the
interpreter: another Python does not find the row, and stores its key a second time. So every such digest is replaced
before the first write, by a digest of the key columns:

1. ``_key`` is renamed and the new column is added. From then on PostgreSQL refuses workers of an earlier version, as
   ``_key`` does not exist. So nothing is written until all digests are renewed.
2. Rows get their new digest in pieces, one transaction each, in the order of the former digests. Rows without a new
   digest are still to be done. So if a process is killed, another process continues, and several processes may share
   the work.
3. An index is made, the new column becomes the primary key, and the former column is removed. The new column is then
   declared NOT NULL, which marks the renewal as complete.

If a key is stored twice already, both rows stay, because it is unknown which row is right. The index is then not
unique, and the next change of a key that is stored twice makes the mirror read the row from the source again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from streamclient.base import logs
from streamclient.base.extras import load
from streamclient.destinations.destination_packages import pyarrow
from streamclient.destinations.postgres.postgres_rows import DIGEST, FORMER_DIGEST, quoted, sql_name, table_of
from streamclient.destinations.postgres.postgres_tables import PostgresTables, altered
from streamclient.destinations.rows.change_rows import KEY, UNFIT
from streamclient.destinations.rows.column_names import original_name
from streamclient.destinations.rows.column_types import encoded, value_of

if TYPE_CHECKING:
    from psycopg import Cursor
    from pyarrow import Table

_log = logs.logger(__name__)

_TITLE = b"streamclient-key-1\n"

PIECE_ROWS = 5_000
"""The number of rows whose digests one transaction renews. Such a transaction takes a fraction of a second, so a
failure loses little work."""

_former, _digest = quoted(FORMER_DIGEST), quoted(DIGEST)


def key_digests(rows: Table, key: Sequence[str]) -> list[bytes]:
    """Return the digest of each row's key; an empty list without a key."""
    values = [rows.column(name).to_pylist() for name in key]
    return list(map(_digest_of, zip(*values, strict=True))) if key else []


def _digest_of(key: Sequence[Any]) -> bytes:
    return sha256(_TITLE + encoded(key)).digest()


class DigestRenewal:
    """The steps that replace a table's digests by digests of this version. Each step is one transaction."""

    def __init__(self, tables: PostgresTables) -> None:
        self._tables = tables
        self._rows = tables.names.rows
        self._after = b""
        """The last former digest whose row is done."""

    def begin(self, cursor: Cursor[Any]) -> bool:
        """Refuse workers of earlier versions from now on. Return ``False`` if other users block that at the moment."""
        self._lock(cursor)
        if KEY not in self._tables.key_columns(cursor):
            return True  # another process has begun
        _log.warning(
            "renewing the digests of the keys of %s; workers of earlier versions are refused from now on", self._rows
        )
        return altered(
            cursor,
            f"alter table {self._rows} rename column {quoted(KEY)} to {_former}",
            f"alter table {self._rows} add column {_digest} bytea",
        )

    def renew_piece(self, cursor: Cursor[Any]) -> bool:
        """Renew the digests of the next rows; return ``False`` if no row is left."""
        self._lock(cursor)
        if self._is_done(cursor):
            return False
        key, pa = self._tables.key, pyarrow()
        columns = pa.schema([field for field in self._tables.columns(cursor).schema if field.name in {*key, UNFIT}])
        names = "".join(f", {sql_name(name)}" for name in columns.names).replace("%", "%%")
        cursor.execute(
            f"select {_former}{names} from {self._rows} where {_former} > %b and {_digest} is null "
            f"order by {_former} limit %b",
            (self._after, PIECE_ROWS),
            binary=True,
        )
        lines = cursor.fetchall()
        if not lines:
            return False
        former = [bytes(line[0]) for line in lines]
        made = list(map(_digest_of, _stored_keys(table_of([line[1:] for line in lines], columns), key)))
        cursor.execute(
            f"update {self._rows} as present set {_digest} = given.made "
            "from unnest(%b::bytea[], %b::bytea[]) as given (former, made) "
            f"where present.{_former} = given.former",
            (former, made),
        )
        self._after = former[-1]
        return True

    def make_index(self, cursor: Cursor[Any]) -> None:
        """Create an index over the new digests. It is unique if no digest occurs twice."""
        self._lock(cursor)
        if self._is_done(cursor) or self._index(cursor) is not None:
            return
        psycopg = load("psycopg", "postgres")
        try:
            with cursor.connection.transaction():
                cursor.execute(f"create unique index on {self._rows} ({_digest})")
        except psycopg.errors.UniqueViolation:
            cursor.execute(f"create index on {self._rows} ({_digest})")
            _log.warning(
                "%s has keys more than once, left by an earlier version under another Python: such a row is read from "
                "the source again at its next change; a comparison of the mirror with its table names all of them",
                self._rows,
            )

    def finish(self, cursor: Cursor[Any]) -> bool:
        """Switch to the new digests and remove the former digests.

        Return ``False`` if other users block that at the moment.
        """
        self._lock(cursor)
        index = self._index(cursor)
        if self._is_done(cursor) or index is None:
            return True
        name, is_unique = index
        rows = self._rows
        goes_by = f"add primary key using index {quoted(name)}" if is_unique else f"alter column {_digest} set not null"
        psycopg = load("psycopg", "postgres")
        try:
            with cursor.connection.transaction():
                return altered(cursor, f"alter table {rows} drop column {_former}", f"alter table {rows} {goes_by}")
        except psycopg.errors.DependentObjectsStillExist:
            # If a view of another user needs the former column, the column stays, and is empty in new rows.
            return altered(
                cursor,
                f"alter table {rows} drop constraint {quoted(self._primary_key(cursor))}",
                f"alter table {rows} alter column {_former} drop not null",
                f"alter table {rows} {goes_by}",
            )

    def _lock(self, cursor: Cursor[Any]) -> None:
        """Let only one process work at a time, and no merge meanwhile."""
        cursor.execute("select pg_advisory_xact_lock(hashtext(%b))", (self._rows,))

    def _is_done(self, cursor: Cursor[Any]) -> bool:
        return self._tables.key_columns(cursor).get(DIGEST, False)

    def _index(self, cursor: Cursor[Any]) -> tuple[str, bool] | None:
        """Return the name of the index over the new digests, and whether it is unique."""
        cursor.execute(
            "select relname::text, indisunique from pg_index join pg_class on pg_class.oid = indexrelid "
            "join pg_attribute on attrelid = indrelid and attnum = indkey[0] "
            "where indrelid = %b::regclass and indnatts = 1 and attname = %b and indpred is null "
            "order by indisunique desc limit 1",
            (self._rows, DIGEST),
        )
        found: tuple[str, bool] | None = cursor.fetchone()
        return found

    def _primary_key(self, cursor: Cursor[Any]) -> str:
        cursor.execute(
            "select conname::text from pg_constraint where conrelid = %b::regclass and contype = 'p'", (self._rows,)
        )
        (name,) = cursor.fetchone() or ("",)
        return str(name)


def renew_digests(
    tables: PostgresTables,
    asked: Callable[[Callable[[Cursor[Any]], Any], str], Any],
    insist: Callable[[Callable[[Cursor[Any]], bool], str], None],
) -> None:
    """Renew the digests of a table, beginning after the last step that was completed.

    ``asked`` does work of a given kind in a transaction. ``insist`` repeats work until the work reports success or the
    time is over.
    """
    renewal = DigestRenewal(tables)
    insist(renewal.begin, f"the digests of {tables.names.rows} could not be renewed")
    while asked(renewal.renew_piece, "digests"):
        pass
    asked(renewal.make_index, "index")
    insist(renewal.finish, f"{tables.names.rows} could not be switched to its new digests")
    tables.has_former_digests = False


def _stored_keys(rows: Table, key: Sequence[str]) -> list[tuple[Any, ...]]:
    """Return the keys of rows as they are stored: a text may be in the map of unfit values instead of its column."""
    columns = [rows.column(name).to_pylist() if name in rows.column_names else [None] * rows.num_rows for name in key]
    beside = rows.column(UNFIT).to_pylist() if UNFIT in rows.column_names else [None] * rows.num_rows
    found = []
    for pairs, values in zip(beside, zip(*columns, strict=True), strict=True):
        unfit = {name: value_of(held["type"], held["value"]) for name, held in pairs or ()}
        whole = (
            unfit.get(original_name(name)) if value is None else value for name, value in zip(key, values, strict=True)
        )
        found.append(tuple(whole))
    return found
