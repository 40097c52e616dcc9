"""PostgreSQL as a destination, through psycopg: rows, commits and fence in one transaction.

Beside the table stand two more: ``<table>_shards`` has the last commit of each shard, ``<table>_commits`` all of them.
A commit copies its rows into a temporary table, locks the rows of its shards, in the order of their names, compares,
and writes what it has done; so of two writers the second sees what the first did. It copies before it locks, as the
server ends no COPY whose writer is frozen; and a merge folds before, as the server ends a transaction that waits for
long. If the connection breaks in the middle of COMMIT nobody knows: look again, then decide.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from itertools import count, groupby
from typing import TYPE_CHECKING, Any

from attrs import frozen

from streamclient import checks
from streamclient.destinations.changes import KEY, SHARD
from streamclient.destinations.commit import Commit, LogEntry, are_among, check_commits, is_stored
from streamclient.destinations.extra import load, pyarrow
from streamclient.destinations.postgres_rows import (
    NAME_BYTES_MAX,
    arrow_name,
    arrow_type,
    check_key_names,
    key_digests,
    python_values,
    quoted,
    sql_name,
    sql_type,
    table_of,
    without_unfit,
)
from streamclient.destinations.postgres_session import Answer, PostgresSession, check_conninfo, check_server, refusal
from streamclient.destinations.schemas import check_fit, check_table_types
from streamclient.errors import ConfigurationError, DependencyException, ErrorKind, StreamClientError

if TYPE_CHECKING:
    from psycopg import Cursor
    from pyarrow import Schema, Table

_COPIED = "streamclient_copied"
"""The temporary table of a transaction's rows."""

_FETCH_ROWS = 10_000


@checks.explains_names
class PostgresDestination:
    """A table in PostgreSQL that is written exactly once, by any number of processes; see ``Destination``.

    Maps and lists are columns of type ``json``. What PostgreSQL cannot hold in a column stands in ``_unfit``: texts
    with the character NUL, columns whose names are longer than 63 bytes, and those behind the first 400. Columns that
    are called like system columns (``xmin``, ``ctid``) have a mark behind their names; see ``names``.

    Args:
        conninfo: as libpq takes it, for example ``"host=db dbname=lake user=writer"``.
        table: the table of the rows, perhaps with its schema before it, as in ``"lake.orders"``. The first commit makes
            it and those beside it; reading makes nothing, and no other table is written to.
        application: the fleet that writes; one per status table.
        answer_seconds: how long a commit is tried, and how long the server lets one hold its locks while the writer
            says nothing. Keep it below the lease's duration: a frozen writer holds up its successor for so long.

    Raises:
        ConfigurationError: an argument cannot work.
    """

    def __init__(
        self, conninfo: str, table: str, *, application: str = "default", answer_seconds: float = 15.0
    ) -> None:
        load("psycopg", "postgres")
        checks.secret.require("conninfo", conninfo)
        check_conninfo(conninfo)
        checks.any_text.require("table", table)
        checks.text.require("application", application)
        checks.seconds.require("answer_seconds", answer_seconds)
        self._names = _Names.of(table)
        self._session = PostgresSession(conninfo, answer_seconds)
        self._application = application
        self._answer_seconds = answer_seconds
        self._key: tuple[str, ...] = ()
        self._is_ready = False

    @property
    def application(self) -> str:
        """The fleet whose commits this handle reads and writes."""
        return self._application

    def probe(self) -> None:
        """Check the server, and that the tables are there or can be made; see ``Destination.probe``."""
        self._session.retrying(self._rehearse)

    def columns(self) -> Schema | None:
        """See ``Destination``."""
        columns = self._looking(self._columns)
        return columns if columns is not None and columns.names else None

    def last_commits(self, shards: Sequence[str]) -> dict[str, Commit | None]:
        """See ``Destination``."""
        found = self._looking(lambda cursor: self._lasts(cursor, shards, "")) or {}
        return {shard: found.get(shard) for shard in shards}

    def commit(self, rows: Table, commits: Sequence[Commit]) -> None:
        """See ``Destination``."""
        check_commits(commits, self._application)
        check_table_types(rows.schema)
        self._make_ready()
        self._store(rows, commits, count())

    def key_by(self, columns: Sequence[str]) -> None:
        """See ``MergingDestination``. Rows get a digest of their key, as an index takes neither NUL nor long texts.

        Raises:
            ConfigurationError: no column here can have such a name.
        """
        check_key_names(columns)
        self._key = tuple(columns)
        self._is_ready = False

    def merge(self, keys: Table, fold: Callable[[Table], Table], commits: Sequence[Commit]) -> None:
        """See ``MergingDestination``."""
        check_commits(commits, self._application)
        self._make_ready()
        digests = key_digests(keys, self._key)
        deadline, tries = time.monotonic() + self._answer_seconds, count()
        while (found := self._session.retrying(lambda cursor: self._look(cursor, digests, commits, tries))) is not None:
            present, replaced = found
            try:
                self._store(fold(present), commits, tries, replaced)
                return
            except _OthersWereQuickerError as error:
                if time.monotonic() >= deadline:
                    raise DependencyException(
                        f"for {self._answer_seconds:g} s others have changed the rows of {self._names.rows} that a "
                        "merge was to replace, each time before it did",
                        kind=ErrorKind.TRANSIENT,
                    ) from error

    def rows_below(self, column: str, bound: int) -> Iterator[Table]:
        """See ``MergingDestination``."""
        yield from self._selected(f"where {sql_name(column)} < %s", [bound])

    def log(self) -> Iterator[LogEntry]:
        """See ``Destination``."""
        query = f"select step, commit from {self._names.commits} order by step, id"
        found = self._looking(lambda cursor: cursor.execute(query).fetchall()) or []
        for step, lines in groupby(found, key=lambda line: line[0]):
            yield LogEntry.from_json(str(step), f'{{"commits":[{",".join(text for _, text in lines)}]}}')

    def fenced_shards(self) -> list[str]:
        """See ``Fences``."""
        query = f"select shard from {self._names.shards} where application = %s and commit is not null"
        found = self._looking(lambda cursor: cursor.execute(query, (self._application,)).fetchall()) or []
        return [shard for (shard,) in found]

    def rows(self, shards: Sequence[str] | None = None) -> Iterator[Table]:
        """See ``Destination``."""
        if shards is None:
            yield from self._selected("", None)
        else:
            yield from self._selected(f"where {quoted(SHARD)} = any(%s)", [list(shards)])

    def _selected(self, condition: str, values: Sequence[Any] | None) -> Iterator[Table]:
        columns = self.columns()
        if columns is None:
            return
        query = self._query(columns)
        if values is not None:
            query = f"{query.replace('%', '%%')} {condition}"
        # By another handle, as the caller may commit with this one between two parts.
        reader = self._session.another()
        try:
            with reader.connection().transaction(), reader.connection().cursor("streamclient_rows") as cursor:
                cursor.itersize = _FETCH_ROWS
                cursor.execute(query, values, binary=True)
                while lines := cursor.fetchmany(_FETCH_ROWS):
                    yield table_of(lines, columns)
        except load("psycopg", "postgres").Error as error:
            raise refusal(error) from error
        finally:
            reader.close()

    def close(self) -> None:
        """See ``Destination``."""
        self._session.close()

    def another(self) -> PostgresDestination:
        """A further handle over the same table, for another thread."""
        made = copy(self)
        made._session = self._session.another()
        return made

    # --- inside ---------------------------------------------------------------------------------------------------

    def _query(self, columns: Schema) -> str:
        return f"select {', '.join(map(sql_name, columns.names))} from {self._names.rows}"

    def _look(
        self, cursor: Cursor[Any], digests: Sequence[bytes], commits: Sequence[Commit], tries: Iterator[int]
    ) -> tuple[Table, _Replaced] | None:
        """The rows with these keys, before anything is locked; ``None`` if the commits are stored."""
        if self._is_stored(cursor, commits, "", is_repeated=next(tries) > 0):
            return None
        columns = self._columns(cursor)
        names = "".join(f", {sql_name(name)}" for name in columns.names).replace("%", "%%")
        cursor.execute(
            f"select {quoted(KEY)}, xmin::text{names} from {self._names.rows} where {quoted(KEY)} = any(%s)",
            [list(digests)],
            binary=True,
        )
        found = cursor.fetchall()
        seen = frozenset((bytes(line[0]), line[1]) for line in found)
        return table_of([line[2:] for line in found], columns), _Replaced(digests, seen)

    def _remove(self, cursor: Cursor[Any], replaced: _Replaced) -> None:
        """Remove the rows that a merge has looked at, if they are still the same."""
        # One merge at a time: a row that another one removes and adds again meanwhile is not found by its key, as
        # the statement that waits for it looks at the rows that were there when it began.
        cursor.execute("select pg_advisory_xact_lock(hashtext(%s))", (self._names.rows,))
        cursor.execute(
            f"delete from {self._names.rows} where {quoted(KEY)} = any(%s) returning {quoted(KEY)}, xmin::text",
            [list(replaced.digests)],
        )
        if {(bytes(digest), written) for digest, written in cursor.fetchall()} != replaced.seen:
            raise _OthersWereQuickerError

    def _looking(self, work: Callable[[Cursor[Any]], Answer]) -> Answer | None:
        """What some work finds in the tables; ``None`` as long as there are none."""
        return self._session.retrying(lambda cursor: work(cursor) if self._are_there(cursor) else None)

    def _are_there(self, cursor: Cursor[Any]) -> bool:
        """Whether the tables are there, all of them or none.

        Raises:
            ConfigurationError: some are, so they are somebody else's, or no longer whole.
        """
        # By one statement, as they are made by one transaction: it sees all of them or none.
        names = self._names
        cursor.execute(
            "select relname from pg_class where relname = any(%s::name[]) and case when %s = '' "
            "then pg_table_is_visible(oid) else relnamespace = to_regnamespace(%s) end order by oid",
            (list(names.plain), names.schema, names.schema),
        )
        found = [name for (name,) in cursor.fetchall()]
        missing = [name for name in names.plain if name not in found]
        if found and missing:
            raise ConfigurationError(
                f"PostgreSQL has {' and '.join(found)}, but not {' and '.join(missing)}: a destination makes these "
                "together, and writes to no others; name another table, or bring back what is gone"
            )
        return not missing

    def _make_ready(self) -> None:
        """Before the first write: afterwards the tables are there."""
        if not self._is_ready:
            self._session.retrying(self._create)
            self._is_ready = True

    def _rehearse(self, cursor: Cursor[Any]) -> None:
        with cursor.connection.transaction(force_rollback=True):
            self._create(cursor)

    def _create(self, cursor: Cursor[Any]) -> None:
        check_server(cursor)
        if self._are_there(cursor):  # without a lock: a writer that is frozen with one holds nobody up
            self._check_whole(cursor)
            self._check_key(cursor)
            return
        # Two creators at once would meet in PostgreSQL's catalogue, with an error.
        cursor.execute("select pg_advisory_xact_lock(hashtext(%s))", (self._names.rows,))
        key = f"{quoted(KEY)} bytea primary key" if self._key else ""
        cursor.execute(f"create table if not exists {self._names.rows} ({key})")
        cursor.execute(
            f"create table if not exists {self._names.shards} ("
            "application text, shard text, commit text, primary key (application, shard))"
        )
        # Steps are numbered here, as a table goes on in another cluster, whose transactions begin anew.
        cursor.execute(
            f"create table if not exists {self._names.commits} ("
            "application text, shard text, number bigint, epoch bigint, commit text not null, "
            "step bigint not null, id bigserial, at timestamptz not null default now(), "
            "primary key (application, shard, number))"
        )
        self._check_key(cursor)  # another creator may have been quicker

    def _check_whole(self, cursor: Cursor[Any]) -> None:
        """Refuse copies that lack what keeps two first commits of a shard apart, and their steps in order."""
        names = self._names
        cursor.execute(
            "select pg_get_serial_sequence(%s, 'id') is not null and count(*) = 2 from pg_index "
            "where indisprimary and indrelid = any(array[%s::regclass, %s::regclass])",
            (names.commits, names.shards, names.commits),
        )
        if cursor.fetchone() != (True,):
            raise ConfigurationError(
                f"{names.shards} or {names.commits} lacks its primary key, or the sequence of its column id, so they "
                "are copies that a commit could get into twice: copy the three tables by dumping and restoring them"
            )

    def _check_key(self, cursor: Cursor[Any]) -> None:
        cursor.execute(
            "select from pg_attribute where attrelid = %s::regclass and attname = %s and not attisdropped",
            (self._names.rows, KEY),
        )
        if self._key and not cursor.fetchall():
            raise ConfigurationError(
                f"{self._names.rows} was made for rows without a key, which are only added to: name another table"
            )

    def _columns(self, cursor: Cursor[Any]) -> Schema:
        cursor.execute(
            "select attname, format_type(atttypid, atttypmod) from pg_attribute "
            "where attrelid = %s::regclass and attnum > 0 and not attisdropped order by attnum",
            (self._names.rows,),
        )
        own = {KEY} if self._key else set()
        found = [(name, kind) for name, kind in cursor.fetchall() if name not in own]
        return pyarrow().schema([(arrow_name(name), arrow_type(name, kind)) for name, kind in found])

    def _lasts(self, cursor: Cursor[Any], shards: Sequence[str], lock: str) -> dict[str, Commit]:
        cursor.execute(
            f"select shard, commit from {self._names.shards} "
            f"where application = %s and shard = any(%s) and commit is not null order by shard {lock}",
            (self._application, list(shards)),
        )
        return {shard: Commit.from_json(text) for shard, text in cursor.fetchall()}

    def _store(
        self, rows: Table, commits: Sequence[Commit], tries: Iterator[int], replaced: _Replaced | None = None
    ) -> None:
        self._session.retrying(
            lambda cursor: self._try_to_store(cursor, rows, commits, replaced, is_repeated=next(tries) > 0)
        )

    def _try_to_store(
        self,
        cursor: Cursor[Any],
        rows: Table,
        commits: Sequence[Commit],
        replaced: _Replaced | None,
        *,
        is_repeated: bool,
    ) -> None:
        rows = self._fitted(cursor, rows)
        self._copy(cursor, rows)
        # Many shards by one statement, here and below: an answer waited for each would be most of such a commit.
        # A shard's first commit needs a row that it can lock.
        cursor.execute(
            f"insert into {self._names.shards} (application, shard) select %s, unnest(%b::text[]) "
            "on conflict do nothing",
            (self._application, sorted(one.shard for one in commits)),
        )
        if self._is_stored(cursor, commits, "for update", is_repeated=is_repeated):
            return
        if replaced is not None:
            self._remove(cursor, replaced)
        self._insert(cursor, rows)
        # Behind the lock, so that steps of a shard stand in their order.
        cursor.execute("select nextval(pg_get_serial_sequence(%s, 'id'))", (self._names.commits,))
        (step,) = cursor.fetchone() or (None,)
        shards, texts = [one.shard for one in commits], [one.to_json() for one in commits]
        cursor.execute(
            f"insert into {self._names.commits} (application, shard, number, epoch, commit, step) "
            "select %s, shard, number, epoch, commit, %s "
            "from unnest(%b::text[], %b::bigint[], %b::bigint[], %b::text[]) as given (shard, number, epoch, commit)",
            (self._application, step, shards, [one.number for one in commits], [one.epoch for one in commits], texts),
        )
        cursor.execute(
            f"update {self._names.shards} as present set commit = given.commit "
            "from unnest(%b::text[], %b::text[]) as given (shard, commit) "
            "where present.application = %s and present.shard = given.shard",
            (shards, texts, self._application),
        )

    def _is_stored(self, cursor: Cursor[Any], commits: Sequence[Commit], lock: str, *, is_repeated: bool) -> bool:
        """As ``is_stored``, also if a successor has followed what a try of this call stored without an answer."""
        shards = [one.shard for one in commits]
        try:
            return is_stored(self._lasts(cursor, shards, lock), commits)
        except StreamClientError:
            if not is_repeated:
                raise
            cursor.execute(
                f"select commit from {self._names.commits} "
                "where application = %s and shard = any(%s) and number = any(%s)",
                (self._application, shards, [one.number for one in commits]),
            )
            found = tuple(Commit.from_json(text) for (text,) in cursor.fetchall())
            if are_among(commits, [LogEntry("", found)]):
                return True
            raise

    def _fitted(self, cursor: Cursor[Any], rows: Table) -> Table:
        """The rows as they can be copied."""
        columns = self._columns(cursor)
        fitted = without_unfit(check_fit(rows, columns, self._names.rows), columns)
        if not self._key:
            return fitted
        return fitted.append_column(KEY, pyarrow().array(key_digests(rows, self._key), pyarrow().binary()))

    def _copy(self, cursor: Cursor[Any], rows: Table) -> None:
        """Bring the rows to the server, into a table that this transaction alone sees."""
        if not rows.num_rows:
            return
        kinds = [(one.name, sql_type(one.type)) for one in rows.schema]
        columns = ", ".join(f"{sql_name(name)} {kind}" for name, kind in kinds)
        cursor.execute(f"create temporary table {_COPIED} ({columns}) on commit drop")
        values = [python_values(rows.column(one.name), one) for one in rows.schema]
        with cursor.copy(f"copy pg_temp.{_COPIED} from stdin (format binary)") as copying:
            # To the server the bytes of a JSON document are those of its text.
            copying.set_types([kind.replace("json", "text") for _, kind in kinds])
            for line in zip(*values, strict=True):
                copying.write_row(line)

    def _insert(self, cursor: Cursor[Any], rows: Table) -> None:
        """Store what was copied; columns that are new are there afterwards."""
        columns = self._columns(cursor)
        # Another writer may have brought columns since the rows were copied.
        check_fit(rows, columns, self._names.rows)
        new = [one for one in rows.schema if one.name not in {*columns.names, KEY}]
        if new:
            added = ", ".join(f"add column if not exists {sql_name(one.name)} {sql_type(one.type)}" for one in new)
            cursor.execute(f"alter table {self._names.rows} {added}")
            # Or while this one waited for the table.
            check_fit(rows, self._columns(cursor), self._names.rows)
        if rows.num_rows:
            names = ", ".join(map(sql_name, rows.column_names))
            cursor.execute(f"insert into {self._names.rows} ({names}) select {names} from pg_temp.{_COPIED}")


@frozen
class _Replaced:
    """The rows that a merge replaces."""

    digests: Sequence[bytes]
    """Of their keys."""
    seen: frozenset[tuple[bytes, str]]
    """Those that were there, each with the transaction that wrote it: whoever changes one writes another."""


class _OthersWereQuickerError(Exception):
    """The rows that a merge looked at are no longer the same."""


class _Names:
    """The three tables, quoted and with their schema; plain as the catalogue has them."""

    def __init__(self, schema: str, table: str) -> None:
        self.schema = quoted(schema) if schema else ""
        self.plain = (table, f"{table}_shards", f"{table}_commits")
        prefix = f"{self.schema}." if schema else ""
        self.rows, self.shards, self.commits = (prefix + quoted(one) for one in self.plain)

    @classmethod
    def of(cls, table: str) -> _Names:
        schema, _, name = table.rpartition(".")
        if not name or len(f"{name}_commits".encode()) > NAME_BYTES_MAX or set("\0%") & set(table):
            raise ConfigurationError(
                f"table must be a name of at most {NAME_BYTES_MAX - len('_commits')} bytes, perhaps with its schema "
                f"before it, and without a percent sign, not {table!r}"
            )
        return cls(schema, name)
