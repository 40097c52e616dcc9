"""The places of the table: how a consumer reaches them, and how each trouble begins and ends there."""

from __future__ import annotations

import itertools
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import psycopg
from attrs import define, field, frozen

from streamclient.destinations.commit import Destination
from tests.destinations.postgres_server import PostgresServer
from tests.destinations.silent_proxy import Mood, SilentProxy
from tests.hostile_lake.steps import Steps

LATE_SECONDS = 0.03
"""Of a slow answer: so many of them that a case takes longer, and none that anyone would give up."""

LIMIT_SECONDS = 1.0
"""How long consumers wait for an answer, or try a commit."""

_numbers = itertools.count()


@define(eq=False)
class Servers:
    """What cases share: one PostgreSQL server, started for the first case that needs it. A context manager."""

    _stack: ExitStack = field(factory=ExitStack)
    _postgres: PostgresServer | None = None

    @property
    def postgres(self) -> PostgresServer:
        if self._postgres is None:
            self._postgres = self._stack.enter_context(PostgresServer())
        return self._postgres

    def __enter__(self) -> Servers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()


@frozen
class Befalling:
    """How a trouble begins and ends. Either may fail beside a writer, and is tried again."""

    begin: Callable[[], object]
    end: Callable[[], object] = lambda: None


class Place(ABC):
    """Where the consumer of a case writes."""

    passing: tuple[type[Exception], ...] = ()
    """Errors of a trouble that meets a writer as it begins or ends."""

    def __init__(self, directory: Path, steps: Steps) -> None:
        self.directory, self.steps = directory, steps

    @abstractmethod
    def open(self) -> Destination:
        """The destination as the consumer has it: through whatever is hostile, and telling its steps."""

    @abstractmethod
    def see(self) -> Destination:
        """The destination as it is, for the judge."""

    @property
    @abstractmethod
    def troubles(self) -> Mapping[str, Befalling]:
        """By the names of the table."""


# --- the network ------------------------------------------------------------------------------------------------------


def network(proxy: SilentProxy) -> dict[str, Befalling]:
    """What a proxy does."""

    def become(mood: Mood, late_seconds: float = 0.0) -> Befalling:
        def begin() -> None:
            proxy.late_seconds = late_seconds
            proxy.become(mood)

        return Befalling(begin, lambda: proxy.become(Mood.HONEST))

    return {
        "silence": become(Mood.SILENT),
        "cuts": become(Mood.CUTTING),
        "late answers": become(Mood.LATE, 10 * LIMIT_SECONDS),
        "slow answers": become(Mood.LATE, LATE_SECONDS),
    }


# --- a database -------------------------------------------------------------------------------------------------------


class Database:
    """A database and a role of a case's own, behind a proxy. Use as a context manager."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        number = f"{os.getpid()}_{next(_numbers)}"
        self.name, self.role = f"lake_{number}", f"keeper_{number}"
        self.proxy = SilentProxy(server.directory)
        self._others: ExitStack = ExitStack()

    def conninfo(self, user: str, host: Path) -> str:
        return f"host={host} user={user} dbname={self.name}"

    @property
    def as_role(self) -> str:
        """How the consumer reaches it."""
        return self.conninfo(self.role, self.proxy.directory)

    @property
    def as_owner(self) -> str:
        """How the judge reaches it."""
        return self.conninfo("writer", self._server.directory)

    def __enter__(self) -> Database:
        with self._admin(self._server.conninfo) as connection:
            connection.execute(f"create role {self.role} login".encode())
            connection.execute(f"create database {self.name}".encode())
            connection.execute(f"revoke temporary on database {self.name} from public".encode())
            connection.execute(f"grant temporary on database {self.name} to {self.role}".encode())
        self.proxy.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._others.close()
        self.proxy.__exit__(kind, error, traceback)
        with self._admin(self._server.conninfo) as connection:
            connection.execute(f"drop database {self.name} with (force)".encode())
            connection.execute(f"drop role {self.role}".encode())

    @staticmethod
    @contextmanager
    def _admin(conninfo: str) -> Iterator[Any]:
        with psycopg.connect(conninfo, autocommit=True) as connection:
            # A statement that waits for a writer would keep others from the table; it is tried again.
            connection.execute(b"set lock_timeout = '100ms'")
            yield connection

    def execute(self, *statements: str) -> None:
        """As an administrator; together or not at all."""
        with self._admin(self.as_owner) as connection, connection.transaction():
            for statement in statements:
                connection.execute(statement.format(role=self.role, database=self.name).encode())

    def _execute_apart(self, *statements: str) -> None:
        """Outside of the database, which may be closed, and of transactions."""
        with self._admin(self._server.conninfo) as connection:
            for statement in statements:
                connection.execute(statement.format(role=self.role, database=self.name).encode())

    def changing(self, begin: str, end: str) -> Befalling:
        """A trouble of two statements, or lists of them with semicolons between."""
        return Befalling(lambda: self.execute(begin), lambda: self.execute(end))

    def _for_new_connections(self, begin: str, end: str) -> Befalling:
        end_all = "select pg_terminate_backend(pid) from pg_stat_activity where usename = '{role}'"
        return Befalling(lambda: self._execute_apart(begin, end_all), lambda: self._execute_apart(end))

    def beside(self, *statements: str) -> Befalling:
        """A transaction of another that stays open."""

        def begin() -> None:
            with ExitStack() as stack:
                connection = stack.enter_context(psycopg.connect(self.as_owner))
                connection.execute(b"set lock_timeout = '100ms'")
                for statement in statements:
                    connection.execute(statement.encode())
                self._others = stack.pop_all()

        def end() -> None:
            self._others.close()

        return Befalling(begin, end)

    def odd_settings(self, *more: str) -> Befalling:
        """Defaults of the role, by which nothing may change."""
        odd = (
            *more,
            "default_transaction_isolation = 'serializable'",
            "datestyle = 'German'",
            "intervalstyle = 'sql_standard'",
            "bytea_output = 'escape'",
            "extra_float_digits = -15",
            "timezone = 'Asia/Kathmandu'",
            "standard_conforming_strings = off",
            "synchronous_commit = off",
            "jit = on",
            "session_replication_role = 'origin'",
            "default_transaction_deferrable = on",
            "array_nulls = off",
            "row_security = on",
            "check_function_bodies = off",
        )
        return self._for_new_connections(
            "; ".join(f"alter role {{role}} set {one}" for one in odd), "alter role {role} reset all"
        )

    @property
    def troubles(self) -> dict[str, Befalling]:
        """Of the network, the server and the role."""
        return {
            **network(self.proxy),
            "a stopped server": Befalling(lambda: self._server.stop("immediate"), self._server.start),
            "read-only": self._for_new_connections(
                "alter role {role} set default_transaction_read_only = on",
                "alter role {role} reset default_transaction_read_only",
            ),
            "no entry": self._for_new_connections("alter role {role} nologin", "alter role {role} login"),
            "no connections left": self._for_new_connections(
                "alter role {role} connection limit 0", "alter role {role} connection limit -1"
            ),
            "a closed database": self._for_new_connections(
                "alter database {database} allow_connections false", "alter database {database} allow_connections true"
            ),
            "odd settings": self.odd_settings(),
            "no standby": Befalling(
                lambda: self._execute_apart(
                    "alter system set synchronous_standby_names = 'nobody'", "select pg_reload_conf()"
                ),
                lambda: self._execute_apart("alter system reset synchronous_standby_names", "select pg_reload_conf()"),
            ),
        }
