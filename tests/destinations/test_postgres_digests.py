"""Digests of keys in PostgreSQL: the same under every Python, and those of earlier versions made anew."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from threading import Barrier
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from former_digests import as_before, digest_columns
from postgres_server import Open, PostgresServer

from streamclient.destinations import PostgresDestination
from streamclient.destinations.postgres import postgres_digests
from streamclient.destinations.postgres.postgres_digests import DigestRenewal, key_digests
from streamclient.destinations.postgres.postgres_rows import DIGEST, FORMER_DIGEST
from streamclient.destinations.rows.change_rows import UNFIT, added_types
from streamclient.errors import DependencyException, ErrorKind
from streamclient.testing.contracts.destination_contract import batch

pytestmark = pytest.mark.slow

NEWER_LETTERS = ["\u0897", "\u1c89", "\ua7cb", "\u0cf3", "\U0001fae8", "\U0001f6dc", "\u2ffc", "\U00031350", "\u20c0"]
"""Of Unicode 14 to 16: a Python says of each by its age whether it can be printed, and `repr` differs by that."""

KEYS: dict[str, tuple[Sequence[Any], str]] = {
    "a text": (["a"], "f70b4e357b"),
    "a letter of Unicode 14": (["\u20c0"], "84a35dd28b"),
    "a letter of Unicode 15": (["\U0001fae8"], "62349f1dda"),
    "a letter of Unicode 16": (["\u0897"], "6b4d5d4840"),
    "NUL in a text": (["a\0b"], "ff31f9124b"),
    "the empty text": ([""], "a9caf444ce"),
    "quotes": (["'\"\\"], "34e67413a4"),
    "numbers": ([1, -(2**63), 2**63 - 1], "f8fbcd57e0"),
    "bytes": ([b"\x00\xff"], "63fab8ae83"),
    "a text and a number": (["1", 1], "c00a6c9e6d"),
    "a number and a text": ([1, "1"], "88db943ea1"),
    "null": ([None, "a"], "2234d954ad"),
    "no number but true": ([True, 1.5], "ebfad7de1a"),
}


def digest_of(key: Sequence[Any]) -> str:
    names = [f"k{place}" for place in range(len(key))]
    rows = pa.table({name: [value] for name, value in zip(names, key, strict=True)})
    return key_digests(rows, names)[0].hex()


@pytest.mark.parametrize("name", KEYS)
def test_the_digest_of_a_key_is_that_of_every_python(name: str) -> None:
    key, digest = KEYS[name]

    assert digest_of(key)[:10] == digest


# --- tables of earlier versions ---------------------------------------------------------------------------------------

ROWS: dict[Any, Any] = {letter: place for place, letter in enumerate(NEWER_LETTERS)} | {"a": 100, "b\0c": 101, "": 102}


def rows_of(values: dict[Any, Any]) -> pa.Table:
    kind = added_types()[UNFIT]
    return pa.table(
        {
            "k": pa.array(values, pa.string()),
            "v": pa.array(values.values(), pa.int64()),
            UNFIT: pa.nulls(len(values), kind),
        }
    )


def keys_of(*keys: str) -> pa.Table:
    return pa.table({"k": pa.array(keys, pa.string())})


def merge(destination: PostgresDestination, values: dict[Any, Any], *gone: str, shard: str = "shard-1") -> None:
    """Put these rows, and remove those."""
    last = destination.last_commits([shard])[shard]
    destination.merge(keys_of(*values, *gone), lambda present: rows_of(values), [batch(last, [], shard=shard)])


def stored(destination: PostgresDestination) -> list[tuple[Any, Any]]:
    found = []
    for table in destination.rows():
        for row in table.to_pylist():
            key = row["k"] if row["k"] is not None else dict(row[UNFIT])["k"]["value"]
            found.append((key, row["v"]))
    return sorted(found, key=lambda one: (one[1], one[0]))


def opened_keyed(opened: Open, **options: Any) -> PostgresDestination:
    destination = opened(**options)
    destination.key_by(["k"])
    return destination


@pytest.fixture
def earlier(server: PostgresServer, table: str, opened: Open) -> PostgresDestination:
    """A table of an earlier version that has ``ROWS``."""
    merge(opened_keyed(opened), ROWS)
    as_before(server.conninfo, table)
    return opened_keyed(opened)


def test_a_table_of_an_earlier_version_goes_on(
    earlier: PostgresDestination, server: PostgresServer, table: str, opened: Open
) -> None:
    assert stored(earlier) == sorted(ROWS.items(), key=lambda one: one[1])  # reading changes nothing
    assert digest_columns(server.conninfo, table) == {"_key": True}

    merge(earlier, {letter: place + 1_000 for letter, place in ROWS.items() if place % 2}, NEWER_LETTERS[0], "")

    expected = {key: value + 1_000 if value % 2 else value for key, value in ROWS.items()}
    del expected[NEWER_LETTERS[0]], expected[""]
    assert dict(stored(earlier)) == expected
    assert len(stored(earlier)) == len(expected)
    assert digest_columns(server.conninfo, table) == {DIGEST: True}
    assert {*_digests(server, table)} == {*key_digests(keys_of(*expected), ["k"])}
    merge(opened_keyed(opened), {}, *expected)  # another process finds nothing to do, and all rows
    assert stored(earlier) == []


def _digests(server: PostgresServer, table: str) -> list[bytes]:
    with psycopg.connect(server.conninfo) as connection:
        found = connection.execute(f'select {DIGEST} from "{table}"'.encode()).fetchall()
    return [bytes(digest) for (digest,) in found]


def steps_of(destination: PostgresDestination) -> list[Callable[[], Any]]:
    """The steps of a renewal by one process, each done when it is called."""
    tables = destination._tables
    destination._asked(tables.create)
    renewal = DigestRenewal(tables)
    works = (renewal.begin, renewal.renew_piece, renewal.renew_piece, renewal.make_index, renewal.finish)
    return [lambda work=work: destination._asked(work) for work in works]  # type: ignore[misc]


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_digests, "PIECE_ROWS", 2)


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("done", range(6))
def test_a_renewal_goes_on_where_a_process_was_killed(
    done: int, earlier: PostgresDestination, server: PostgresServer, table: str, opened: Open
) -> None:
    killed = opened_keyed(opened)
    for step in steps_of(killed)[: min(done, 3)]:
        step()
    if done > 3:  # all pieces, and what comes after them
        for step in steps_of(killed)[3:done]:
            while killed._asked(DigestRenewal(killed._tables).renew_piece):
                pass
            step()
    killed.close()
    read = opened_keyed(opened)
    assert dict(stored(read)) == ROWS  # whoever reads meanwhile sees rows as they are
    assert set(read.columns().names) == {"k", "v", UNFIT}  # type: ignore[union-attr]

    merge(earlier, {key: value + 1 for key, value in ROWS.items()})

    assert dict(stored(earlier)) == {key: value + 1 for key, value in ROWS.items()}
    assert len(stored(earlier)) == len(ROWS)
    assert digest_columns(server.conninfo, table) == {DIGEST: True}


OLD_STATEMENTS = {
    "a merge looks": 'select "_key", xmin::text from "{t}" where "_key" = any(array[]::bytea[])',
    "a merge removes": 'delete from "{t}" where "_key" = any(array[]::bytea[]) returning "_key"',
    "a merge stores": 'insert into "{t}" ("_key", "v") values (\'\\x00\', 1)',
}
OLD_CHECK = "select from pg_attribute where attrelid = '\"{t}\"'::regclass and attname = '_key' and not attisdropped"


@pytest.mark.parametrize("steps", range(1, 6))
def test_a_worker_of_an_earlier_version_is_refused_from_the_first_step_on(
    steps: int, earlier: PostgresDestination, server: PostgresServer, table: str
) -> None:
    for step in steps_of(earlier)[:steps]:
        step()

    with psycopg.connect(server.conninfo, autocommit=True) as connection:
        for statement in OLD_STATEMENTS.values():
            with pytest.raises(psycopg.errors.UndefinedColumn, match="_key"):
                connection.execute(statement.format(t=table).encode())
        assert connection.execute(OLD_CHECK.format(t=table).encode()).fetchall() == []  # it says: made without a key


@pytest.mark.usefixtures("small_pieces")
def test_several_processes_renew_one_table_together(
    earlier: PostgresDestination, server: PostgresServer, table: str, opened: Open
) -> None:
    handles = [earlier, *(opened_keyed(opened) for _ in range(3))]
    barrier = Barrier(len(handles))

    def begin(place: int) -> None:
        barrier.wait()
        merge(handles[place], {f"new {place}": 500 + place}, shard=f"shard-{place}")

    with ThreadPoolExecutor(len(handles)) as pool:
        list(pool.map(begin, range(len(handles))))

    assert dict(stored(earlier)) == ROWS | {f"new {place}": 500 + place for place in range(4)}
    assert digest_columns(server.conninfo, table) == {DIGEST: True}


def test_a_key_that_stands_twice_already_stays_and_is_seen_by_the_next_merge(
    earlier: PostgresDestination, server: PostgresServer, table: str, caplog: pytest.LogCaptureFixture
) -> None:
    """An earlier version has not found the row under another Python, and stored it once more."""
    letter = NEWER_LETTERS[0]
    with psycopg.connect(server.conninfo) as connection:
        connection.execute(
            f'insert into "{table}" (_key, k, v) values (%b, %b, 7)'.encode(),
            (sha256(repr((letter, "newer")).encode()).digest(), letter),
        )
    seen: list[list[int]] = []

    def fold(present: pa.Table) -> pa.Table:
        seen.append(sorted(present.column("v").to_pylist()))
        return rows_of({letter: 8})

    earlier.merge(keys_of(letter), fold, [batch(None, [], shard="s")])

    assert seen == [[0, 7]]
    assert dict(stored(earlier)) == ROWS | {letter: 8}
    assert len(stored(earlier)) == len(ROWS)
    assert "keys more than once" in caplog.text
    merge(earlier, {}, *ROWS)
    assert stored(earlier) == []


def test_a_view_of_somebody_keeps_the_former_digests_and_nothing_else(
    earlier: PostgresDestination, server: PostgresServer, table: str
) -> None:
    with psycopg.connect(server.conninfo) as connection:
        connection.execute(f'create view "v{table}" as select * from "{table}"'.encode())

    merge(earlier, {"new": 500}, "a")

    expected = ROWS | {"new": 500}
    del expected["a"]
    assert dict(stored(earlier)) == expected
    assert digest_columns(server.conninfo, table) == {DIGEST: True, FORMER_DIGEST: False}
    merge(earlier, {"more": 501})
    assert dict(stored(earlier)) == expected | {"more": 501}


def test_a_long_reader_delays_the_renewal_and_is_named(
    earlier: PostgresDestination, server: PostgresServer, table: str, opened: Open
) -> None:
    hurried = opened_keyed(opened, answer_seconds=1.0)
    with psycopg.connect(server.conninfo) as reader:
        reader.execute(f'select count(*) from "{table}"'.encode())
        with pytest.raises(DependencyException, match=r"digests of .* could not be renewed") as raised:
            merge(hurried, {"new": 500})
    assert raised.value.kind is ErrorKind.TRANSIENT

    merge(hurried, {"new": 500})

    assert dict(stored(hurried)) == ROWS | {"new": 500}
