"""PostgreSQL as a place of the table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import psycopg

from streamclient.destinations.postgres.postgres_destination import PostgresDestination
from tests.hostile_lake.places import LIMIT_SECONDS, Befalling, Database, Place
from tests.hostile_lake.steps import Steps, TellingPostgres

TABLE = "lake.orders"
_ALL = ("orders", "orders_shards", "orders_commits")
_MOVE = "; ".join(f"alter table {{from_}}.{name} set schema {{to}}" for name in _ALL)

_KEEP = (
    "create function lake.keep() returns trigger language plpgsql as $$begin return null; end$$; "
    "create trigger kept before insert on lake.orders for each row execute function lake.keep()"
)


def _retyped(changing: Callable[[str, str], Befalling], kind: str) -> Befalling:
    statement = "alter table lake.orders alter column id type {} using id::{}"
    return changing(statement.format(kind, kind), statement.format("bigint", "bigint"))


class PostgresPlace(Place):
    passing = (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected)

    def __init__(self, directory: Path, steps: Steps, database: Database) -> None:
        super().__init__(directory, steps)
        self._database = database
        database.execute("create schema lake", "create schema away", "grant usage, create on schema lake to {role}")

    def open(self) -> PostgresDestination:
        made = TellingPostgres(self._database.as_role, TABLE, answer_seconds=LIMIT_SECONDS)
        made.steps = self.steps
        return made

    def see(self) -> PostgresDestination:
        return PostgresDestination(self._database.as_owner, TABLE)

    @property
    def troubles(self) -> Mapping[str, Befalling]:
        changing, beside = self._database.changing, self._database.beside
        return {
            **self._database.troubles,
            "odd settings": self._database.odd_settings("search_path = 'nowhere'"),
            "the table away": changing(_MOVE.format(from_="lake", to="away"), _MOVE.format(from_="away", to="lake")),
            "the log away": changing(
                "alter table lake.orders_commits rename to kept", "alter table lake.kept rename to orders_commits"
            ),
            "the schema away": changing("alter schema lake rename to gone", "alter schema gone rename to lake"),
            "another's in its place": changing("create table lake.orders (id text)", "drop table lake.orders"),
            "no right to the schema": changing(
                "revoke usage, create on schema lake from {role}", "grant usage, create on schema lake to {role}"
            ),
            "no right to rows": changing(
                "revoke insert, delete on lake.orders from {role}", "grant insert, delete on lake.orders to {role}"
            ),
            "no right to the log": changing(
                "revoke insert on lake.orders_commits from {role}", "grant insert on lake.orders_commits to {role}"
            ),
            "no temporary tables": changing(
                "revoke temporary on database {database} from {role}",
                "grant temporary on database {database} to {role}",
            ),
            "a locked table": beside("lock table lake.orders in access exclusive mode"),
            "locked shards": beside("lock table lake.orders_shards in exclusive mode"),
            "a long reader": beside("select from lake.orders"),
            "a constraint": changing(
                "alter table lake.orders add constraint none check (id < 0) not valid",
                "alter table lake.orders drop constraint none",
            ),
            "a trigger": changing(_KEEP, "drop trigger kept on lake.orders; drop function lake.keep"),
            "maintenance": Befalling(self._maintain),
            "another's column": changing("alter table lake.orders add column note text default 'x'", "select 1"),
            "another's required column": changing(
                "alter table lake.orders add column must int not null default 1; "
                "alter table lake.orders alter column must drop default",
                "alter table lake.orders drop column must",
            ),
            "a column of another type": _retyped(changing, "smallint"),
            "a column of texts": _retyped(changing, "text"),
            "a renamed column": changing(
                "alter table lake.orders rename column id to kept", "alter table lake.orders rename column kept to id"
            ),
            "doubled rows": Befalling(self._double),
            "lost rows": changing("delete from lake.orders where id = 3", "select 1"),
        }

    def _maintain(self) -> None:
        with psycopg.connect(self._database.as_owner, autocommit=True) as connection:
            connection.execute(b"set lock_timeout = '100ms'")
            for statement in (b"vacuum full lake.orders", b"reindex table lake.orders_commits", b"analyze"):
                connection.execute(statement)

    def _double(self) -> None:
        self._database.execute(
            "alter table lake.orders drop constraint if exists orders_pkey",
            "insert into lake.orders select * from lake.orders where id in (2, 4)",
        )
