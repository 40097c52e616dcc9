"""A connection to PostgreSQL whose values and transactions do not depend on settings of the server.

A server, a database or a role may have its own defaults. With another isolation, a transaction does not see a column
that another transaction has just added, and casts the value. Another encoding, or a text form of numbers and times, may
lose digits or letters. None of these defaults may change the stored values. A pool may give the connection to other
clients after each transaction, and use another connection for the next transaction. So a transaction leaves nothing on
its connection, not even a prepared statement.

Each statement has two limits: the server's and, a little later, the client's, because a connection may fall silent. If
the server ends a statement at its limit, the statement gets twice the time on the next call. A batch that was promised
cannot become smaller, and without more time it would never be stored. A statement that reads all rows may take up to an
hour; it waits for locks no longer than other statements do.
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
"""Version 12, the oldest supported one when this was written."""

_PAUSE_SECONDS = 0.1

_TIMEOUT_MAX = 2**31 - 1
"""The largest limit, in milliseconds, that the server accepts. The operating system waits for a connection at most as
long."""

_STATEMENT_SECONDS_MAX = 600.0
"""The largest limit of a statement. No mirror waits longer for a commit."""

_LOCK_SHARE = 0.9
"""The share of a statement's limit for which the statement may wait for a lock. It is below 1, so that the error after
a longer wait names the lock as the reason."""

_READING_SECONDS_MAX = 3_600.0
"""The longest time, in seconds, of a statement that reads all rows: a server that works for longer will not finish."""

_IDLE_SECONDS_MAX = 7_200
"""The largest time in seconds after which TCP probes a silent connection: Linux itself probes after this time. Far
larger numbers are refused."""


class PostgresSession:
    """Transactions on one connection, which is opened on demand. Used by one thread at a time."""

    def __init__(self, conninfo: str, answer_seconds: float) -> None:
        self._conninfo = conninfo
        self._answer_seconds = answer_seconds
        self._connection: Any = None
        self._limits: dict[str, float] = {}
        """Limits of statements by the kind of work, for the kinds whose limit is not ``answer_seconds``."""

    def another(self) -> PostgresSession:
        """Return another connection with the same settings."""
        return PostgresSession(self._conninfo, self._answer_seconds)

    def close(self) -> None:
        """Close the connection. The next transaction opens a new connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def connection(self) -> Connection[Any]:
        """Return the connection. Request values of rows in binary, because no setting changes the binary form.

        Send parameters in binary, too: a setting decides how a text is read, and could turn a list of bytes into
        another list.
        """
        if self._connection is None or self._connection.closed:
            psycopg = load("psycopg", "postgres")
            made = load("streamclient.destinations.postgres.postgres_wait", "postgres").TimedConnection.connect(
                self._conninfo,
                connect_timeout=min(max(2, int(self._answer_seconds)), _TIMEOUT_MAX // 1000),
                client_encoding="UTF8",
                prepare_threshold=None,
                # Use autocommit. Otherwise an open transaction would contain the next transaction, and nothing would be
                # stored at the end of that.
                autocommit=True,
                **_network_limits(self._conninfo, self._answer_seconds),
            )
            made.answer_seconds = self._answer_seconds
            # Do not use a stricter isolation: a statement must see changes that were committed while the previous
            # statement waited for a lock.
            made.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
            self._connection = made
        connection: Connection[Any] = self._connection
        return connection

    def retrying(self, work: Callable[[Cursor[Any]], Answer], kind: str = "") -> Answer:
        """Do some work in one transaction; retry after an error that breaks the connection or the transaction.

        Work of one ``kind`` takes about the same time on every call. So if the server ended a statement of one kind,
        that kind gets more time.

        Raises:
            DependencyException: the server refuses, or it does not answer in time and the outcome is unknown.
            ConfigurationError: the work refuses a setting of the server.
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
                # A connection keeps the defaults that server, database and role had when it began. The next connection
                # gets the present defaults.
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
                # The connection may have broken before COMMIT or during it: the next try looks whether the commit is
                # stored.
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
        """Yield a cursor of the server. Its statements may take long, as long as the server works on them.

        A wait for a lock is limited. The statement has a limit, too, which no reading should ever reach.
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
        """Return whether a process of the server is working, and not waiting for this client to read or to send."""
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
        """Set the limits for this transaction only, as a pool may give the connection to other clients.

        Without the idle limit a writer that freezes within the transaction would keep the shard from its successor.
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
            # This does not delay the discovery of a silent connection.
            self._connection.is_working = lambda: self._is_at_work(process)


def _network_limits(conninfo: str, answer_seconds: float) -> dict[str, Any]:
    """Return the times after which TCP probes the other side, except those that the caller sets."""
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
    """Return the limit in milliseconds nearest to a time. It is at least 1, because 0 would mean no limit."""
    return min(max(1, int(answer_seconds * 1000)), _TIMEOUT_MAX)


def refusal(error: Any) -> DependencyException:
    """Return the exception for a psycopg error after which there is no further try."""
    if _is_passing(error):
        text = f"PostgreSQL broke off: {error}{_advice(error)}"
        return DependencyException(text, kind=ErrorKind.TRANSIENT, code=error.sqlstate)
    return DependencyException(f"PostgreSQL refuses: {error}", kind=ErrorKind.PERMANENT, code=error.sqlstate)


def _advice(error: Exception) -> str:
    """Return the advice for an error that passes once its cause is gone; empty for other errors."""
    errors = load("psycopg", "postgres").errors
    if isinstance(error, errors.LockNotAvailable):
        return "; another session holds a lock that this one needs: pg_blocking_pids and pg_stat_activity name it"
    if isinstance(error, errors.ReadOnlySqlTransaction):
        return "; the server is read-only, as a standby or by default_transaction_read_only; each call tries again"
    return ""


def _is_passing(error: Exception) -> bool:
    """Return whether another try may succeed.

    The server reports a transaction that it has ended as an internal error.
    """
    psycopg = load("psycopg", "postgres")
    return isinstance(error, psycopg.OperationalError | psycopg.InternalError)


def check_conninfo(conninfo: str) -> None:
    """Refuse a text that libpq cannot read, before any call.

    Raises:
        ConfigurationError: the text is not a conninfo. libpq's message is left out, as it may quote a secret.
    """
    psycopg = load("psycopg", "postgres")
    try:
        load("psycopg.conninfo", "postgres").conninfo_to_dict(conninfo)
    except psycopg.ProgrammingError:
        raise ConfigurationError(
            "conninfo must be options of PostgreSQL as 'host=... dbname=...' or 'postgresql://USER@HOST/NAME'; "
            "libpq cannot read the given one"
        ) from None


def check_server(cursor: Cursor[Any]) -> None:
    """Refuse a server on which rows cannot be stored.

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
                f"the database has {name}={found}, and rows need {wanted}; the next call checks again"
            )
