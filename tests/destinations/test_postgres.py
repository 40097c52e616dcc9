"""PostgreSQL keeps the contract, on a real server that is crashed, cut off and frozen in the middle of a commit."""

from __future__ import annotations

import subprocess
import threading
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from postgres_server import Open, PostgresServer, binaries

from streamclient.destinations import FencedCommit, records_of
from streamclient.destinations.postgres.postgres_destination import PostgresDestination
from streamclient.destinations.postgres.postgres_rows import COLUMNS_MAX
from streamclient.destinations.proof.verification import Flaw, verify
from streamclient.errors import ConfigurationError, DependencyException, ErrorKind, UnfitValueError
from streamclient.testing.contracts.destination_contract import (
    DESTINATION_SCENARIOS,
    batch,
    change,
    check_destination_scenario,
    rows_for,
    store,
    stored_numbers,
)
from tests.patience import PATIENCE_SECONDS

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("scenario", DESTINATION_SCENARIOS)
def test_postgres_keeps_the_contract(server: PostgresServer, scenario: str) -> None:
    check_destination_scenario(
        scenario,
        lambda name, application: PostgresDestination(
            server.conninfo, name, application=application, answer_seconds=60.0
        ),
    )


def test_a_commit_that_meets_a_crash_of_the_server_goes_in_once(server: PostgresServer, opened: Open) -> None:
    destination = opened(answer_seconds=60.0)
    last = store(destination, None, [change(1)])
    server.crash()
    last = store(destination, last, [change(2)])
    server.crash()

    assert stored_numbers(destination) == [1, 2]
    assert destination.last_commits(["shard-1"]) == {"shard-1": last}


def test_an_answer_that_is_lost_in_the_end_of_a_commit_is_looked_for(server: PostgresServer, opened: Open) -> None:
    """The server has stored it, and the connection breaks before it says so; by then a successor has gone on."""

    class Cut(PostgresDestination):
        cuts = 0

        def _try_to_store(self, cursor, rows, commits, replaced, **known):  # type: ignore[no-untyped-def]
            super()._try_to_store(cursor, rows, commits, replaced, **known)
            if self.cuts == 0:
                self.cuts += 1
                cursor.execute("commit")
                cursor.execute("select pg_backend_pid()")
                (pid,) = cursor.fetchone()
                with psycopg.connect(server.conninfo, autocommit=True) as other:
                    other.execute("select pg_terminate_backend(%s, 10000)", (pid,))
                store(opened(), commits[0], [change(2)], epoch=2)

    destination = opened(Cut, answer_seconds=60.0)
    commit = store(destination, None, [change(1)])

    assert destination.cuts == 1
    assert stored_numbers(destination) == [1, 2]
    assert destination.last_commits(["shard-1"])["shard-1"].previous_digest == commit.digest


def test_a_writer_that_freezes_in_its_transaction_does_not_keep_the_shard_from_its_successor(
    opened: Open,
) -> None:
    holds, wakes = threading.Event(), threading.Event()

    class Freezes(PostgresDestination):
        def _insert(self, cursor, rows):  # type: ignore[no-untyped-def]
            super()._insert(cursor, rows)
            holds.set()
            wakes.wait(PATIENCE_SECONDS)

    one = store(opened(), None, [change(1)])
    frozen = opened(Freezes, answer_seconds=1.0)
    late = batch(one, [change(2)], epoch=1)
    rows = rows_for(frozen, [change(2)], late)
    errors: list[BaseException] = []

    def write() -> None:
        try:
            frozen.commit(rows, [late])
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    assert holds.wait(PATIENCE_SECONDS)
    successor = opened(answer_seconds=60.0)
    store(successor, one, [change(20)], epoch=2)
    wakes.set()
    thread.join(PATIENCE_SECONDS)

    assert stored_numbers(successor) == [1, 20]
    assert len(errors) == 1
    # It is told that it is fenced, or that its time is over, whichever comes first.
    assert isinstance(errors[0], FencedCommit | DependencyException)


def test_a_writer_that_freezes_while_it_copies_holds_nobody_up(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server waits for what it copies as long as the writer says nothing, whatever limits are set."""
    holds, wakes = threading.Event(), threading.Event()
    write_row, frozen_thread = psycopg.Copy.write_row, []

    def freezing(self: psycopg.Copy, row: Any) -> None:
        write_row(self, row)
        if threading.get_ident() in frozen_thread:
            holds.set()
            wakes.wait(PATIENCE_SECONDS)

    monkeypatch.setattr(psycopg.Copy, "write_row", freezing)
    one = store(opened(), None, [change(1)])
    frozen = opened(answer_seconds=60.0)
    late = batch(one, [change(2), change(3)], epoch=1)
    rows = rows_for(frozen, [change(2), change(3)], late)
    errors: list[BaseException] = []

    def write() -> None:
        frozen_thread.append(threading.get_ident())
        try:
            frozen.commit(rows, [late])
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        assert holds.wait(PATIENCE_SECONDS)
        successor = opened(answer_seconds=60.0)
        store(successor, one, [change(20)], epoch=2)
    finally:
        wakes.set()
        thread.join(PATIENCE_SECONDS)

    assert stored_numbers(successor) == [1, 20]
    assert len(errors) == 1
    assert isinstance(errors[0], FencedCommit)


def test_a_merge_may_fold_for_longer_than_the_server_lets_a_transaction_wait(
    server: PostgresServer, opened: Open
) -> None:
    """It would be ended each time, and a batch that was promised cannot become smaller."""
    writer = opened(answer_seconds=30.0)
    writer.key_by(["id"])
    first = store(writer, None, [change(1)])
    seen: list[int] = []

    def fold(rows: pa.Table) -> pa.Table:
        with psycopg.connect(server.conninfo, autocommit=True) as other:
            query = (
                "select pid from pg_stat_activity where state like 'idle in transaction%' and pid <> pg_backend_pid()"
            )
            seen.extend(pid for (pid,) in other.execute(query).fetchall())
        return rows

    writer.merge(pa.table({"id": [1]}), fold, [batch(first, [change(2)])])

    assert seen == []


def test_a_merge_is_made_of_the_rows_that_it_replaces_though_they_change_meanwhile(opened: Open) -> None:
    writer, other = opened(answer_seconds=30.0), opened(answer_seconds=30.0)
    for one in (writer, other):
        one.key_by(["id"])
    first = batch(None, [])
    writer.commit(pa.table({"id": [1], "text": ["old"]}), [first])
    calls: list[list[str]] = []

    def fold(rows: pa.Table) -> pa.Table:
        calls.append(rows.column("text").to_pylist())
        if len(calls) == 1:
            made = pa.table({"id": [1], "text": ["theirs"]})
            other.merge(pa.table({"id": [1]}), lambda present: made, [batch(None, [], shard="shard-2")])
        return pa.table({"id": [1], "text": [f"ours behind {calls[-1][0]}"]})

    writer.merge(pa.table({"id": [1]}), fold, [batch(first, [])])

    assert calls == [["old"], ["theirs"]]
    assert [row["text"] for table in other.rows() for row in table.to_pylist()] == ["ours behind theirs"]


def test_whoever_looks_waits_for_no_merge(opened: Open) -> None:
    """Or a writer that is frozen in one would keep everybody from looking, for as long as it may keep its locks."""
    writer = opened(answer_seconds=30.0)  # after which it loses its locks: a reader that waited for them is found out
    writer.key_by(["id"])
    first = store(writer, None, [change(1)])
    seen = []

    def fold(rows: pa.Table) -> pa.Table:
        reader = opened(answer_seconds=60.0)
        reader.key_by(["id"])
        seen.append((len(list(reader.log())), stored_numbers(reader)))
        return rows

    writer.merge(pa.table({"id": [1]}), fold, [batch(first, [change(2)])])

    assert seen == [(1, [1])]


def test_a_server_that_does_not_answer_leaves_it_unknown(tmp_path: object) -> None:
    destination = PostgresDestination(f"host={tmp_path} user=nobody dbname=none", "t", answer_seconds=0.5)
    with pytest.raises(DependencyException, match=r"within 0\.5 s") as raised:
        destination.last_commits(["shard-1"])

    assert raised.value.kind is ErrorKind.AMBIGUOUS


def relations(server: PostgresServer, table: str) -> list[tuple[str, str]]:
    """Every table that is called so or has more behind its name, and the columns that it has."""
    with psycopg.connect(server.conninfo) as other:
        found = other.execute(
            "select relname, string_agg(attname, ' ' order by attnum) from pg_class left join pg_attribute "
            "on attrelid = pg_class.oid and attnum > 0 where relkind = 'r' and starts_with(relname::text, %s) "
            "group by relname order by relname",
            (table,),
        )
        return found.fetchall()


def test_who_only_looks_makes_no_tables(server: PostgresServer, table: str, opened: Open) -> None:
    """Or a mistyped name would leave three of them behind."""
    destination = opened()
    destination.key_by(["id"])
    destination.probe()

    assert destination.columns() is None
    assert destination.last_commits(["shard-1"]) == {"shard-1": None}
    assert [*destination.log(), *destination.rows(), *destination.rows_below("id", 1)] == []
    assert relations(server, table) == []


@pytest.mark.parametrize("suffix", ["", "_shards"])
def test_a_table_that_a_destination_did_not_make_is_refused_and_left_as_it_is(
    server: PostgresServer, table: str, opened: Open, suffix: str
) -> None:
    with psycopg.connect(server.conninfo) as other:
        other.execute(f"create table {table}{suffix} (id bigint)")
    destination = opened()
    destination.key_by(["id"])
    keys, commits = pa.table({"id": [1]}), [batch(None, [])]
    for touch in (
        destination.probe,
        destination.columns,
        lambda: destination.last_commits(["shard-1"]),
        lambda: list(destination.log()),
        lambda: list(destination.rows()),
        lambda: destination.commit(keys, commits),
        lambda: destination.merge(keys, lambda present: keys, commits),
    ):
        with pytest.raises(ConfigurationError, match=f"PostgreSQL has {table}{suffix}, but not .*name another table"):
            touch()

    assert relations(server, table) == [(f"{table}{suffix}", "id")]


def test_rows_are_not_found_by_a_key_where_they_were_stored_without_one(
    server: PostgresServer, table: str, opened: Open
) -> None:
    store(opened(), None, [change(1)])
    made = relations(server, table)
    destination = opened()
    destination.key_by(["id"])
    for touch in (destination.probe, lambda: destination.commit(pa.table({"id": [1]}), [batch(None, [], shard="b")])):
        with pytest.raises(ConfigurationError, match="created for rows without a key"):
            touch()

    assert relations(server, table) == made


def test_a_server_that_only_reads_is_refused(opened: Open) -> None:
    with pytest.raises(ConfigurationError, match="transaction_read_only=on"):
        opened(conninfo="options='-c default_transaction_read_only=on'").probe()


def test_commits_are_flushed_even_if_the_server_is_set_not_to(opened: Open) -> None:
    """With synchronous_commit off, a crash takes back what was acknowledged."""
    seen: list[str] = []

    class Looks(PostgresDestination):
        def _copy(self, cursor, rows):  # type: ignore[no-untyped-def]
            seen.extend(cursor.execute("select current_setting('synchronous_commit')").fetchone())
            super()._copy(cursor, rows)

    store(opened(Looks, "options='-c synchronous_commit=off'"), None, [change(1)])

    assert seen == ["on"]


LONG = "n" * 70


def test_what_has_no_column_here_is_kept_beside(opened: Open) -> None:
    """Names of which only the first 63 bytes count, texts with NUL, and columns beyond what a page holds."""
    destination = opened()
    many = {f"c{number}": number for number in range(COLUMNS_MAX + 20)}
    records = [
        change(1, **{LONG + "1": "one", LONG + "2": 2}),
        change(2, text="a\0b"),
        change(3, text="plain"),
        change(4, ctid=1, tableoid="2", xmin=3, xmax=4.5, cmin=True, cmax=b"6"),
        change(5, **many),
        change(6, **{'percent % and "quote"': 5, "CaSe": 1}),
    ]
    last = None
    for record in records:
        last = store(destination, last, [record])
    found = sorted(
        (record for rows in destination.rows() for record in records_of(rows)), key=lambda one: one.sequence_info
    )

    assert found == [
        change(n, **dict(sorted((c.name, c.value) for c in one.columns))) for n, one in enumerate(records, 1)
    ]
    assert len(destination.columns().names) <= COLUMNS_MAX + 12  # type: ignore[union-attr]
    assert verify(destination, with_rows=True).findings == []


def test_a_key_of_any_name_finds_its_rows_or_is_refused(opened: Open) -> None:
    """System columns have such names, and a longer name is cut off."""
    destination = opened()
    destination.key_by(["xmin", "tableoid"])
    first = batch(None, [])
    rows = pa.table({"xmin": [1, 2], "tableoid": ["a", "a"], "ctid": [1.5, 2.5]})
    destination.commit(rows, [first])
    made = pa.table({"xmin": [2], "tableoid": ["a"], "ctid": [20.5]})
    destination.merge(made.select(["xmin", "tableoid"]), lambda present: made, [batch(first, [])])
    (found,) = opened().rows()

    assert [*destination.rows_below("xmin", 2)] == [rows.slice(0, 1)]
    assert found.select(rows.column_names).sort_by("xmin") == pa.concat_tables([rows.slice(0, 1), made])
    with pytest.raises(ConfigurationError, match=f"key column '{LONG}' has more than the 63 bytes"):
        destination.key_by(["id", LONG])


def test_a_commit_between_two_parts_of_the_rows_is_stored(opened: Open) -> None:
    """An open reading transaction must not become the one that the commit is a part of."""
    destination = opened()
    last = store(destination, None, [change(1)])
    parts = destination.rows()
    assert next(parts).num_rows == 1
    store(destination, last, [change(2)])
    parts.close()  # type: ignore[attr-defined]
    destination.close()

    assert stored_numbers(opened()) == [1, 2]


def test_rows_without_a_map_for_it_are_refused(opened: Open) -> None:
    destination = opened()
    commit = batch(None, [])
    with pytest.raises(UnfitValueError, match="NUL"):
        destination.commit(pa.table({"text": ["a\0b"]}), [commit])

    assert destination.last_commits(["shard-1"]) == {"shard-1": None}


def test_the_proof_finds_rows_that_somebody_removed(server: PostgresServer, table: str, opened: Open) -> None:
    destination = opened()
    one = store(destination, None, [change(1), change(2)])
    store(destination, one, [change(3), change(4)])
    whole = verify(destination, with_rows=True)
    with psycopg.connect(server.conninfo) as other:
        other.execute(f"delete from {table} where id = 3")
    (finding,) = verify(destination, with_rows=True).findings

    assert whole.is_whole
    assert (finding.flaw, finding.shard, finding.start) == (Flaw.ROWS_LOST, "shard-1", one.end)


def test_a_user_without_the_right_to_write_is_told_so(server: PostgresServer, opened: Open, table: str) -> None:
    """And may look, on a server that only reads too."""
    store(opened(), None, [change(1)])
    with psycopg.connect(server.conninfo, autocommit=True) as other:
        other.execute(f"create role reader_{table} login")
        other.execute(f"grant select on {table}, {table}_shards, {table}_commits to reader_{table}")
        other.execute(f"grant create on schema public to reader_{table}")
    with pytest.raises(DependencyException, match="permission denied") as raised:
        store(opened(conninfo=f"user=reader_{table}"), None, [change(2)], shard="shard-2")

    assert raised.value.kind is ErrorKind.PERMANENT
    reader = opened(conninfo=f"user=reader_{table} options='-c default_transaction_read_only=on'")
    assert str(verify(reader, with_rows=True)).endswith("1 commit, 1 record, 1 row read: each record once")


def test_commits_go_on_where_their_tables_were_restored_in_another_cluster(
    server: PostgresServer, table: str, opened: Open
) -> None:
    """Whose transactions come to have the numbers that those of the first one had."""
    with psycopg.connect(server.conninfo, autocommit=True) as old, PostgresServer() as other:
        for _ in range(200):  # so that the other cluster is behind
            old.execute("select txid_current()")
        last = None
        for number in range(3):
            last = store(opened(), last, [change(number)])
        (first,) = old.execute(f"select min(xmin::text::bigint) from {table}_commits".encode()).fetchone() or (0,)
        dumped = subprocess.run(
            [str(binaries() / "pg_dump"), "-d", server.conninfo, "-t", f"{table}*"], capture_output=True, check=True
        )
        restore = [str(binaries() / "psql"), "-q", "-v", "ON_ERROR_STOP=1", "-d", other.conninfo]
        subprocess.run(restore, input=dumped.stdout, capture_output=True, check=True)
        with psycopg.connect(other.conninfo, autocommit=True) as new:
            while new.execute("select txid_current() < %s - 4", (first,)).fetchone() == (True,):
                pass
        destination = PostgresDestination(other.conninfo, table)
        for number in range(3, 12):
            last = store(destination, last, [change(number)])
        proof = verify(destination, with_rows=True)
        destination.close()

    assert (proof.findings, proof.commits) == ([], 12)


@pytest.mark.parametrize("conninfo", ["host=h s3cret", "postgres:/ann:s3cret@h", "s3cret=1"])
def test_what_libpq_cannot_read_is_refused_before_anything_is_called(conninfo: str) -> None:
    with pytest.raises(ConfigurationError, match="conninfo must be options of PostgreSQL") as caught:
        PostgresDestination(conninfo, "orders")
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("name", ["", "x" * 60, "a%b", "schema."])
def test_names_that_cannot_be_tables_are_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="table must be a name"):
        PostgresDestination("host=/nowhere", name)
