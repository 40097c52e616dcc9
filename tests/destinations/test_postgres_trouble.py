"""What a network, other users and administrators do to PostgreSQL is named, and over once its cause is gone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from postgres_server import Open, PostgresServer
from silent_proxy import SilentProxy

from streamclient.destinations import Commit
from streamclient.destinations.postgres.postgres_destination import PostgresDestination
from streamclient.destinations.proof.verification import verify
from streamclient.errors import ConfigurationError, DependencyException, ErrorKind
from streamclient.testing.contracts.destination_contract import batch, change, rows_for, store, stored_numbers
from tests.patience import FOREVER_SECONDS, PATIENCE_SECONDS, until

pytestmark = pytest.mark.slow


def admin(server: PostgresServer) -> Any:
    return psycopg.connect(server.conninfo, autocommit=True)


@contextmanager
def in_thread(work: Callable[[], object]) -> Iterator[list[object]]:
    """Some work beside the test, and what became of it."""
    found: list[object] = []

    def run() -> None:
        try:
            found.append(work())
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield found
    thread.join(PATIENCE_SECONDS)
    assert found, "it did not end"


def keyed(destination: PostgresDestination) -> PostgresDestination:
    destination.key_by(["id"])
    return destination


def numbered(first: int, last: int, text: str) -> pa.Table:
    numbers = list(range(first, last))
    return pa.table({"id": pa.array(numbers, pa.int64()), "text": pa.repeat(pa.scalar(text), len(numbers))})


def texts_of(destination: PostgresDestination) -> dict[int, str]:
    lines = [line for table in destination.rows() for line in table.to_pylist()]
    assert len({line["id"] for line in lines}) == len(lines), "a key is there twice"
    return {line["id"]: line["text"] for line in lines}


def merged(destination: PostgresDestination, last: Commit | None, rows: pa.Table, **changes: Any) -> Commit:
    commit = batch(last, [], **changes)
    destination.merge(rows.select(["id"]), lambda present: rows, [commit])
    return commit


# --- a connection that falls silent -----------------------------------------------------------------------------------

WORKS: dict[str, Callable[[PostgresDestination, Commit], object]] = {
    "commit": lambda handle, last: handle.commit(numbered(7, 8, "new"), [batch(last, [])]),
    "merge": lambda handle, last: merged(handle, last, numbered(1, 2, "new")),
    "last commits": lambda handle, last: handle.last_commits(["shard-1"]),
    "columns": lambda handle, last: handle.columns(),
    "log": lambda handle, last: list(handle.log()),
    "probe": lambda handle, last: handle.probe(),
}


@pytest.mark.parametrize("name", WORKS)
def test_a_connection_that_falls_silent_is_given_up_and_the_next_call_makes_another(
    name: str, server: PostgresServer, table: str
) -> None:
    with SilentProxy(server.directory) as proxy:
        handle = keyed(PostgresDestination(proxy.conninfo(server.conninfo), table, answer_seconds=0.5))
        last = merged(handle, None, numbered(1, 2, "old"))
        proxy.fall_silent()
        with in_thread(lambda: WORKS[name](handle, last)) as found:
            until(lambda: bool(found), "the end of a call on a silent connection")
        assert isinstance(found[0], DependencyException)
        assert "0.5 s" in str(found[0])
        WORKS[name](handle, last)
        handle.close()


def test_a_silent_connection_is_found_out_no_later_where_batches_are_given_longer(
    server: PostgresServer, table: str
) -> None:
    with SilentProxy(server.directory) as proxy:

        class FallsSilent(PostgresDestination):
            def _copy(self, cursor: Any, rows: Any) -> None:
                super()._copy(cursor, rows)
                if silences:
                    silences.pop()()

        silences: list[Callable[[], None]] = []
        handle = FallsSilent(proxy.conninfo(server.conninfo), table, answer_seconds=0.5)
        handle.key_by(["id"])
        last = merged(handle, None, numbered(1, 2, "old"))
        handle._session._limits["store"] = FOREVER_SECONDS
        silences.append(proxy.fall_silent)
        with in_thread(lambda: merged(handle, last, numbered(1, 2, "new"))) as found:
            until(lambda: bool(found), "the end of a call on a silent connection")
        assert "nothing came" in str(found[0])
        merged(handle, last, numbered(1, 2, "new"))
        handle.close()


def test_rows_that_stop_coming_are_given_up(server: PostgresServer, table: str, opened: Open) -> None:
    store(opened(), None, [change(number) for number in range(10_001)])  # more than are fetched at once
    with SilentProxy(server.directory) as proxy:
        handle = PostgresDestination(proxy.conninfo(server.conninfo), table, answer_seconds=0.5)
        parts = iter(handle.rows())
        next(parts)
        proxy.fall_silent()
        with in_thread(lambda: next(parts)) as found:
            until(lambda: bool(found), "the end of the reading")
        assert isinstance(found[0], DependencyException)
        with pytest.raises(DependencyException, match="nothing came"):
            handle.columns()  # by its other connection, which is silent, too
        assert stored_numbers(handle) == list(range(10_001))
        handle.close()


def test_rows_that_a_server_looks_for_longer_than_it_may_take_for_an_answer_are_waited_for(
    server: PostgresServer, table: str, opened: Open
) -> None:
    """A server that works is asked by another connection, and is not silent."""
    destination = keyed(opened(answer_seconds=2.0))
    merged(destination, None, numbered(1, 4, "old"))
    with admin(server) as connection:
        connection.execute(
            f"create function slowly_{table}(bigint) returns boolean language plpgsql as "
            "$$begin perform pg_sleep(0.8); return true; end$$"
        )
        connection.execute(f"alter table {table} rename to base_{table}")
        connection.execute(f"create view {table} as select * from base_{table} where slowly_{table}(id)")

    assert sorted(texts_of(destination)) == [1, 2, 3]


def test_the_network_is_told_to_give_up_in_the_same_time_unless_the_caller_says_otherwise(opened: Open) -> None:
    asked = opened(answer_seconds=15.0, conninfo="keepalives_idle=77")._session.connection().info.get_parameters()

    assert {name: asked[name] for name in ("keepalives_idle", "tcp_user_timeout")} == {
        "keepalives_idle": "77",
        "tcp_user_timeout": "15000",
    }
    assert int(asked["keepalives_interval"]) * int(asked["keepalives_count"]) <= 15


# --- a batch that takes longer than it may ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["commit", "merge"])
def test_a_batch_that_takes_longer_than_the_limit_gets_in_with_a_longer_one(
    name: str, server: PostgresServer, table: str, opened: Open
) -> None:
    """It must be stored as it was cut, so nothing else could ever let it in."""
    handle, patient = keyed(opened(answer_seconds=1.0)), keyed(opened(answer_seconds=PATIENCE_SECONDS))
    last = merged(patient, None, numbered(0, 1, "old"))
    with admin(server) as connection:
        connection.execute(
            f"create function slow_{table}() returns trigger language plpgsql as "
            "$$begin perform pg_sleep(0.1); return new; end$$"
        )
        connection.execute(f"create trigger slow before insert on {table} for each row execute function slow_{table}()")
    rows, commit = numbered(1, 21, "new"), batch(last, [])

    def is_in() -> bool:
        try:
            if name == "commit":
                handle.commit(rows, [commit])
            else:
                handle.merge(rows.select(["id"]), lambda present: rows, [commit])
        except DependencyException as error:
            errors.append(error)
        return patient.last_commits(["shard-1"]) == {"shard-1": commit}

    errors: list[DependencyException] = []
    until(is_in, "the batch")

    assert any("is given longer the next time" in str(error) for error in errors)
    assert sorted(texts_of(patient)) == list(range(21))


# --- a column beside a long reader ------------------------------------------------------------------------------------


def test_a_new_column_beside_a_long_reader_keeps_nobody_from_reading(
    server: PostgresServer, table: str, opened: Open
) -> None:
    handle = opened(answer_seconds=60.0)
    last = store(handle, None, [change(1)])
    commit = batch(last, [change(2, fresh="text")])
    rows = rows_for(handle, [change(2, fresh="text")], commit)
    with psycopg.connect(server.conninfo) as reader, admin(server) as others:
        reader.execute(f"select from {table}")  # and its transaction stays open
        others.execute("set statement_timeout = '5s'")
        with in_thread(lambda: handle.commit(rows, [commit])) as found:
            waits = "select count(*) from pg_locks where not granted and mode = 'AccessExclusiveLock'"
            until(lambda: others.execute(waits).fetchone() != (0,), "the writer that waits")
            for _ in range(10):
                others.execute(f"select from {table}")
            assert not found
            reader.rollback()
        assert found == [None]

    assert stored_numbers(opened()) == [1, 2]
    assert verify(opened(), with_rows=True).is_whole


def test_a_column_that_cannot_be_added_for_a_reader_is_named(server: PostgresServer, table: str, opened: Open) -> None:
    handle = opened(answer_seconds=2.0)
    last = store(handle, None, [change(1)])
    with psycopg.connect(server.conninfo) as reader:
        reader.execute(f"select from {table}")
        with pytest.raises(DependencyException, match=r"column.*'fresh'.*others") as raised:
            store(handle, last, [change(2, fresh="text")])
    assert raised.value.kind is ErrorKind.TRANSIENT
    store(handle, last, [change(2, fresh="text")])

    assert stored_numbers(opened()) == [1, 2]


# --- tables out of sight ----------------------------------------------------------------------------------------------

MOVE = "; ".join(f"alter table {{0}}.orders{end} set schema {{1}}" for end in ("", "_shards", "_commits"))

AWAY = {
    "the schema is renamed": ("alter schema {s} rename to {s}_away", "alter schema {s}_away rename to {s}"),
    "the tables are moved": (MOVE.format("{s}", "public"), MOVE.format("public", "{s}")),
    "one of the tables is renamed": (
        "alter table {s}.orders_shards rename to kept",
        "alter table {s}.kept rename to orders_shards",
    ),
    "the right to see the schema is taken": (
        "revoke usage on schema {s} from writer_{s}",
        "grant usage on schema {s} to writer_{s}",
    ),
}


@pytest.mark.parametrize("how", AWAY)
def test_tables_that_were_seen_and_are_gone_are_waited_for(how: str, server: PostgresServer, table: str) -> None:
    is_refused = "right" in how
    with admin(server) as connection:
        connection.execute(f"create role writer_{table} login; create schema {table} authorization writer")
        connection.execute(f"grant usage, create on schema {table} to writer_{table}")
        handle = keyed(
            PostgresDestination(f"{server.conninfo} user=writer_{table}", f"{table}.orders", answer_seconds=5.0)
        )
        last = merged(handle, None, numbered(1, 3, "old"))
        other = handle.another()
        away, back = AWAY[how]
        connection.execute(away.format(s=table))
        following = batch(last, [])
        for touch in (
            lambda: handle.last_commits(["shard-1"]),
            handle.columns,
            lambda: list(handle.log()),
            lambda: list(handle.rows()),
            handle.probe,
            lambda: handle.commit(numbered(9, 10, "new"), [following]),
            lambda: handle.merge(numbered(9, 10, "").select(["id"]), lambda present: present, [following]),
            lambda: other.last_commits(["shard-1"]),
        ):
            with pytest.raises(DependencyException, match=f"denied for schema {table}" if is_refused else "gone"):
                touch()
        connection.execute(back.format(s=table))
    merged(handle, last, numbered(2, 4, "new"))

    assert texts_of(other) == {1: "old", 2: "new", 3: "new"}
    for one in (handle, other):
        one.close()


# --- names ------------------------------------------------------------------------------------------------------------


def test_a_table_of_the_same_name_earlier_in_the_search_path_is_left_alone(
    server: PostgresServer, table: str, opened: Open
) -> None:
    with admin(server) as connection:
        connection.execute(f"create role own_{table} superuser login")
        old = opened(conninfo=f"user=own_{table}")
        one = store(old, None, [change(1)])
        connection.execute(f"create schema own_{table}")
        connection.execute(f"create table own_{table}.{table} (id bigint, note text)")
        fresh = opened(conninfo=f"user=own_{table}")
        two = store(fresh, one, [change(2, v=1)])
        store(old, two, [change(3)])
        made = connection.execute(f"select count(*) from own_{table}.{table}").fetchone()

    assert made == (0,)
    for handle in (old, fresh, opened()):
        assert stored_numbers(handle) == [1, 2, 3]
        assert verify(handle, with_rows=True).is_whole


def test_a_role_without_the_right_to_make_temporary_tables_is_refused_before_anything_is_made(
    server: PostgresServer, table: str
) -> None:
    with admin(server) as connection:
        connection.execute(f"create role plain_{table} login")
        connection.execute(f"create database d{table}")
        connection.execute(f"revoke temporary on database d{table} from public")
        connection.execute(f"grant create on database d{table} to plain_{table}")
        handle = PostgresDestination(f"{server.conninfo} dbname=d{table} user=plain_{table}", "lake")
        for touch in (handle.probe, lambda: handle.commit(numbered(1, 2, ""), [batch(None, [])])):
            with pytest.raises(ConfigurationError, match=f"grant temporary on database .*d{table}"):
                touch()
        handle.close()
        connection.execute(f"drop database d{table}")


RIGHTS = {
    "insert on {t}": "INSERT on",
    "delete on {t}": "DELETE on",
    "update on {t}_shards": "UPDATE on",
    "insert on {t}_commits": "INSERT on",
    "usage, update on sequence {t}_commits_id_seq": "USAGE on",
}


@pytest.mark.parametrize("right", RIGHTS)
def test_a_right_that_commits_need_is_asked_for_before_the_first(
    right: str, server: PostgresServer, table: str, opened: Open
) -> None:
    merged(keyed(opened()), None, numbered(1, 2, "old"))
    with admin(server) as connection:
        connection.execute(f"create role some_{table} login")
        connection.execute(f"grant all on {table}, {table}_shards, {table}_commits to some_{table}")
        connection.execute(f"grant all on sequence {table}_commits_id_seq to some_{table}")
        handle = keyed(opened(conninfo=f"user=some_{table}"))
        handle.probe()
        connection.execute(f"revoke {right.format(t=table)} from some_{table}")
    with pytest.raises(ConfigurationError, match=f"lacks the right .*{RIGHTS[right]}"):
        handle.probe()


# --- triggers and rules -----------------------------------------------------------------------------------------------

KEPT = {
    "a trigger that keeps rows": "delete|return null",
    "a trigger that marks rows": "delete|update {t} set text = 'gone' where id = old.id; return null",
    "a rule": "rule|create rule kept as on delete to {t} do instead nothing",
}


@pytest.mark.parametrize("how", KEPT)
def test_rows_that_are_not_deleted_when_they_are_are_no_quicker_writers(
    how: str, server: PostgresServer, table: str, opened: Open
) -> None:
    handle = keyed(opened(answer_seconds=5.0))
    last = merged(handle, None, numbered(1, 3, "old"))
    kind, _, body = KEPT[how].partition("|")
    body = body.format(t=table)
    with admin(server) as connection:
        if kind == "rule":
            connection.execute(body)
        else:
            connection.execute(f"create function f_{table}() returns trigger language plpgsql as $$begin {body}; end$$")
            connection.execute(
                f"create trigger kept before delete on {table} for each row execute function f_{table}()"
            )
        named = "cannot perform DELETE RETURNING" if kind == "rule" else r"after a merge has deleted.*\bkept\b"
        with pytest.raises(DependencyException, match=named) as raised:
            merged(handle, last, numbered(1, 2, "new"))
        assert raised.value.kind is ErrorKind.PERMANENT
        assert "have changed the rows" not in str(raised.value)
        connection.execute(f"drop {'rule' if kind == 'rule' else 'trigger'} kept on {table}")
    merged(handle, last, numbered(1, 2, "new"))

    assert texts_of(handle) == {1: "new", 2: "old"}


@pytest.mark.parametrize("is_keyed", [True, False], ids=["keyed", "added to"])
def test_rows_that_a_trigger_keeps_out_are_not_taken_for_stored(
    is_keyed: bool, server: PostgresServer, table: str, opened: Open
) -> None:
    handle = keyed(opened()) if is_keyed else opened()
    first = batch(None, [])
    handle.commit(numbered(1, 2, "old"), [first])
    with admin(server) as connection:
        connection.execute(
            f"create function f_{table}() returns trigger language plpgsql as "
            "$$begin if new.id = 5 then return null; end if; return new; end$$"
        )
        connection.execute(f"create trigger kept before insert on {table} for each row execute function f_{table}()")
    with pytest.raises(DependencyException, match=r"1 of 3 rows.*\bkept\b"):
        handle.commit(numbered(4, 7, "new"), [batch(first, [])])

    assert handle.last_commits(["shard-1"]) == {"shard-1": first}
    assert sorted(texts_of(handle)) == [1]
