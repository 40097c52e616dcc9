"""A server that only reads, and locks of others, are named, and no handle suffers from them once they are gone."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pyarrow as pa
import pytest
from postgres_server import Open, PostgresServer

from streamclient.destinations import Commit
from streamclient.destinations.postgres.postgres_destination import PostgresDestination
from streamclient.destinations.proof.verification import verify
from streamclient.errors import ConfigurationError, DependencyException, ErrorKind
from streamclient.testing.contracts.destination_contract import batch, change, store, stored_numbers
from tests.patience import FOREVER_SECONDS

pytestmark = pytest.mark.slow

# --- a server that only reads -----------------------------------------------------------------------------------------

UNFIT_DEFAULTS = {
    "only reads": ("default_transaction_read_only", "on", "transaction_read_only=on.*checks again"),
    "names no schema": ("search_path", "nowhere", "search path leads to no schema"),
}


@pytest.mark.parametrize("name", UNFIT_DEFAULTS)
def test_a_handle_that_was_refused_for_a_default_of_its_role_goes_on_once_that_is_another(
    name: str, server: PostgresServer, table: str, opened: Open
) -> None:
    """A connection keeps the defaults with which it began."""
    setting, value, named = UNFIT_DEFAULTS[name]
    with psycopg.connect(server.conninfo, autocommit=True) as admin:
        admin.execute(f"create role role_{table} superuser login")
        admin.execute(f"alter role role_{table} set {setting} = {value}")
        handle = opened(conninfo=f"user=role_{table}")
        works: list[Callable[[], object]] = [handle.probe, lambda: store(handle, None, [change(1)])]
        for work in works * 2:
            with pytest.raises(ConfigurationError, match=named):
                work()
        admin.execute(f"alter role role_{table} reset {setting}")
    for work in works:
        work()

    assert stored_numbers(handle) == [1]


def test_handles_of_a_standby_are_refused_and_go_on_once_it_takes_writes(table: str) -> None:
    with PostgresServer() as server:
        old = PostgresDestination(server.conninfo, table, answer_seconds=1.0)
        last = store(old, None, [change(1)])
        server.stop()
        (server.directory / "data" / "standby.signal").touch()
        server.start()
        fresh = PostgresDestination(server.conninfo, table, answer_seconds=1.0)
        second = batch(last, [])
        for _ in range(2):
            with pytest.raises(ConfigurationError, match="transaction_read_only=on"):
                fresh.commit(pa.table({"id": [2]}), [second])
            with pytest.raises(DependencyException, match=r"read-only transaction.*as a standby.* tries again"):
                old.commit(pa.table({"id": [2]}), [second])
            assert old.last_commits(["shard-1"]) == fresh.last_commits(["shard-1"]) == {"shard-1": last}
        server._run("pg_ctl", "promote", "-w", "-D", str(server.directory / "data"))
        fresh.commit(pa.table({"id": [2]}), [second])
        old.commit(pa.table({"id": [3]}), [batch(second, [])])

        assert sum(rows.num_rows for rows in fresh.rows()) == 3
        assert verify(old).commits == 3
        old.close()
        fresh.close()


# --- locks of others --------------------------------------------------------------------------------------------------

READS: dict[str, Callable[[PostgresDestination, Commit], object]] = {
    "rows": lambda handle, last: list(handle.rows()),
    "rows of a shard": lambda handle, last: list(handle.rows(["shard-1"])),
    "rows below": lambda handle, last: list(handle.rows_below("id", 5)),
    "proof": lambda handle, last: verify(handle, with_rows=True),
    "commit": lambda handle, last: store(handle, last, [change(2)]),
}


@pytest.mark.parametrize("name", READS)
def test_a_locked_table_is_named_after_the_limit_and_no_longer_waited_for(
    name: str, server: PostgresServer, table: str, opened: Open
) -> None:
    handle = opened(answer_seconds=1.0)
    last = store(handle, None, [change(1)])
    with psycopg.connect(server.conninfo) as other:
        other.execute(f"lock table {table} in access exclusive mode")
        with pytest.raises(DependencyException, match=r"lock timeout.*pg_blocking_pids") as raised:
            READS[name](handle, last)
        other.rollback()

    assert raised.value.kind is (ErrorKind.AMBIGUOUS if name == "commit" else ErrorKind.TRANSIENT)
    READS[name](handle, last)


def test_a_statement_that_reads_without_an_end_is_ended(
    server: PostgresServer, table: str, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    store(opened(), None, [change(1)])
    with psycopg.connect(server.conninfo, autocommit=True) as admin:
        admin.execute(
            f"create function slowly_{table}() returns boolean language plpgsql volatile as "
            f"$$begin perform pg_sleep({FOREVER_SECONDS}); return true; end$$"
        )
        admin.execute(f"alter table {table} rename to base_{table}")
        admin.execute(f"create view {table} as select * from base_{table} where slowly_{table}()")
    handle = opened(answer_seconds=0.5)
    monkeypatch.setattr("streamclient.destinations.postgres.postgres_session._READING_SECONDS_MAX", 2.0)
    with pytest.raises(DependencyException, match=r"reads rows, which may take 2 s: .*statement timeout"):
        list(handle.rows())
