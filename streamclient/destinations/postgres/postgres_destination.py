"""PostgreSQL as a destination, through psycopg: rows, commits and fence in one transaction.

A destination has two more tables: ``<table>_shards`` with the last commit of each shard, and ``<table>_commits`` with
all commits. A commit copies its rows into a temporary table, locks the rows of its shards in the order of their names,
compares, and writes. So the second of two writers sees the effect of the first. The copy comes before the lock, because
the server does not end the COPY of a frozen writer. A merge folds before the lock, because the server ends a
transaction that is idle for long. If the connection breaks during COMMIT, the outcome is unknown: the next try first
looks whether the commits are stored.
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
"""The name of the temporary table with a transaction's rows."""

_FETCH_ROWS = 10_000

_PAUSES = (0.2, 0.5, 1.0, 2.0)
"""Seconds before each further try to add columns. The last pause is repeated. During a try, other users of the table
wait for at most a tenth of a second, which they hardly notice."""

_LOOK, _STORE = "look", "store"
"""Kinds of work. Each kind has its own limit for statements, because work of one kind takes about the same time on
every call."""


@checks.explains_names
class PostgresDestination:
    """A table in PostgreSQL that any number of processes write exactly once; see ``Destination``.

    Maps and lists are columns of type ``json``. A value that PostgreSQL cannot hold in a column is kept in ``_unfit``:
    texts with the character NUL, columns whose names are longer than 63 bytes or belong to columns of other programs,
    columns after the first 400, and texts that do not fit in the row's page. A column named like a system column
    (``xmin``, ``ctid``) gets a mark after its name; see ``column_names``.

    Args:
        conninfo: the connection in libpq's form, for example ``"host=db dbname=lake user=writer"``.
        table: the table of the rows, optionally with its schema before it, as in ``"lake.orders"``. The first commit
            creates it and the two further tables. Reading creates nothing, and no other table is written to.
        application: the fleet that writes; one per status table.
        answer_seconds: seconds for which a commit is retried. They are also the longest wait of the client for an
            answer, and the longest time for which the server lets a silent writer hold its locks. Keep them below the
            lease's duration, because the successor of a frozen writer waits as long. If the server ended a statement of
            a commit at its limit, the next call doubles the limit, up to ten minutes.

    Raises:
        ConfigurationError: an argument is invalid.
    """

    def __init__(
        self, conninfo: str, table: str, *, application: str = "default", answer_seconds: float = 15.0
    ) -> None:
        require_extra("postgres", "PostgresDestination")
        load("psycopg", "postgres")  # without a library of PostgreSQL, its own import fails
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
        """The fleet whose commits this handle reads and writes."""
        return self._application

    def probe(self) -> None:
        """Check the server, and that the tables exist or can be created; see ``Destination.probe``."""
        self._asked(self._rehearse)

    def columns(self) -> Schema | None:
        """See ``Destination.columns``."""
        columns = self._looking(self._columns)
        return columns.schema if columns is not None and columns.schema.names else None

    def last_commits(self, shards: Sequence[str]) -> dict[str, Commit | None]:
        """See ``Destination.last_commits``."""
        found = self._looking(lambda cursor: self._lasts(cursor, shards, "")) or {}
        return {shard: found.get(shard) for shard in shards}

    def commit(self, rows: Table, commits: Sequence[Commit]) -> None:
        """See ``Destination.commit``."""
        check_commits(commits, self._application)
        check_table_types(rows.schema)
        self._make_ready(commits)
        self._store(rows, commits, count())

    def key_by(self, columns: Sequence[str]) -> None:
        """See ``MergingDestination``.

        Rows get a digest of their key, because an index takes neither NUL nor long texts.

        Raises:
            ConfigurationError: a column of this destination cannot have such a name.
        """
        check_key_names(columns)
        self._tables = self._tables.keyed(columns)
        self._is_ready = False

    def merge(self, keys: Table, fold: Callable[[Table], Table], commits: Sequence[Commit]) -> None:
        """See ``MergingDestination.merge``."""
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
                        "this merge, each time before it could replace them",
                        kind=ErrorKind.TRANSIENT,
                    ) from error

    def rows_below(self, column: str, bound: int) -> Iterator[Table]:
        """See ``MergingDestination.rows_below``."""
        yield from self._selected(f"where {sql_name(column)} < %b", [bound])

    def log(self) -> Iterator[LogEntry]:
        """See ``Destination.log``."""

        def lines(cursor: Cursor[Any]) -> list[Any]:
            return cursor.execute(f"select step, commit from {self._names.commits} order by step, id").fetchall()

        found = self._looking(lines) or []
        for step, entries in groupby(found, key=lambda line: line[0]):
            yield LogEntry.from_json(str(step), f'{{"commits":[{",".join(text for _, text in entries)}]}}')

    def fenced_shards(self) -> list[str]:
        """See ``Fences.fenced_shards``."""

        def lines(cursor: Cursor[Any]) -> list[Any]:
            query = f"select shard from {self._names.shards} where application = %b and commit is not null"
            return cursor.execute(query, (self._application,)).fetchall()

        found = self._looking(lines) or []
        return [shard for (shard,) in found]

    def rows(self, shards: Sequence[str] | None = None) -> Iterator[Table]:
        """See ``Destination.rows``."""
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
        # Use another handle, because the caller may commit with this handle between two parts.
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
        """See ``Destination.close``."""
        self._session.close()

    def another(self) -> PostgresDestination:
        """Return a further handle over the same table, for another thread."""
        made = copy(self)
        made._session, made._tables = self._session.another(), copy(self._tables)
        return made

    # --- inside ---------------------------------------------------------------------------------------------------

    @property
    def _names(self) -> TableNames:
        return self._tables.names

    def _asked(self, work: Callable[[Cursor[Any]], Answer], kind: str = "") -> Answer:
        """Do work in a transaction. If tables that were seen are not found by the server, report them as gone."""
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
        """Return the rows with the keys of ``digests``, without a lock; ``None`` if the commits are already stored."""
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
        """Remove the rows that a merge has read, if they are unchanged."""
        # Only one merge may run at a time. If another merge removed a row and added it again meanwhile, this merge
        # would not find the row by its key: a statement that waits looks at the rows that existed when the statement
        # began.
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
        """Raise an error if these rows still exist: unchanged, or made again by this very transaction."""
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
        """Return a refusal that names the triggers and rules for ``event``, a bit in the catalogue of triggers."""
        rule = {4: "3", 8: "4"}[event]
        cursor.execute(
            "select tgname::text from pg_trigger "
            "where tgrelid = %b::regclass and not tgisinternal and tgtype & %b <> 0 "
            "union all select rulename::text from pg_rewrite where ev_class = %b::regclass and ev_type::text = %b",
            (self._names.rows, event, self._names.rows, rule),
        )
        names = ", ".join(name for (name,) in cursor.fetchall()) or "which this role cannot see"
        return DependencyException(
            f"{what}, in {self._names.rows}: a trigger or a rule ({names}) changes what is written, which breaks "
            "exactly-once; remove it, and mark or leave out rows in a table of your own",
            kind=ErrorKind.PERMANENT,
        )

    def _looking(self, work: Callable[[Cursor[Any]], Answer]) -> Answer | None:
        """Return the result of work that reads the tables; ``None`` while they do not exist."""
        return self._asked(lambda cursor: work(cursor) if self._tables.are_there(cursor) else None)

    def _make_ready(self, commits: Sequence[Commit]) -> None:
        """Prepare the tables before the first write."""
        if not self._is_ready:
            if not self._asked(self._tables.are_there):
                is_stored({}, commits)  # refuse wrong commits before tables are made without them
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
        """Change a table in many short transactions. After a single long one, all users would wait for a slow reader.

        Raises:
            DependencyException: others use the table for longer than an answer may take.
        """
        deadline, pauses = time.monotonic() + self._answer_seconds, chain(_PAUSES, repeat(_PAUSES[-1]))
        while not self._asked(change):
            pause = next(pauses)
            if time.monotonic() + pause >= deadline:
                raise DependencyException(
                    f"{failure} within {self._answer_seconds:g} s, as others use the table for longer: a "
                    "transaction that has read the table blocks its change until the transaction ends",
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
            # Check this first, so that a refused writer leaves no columns.
            if self._is_stored(cursor, commits, "", is_repeated=is_repeated):
                return
            raise _ColumnsAreMissingError(self._new(rows, columns))
        self._copy(cursor, rows)
        # Use one statement for all shards, here and below: with an answer for each shard, waiting would take most of
        # the commit's time. The first commit of a shard needs a row that it can lock.
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
        # This comes after the lock, so that the steps of a shard are in order.
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
        """Decide as ``is_stored``; commits of an unanswered try count even if a successor has followed them."""
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
        """Return the rows in the form that COPY takes, and the columns that exist."""
        columns = self._columns(cursor)
        fitted = without_unfit(check_fit(rows, columns.schema, self._names.rows), columns)
        if self._tables.key:
            digests = key_digests(rows, self._tables.key)
            fitted = fitted.append_column(KEY, pyarrow().array(digests, pyarrow().binary()))
        return fitted, columns

    def _new(self, rows: Table, columns: TableColumns) -> list[Field]:
        return [field for field in rows.schema if field.name not in {*columns.schema.names, KEY}]

    def _copy(self, cursor: Cursor[Any], rows: Table) -> None:
        """Copy the rows into a temporary table, which only this transaction sees."""
        if not rows.num_rows:
            return
        kinds = [(field.name, sql_type(field.type)) for field in rows.schema]
        columns = ", ".join(f"{sql_name(name)} {kind}" for name, kind in kinds)
        cursor.execute(f"create temporary table {_COPIED} ({columns}) on commit drop")
        values = [python_values(rows.column(field.name), field) for field in rows.schema]
        with cursor.copy(f"copy pg_temp.{_COPIED} from stdin (format binary)") as copying:
            # For the server, a JSON document consists of the bytes of its text.
            copying.set_types([kind.replace("json", "text") for _, kind in kinds])
            for line in zip(*values, strict=True):
                copying.write_row(line)

    def _insert(self, cursor: Cursor[Any], rows: Table) -> None:
        """Move the copied rows into the table."""
        columns = self._columns(cursor)
        # Another writer may have added columns since the rows were copied.
        check_fit(rows, columns.schema, self._names.rows)
        if new := self._new(rows, columns):
            raise _ColumnsAreMissingError(new)  # or another user has removed some columns
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
    """The rows that a merge replaces."""

    digests: Sequence[bytes]
    """The digests of the keys."""
    seen: frozenset[tuple[bytes, str]]
    """The rows that the merge read, each with the transaction that wrote it. A later change has another transaction."""


class _OthersWereQuickerError(Exception):
    """The rows that a merge has read were changed by others since."""


class _ColumnsAreMissingError(Exception):
    """Rows have columns that the table does not have."""

    def __init__(self, fields: Sequence[Field]) -> None:
        super().__init__(fields)
        self.fields = fields
