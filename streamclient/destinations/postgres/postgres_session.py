"""Transactions in PostgreSQL that store and read the same values, whatever the settings of the server are.

A server, a database or a role may have settings that would change the stored values. With a stricter isolation, a
transaction does not see a column that another transaction has just added. It cannot compare the column's type with the
type of its values, and the server casts the values. With another encoding, or with numbers and times in text form,
digits or letters may be lost. So the connection overrides these settings.

A connection pool may serve each transaction by another connection. So a transaction leaves nothing on its connection,
not even a prepared statement.

Each statement has two time limits: a limit of the server, and a slightly longer limit of the client, because a
connection may become silent. If the server ends a statement at its limit, the limit for this kind of statement is
doubled for the next call. Otherwise a large batch would never be stored, because a batch that was prepared cannot be
made smaller. A statement that reads all rows may take up to an hour, but does not wait longer for a lock than other
statements.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from streamclient.base.extras import load
from streamclient.errors import ConfigurationError, DependencyException, ErrorKind

if TYPE_CHECKING:
    from psycopg import Connection, Cursor

Answer = TypeVar("Answer")

_SERVER_MIN = 120_000
"""The oldest supported version of PostgreSQL, which is 12, as the number that the server reports for it."""

_PAUSE_SECONDS = 0.1

_TIMEOUT_MAX = 2**31 - 1
"""The largest time limit that the server accepts, in milliseconds. It also bounds the wait for a connection."""

_STATEMENT_SECONDS_MAX = 600.0
"""The largest time limit of a statement after doubling, in seconds. No mirror waits longer for a commit."""

_LOCK_SHARE = 0.9
"""The part of ``answer_seconds`` for which a statement may wait for a lock. It is below 1, so that a long wait ends by
the limit for locks, and the error names the lock as the reason."""

_READING_SECONDS_MAX = 3_600.0
"""The time limit, in seconds, of a statement that reads all rows."""

_IDLE_SECONDS_MAX = 7_200
"""The largest value, in seconds, for the idle time after which TCP probes a connection. It is the default of Linux,
which refuses far larger values."""


class PostgresSession:
    """A connection to PostgreSQL that is opened when needed, for one transaction after the other.

    Only one thread at a time may use it.
    """

    def __init__(self, conninfo: str, answer_seconds: float) -> None:
        self._conninfo = conninfo
        self._answer_seconds = answer_seconds
        self._connection: Any = None
        self._limits: dict[str, float] = {}
        """The doubled time limits of statements in seconds, by the kind of their work."""

    def another(self) -> PostgresSession:
        """Return a new session with the same settings, and without an open connection."""
        return PostgresSession(self._conninfo, self._answer_seconds)

    def close(self) -> None:
        """Close the connection. The next transaction opens a new connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def connection(self) -> Connection[Any]:
        """Return the open connection, or open a new one.

        Callers must request rows and send parameters in binary form, because the form of texts depends on settings of
        the server.
        """
        if self._connection is None or self._connection.closed:
            psycopg = load("psycopg", "postgres")
            made = load("streamclient.destinations.postgres.postgres_wait", "postgres").TimedConnection.connect(
                self._conninfo,
                connect_timeout=min(max(2, int(self._answer_seconds)), _TIMEOUT_MAX // 1000),
                client_encoding="UTF8",
                prepare_threshold=None,
                # Without autocommit, each transaction would be nested in an outer one that is never committed.
                autocommit=True,
                **_network_limits(self._conninfo, self._answer_seconds),
            )
            made.answer_seconds = self._answer_seconds
            # A statement must see changes that were committed while an earlier statement of the transaction waited for
            # a lock. So the isolation must not be stricter.
            made.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
            self._connection = made
        connection: Connection[Any] = self._connection
        return connection

    def retrying(self, work: Callable[[Cursor[Any]], Answer], kind: str = "") -> Answer:
        """Do ``work`` in one transaction; repeat it after an error that breaks the connection or the transaction.

        Statements of one ``kind`` of work have one time limit. If the server ends a statement at this limit, the limit
        is doubled for the next call.

        Raises:
            DependencyException: the server refuses the work. Or the server does not answer in time, and the outcome is
                unknown (kind AMBIGUOUS).
            ConfigurationError: ``work`` has found an unsuitable setting of the server.
        """
        psycopg = load("psycopg", "postgres")
        deadline = time.monotonic() + self._answer_seconds
        while True:
            limit, begun = self._limits.get(kind, self._answer_seconds), time.monotonic()
            try:
                with self.connection().transaction(), self.connection().cursor() as cursor:
                    self._set_limits(cursor, limit)
                    answer = work(cursor)
            except ConfigurationError:
                # A connection keeps the settings that the server had when the connection was opened. After a user has
                # corrected a setting, only a new connection gets it.
                self.close()
                raise
            except psycopg.Error as error:
                self.close()
                waited, advice = self._answer_seconds, _advice(error)
                if isinstance(error, psycopg.errors.QueryCanceled):
                    most = max(self._answer_seconds, _STATEMENT_SECONDS_MAX)
                    self._limits[kind] = min(2 * limit, most)
                    waited = limit
                    advice = f"; a statement is given longer the next time, {self._limits[kind]:g} s"
                if not _is_passing(error):
                    raise refusal(error) from error
                # The connection may have broken during COMMIT, so ``work`` must check whether its commit is stored.
                if time.monotonic() + _PAUSE_SECONDS >= deadline:
                    raise DependencyException(
                        f"PostgreSQL gave no answer within {waited:g} s; the last error was: {error}{advice}",
                        kind=ErrorKind.AMBIGUOUS,
                    ) from error
                time.sleep(_PAUSE_SECONDS)
            else:
                if kind in self._limits:
                    taken = time.monotonic() - begun
                    self._limits[kind] = max(self._answer_seconds, min(limit, 2 * taken))
                return answer

    @contextmanager
    def reading(self, name: str) -> Iterator[Cursor[Any]]:
        """Open a server-side cursor named ``name`` for statements that may take long.

        The client waits as long as the server works on a statement, up to ``_READING_SECONDS_MAX``. A wait for a lock
        ends after ``answer_seconds``.
        """
        limits = (str(limit_millis(self._answer_seconds)), str(limit_millis(_READING_SECONDS_MAX)))
        connection = self.connection()
        try:
            with connection.transaction():
                (process, *_) = connection.execute(
                    "select pg_backend_pid(), set_config('lock_timeout', %b, true), "
                    "set_config('statement_timeout', %b, true)",
                    limits,
                ).fetchone() or (0,)
                self._connection.is_working = lambda: self._is_at_work(process)
                with connection.cursor(name) as cursor:
                    yield cursor
        except load("psycopg", "postgres").errors.QueryCanceled as error:
            raise DependencyException(
                f"PostgreSQL ended a statement that reads rows, which may take {_READING_SECONDS_MAX:g} s: {error}",
                kind=ErrorKind.TRANSIENT,
                code=error.sqlstate,
            ) from error

    def _is_at_work(self, process: int) -> bool:
        """Return whether the server's process ``process`` works on a statement, and does not wait for the client."""
        query = (
            "select state = 'active' and wait_event_type is distinct from 'Client' from pg_stat_activity where pid = %b"
        )
        asking = self.another()
        try:
            return asking.retrying(lambda cursor: cursor.execute(query, (process,)).fetchone()) == (True,)
        except DependencyException:
            return False
        finally:
            asking.close()

    def _set_limits(self, cursor: Cursor[Any], statement_seconds: float) -> None:
        """Set the server's time limits for this transaction only, because a pool may give the connection to others.

        The limit for idle transactions ends the transaction of a suspended writer. Otherwise the writer would keep its
        shards locked.
        """
        millis = str(limit_millis(self._answer_seconds))
        settings = {
            "synchronous_commit": "on",
            "statement_timeout": str(limit_millis(statement_seconds)),
            "lock_timeout": str(limit_millis(_LOCK_SHARE * self._answer_seconds)),
            "idle_in_transaction_session_timeout": millis,
        }
        self._connection.is_working = None
        calls = ", ".join(["set_config(%b, %b, true)"] * len(settings))
        cursor.execute(f"select pg_backend_pid(), {calls}", [text for pair in settings.items() for text in pair])
        (process, *_) = cursor.fetchone() or (0,)
        if statement_seconds > self._answer_seconds:
            # After `answer_seconds`, the client asks whether the server still works, so that it notices a silent
            # connection before the statement's limit.
            self._connection.is_working = lambda: self._is_at_work(process)


def _network_limits(conninfo: str, answer_seconds: float) -> dict[str, Any]:
    """Return libpq's options for TCP keepalive and time-outs, except options that ``conninfo`` sets."""
    third = min(max(1, int(answer_seconds / 3)), _IDLE_SECONDS_MAX)
    own = {
        "keepalives_idle": third,
        "keepalives_interval": third,
        "keepalives_count": 2,
        "tcp_user_timeout": limit_millis(answer_seconds),
    }
    given = load("psycopg.conninfo", "postgres").conninfo_to_dict(conninfo)
    return {name: value for name, value in own.items() if name not in given}


def limit_millis(answer_seconds: float) -> int:
    """Convert a time limit to milliseconds for PostgreSQL. The result is at least 1, because 0 would mean no limit."""
    return min(max(1, int(answer_seconds * 1000)), _TIMEOUT_MAX)


def refusal(error: Any) -> DependencyException:
    """Translate ``error`` of psycopg, after the last try, into the exception for the caller."""
    if _is_passing(error):
        text = f"PostgreSQL broke off: {error}{_advice(error)}"
        return DependencyException(text, kind=ErrorKind.TRANSIENT, code=error.sqlstate)
    return DependencyException(f"PostgreSQL refuses: {error}", kind=ErrorKind.PERMANENT, code=error.sqlstate)


def _advice(error: Exception) -> str:
    """Return advice on finding the cause of ``error``, for its message. The advice is empty for most errors."""
    errors = load("psycopg", "postgres").errors
    if isinstance(error, errors.LockNotAvailable):
        return "; another session holds a lock that this session needs: pg_blocking_pids and pg_stat_activity name it"
    if isinstance(error, errors.ReadOnlySqlTransaction):
        return "; the server is read-only, as a standby or by default_transaction_read_only; each call tries again"
    return ""


def _is_passing(error: Exception) -> bool:
    """Return whether another try may succeed after ``error``.

    The result is true for ``InternalError``, too, by which the server reports that it has ended the transaction.
    """
    psycopg = load("psycopg", "postgres")
    return isinstance(error, psycopg.OperationalError | psycopg.InternalError)


def check_conninfo(conninfo: str) -> None:
    """Refuse a connection string that libpq cannot read, before any call of the server.

    Raises:
        ConfigurationError: libpq cannot read the text. libpq's message is not quoted, because it may have a secret.
    """
    psycopg = load("psycopg", "postgres")
    try:
        load("psycopg.conninfo", "postgres").conninfo_to_dict(conninfo)
    except psycopg.ProgrammingError:
        raise ConfigurationError(
            "conninfo must be options of PostgreSQL as 'host=... dbname=...' or 'postgresql://USER@HOST/NAME'; "
            "libpq cannot read the given text"
        ) from None


def check_server(cursor: Cursor[Any]) -> None:
    """Refuse a server that cannot store rows as this package needs.

    Raises:
        ConfigurationError: the server is too old, is read-only, or has an encoding other than UTF-8.
    """
    version = cursor.connection.info.server_version
    if version < _SERVER_MIN:
        raise ConfigurationError(
            f"PostgreSQL must be of version {_SERVER_MIN // 10_000} or later, not {version // 10_000}"
        )
    for name, wanted in (("server_encoding", "UTF8"), ("transaction_read_only", "off")):
        (found,) = cursor.execute("select current_setting(%b)", (name,)).fetchone() or ("",)
        if found != wanted:
            raise ConfigurationError(
                f"the database has {name}={found}, and rows need {wanted}; change this, and the next call checks again"
            )
