"""A mirror in PostgreSQL goes on by itself after whatever befalls its database, and says meanwhile what does."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from attrs import evolve
from tablestore import Row

from streamclient import Backoff
from streamclient.copying import Mirror
from streamclient.destinations import DeltaDestination, Key, PostgresDestination
from streamclient.destinations.commit import MergingDestination
from streamclient.destinations.rows.change_rows import READ_AT
from streamclient.errors import DependencyException, StreamClientException
from streamclient.server import LocalTablestore
from tests.destinations.postgres_server import PostgresServer
from tests.destinations.silent_proxy import SilentProxy
from tests.mirror.mirroring import IGNORE, LIMITS, QUICK, caught_up, make_table, put, running
from tests.patience import until

pytestmark = pytest.mark.slow

SOON = evolve(QUICK, backoff=Backoff(restart_backoff_min_millis=10, restart_backoff_max_millis=10))


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer() as started:
        yield started


@pytest.fixture
def schema(server: PostgresServer, request: pytest.FixtureRequest) -> str:
    name = f"s{abs(hash(request.node.name)) % 10**12}"
    execute(server, f"create schema {name}")
    return name


def execute(server: PostgresServer, statement: str) -> None:
    with psycopg.connect(server.conninfo, autocommit=True) as connection:
        connection.execute(statement.encode())


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "streamclient-mirror"]


def test_a_connection_that_falls_silent_is_told_and_given_up(
    server: PostgresServer, schema: str, local: LocalTablestore
) -> None:
    client = local.client()
    make_table(client)
    put(client, 1, ("a", 1))
    with SilentProxy(server.directory) as proxy:
        destination = PostgresDestination(proxy.conninfo(server.conninfo), f"{schema}.orders", answer_seconds=2.0)
        mirror = Mirror(client, "orders", "status", destination, client_config=SOON, limits=LIMITS)
        with running(mirror):
            caught_up(mirror)
            made = proxy.connections
            proxy.fall_silent()
            put(client, 2, ("a", 2))
            until(lambda: "nothing came" in mirror.trouble or proxy.connections > made, "the trouble, or its end")
            caught_up(mirror)
            assert mirror.verify().is_equal
            until(lambda: not mirror.trouble, "the end of the trouble")
            proxy.fall_silent()
            put(client, 3, ("a", 3))
        assert threads() == []
        other = destination.another()
        successor = Mirror(client, "orders", "status", other, client_config=SOON, limits=LIMITS)
        with running(successor):
            caught_up(successor)
            assert successor.verify().is_equal
        destination.close()
        other.close()


def test_a_database_that_only_reads_for_a_moment_is_told_and_waited_for(
    server: PostgresServer, schema: str, local: LocalTablestore
) -> None:
    """A successor's first write meets it: all that is copied was copied by another process."""
    client = local.client()
    make_table(client)
    put(client, 1, ("a", 1))
    execute(server, f"create role role_{schema} superuser login")
    destination = PostgresDestination(f"{server.conninfo} user=role_{schema}", f"{schema}.orders", answer_seconds=5.0)
    mirror = Mirror(client, "orders", "status", destination, client_config=SOON, limits=LIMITS)
    with running(mirror):
        caught_up(mirror)
    other = destination.another()
    successor = Mirror(client, "orders", "status", other, client_config=SOON, limits=LIMITS)
    with running(successor):
        execute(server, f"alter role role_{schema} set default_transaction_read_only = on")
        execute(server, f"select pg_terminate_backend(pid) from pg_stat_activity where usename = 'role_{schema}'")
        put(client, 2, ("a", 2))
        until(lambda: "transaction_read_only=on" in successor.trouble, "the trouble")
        execute(server, f"alter role role_{schema} reset default_transaction_read_only")
        caught_up(successor)
        assert successor.verify().is_equal
        until(lambda: not successor.trouble, "the end of the trouble")
    destination.close()
    other.close()


def test_a_comparison_beside_a_locked_table_ends_and_names_the_lock(
    server: PostgresServer, schema: str, local: LocalTablestore
) -> None:
    client = local.client()
    make_table(client)
    put(client, 1, ("a", 1))
    destination = PostgresDestination(server.conninfo, f"{schema}.orders", answer_seconds=1.0)
    mirror = Mirror(client, "orders", "status", destination, client_config=SOON, limits=LIMITS)
    with running(mirror):
        caught_up(mirror)
        with psycopg.connect(server.conninfo) as other:
            other.execute(f"lock table {schema}.orders in access exclusive mode".encode())
            with pytest.raises(DependencyException, match=r"lock timeout.*pg_blocking_pids"):
                mirror.verify()
            other.rollback()
        assert mirror.verify().is_equal
    destination.close()


@pytest.mark.parametrize("kind", ["postgres", "delta"])
def test_tables_that_are_out_of_sight_for_a_moment_are_waited_for(
    kind: str, server: PostgresServer, schema: str, local: LocalTablestore, tmp_path: Path
) -> None:
    client = local.client()
    make_table(client)
    put(client, 1, ("a", 1))
    destination: MergingDestination = DeltaDestination(str(tmp_path / "orders"))
    if kind == "postgres":
        destination = PostgresDestination(server.conninfo, f"{schema}.orders")

    def move(here: str, there: str) -> None:
        if kind == "postgres":
            execute(server, f"alter schema {schema}{here} rename to {schema}{there}")
        else:
            (tmp_path / f"orders{here}").rename(tmp_path / f"orders{there}")

    mirror = Mirror(client, "orders", "status", destination, client_config=SOON, limits=LIMITS)
    with running(mirror):
        caught_up(mirror)
        move("", "_away")
        put(client, 2, ("a", 2))
        until(lambda: "gone" in mirror.trouble, "the trouble")
        move("_away", "")
        caught_up(mirror)
        assert mirror.verify().is_equal
        until(lambda: not mirror.trouble, "the end of the trouble")
    destination.close()


def test_a_batch_that_was_promised_while_nothing_was_seen_is_stored_as_it_was_cut(
    server: PostgresServer, schema: str, local: LocalTablestore
) -> None:
    """An earlier version took tables out of sight for none, and promised the first commit of a shard that has some."""
    client = local.client()
    make_table(client)
    put(client, 1, ("a", 1))

    class Blind(PostgresDestination):
        is_blind = False

        def last_commits(self, shards: Any) -> Any:
            return dict.fromkeys(shards) if self.is_blind else super().last_commits(shards)

        def merge(self, keys: Any, fold: Any, commits: Any) -> None:
            if self.is_blind:
                promised.extend(commits)
                raise OSError("no such table")
            super().merge(keys, fold, commits)

    promised: list[Any] = []
    destination = Blind(server.conninfo, f"{schema}.orders")
    mirror = Mirror(client, "orders", "status", destination, client_config=SOON, limits=LIMITS)
    with running(mirror):
        put(client, 1, ("a", 0))
        caught_up(mirror)
        destination.is_blind = True
        put(client, 2, ("a", 2))
        until(lambda: bool(promised), "a promise")
        put(client, 3, ("a", 3))
        destination.is_blind = False
        caught_up(mirror)
        assert mirror.verify().is_equal
    assert promised[0].number == 1
    destination.close()


@pytest.mark.parametrize("kind", ["postgres", "delta"])
def test_a_mirror_that_is_out_of_sight_when_its_process_starts_is_not_begun_anew(
    kind: str, server: PostgresServer, schema: str, local: LocalTablestore, tmp_path: Path
) -> None:
    client = local.client()
    make_table(client)
    put(client, 1, ("a", 1))

    def made() -> MergingDestination:
        if kind == "delta":
            return DeltaDestination(str(tmp_path / "orders"))
        return PostgresDestination(server.conninfo, f"{schema}.orders")

    def started() -> Mirror:
        destinations.append(made())
        return Mirror(client, "orders", "status", destinations[-1], client_config=SOON, limits=LIMITS)

    destinations: list[MergingDestination] = []
    with running(started()) as mirror:
        put(client, 2, ("a", 2))
        caught_up(mirror)
    if kind == "delta":
        (tmp_path / "orders").rename(tmp_path / "away")
    else:
        execute(server, f"alter schema {schema} rename to {schema}_away; create schema {schema}")
    with pytest.raises(StreamClientException, match=r"leases in 'status' say .*bring it back"):
        started().run()
    fresh = made()
    assert fresh.columns() is None
    fresh.close()
    if kind == "delta":
        (tmp_path / "away").rename(tmp_path / "orders")
    else:
        execute(server, f"drop schema {schema}; alter schema {schema}_away rename to {schema}")
    put(client, 3, ("a", 3))
    with running(started()) as mirror:
        caught_up(mirror)
        assert mirror.verify().is_equal
        assert mirror.copied_rows == 0
    for destination in destinations:
        destination.close()


def test_a_new_column_beside_a_long_reader_is_told_and_comes_later(
    server: PostgresServer, schema: str, local: LocalTablestore
) -> None:
    client = local.client()
    make_table(client)
    put(client, 1, ("a", 1))
    destination = PostgresDestination(server.conninfo, f"{schema}.orders", answer_seconds=10.0)
    mirror = Mirror(client, "orders", "status", destination, client_config=SOON, limits=LIMITS)
    with running(mirror):
        caught_up(mirror)
        with psycopg.connect(server.conninfo) as reader:
            reader.execute(f"select from {schema}.orders".encode())
            put(client, 2, ("fresh", 2))
            until(lambda: "'fresh'" in mirror.trouble, "the trouble")
        caught_up(mirror)
        assert mirror.verify().is_equal
    destination.close()


def postgres_doubled(server: PostgresServer, schema: str, path: Path) -> tuple[MergingDestination, Callable[[], None]]:
    def double() -> None:
        execute(server, f"alter table {schema}.orders drop constraint orders_pkey")
        execute(server, f"insert into {schema}.orders select * from {schema}.orders where id in (2, 4)")

    return PostgresDestination(server.conninfo, f"{schema}.orders"), double


def delta_doubled(
    server: PostgresServer, schema: str, path: Path, **options: Any
) -> tuple[MergingDestination, Callable[[], None]]:
    def double() -> None:
        handle = DeltaDestination(str(path / "orders"), **options).handle()
        rows = handle.to_pyarrow_table().filter(pa.compute.field("id").isin([2, 4]))
        from deltalake import write_deltalake

        write_deltalake(str(path / "orders"), rows, mode="append")

    return DeltaDestination(str(path / "orders"), **options), double


delta_partitioned = partial(delta_doubled, partition_by=Key("id"))


@pytest.mark.parametrize(
    "case",
    [(postgres_doubled, False), (delta_doubled, False), (delta_doubled, True), (delta_partitioned, False)],
    ids=["postgres", "delta", "delta beside an untouched file", "delta partitioned"],
)
def test_keys_that_stand_twice_are_read_again_and_shift_no_value(
    case: tuple[Any, bool], server: PostgresServer, schema: str, local: LocalTablestore, tmp_path: Path
) -> None:
    """A Delta table is overwritten only if each of its files has a key that changes."""
    make, has_other_file = case
    client = local.client()
    make_table(client)
    for number in range(8):
        put(client, number, ("a", number), ("b", f"text {number}"))
    destination, double = make(server, schema, tmp_path)
    with running(Mirror(client, "orders", "status", destination, client_config=SOON, limits=LIMITS)) as mirror:
        caught_up(mirror)
    double()
    with running(Mirror(client, "orders", "status", destination, client_config=SOON, limits=LIMITS)) as mirror:
        assert mirror.verify().count == 2
        if has_other_file:
            put(client, 100, ("a", 100))
            caught_up(mirror)
        for number in range(6):
            client.update_row("orders", Row([("id", number)], {"PUT": [("c", number)]}), IGNORE)
        client.delete_row("orders", Row([("id", 4)]), IGNORE)
        caught_up(mirror)
        found = mirror.verify()
    rows = {line["id"]: line for table in destination.rows() for line in table.to_pylist()}

    assert (found.count, found.rows) == (0, 7 + has_other_file)
    assert rows[2][READ_AT] is not None
    destination.close()


def test_columns_of_others_are_no_part_of_the_mirror(
    server: PostgresServer, schema: str, local: LocalTablestore
) -> None:
    client = local.client()
    make_table(client)
    put(client, 1, ("a", 1), ("b", "x"))
    destination = PostgresDestination(server.conninfo, f"{schema}.orders")
    mirror = Mirror(client, "orders", "status", destination, client_config=SOON, limits=LIMITS)
    with running(mirror):
        caught_up(mirror)
        execute(
            server,
            f"alter table {schema}.orders add column serial bigserial, add column mark uuid default gen_random_uuid(), "
            "add column twice bigint generated always as (a * 2) stored, alter column b type varchar",
        )
        client.update_row("orders", Row([("id", 1)], {"PUT": [("b", "y")]}), IGNORE)
        put(client, 2, ("a", 2), ("twice", "of the table"), ("mark", 7))
        caught_up(mirror)
        assert mirror.verify().is_equal
        execute(server, f"alter table {schema}.orders drop column twice, alter column a type numeric")
        client.update_row("orders", Row([("id", 1)], {"PUT": [("b", "z")]}), IGNORE)
        client.update_row("orders", Row([("id", 2)], {"PUT": [("twice", "again")]}), IGNORE)
        caught_up(mirror)
        assert mirror.verify().is_equal
    destination.close()
