"""PostgreSQL as a destination, through psycopg: one transaction stores rows, commits and fence.

The destination has three tables: one with the rows, ``<table>_shards`` with the last commit of each shard, and
``<table>_commits`` with all commits. A transaction copies the rows into a temporary table, and locks its shards in
``<table>_shards``, in the order of their names. It then compares the last commits, and writes. So the second of two
writers sees the commits of the first. The copy comes before the lock, because the server does not end the COPY of a
suspended writer, which would keep its locks. A merge calls ``fold`` before the lock, because the server ends a
transaction that is idle for long. If the connection breaks during COMMIT, the outcome is unknown, so the next try first
checks whether the commits are stored.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from itertools import chain, count, groupby, repeat
from typing import TYPE_CHECKING, Any

from attrs import frozen

from streamclient.base import checks
from streamclient.base.extras import load, require_extra
from streamclient.destinations.commit import Commit, LogEntry, are_among, check_commits, is_stored
from streamclient.destinations.destination_packages import pyarrow
from streamclient.destinations.postgres.postgres_digests import key_digests, renew_digests
from streamclient.destinations.postgres.postgres_rows import (
    DIGEST,
    TableColumns,
    check_key_names,
    python_values,
    quoted,
    sql_name,
    sql_type,
    table_of,
    without_unfit,
)
from streamclient.destinations.postgres.postgres_session import Answer, PostgresSession, check_conninfo, refusal
from streamclient.destinations.postgres.postgres_tables import GONE, PostgresTables, TableNames
from streamclient.destinations.rows.arrow_schemas import check_fit, check_table_types
from streamclient.destinations.rows.change_rows import KEY, SHARD
from streamclient.errors import DependencyException, ErrorKind, StreamClientError

if TYPE_CHECKING:
    from psycopg import Cursor
    from pyarrow import Field, Schema, Table

_COPIED = "streamclient_copied"
"""The name of the temporary table into which a transaction copies its rows."""

_FETCH_ROWS = 10_000

_PAUSES = (0.2, 0.5, 1.0, 2.0)
"""The pauses between tries to change a table's columns, in seconds. All further pauses are as long as the last one.
During a try, other users of the table wait for at most a tenth of a second."""

_LOOK, _STORE = "look", "store"
"""Kinds of transactions: to read the rows of a merge, and to store commits. Each kind has its own time limit."""


@checks.explains_names
class PostgresDestination:
    """A table in PostgreSQL that any number of processes write exactly once; see ``Destination``.

    Maps and lists are columns of type ``json``. The map ``_unfit`` keeps values that PostgreSQL cannot hold in a
    column: texts with the character NUL, texts and bytes that do not fit in the row's page, and values of columns after
    the first 400, of columns with names longer than 63 bytes, and of columns with the name of another program's column.
    A column named like a system column (``xmin``, ``ctid``) gets a suffix after its name; see ``column_names``.

    Args:
        conninfo: the connection string of libpq, for example ``"host=db dbname=lake user=writer"``.
        table: the table of the rows, optionally with its schema, as in ``"lake.orders"``. The first commit creates this
            table and the two tables of commits. No other table is written to.
        application: the name of the fleet that writes. Use a different name for each status table.
        answer_seconds: the seconds after which ``commit`` stops trying. It is also the longest wait for a response of
            the server, and the longest time for which a silent writer holds its locks. Keep it below the duration of a
            lease, because the successor of a suspended writer waits until the locks are free. If the server ends a
            statement of a commit at this limit, the next call doubles the limit, up to ten minutes.

    Raises:
        ConfigurationError: an argument is invalid.
    """

    def __init__(
        self, conninfo: str, table: str, *, application: str = "default", answer_seconds: float = 15.0
    ) -> None:
        require_extra("postgres", "PostgresDestination")
        load("psycopg", "postgres")  # raises an error if the library libpq is missing
        checks.secret.require("conninfo", conninfo)
        check_conninfo(conninfo)
        checks.any_text.require("table", table)
        checks.identifier.require("application", application)
        checks.seconds.require("answer_seconds", answer_seconds)
        self._tables = PostgresTables(table)
        self._session = PostgresSession(conninfo, answer_seconds)
        self._application = application
        self._answer_seconds = answer_seconds
        self._is_ready = False

    @property
    def application(self) -> str:
        """The name of the fleet whose commits this handle reads and writes."""
        return self._application

    def probe(self) -> None:
        """Check the server, and whether the tables exist or can be created; see ``Destination.probe``."""
        self._asked(self._rehearse)

    def columns(self) -> Schema | None:
        """Return the columns of the stored rows, or ``None``; see ``Destination.columns``."""
        columns = self._looking(self._columns)
        return columns.schema if columns is not None and columns.schema.names else None

    def last_commits(self, shards: Sequence[str]) -> dict[str, Commit | None]:
        """Return the last commit of each of ``shards``; see ``Destination.last_commits``."""
        found = self._looking(lambda cursor: self._lasts(cursor, shards, "")) or {}
        return {shard: found.get(shard) for shard in shards}

    def commit(self, rows: Table, commits: Sequence[Commit]) -> None:
        """Store rows and commits in one step; see ``Destination.commit``."""
        check_commits(commits, self._application)
        check_table_types(rows.schema)
        self._make_ready(commits)
        self._store(rows, commits, count())

    def key_by(self, columns: Sequence[str]) -> None:
        """Set the key columns, by whose digest the rows are found; see ``MergingDestination.key_by``.

        Raises:
            ConfigurationError: a name is too long for a column of PostgreSQL.
        """
        check_key_names(columns)
        self._tables = self._tables.keyed(columns)
        self._is_ready = False

    def merge(self, keys: Table, fold: Callable[[Table], Table], commits: Sequence[Commit]) -> None:
        """Replace rows by their keys, and store commits; see ``MergingDestination.merge``."""
        check_commits(commits, self._application)
        self._make_ready(commits)
        digests = key_digests(keys, self._tables.key)
        deadline, tries = time.monotonic() + self._answer_seconds, count()
        while (found := self._asked(lambda cursor: self._look(cursor, digests, commits, tries), _LOOK)) is not None:
            present, replaced = found
            try:
                self._store(fold(present), commits, tries, replaced)
                return
            except _OthersWereQuickerError as error:
                if time.monotonic() >= deadline:
                    raise DependencyException(
                        f"for {self._answer_seconds:g} s other writers of {self._names.rows} have changed the rows of "
                        "this merge, each time before the merge could replace them",
                        kind=ErrorKind.TRANSIENT,
                    ) from error

    def rows_below(self, column: str, bound: int) -> Iterator[Table]:
        """Return the rows whose ``column`` is below ``bound``; see ``MergingDestination.rows_below``."""
        yield from self._selected(f"where {sql_name(column)} < %b", [bound])

    def log(self) -> Iterator[LogEntry]:
        """Return the entries of the log, oldest first; see ``Destination.log``."""

        def lines(cursor: Cursor[Any]) -> list[Any]:
            return cursor.execute(f"select step, commit from {self._names.commits} order by step, id").fetchall()

        found = self._looking(lines) or []
        for step, entries in groupby(found, key=lambda line: line[0]):
            yield LogEntry.from_json(str(step), f'{{"commits":[{",".join(text for _, text in entries)}]}}')

    def fenced_shards(self) -> list[str]:
        """Return the shards whose earlier owners are refused; see ``Fences.fenced_shards``."""

        def lines(cursor: Cursor[Any]) -> list[Any]:
            query = f"select shard from {self._names.shards} where application = %b and commit is not null"
            return cursor.execute(query, (self._application,)).fetchall()

        found = self._looking(lines) or []
        return [shard for (shard,) in found]

    def rows(self, shards: Sequence[str] | None = None) -> Iterator[Table]:
        """Return the stored rows of ``shards``; see ``Destination.rows``."""
        if shards is None:
            yield from self._selected("", None)
        else:
            yield from self._selected(f"where {quoted(SHARD)} = any(%b::text[])", [list(shards)])

    def _selected(self, condition: str, values: Sequence[Any] | None) -> Iterator[Table]:
        columns = self.columns()
        if columns is None:
            return
        query = self._query(columns)
        if values is not None:
            query = f"{query.replace('%', '%%')} {condition}"
        # Another connection is needed, because the caller may commit with this handle before the reading is complete.
        reader = self._session.another()
        try:
            with reader.reading("streamclient_rows") as cursor:
                cursor.execute(query, values, binary=True)
                while lines := cursor.fetchmany(_FETCH_ROWS):
                    yield table_of(lines, columns)
        except load("psycopg", "postgres").Error as error:
            raise refusal(error) from error
        finally:
            reader.close()

    def close(self) -> None:
        """Release connections; see ``Destination.close``."""
        self._session.close()

    def another(self) -> PostgresDestination:
        """Return another handle over the same table; see ``MergingDestination.another``."""
        made = copy(self)
        made._session, made._tables = self._session.another(), copy(self._tables)
        return made

    # --- inside ---------------------------------------------------------------------------------------------------

    @property
    def _names(self) -> TableNames:
        return self._tables.names

    def _asked(self, work: Callable[[Cursor[Any]], Answer], kind: str = "") -> Answer:
        """Do ``work`` of this ``kind`` in a transaction. If tables that were there are missing, raise ``gone()``."""
        try:
            return self._session.retrying(work, kind)
        except DependencyException as error:
            if self._tables.is_seen and error.code in GONE:
                raise self._tables.gone() from error
            raise

    def _query(self, columns: Schema) -> str:
        return f"select {', '.join(map(sql_name, columns.names))} from {self._names.rows}"

    def _look(
        self, cursor: Cursor[Any], digests: Sequence[bytes], commits: Sequence[Commit], tries: Iterator[int]
    ) -> tuple[Table, _Replaced] | None:
        """Read a merge's rows by the ``digests`` of their keys, without a lock; ``None`` if ``commits`` are stored."""
        if self._is_stored(cursor, commits, "", is_repeated=next(tries) > 0):
            return None
        columns = self._columns(cursor).schema
        names = "".join(f", {sql_name(name)}" for name in columns.names).replace("%", "%%")
        cursor.execute(
            f"select {quoted(DIGEST)}, xmin::text{names} from {self._names.rows} "
            f"where {quoted(DIGEST)} = any(%b::bytea[])",
            [list(digests)],
            binary=True,
        )
        found = cursor.fetchall()
        seen = frozenset((bytes(line[0]), line[1]) for line in found)
        return table_of([line[2:] for line in found], columns), _Replaced(digests, seen)

    def _remove(self, cursor: Cursor[Any], replaced: _Replaced) -> None:
        """Delete the rows that a merge has read; raise an error if another writer has changed them meanwhile."""
        # This lock lets only one merge delete and insert at a time. Without it, the DELETE below could wait for another
        # merge that deletes a row and inserts it again. The DELETE would then miss the new row, because a statement
        # sees only rows that existed when the statement began.
        cursor.execute("select pg_advisory_xact_lock(hashtext(%b))", (self._names.rows,))
        key = quoted(DIGEST)
        cursor.execute(
            f"delete from {self._names.rows} where {key} = any(%b::bytea[]) returning {key}, xmin::text",
            [list(replaced.digests)],
            binary=True,
        )
        if {(bytes(digest), written) for digest, written in cursor.fetchall()} != replaced.seen:
            self._refuse_kept(cursor, replaced)
            raise _OthersWereQuickerError

    def _refuse_kept(self, cursor: Cursor[Any], replaced: _Replaced) -> None:
        """Raise an error if a trigger or rule has kept or restored rows that this merge has deleted."""
        cursor.execute(
            f"select {quoted(DIGEST)}, xmin::text, xmin::text::bigint = txid_current() & 4294967295 "
            f"from {self._names.rows} where {quoted(DIGEST)} = any(%b::bytea[])",
            [list(replaced.digests)],
            binary=True,
        )
        kept = [digest for digest, written, is_own in cursor.fetchall() if is_own or (digest, written) in replaced.seen]
        if kept:
            raise self._others_rules(
                cursor, f"{len(kept)} of {len(replaced.seen)} rows still exist after a merge has deleted them", 8
            )

    def _others_rules(self, cursor: Cursor[Any], what: str, event: int) -> DependencyException:
        """Make an error about ``what``, naming triggers and rules for ``event`` (a bit of ``pg_trigger.tgtype``)."""
        rule = {4: "3", 8: "4"}[event]
        cursor.execute(
            "select tgname::text from pg_trigger "
            "where tgrelid = %b::regclass and not tgisinternal and tgtype & %b <> 0 "
            "union all select rulename::text from pg_rewrite where ev_class = %b::regclass and ev_type::text = %b",
            (self._names.rows, event, self._names.rows, rule),
        )
        names = ", ".join(name for (name,) in cursor.fetchall()) or "which this role cannot see"
        return DependencyException(
            f"{what}, in {self._names.rows}: a trigger or a rule ({names}) changes the rows that are written, which "
            "breaks exactly-once; remove it, and mark or leave out rows in a table of your own",
            kind=ErrorKind.PERMANENT,
        )

    def _looking(self, work: Callable[[Cursor[Any]], Answer]) -> Answer | None:
        """Return the result of ``work``, which reads the tables; ``None`` if the tables do not exist yet."""
        return self._asked(lambda cursor: work(cursor) if self._tables.are_there(cursor) else None)

    def _make_ready(self, commits: Sequence[Commit]) -> None:
        """Before the first write, create missing tables (but not for wrong ``commits``) and renew former digests."""
        if not self._is_ready:
            if not self._asked(self._tables.are_there):
                is_stored({}, commits)  # wrong commits must not create tables
            self._asked(self._tables.create)
            self._tables.is_seen = True
            if self._tables.has_former_digests:
                renew_digests(self._tables, self._asked, self._insist)
            self._is_ready = True

    def _rehearse(self, cursor: Cursor[Any]) -> None:
        with cursor.connection.transaction(force_rollback=True):
            self._tables.create(cursor)
            self._tables.check_rights(cursor)

    def _columns(self, cursor: Cursor[Any]) -> TableColumns:
        return self._tables.columns(cursor)

    def _lasts(self, cursor: Cursor[Any], shards: Sequence[str], lock: str) -> dict[str, Commit]:
        cursor.execute(
            f"select shard, commit from {self._names.shards} "
            f"where application = %b and shard = any(%b::text[]) and commit is not null order by shard {lock}",
            (self._application, list(shards)),
        )
        return {shard: Commit.from_json(text) for shard, text in cursor.fetchall()}

    def _store(
        self, rows: Table, commits: Sequence[Commit], tries: Iterator[int], replaced: _Replaced | None = None
    ) -> None:
        while True:
            try:
                self._asked(
                    lambda cursor: self._try_to_store(cursor, rows, commits, replaced, is_repeated=next(tries) > 0),
                    _STORE,
                )
                return
            except _ColumnsAreMissingError as error:
                self._add_columns(error.fields)

    def _add_columns(self, fields: Sequence[Field]) -> None:
        names = ", ".join(repr(field.name) for field in fields)
        self._insist(
            lambda cursor: self._tables.add(cursor, fields),
            f"the columns {names} could not be added to {self._names.rows}",
        )

    def _insist(self, change: Callable[[Cursor[Any]], bool], failure: str) -> None:
        """Try ``change`` until it returns ``True``, each time in a short transaction that blocks other users briefly.

        Raises:
            DependencyException: other users have blocked the change for ``answer_seconds``.
        """
        deadline, pauses = time.monotonic() + self._answer_seconds, chain(_PAUSES, repeat(_PAUSES[-1]))
        while not self._asked(change):
            pause = next(pauses)
            if time.monotonic() + pause >= deadline:
                raise DependencyException(
                    f"{failure} within {self._answer_seconds:g} s, because others use the table for longer: a "
                    "transaction that has read the table blocks a change of the table until the transaction ends",
                    kind=ErrorKind.TRANSIENT,
                )
            time.sleep(pause)

    def _try_to_store(
        self,
        cursor: Cursor[Any],
        rows: Table,
        commits: Sequence[Commit],
        replaced: _Replaced | None,
        *,
        is_repeated: bool,
    ) -> None:
        rows, columns = self._fitted(cursor, rows)
        if self._new(rows, columns):
            # This check comes first, so that a writer that is refused adds no columns.
            if self._is_stored(cursor, commits, "", is_repeated=is_repeated):
                return
            raise _ColumnsAreMissingError(self._new(rows, columns))
        self._copy(cursor, rows)
        # The first commit of a shard needs a row that it can lock. Each statement here is for all shards: with one
        # statement per shard, the commit would spend most of its time waiting for the server.
        cursor.execute(
            f"insert into {self._names.shards} (application, shard) select %b, unnest(%b::text[]) "
            "on conflict do nothing",
            (self._application, sorted(commit.shard for commit in commits)),
        )
        if self._is_stored(cursor, commits, "for update", is_repeated=is_repeated):
            return
        if replaced is not None:
            self._remove(cursor, replaced)
        self._insert(cursor, rows)
        # The step number is taken after the lock, so that the step numbers of a shard ascend.
        cursor.execute("select nextval(pg_get_serial_sequence(%b, 'id'))", (self._names.commits,))
        (step,) = cursor.fetchone() or (None,)
        shards, texts = [commit.shard for commit in commits], [commit.to_json() for commit in commits]
        cursor.execute(
            f"insert into {self._names.commits} (application, shard, number, epoch, commit, step) "
            "select %b, shard, number, epoch, commit, %b "
            "from unnest(%b::text[], %b::bigint[], %b::bigint[], %b::text[]) as given (shard, number, epoch, commit)",
            (
                self._application,
                step,
                shards,
                [commit.number for commit in commits],
                [commit.epoch for commit in commits],
                texts,
            ),
        )
        cursor.execute(
            f"update {self._names.shards} as present set commit = given.commit "
            "from unnest(%b::text[], %b::text[]) as given (shard, commit) "
            "where present.application = %b and present.shard = given.shard",
            (shards, texts, self._application),
        )

    def _is_stored(self, cursor: Cursor[Any], commits: Sequence[Commit], lock: str, *, is_repeated: bool) -> bool:
        """Return whether ``commits`` are stored. If ``is_repeated``, also search the commits before the last ones."""
        shards = [commit.shard for commit in commits]
        try:
            return is_stored(self._lasts(cursor, shards, lock), commits)
        except StreamClientError:
            if not is_repeated:
                raise
            cursor.execute(
                f"select commit from {self._names.commits} "
                "where application = %b and shard = any(%b::text[]) and number = any(%b::bigint[])",
                (self._application, shards, [commit.number for commit in commits]),
            )
            found = tuple(Commit.from_json(text) for (text,) in cursor.fetchall())
            if are_among(commits, [LogEntry("", found)]):
                return True
            raise

    def _fitted(self, cursor: Cursor[Any], rows: Table) -> tuple[Table, TableColumns]:
        """Prepare ``rows`` for the copy into the table; return them, and the columns that the table has now."""
        columns = self._columns(cursor)
        fitted = without_unfit(check_fit(rows, columns.schema, self._names.rows), columns)
        if self._tables.key:
            digests = key_digests(rows, self._tables.key)
            fitted = fitted.append_column(KEY, pyarrow().array(digests, pyarrow().binary()))
        return fitted, columns

    def _new(self, rows: Table, columns: TableColumns) -> list[Field]:
        return [field for field in rows.schema if field.name not in {*columns.schema.names, KEY}]

    def _copy(self, cursor: Cursor[Any], rows: Table) -> None:
        """Copy ``rows`` into a new temporary table of this transaction."""
        if not rows.num_rows:
            return
        kinds = [(field.name, sql_type(field.type)) for field in rows.schema]
        columns = ", ".join(f"{sql_name(name)} {kind}" for name, kind in kinds)
        cursor.execute(f"create temporary table {_COPIED} ({columns}) on commit drop")
        values = [python_values(rows.column(field.name), field) for field in rows.schema]
        with cursor.copy(f"copy pg_temp.{_COPIED} from stdin (format binary)") as copying:
            # In the binary format, PostgreSQL represents JSON as text.
            copying.set_types([kind.replace("json", "text") for _, kind in kinds])
            for line in zip(*values, strict=True):
                copying.write_row(line)

    def _insert(self, cursor: Cursor[Any], rows: Table) -> None:
        """Insert ``rows``, which were copied into the temporary table, into the destination's table."""
        columns = self._columns(cursor)
        # Another writer may have added columns after the rows were copied.
        check_fit(rows, columns.schema, self._names.rows)
        if new := self._new(rows, columns):
            raise _ColumnsAreMissingError(new)  # another user may have removed columns meanwhile
        if rows.num_rows:
            names = ", ".join(map(sql_name, rows.column_names))
            digest = KEY if self._tables.key else ""
            targets = ", ".join(quoted(DIGEST) if name == digest else sql_name(name) for name in rows.column_names)
            cursor.execute(f"insert into {self._names.rows} ({targets}) select {names} from pg_temp.{_COPIED}")
            if cursor.rowcount != rows.num_rows:
                what = f"{rows.num_rows - cursor.rowcount} of {rows.num_rows} rows are missing after an insert"
                raise self._others_rules(cursor, what, 4)


@frozen
class _Replaced:
    """The rows that a merge has read and is about to replace."""

    digests: Sequence[bytes]
    """The digests of all keys of the merge, including keys without a row."""
    seen: frozenset[tuple[bytes, str]]
    """The rows that the merge has read, each as the digest of its key and the id of the transaction that wrote it. If
    another writer changes the row later, this id differs."""


class _OthersWereQuickerError(Exception):
    """Another writer has changed rows after the merge had read them, so the merge must read them again."""


class _ColumnsAreMissingError(Exception):
    """The rows to store have columns (``fields``) that the table lacks."""

    def __init__(self, fields: Sequence[Field]) -> None:
        super().__init__(fields)
        self.fields = fields
