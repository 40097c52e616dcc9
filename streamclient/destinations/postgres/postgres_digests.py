"""The key digests by which PostgreSQL finds rows, and the renewal of digests that earlier versions stored.

An index of PostgreSQL takes neither NUL nor long texts. So each row has a digest of its key in the column
``_key_digest``. The digest is the SHA-256 of ``streamclient-key-1``, a line feed, and the key's values as
``column_types.encoded`` writes them.

Earlier versions of this package stored a digest of Python's ``repr`` of the key, in the column ``_key``. This digest
depends on the version of Python. Under another version, a worker does not find the row, and stores its key a second
time. So before its first write, a worker replaces all such digests:

1. The worker renames the column ``_key``, and adds ``_key_digest``. Writes of workers of an earlier version now fail,
   because ``_key`` does not exist. So no row is written until all digests are renewed.
2. The worker gives new digests to the rows in pieces, with one transaction for each piece, in the order of the former
   digests. A row without a new digest is still to be done. So another process can continue after a killed one, and
   several processes can share the work.
3. The worker creates an index over the new column, makes the new column the primary key, and removes the former column.
   The new column is then NOT NULL, which marks the renewal as complete.

If two rows have the same key, both stay, because it is unknown which row is right. The index is then not unique. At
the next change of such a key, the mirror reads the row from the source table again.
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
"""The number of rows whose digests one transaction renews. The transaction takes a fraction of a second, so a failure
loses little work."""

_former, _digest = quoted(FORMER_DIGEST), quoted(DIGEST)


def key_digests(rows: Table, key: Sequence[str]) -> list[bytes]:
    """Return the digest of the key of each row, in the order of ``rows``; an empty list if ``key`` is empty."""
    values = [rows.column(name).to_pylist() for name in key]
    return list(map(_digest_of, zip(*values, strict=True))) if key else []


def _digest_of(key: Sequence[Any]) -> bytes:
    return sha256(_TITLE + encoded(key)).digest()


class DigestRenewal:
    """The steps that replace the key digests that an earlier version of this package has stored in a table.

    Each public method is one step, in one transaction.
    """

    def __init__(self, tables: PostgresTables) -> None:
        self._tables = tables
        self._rows = tables.names.rows
        self._after = b""
        """The former digest of the last row whose digest this object has renewed."""

    def begin(self, cursor: Cursor[Any]) -> bool:
        """Rename ``_key`` and add ``_key_digest``; return ``False`` if other users of the table block the change now.

        Afterwards, the writes of workers of earlier versions fail.
        """
        self._lock(cursor)
        if KEY not in self._tables.key_columns(cursor):
            return True  # another process has done this step
        _log.warning(
            "renewing the digests of the keys of %s; workers of earlier versions are refused from now on", self._rows
        )
        return altered(
            cursor,
            f"alter table {self._rows} rename column {quoted(KEY)} to {_former}",
            f"alter table {self._rows} add column {_digest} bytea",
        )

    def renew_piece(self, cursor: Cursor[Any]) -> bool:
        """Renew the digests of the next ``PIECE_ROWS`` rows; return ``False`` if no row is left."""
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
        """Create an index over the new digests. The index is unique if no digest occurs twice."""
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
                "%s has keys more than once, because an earlier version stored them under another version of Python. "
                "Such a row is read from the source again at its next change. To list all such keys, compare the "
                "mirror with its table",
                self._rows,
            )

    def finish(self, cursor: Cursor[Any]) -> bool:
        """Make ``_key_digest`` the primary key, and remove the former column.

        Return ``False`` if other users of the table block the change now.
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
            # A view of another user needs the former column. So the column stays, and is null in new rows.
            return altered(
                cursor,
                f"alter table {rows} drop constraint {quoted(self._primary_key(cursor))}",
                f"alter table {rows} alter column {_former} drop not null",
                f"alter table {rows} {goes_by}",
            )

    def _lock(self, cursor: Cursor[Any]) -> None:
        """Exclude other processes that renew digests of this table or merge rows, until the transaction ends."""
        cursor.execute("select pg_advisory_xact_lock(hashtext(%b))", (self._rows,))

    def _is_done(self, cursor: Cursor[Any]) -> bool:
        return self._tables.key_columns(cursor).get(DIGEST, False)

    def _index(self, cursor: Cursor[Any]) -> tuple[str, bool] | None:
        """Return the name of the index over ``_key_digest``, and whether it is unique; ``None`` without an index."""
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
    """Renew the digests of a table, from the first step that no process has completed.

    ``asked(work, kind)`` does ``work`` in a transaction. ``insist(work, failure)`` repeats ``work`` until ``work``
    returns ``True``, and raises an error if this takes too long.
    """
    renewal = DigestRenewal(tables)
    insist(renewal.begin, f"the digests of {tables.names.rows} could not be renewed")
    while asked(renewal.renew_piece, "digests"):
        pass
    asked(renewal.make_index, "index")
    insist(renewal.finish, f"{tables.names.rows} could not be switched to its new digests")
    tables.has_former_digests = False


def _stored_keys(rows: Table, key: Sequence[str]) -> list[tuple[Any, ...]]:
    """Return the keys of stored rows. A value that does not fit its key column is taken from the map ``_unfit``."""
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
