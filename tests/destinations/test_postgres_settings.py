"""What a server, a database or a role is set to decides nothing of what PostgreSQL stores, reads back and proves."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from postgres_server import Open, PostgresServer

from streamclient.destinations import records_of
from streamclient.destinations.postgres.postgres_destination import PostgresDestination
from streamclient.destinations.postgres.postgres_session import limit_millis
from streamclient.destinations.proof.verification import Flaw, verify
from streamclient.errors import CodecError, ConfigurationError, DependencyException, UnfitValueError
from streamclient.records import ColumnValue
from streamclient.testing.contracts.destination_contract import batch, change, rows_for, store

pytestmark = pytest.mark.slow

ODD: dict[str, ColumnValue] = {
    "tenths": 0.1 + 0.2,
    "negative_zero": -0.0,
    "none": math.nan,
    "most": 1.7976931348623157e308,
    "least": 5e-324,
    "highest": 2**63 - 1,
    "lowest": -(2**63),
    "text": "公é\\'\r\n",
    "bytes": b"\x00\xff\\",
    "empty": "",
}

SETTINGS = (
    "-c extra_float_digits=0",
    "-c DateStyle=German",
    "-c DateStyle=SQL,DMY",
    "-c client_encoding=LATIN1",
    "-c client_encoding=SQL_ASCII",
    "-c bytea_output=escape",
    "-c TimeZone=Europe/Berlin",
    "-c default_transaction_isolation=serializable",
    "-c standard_conforming_strings=off",
    "-c standard_conforming_strings=off -c bytea_output=escape -c backslash_quote=off",
    "-c escape_string_warning=on",
    "-c quote_all_identifiers=on",
    "-c array_nulls=off",
    "-c transform_null_equals=on",
    "-c IntervalStyle=sql_standard",
    "-c xmloption=document",
    "-c check_function_bodies=off",
    "-c enable_seqscan=off -c enable_indexscan=off -c enable_bitmapscan=off",
    "-c plan_cache_mode=force_generic_plan",
    "-c default_transaction_deferrable=on",
    "-c search_path=public,pg_catalog",
    "-c row_security=off",
    "-c jit_above_cost=0",
    "-c default_toast_compression=pglz",
    "-c lc_messages=C -c lc_numeric=C",
)


@pytest.mark.parametrize("settings", SETTINGS)
def test_settings_of_the_server_change_no_value(settings: str, opened: Open) -> None:
    destination = opened(settings=settings)
    records = [change(1, **ODD)]
    last = store(destination, None, records)
    store(destination, last, [change(2, tenths=0.1 + 0.2)])

    assert verify(opened(settings=settings), with_rows=True).is_whole
    assert verify(opened(), with_rows=True).is_whole


@pytest.mark.parametrize("settings", SETTINGS)
def test_settings_of_the_server_change_nothing_that_is_merged_or_deleted(settings: str, opened: Open) -> None:
    """A key that is not found by its digest would be there twice, or for good."""
    destination = opened(settings=settings)
    destination.key_by(["id", 'na"me'])
    odd = ["\\", "'", '"', "{}", "{a,b}", "NULL", "", "公", "\n"]
    rows = pa.table({"id": list(range(len(odd))), 'na"me': odd, "share": [0.1 + 0.2] * len(odd)})
    keys = rows.select(["id", 'na"me'])
    first = batch(None, [], shard="shard'\\{1}")
    destination.commit(rows, [first])
    seen: list[int] = []

    def kept(present: pa.Table) -> pa.Table:
        seen.append(present.num_rows)
        return present.sort_by("id").slice(2)

    second = batch(first, [], shard=first.shard)
    destination.merge(keys, kept, [second])
    destination.merge(keys.slice(0, 1), lambda present: rows.slice(0, 1), [batch(second, [], shard=first.shard)])

    assert seen == [len(odd)]
    for handle in (destination, opened()):
        handle.key_by(keys.column_names)
        assert pa.concat_tables(handle.rows()).sort_by("id") == pa.concat_tables([rows.slice(0, 1), rows.slice(2)])
        assert verify(handle).is_whole


def test_the_encoding_of_the_environment_is_not_taken(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    destination = opened()
    record = change(1, text="公")
    store(destination, None, [record])

    assert [one for rows in destination.rows() for one in records_of(rows)] == [record]


def test_rows_that_a_merge_puts_back_lose_no_digits(opened: Open) -> None:
    """Read with fewer digits than they have, they would be stored with fewer, and no error would say so."""
    destination = opened(settings="-c extra_float_digits=0")
    destination.key_by(["id"])
    keys = pa.table({"id": [1]})
    first = batch(None, [])
    destination.merge(keys, lambda present: keys.append_column("share", pa.array([0.1 + 0.2])), [first])
    destination.merge(keys, lambda present: present, [batch(first, [])])

    assert [rows.column("share").to_pylist() for rows in destination.rows()] == [[0.1 + 0.2]]


def test_a_column_that_another_writer_brings_meanwhile_is_seen_whatever_the_isolation(opened: Open) -> None:
    """A transaction that sees only what was there when it began would have its numbers cast to the other's texts."""
    meanwhile: list[Callable[[], object]] = []

    class Second(PostgresDestination):
        def _add_columns(self, fields: Any) -> None:
            while meanwhile:
                meanwhile.pop()()
            super()._add_columns(fields)

    first, second = opened(), opened(Second, settings="-c default_transaction_isolation=repeatable\\\\ read")
    last = store(second, None, [change(1)], shard="shard-2")
    other = store(first, None, [change(2)])
    meanwhile.append(lambda: store(first, other, [change(3, v="text")]))
    commit = batch(last, [change(4, v=5)], shard="shard-2")
    with pytest.raises(UnfitValueError, match="'v' is int64"):
        second.commit(rows_for(second, [change(4, v=5)], commit), [commit])
    second.commit(rows_for(second, [change(4, v=5)], commit), [commit])

    assert verify(opened(), with_rows=True).is_whole


def test_a_pool_may_give_another_connection_for_each_transaction(opened: Open) -> None:
    """What was prepared on one is not there on the next; here the one forgets it."""
    destination = opened()
    last = None
    for number in range(20):
        last = store(destination, last, [change(number)])
        destination._session.connection().pgconn.exec_(b"deallocate all")

    assert verify(destination, with_rows=True).is_whole


def test_a_time_to_answer_beyond_what_the_server_takes_is_the_nearest_that_it_takes(opened: Open) -> None:
    asked = opened(answer_seconds=1e9)._session.retrying(
        lambda cursor: cursor.execute("select current_setting('lock_timeout')").fetchone()
    )

    assert asked == ("2147483647ms",)
    # Under a limit so short the server would end whatever asks for it.
    assert [limit_millis(seconds) for seconds in (0.0004, 0.0015, 15.0, 1e9)] == [1, 1, 15_000, 2**31 - 1]


DAYS_FAR = pa.array([3_000_000], pa.int32()).cast(pa.date32())
TIMES_FAR = pa.array([2**60], pa.int64()).cast(pa.timestamp("us", "UTC"))


@pytest.mark.parametrize("values", [DAYS_FAR, TIMES_FAR], ids=lambda one: str(one.type))
def test_a_time_that_cannot_be_stored_is_refused_by_the_name_of_its_column(values: pa.Array, opened: Open) -> None:
    destination = opened()
    commit = batch(None, [change(1)])
    rows = rows_for(destination, [change(1)], commit).append_column("until", values)
    with pytest.raises(UnfitValueError, match=r"'until' of type .* years 1 to 9999"):
        destination.commit(rows, [commit])

    assert destination.last_commits(["shard-1"]) == {"shard-1": None}


ALTERED = {
    "_versions = '[[1, 2]]'": "'_versions' holds a value that no commit stores",
    "_versions = '5'": "'_versions' holds a value that no commit stores",
    "_timestamp = 'infinity'": "too large",
}


@pytest.mark.parametrize("change_of", ALTERED)
def test_a_value_that_no_row_of_ours_had_is_named(
    change_of: str, server: PostgresServer, table: str, opened: Open
) -> None:
    destination = opened()
    store(destination, None, [change(1, v=1)])
    with psycopg.connect(server.conninfo, autocommit=True) as connection:
        connection.execute(f"update {table} set {change_of}".encode())
    with pytest.raises((CodecError, DependencyException), match=ALTERED[change_of]):
        verify(destination, with_rows=True)


def test_a_connection_that_breaks_while_rows_are_read_is_no_error_of_the_drivers(
    server: PostgresServer, opened: Open
) -> None:
    destination = opened()
    store(destination, None, [change(number) for number in range(10_001)])  # more than are fetched at once
    parts = destination.rows()
    next(iter(parts))
    with psycopg.connect(server.conninfo, autocommit=True) as connection:
        connection.execute(
            "select pg_terminate_backend(pid, 10000) from pg_stat_activity "
            "where pid <> pg_backend_pid() and backend_type = 'client backend'"
        )
    with pytest.raises(DependencyException):
        list(parts)


def test_a_shard_of_which_the_log_has_lost_every_commit_is_found_by_its_fence(
    server: PostgresServer, table: str, opened: Open
) -> None:
    destination = opened()
    ends = {}
    for shard in ("shard-1", "shard-2"):
        first = store(destination, None, [change(1)], shard=shard)
        ends[shard] = store(destination, first, [change(2)], shard=shard)
    with psycopg.connect(server.conninfo, autocommit=True) as connection:
        connection.execute(f"delete from {table}_commits where shard = 'shard-1'".encode())
        connection.execute(f"delete from {table} where _shard_id = 'shard-1'".encode())
    found = verify(destination, with_rows=True).findings

    assert [(one.flaw, one.shard, one.start, one.end) for one in found] == [
        (Flaw.FENCE, "shard-1", "TRIM_HORIZON", ends["shard-1"].end)
    ]


@pytest.mark.parametrize("how", ["as table {0}", "(like {0} including all)"])
def test_copies_of_the_tables_that_lack_what_keeps_commits_apart_are_refused(
    how: str, server: PostgresServer, table: str, opened: Open
) -> None:
    """They can be read and proved; but two writers could both begin a shard there, or a commit would have no place."""
    last = store(opened(), None, [change(1)])
    with psycopg.connect(server.conninfo, autocommit=True) as connection:
        for end in ("", "_shards", "_commits"):
            connection.execute(f"create table copy_{table}{end} {how.format(table + end)}".encode())
            if "like" in how:
                connection.execute(f"insert into copy_{table}{end} table {table}{end}".encode())
    copy = PostgresDestination(server.conninfo, f"copy_{table}")
    with pytest.raises(ConfigurationError, match="dumping and restoring"):
        store(copy, last, [change(2)])

    assert verify(copy, with_rows=True).is_whole
    copy.close()
