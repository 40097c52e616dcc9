"""The three tables of a destination in PostgreSQL: their schema, their columns, and the changes of other users.

If the name of the table lacks a schema, a handle looks for the tables once, and remembers the schema in which it found
them, because the search path may change. If the tables no longer exist there, another user has moved, renamed or hidden
them. The handle then does not use other tables with these names, and does not create them.

``<table>_shards`` also has a note for each column that this package has created, with the column's type. The notes are
rows with an empty application, which no fleet can have. Other users may add columns, which this package ignores. They
may also widen the types of this package's columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from itertools import chain
from typing import TYPE_CHECKING, Any

from attrs import frozen

from streamclient.base import logs
from streamclient.base.extras import load
from streamclient.destinations.destination_packages import pyarrow
from streamclient.destinations.postgres.postgres_rows import (
    CATALOGUE_TYPES,
    DIGEST,
    FORMER_DIGEST,
    NAME_BYTES_MAX,
    TableColumns,
    arrow_name,
    arrow_type,
    column_name,
    is_own_type,
    quoted,
    sql_name,
    sql_type,
    takes,
)
from streamclient.destinations.postgres.postgres_session import check_server
from streamclient.destinations.rows.change_rows import KEY
from streamclient.errors import ConfigurationError, DependencyException, ErrorKind

if TYPE_CHECKING:
    from psycopg import Cursor
    from pyarrow import Field

_log = logs.logger(__name__)

_NOTES = ""
"""The value of ``application`` in a note of ``<table>_shards``. It is empty, because no fleet's name can be empty."""

_COLUMN = "column "
"""The prefix of ``shard`` in a note of ``<table>_shards``. The name of the column follows."""

_LOCK_MILLIS = 100
"""The longest time, in milliseconds, for which a change of a table waits until other transactions have finished with
the table. Meanwhile, all new users of the table wait for the change."""

GONE = frozenset({"42P01", "3F000"})
"""PostgreSQL's error codes for a missing table or schema."""


class TableNames:
    """The names of a destination's three tables, quoted and with their schema.

    ``plain`` has the names without quotes and schema, as in PostgreSQL's catalogue.
    """

    def __init__(self, schema: str, table: str) -> None:
        self.schema = schema
        self.plain: tuple[str, str, str] = (table, f"{table}_shards", f"{table}_commits")
        prefix = f"{quoted(schema)}." if schema else ""
        self.rows, self.shards, self.commits = (prefix + quoted(name) for name in self.plain)

    def within(self, schema: str) -> TableNames:
        """Return the names of the same tables with ``schema`` as their schema."""
        return TableNames(schema, self.plain[0])

    @classmethod
    def of(cls, table: str) -> TableNames:
        """Return the names of the three tables for ``table``, the name of the table of rows, perhaps with its schema.

        Raises:
            ConfigurationError: the name is empty or too long, or has a character that this package cannot use.
        """
        schema, _, name = table.rpartition(".")
        if not name or len(f"{name}_commits".encode()) > NAME_BYTES_MAX or set("\0%") & set(table):
            raise ConfigurationError(
                f"table must be a name of at most {NAME_BYTES_MAX - len('_commits')} bytes, optionally with its schema "
                f"before it, and without a percent sign, not {table!r}"
            )
        return cls(schema, name)


@frozen
class _Column:
    """A column of the table of rows, as PostgreSQL's catalogue describes it, with this package's note on it."""

    name: str
    kind: str
    """The SQL name of the column's type; empty if this package does not use the type."""
    type_name: str
    modifier: int
    written: str
    """The column's type as PostgreSQL displays it, for messages."""
    is_made: bool
    """Whether the server makes the column's values, because the column is an identity or generated column."""
    is_plain: bool
    """Whether the column has no default and may be null, like all columns that this package creates."""
    number: int
    noted: str | None
    """The SQL type in this package's note on the column; ``None`` if the column has no note."""


class PostgresTables:
    """One handle's knowledge of the three tables, and the statements that create, check and change the tables."""

    def __init__(self, table: str) -> None:
        self._given = TableNames.of(table)
        self.names: TableNames = self._given
        self.key: tuple[str, ...] = ()
        self.is_seen: bool = False
        """Whether this handle has seen the tables. Tables that disappear later are not created again."""
        self.has_former_digests: bool = False
        """Whether rows had key digests of an earlier version of this package at the last check. Such digests must be
        renewed."""
        self._told: frozenset[str] = frozenset()

    def keyed(self, key: Sequence[str]) -> PostgresTables:
        """Return a copy of this object for rows with the key columns ``key``."""
        made = copy(self)
        made.key = tuple(key)
        return made

    # --- existence ------------------------------------------------------------------------------------------------

    def are_there(self, cursor: Cursor[Any]) -> bool:
        """Return whether the three tables exist.

        Raises:
            DependencyException: the handle has seen the tables, and they no longer exist.
            ConfigurationError: only some of the tables exist, so they belong to another program or are incomplete.
        """
        # One transaction creates the tables, so a single statement sees all or none of them. For a name without a
        # schema, the tables are in the first schema of the search path that has all three.
        names = self.names
        cursor.execute(
            "select nspname, relname from pg_class "
            "join pg_namespace on pg_namespace.oid = relnamespace "
            "where relname = any(%b::text[]) and relkind in ('r', 'p', 'v', 'm', 'f') "
            "and case when %b = '' then nspname = any(current_schemas(false)) else nspname = %b end "
            "order by array_position(current_schemas(false), nspname), pg_class.oid",
            (list(names.plain), names.schema, names.schema),
        )
        found: dict[str, list[str]] = {}
        for schema, name in cursor.fetchall():
            found.setdefault(schema, []).append(name)
        whole = next((schema for schema, there in found.items() if len(there) == len(names.plain)), None)
        if whole is not None:
            self.names, self.is_seen = self._given.within(whole), True
            return True
        if self.is_seen:
            raise self.gone()
        there = list(dict.fromkeys(chain.from_iterable(found.values())))
        if there:
            missing = [name for name in names.plain if name not in there] or ["all of them in one schema"]
            raise ConfigurationError(
                f"PostgreSQL has {' and '.join(there)}, but not {' and '.join(missing)}: a destination creates these "
                "tables together, and writes only to its own; name another table, or restore the missing tables"
            )
        return False

    def gone(self) -> DependencyException:
        """Return the error for tables that this handle has seen and that no longer exist."""
        return DependencyException(
            f"one or all of the tables {', '.join(self.names.plain)} in schema {self.names.schema!r}, which existed "
            "before, are gone: renamed, moved, removed or out of sight; nothing is written until they are back",
            kind=ErrorKind.TRANSIENT,
        )

    def create(self, cursor: Cursor[Any]) -> None:
        """Create the three tables. If they exist, check them, and write missing notes on their columns."""
        check_server(cursor)
        self._check_temporary(cursor)
        if self.are_there(cursor):  # without the lock below, which another process may hold for long
            self._check_whole(cursor)
            self._check_key(cursor)
            self._note_columns(cursor)
            return
        names = self._names_to_make(cursor)
        # If two processes created the tables at the same time without this lock, one of them would get an error.
        cursor.execute("select pg_advisory_xact_lock(hashtext(%b))", (names.rows,))
        key = f"{quoted(DIGEST)} bytea primary key" if self.key else ""
        cursor.execute(f"create table if not exists {names.rows} ({key})")
        cursor.execute(
            f"create table if not exists {names.shards} ("
            "application text, shard text, commit text, primary key (application, shard))"
        )
        # The numbers in ``step`` come from a sequence. Transaction ids of PostgreSQL would not do, because they differ
        # after a move of the tables to another cluster.
        cursor.execute(
            f"create table if not exists {names.commits} ("
            "application text, shard text, number bigint, epoch bigint, commit text not null, "
            "step bigint not null, id bigserial, at timestamptz not null default now(), "
            "primary key (application, shard, number))"
        )
        self.names = names
        self._check_key(cursor)  # another process may have created the tables first

    def _names_to_make(self, cursor: Cursor[Any]) -> TableNames:
        if self._given.schema:
            return self._given
        (schema,) = cursor.execute("select current_schema()").fetchone() or (None,)
        if schema is None:
            raise ConfigurationError(
                f"the search path leads to no schema in which to create {self._given.plain[0]}: name the table with "
                "its schema"
            )
        return self._given.within(schema)

    def _check_temporary(self, cursor: Cursor[Any]) -> None:
        right = "has_database_privilege(current_database(), 'TEMPORARY')"
        cursor.execute(f"select {right}, current_database(), current_user")
        may, database, user = cursor.fetchone() or (True, "", "")
        if not may:
            raise ConfigurationError(
                "each commit copies its rows into a temporary table, which this role may not create: "
                f"grant temporary on database {quoted(database)} to {quoted(user)}"
            )

    def check_rights(self, cursor: Cursor[Any]) -> None:
        """Require that the role of this connection has all rights that a commit needs on the tables.

        Raises:
            ConfigurationError: a right is missing. The message names the right and its table.
        """
        names = self.names
        wanted = [(names.rows, right) for right in ("SELECT", "INSERT", *(["DELETE"] if self.key else []))]
        wanted += [(names.shards, right) for right in ("SELECT", "INSERT", "UPDATE")]
        wanted += [(names.commits, right) for right in ("SELECT", "INSERT")]
        tables, rights = zip(*wanted, strict=True)
        cursor.execute(
            "select name, kind from unnest(%b::text[], %b::text[]) as given (name, kind) "
            "where not has_table_privilege(name, kind)",
            (list(tables), list(rights)),
        )
        lacking = cursor.fetchall()
        cursor.execute(
            "select name, 'USAGE' from pg_get_serial_sequence(%b, 'id') as name "
            "where not has_sequence_privilege(name, 'USAGE, UPDATE')",
            (names.commits,),
        )
        lacking += cursor.fetchall()
        if lacking:
            told = ", ".join(f"{right} on {name}" for name, right in lacking)
            raise ConfigurationError(f"this role lacks the right to commit: grant it {told}")

    def _check_whole(self, cursor: Cursor[Any]) -> None:
        """Require the primary keys of ``<table>_shards`` and ``<table>_commits``, and the sequence of a commit's id.

        Without them, a commit could be stored twice.
        """
        names = self.names
        cursor.execute(
            "select pg_get_serial_sequence(%b, 'id') is not null and count(*) = 2 from pg_index "
            "where indisprimary and indrelid = any(array[%b::regclass, %b::regclass])",
            (names.commits, names.shards, names.commits),
        )
        if cursor.fetchone() != (True,):
            raise ConfigurationError(
                f"{names.shards} or {names.commits} lacks its primary key, or the sequence of its column id, without "
                "which a commit could be stored twice: if these are copies, copy the three tables by dumping and "
                "restoring them"
            )

    def key_columns(self, cursor: Cursor[Any]) -> dict[str, bool]:
        """Return whether each column with key digests is declared NOT NULL. The keys are the columns' names.

        Earlier versions of this package wrote another column of key digests. That column is included if it exists.
        """
        cursor.execute(
            "select attname, attnotnull from pg_attribute "
            "where attrelid = %b::regclass and attname = any(%b::text[]) and not attisdropped",
            (self.names.rows, [KEY, DIGEST, FORMER_DIGEST]),
        )
        return dict(cursor.fetchall())

    def _check_key(self, cursor: Cursor[Any]) -> None:
        there = self.key_columns(cursor) if self.key else {}
        self.has_former_digests = bool(self.key) and not there.get(DIGEST, False)
        if self.key and not there:
            raise ConfigurationError(
                f"{self.names.rows} was created for rows without a key, which are only added: name another table"
            )

    # --- their columns --------------------------------------------------------------------------------------------

    def columns(self, cursor: Cursor[Any]) -> TableColumns:
        """Return the columns of the table of rows: this package's columns, and the columns of other programs.

        Raises:
            ConfigurationError: another user has changed a column of this package to a type that cannot hold all values
                of the column.
        """
        ours: list[Field] = []
        others: set[str] = set()
        there = self._catalogue(cursor)
        for column in there:
            if column.name in {DIGEST, FORMER_DIGEST} or (column.name == KEY and self.key):
                continue
            kind = self._own_kind(column)
            if kind is None:
                others.add(column.name)
            else:
                name = arrow_name(column.name)
                ours.append(pyarrow().field(name, arrow_type(name, kind)))
        self._tell(frozenset(others))
        return TableColumns(
            pyarrow().schema(ours), frozenset(others), max((column.number for column in there), default=0)
        )

    def _own_kind(self, column: _Column) -> str | None:
        """Return the SQL type of a column of this package; ``None`` for a column of another program.

        A column without a note counts as a column of this package if this package could have made it, because earlier
        versions write no notes.
        """
        name, kind = arrow_name(column.name), column.kind
        is_ours = column.noted is not None or column.name == KEY or (bool(kind) and column.is_plain)
        if column.is_made or not is_ours:
            self._refuse_key(column)
            return None
        if column.noted and (kind == column.noted or takes(column.noted, column.type_name, column.modifier)):
            return column.noted
        # A key column must keep the noted type, because rows are found only by key values of this type.
        is_key = bool(column.noted) and name in self.key
        if kind and is_own_type(name, kind) and not is_key:
            return kind
        if not column.noted:
            return None
        raise ConfigurationError(
            f"{self._what(column)} is {column.written} and was created as {column.noted}: its new type does not "
            "hold all of its values; give it the former type again, or another type that holds all of its values"
        )

    def _what(self, column: _Column) -> str:
        return f"the {'key ' if arrow_name(column.name) in self.key else ''}column {arrow_name(column.name)!r}"

    def _refuse_key(self, column: _Column) -> None:
        if arrow_name(column.name) in self.key:
            raise ConfigurationError(
                f"{self._what(column)} of {self.names.rows} is {column.written}, a type that keys never have here: "
                "give it the type of the table's key again"
            )

    def _tell(self, others: frozenset[str]) -> None:
        if fresh := others - self._told:
            _log.warning(
                "%s has columns of other programs, which are left out: %s", self.names.rows, ", ".join(sorted(fresh))
            )
        self._told = others

    def _catalogue(self, cursor: Cursor[Any]) -> list[_Column]:
        """Read the columns of the table of rows, with this package's notes on them.

        Raises:
            ConfigurationError: another user seems to have renamed a column of this package.
        """
        # Types are compared by their names in the catalogue. The display of a type in PostgreSQL depends on a setting.
        cursor.execute(
            "select attname, type_name, atttypmod, written, is_made, is_plain, attnum, noted.name, noted.kind from ("
            "select attname, "
            "case when typnamespace = 'pg_catalog'::regnamespace then typname::text else '' end as type_name, "
            "atttypmod, format_type(atttypid, atttypmod) as written, "
            "attidentity::text <> '' or attgenerated::text <> '' as is_made, "
            "not attnotnull and not atthasdef as is_plain, attnum from pg_attribute "
            "join pg_type on pg_type.oid = atttypid "
            "where attrelid = %b::regclass and attnum > 0 and not attisdropped) as there full join ("
            f"select substr(shard, %b) as name, commit as kind from {self.names.shards} "
            "where application = %b and starts_with(shard, %b)) as noted on noted.name = attname::text order by attnum",
            (self.names.rows, len(_COLUMN) + 1, _NOTES, _COLUMN),
        )
        found, gone = [], {}
        for name, type_name, modifier, written, is_made, is_plain, number, noted, noted_kind in cursor.fetchall():
            if name is None:
                gone[noted] = noted_kind
                continue
            kind = CATALOGUE_TYPES.get(type_name, "") if modifier == -1 else ""
            found.append(_Column(name, kind, type_name, modifier, written, is_made, is_plain, number, noted_kind))
        self._refuse_renamed(found, gone)
        return found

    def _refuse_renamed(self, there: Sequence[_Column], gone: Mapping[str, str]) -> None:
        """Refuse the table if another user may have renamed a column of this package.

        This is possible if a noted column is missing (``gone``), and a column without a note has the same type. If the
        missing column were created again, both columns would have values. If no column without a note has this type,
        the missing column was dropped, and the next commit creates it again.
        """
        fresh = {
            column.kind: column.name
            for column in there
            if column.noted is None
            and column.is_plain
            and column.kind
            and column.name not in {KEY, DIGEST, FORMER_DIGEST}
        }
        for name, kind in gone.items():
            if kind in fresh:
                note = f"application = '' and shard = '{_COLUMN}{name}'"
                raise ConfigurationError(
                    f"the column {arrow_name(name)!r} of {self.names.rows} is gone, and {fresh[kind]!r}, of the same "
                    f"type, is not one of ours: if it was renamed, give it its name again; if it was dropped, delete "
                    f"its note from {self.names.shards} where {note}"
                )

    def _note_columns(self, cursor: Cursor[Any]) -> None:
        """Write notes on the columns that an earlier version has created without notes."""
        there, own = self._catalogue(cursor), {KEY, DIGEST, FORMER_DIGEST}
        kinds = {
            column.name: self._own_kind(column) for column in there if column.noted is None and column.name not in own
        }
        self._note(cursor, {name: kind for name, kind in kinds.items() if kind is not None})

    def _note(self, cursor: Cursor[Any], kinds: dict[str, str]) -> None:
        if kinds:
            cursor.execute(
                f"insert into {self.names.shards} (application, shard, commit) "
                "select %b, %b || name, kind from unnest(%b::text[], %b::text[]) as given (name, kind) "
                "on conflict (application, shard) do update set commit = excluded.commit",
                (_NOTES, _COLUMN, list(kinds), list(kinds.values())),
            )

    def add(self, cursor: Cursor[Any], fields: Sequence[Field]) -> bool:
        """Add columns for ``fields`` to the table of rows; return ``False`` if other users block the change now.

        Call this in a separate transaction. While the change waits for another transaction, all other users of the
        table wait for the change.
        """
        added = ", ".join(f"add column if not exists {sql_name(field.name)} {sql_type(field.type)}" for field in fields)
        if not altered(cursor, f"alter table {self.names.rows} {added}"):
            return False
        fresh = {column_name(field.name): sql_type(field.type) for field in fields}
        there = {column.name: column.kind for column in self._catalogue(cursor) if column.is_plain}
        self._note(cursor, {name: kind for name, kind in fresh.items() if there.get(name) == kind})
        return True


def altered(cursor: Cursor[Any], *statements: str) -> bool:
    """Execute ``statements`` that change a table. If other users block them, change nothing and return ``False``."""
    psycopg = load("psycopg", "postgres")
    try:
        with cursor.connection.transaction():
            cursor.execute("select set_config('lock_timeout', %b, true)", (str(_LOCK_MILLIS),))
            for statement in statements:
                cursor.execute(statement)
    except psycopg.errors.LockNotAvailable:
        return False
    return True
