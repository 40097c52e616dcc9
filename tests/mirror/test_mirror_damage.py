"""Mirrors that are damaged behind the mirror's back: ``verify`` names each row and column that is damaged."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from attrs import frozen

from streamclient.copying import Mirror
from streamclient.copying.mirror_comparison import Comparison
from streamclient.destinations import DeltaDestination, PostgresDestination
from streamclient.destinations.commit import MergingDestination
from streamclient.server import LocalTablestore
from tests.destinations.postgres_server import PostgresServer
from tests.destinations.test_destination_damage import note_sizes
from tests.mirror.mirroring import LIMITS, QUICK, caught_up, make_table, put, running

pytestmark = pytest.mark.slow

ROWS = range(1, 7)
NAMES = ("a", "b", "c")

Damage = Callable[[pa.Table, int, int], tuple[pa.Table, list["Found"]]]
"""What becomes of a file's rows if the one in a place, which has a key, is damaged; and what must be said."""


@pytest.fixture(scope="module")
def local_orders() -> Iterator[LocalTablestore]:
    with LocalTablestore() as local:
        make_table(local.client())
        for number in ROWS:
            put(local.client(), number, ("a", number), ("b", f"text {number}"), ("c", number / 2))
        yield local


def mirror_into(local: LocalTablestore, destination: MergingDestination) -> Mirror:
    """Each place has a status table of its own; after the first one the table's stream has nothing to add."""
    status = f"status_{type(destination).__name__}"
    return Mirror(local.client(), "orders", status, destination, client_config=QUICK, limits=LIMITS)


def fill(local: LocalTablestore, destination: MergingDestination) -> None:
    mirror = mirror_into(local, destination)
    with running(mirror):
        caught_up(mirror)
    assert mirror.verify().is_equal


def compared(local: LocalTablestore, destination: MergingDestination) -> Comparison:
    return mirror_into(local, destination).verify()


@frozen
class Found:
    """What must be said of a row."""

    key: int
    column: str = ""
    text: str = ""


def check(found: Comparison, *expected: Found) -> None:
    said = {(one.key, one.column): str(one) for one in found.differences}

    assert not found.is_equal
    assert sorted(said) == sorted(((one.key,), one.column) for one in expected)
    assert all(one.text in said[(one.key,), one.column] for one in expected), said


# --- rows --------------------------------------------------------------------------------------------


def with_value(table: pa.Table, row: int, name: str, value: Any) -> pa.Table:
    values = table.column(name).to_pylist()
    values[row] = value
    return table.set_column(
        table.column_names.index(name), table.schema.field(name), pa.array(values, table.schema.field(name).type)
    )


def drop(table: pa.Table, row: int, key: int) -> tuple[pa.Table, list[Found]]:
    return pa.concat_tables([table.slice(0, row), table.slice(row + 1)]), [Found(key, text="missing in the mirror")]


def double(table: pa.Table, row: int, key: int) -> tuple[pa.Table, list[Found]]:
    return pa.concat_tables([table, table.slice(row, 1)]), [Found(key, text="in the mirror more than once")]


def double_with_another_value(table: pa.Table, row: int, key: int) -> tuple[pa.Table, list[Found]]:
    """The right one comes last, so that only the number of rows is wrong."""
    return (
        pa.concat_tables([with_value(table.slice(row, 1), 0, "a", 99), table]),
        [Found(key, text="in the mirror more than once")],
    )


def another_number(table: pa.Table, row: int, key: int) -> tuple[pa.Table, list[Found]]:
    return with_value(table, row, "a", 99), [Found(key, "a", "mirror 99@")]


def another_text(table: pa.Table, row: int, key: int) -> tuple[pa.Table, list[Found]]:
    return with_value(table, row, "b", "other"), [Found(key, "b", "mirror 'other'@")]


def the_text_of_the_next_row(table: pa.Table, row: int, key: int) -> tuple[pa.Table, list[Found]]:
    return with_value(table, row, "b", f"text {key + 1}"), [Found(key, "b", f"mirror 'text {key + 1}'@")]


def no_value(table: pa.Table, row: int, key: int) -> tuple[pa.Table, list[Found]]:
    return with_value(table, row, "c", None), [Found(key, "c", "mirror has none")]


def another_version(table: pa.Table, row: int, key: int) -> tuple[pa.Table, list[Found]]:
    """A row whose cells have one version keeps it once; a cell with another one is listed beside."""
    moved = [("b", table.column("_version")[row].as_py() + 1)]
    return with_value(table, row, "_versions", moved), [Found(key, "b", "text")]


def another_type(table: pa.Table, row: int, key: int) -> tuple[pa.Table, list[Found]]:
    """The same digits, as a text."""
    beside = with_value(table, row, "_unfit", [("a", {"type": "STRING", "value": str(key)})])
    return with_value(beside, row, "a", None), [Found(key, "a", f"mirror '{key}'@")]


def another_key(table: pa.Table, row: int, key: int) -> tuple[pa.Table, list[Found]]:
    return with_value(table, row, "id", key + 100), [
        Found(key, text="missing in the mirror"),
        Found(key + 100, text="only in the mirror"),
    ]


def a_stranger(table: pa.Table, row: int, key: int) -> tuple[pa.Table, list[Found]]:
    stranger = with_value(table.slice(row, 1), 0, "id", -key)
    return pa.concat_tables([table, stranger]), [Found(-key, text="only in the mirror")]


DAMAGES = (
    drop,
    double,
    double_with_another_value,
    another_number,
    another_text,
    the_text_of_the_next_row,
    no_value,
    another_version,
    another_type,
    another_key,
    a_stranger,
)


# --- Delta Lake -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def delta(local_orders: LocalTablestore, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("mirror") / "state"
    fill(local_orders, DeltaDestination(str(place)))
    return place


def file_of(place: Path, key: int) -> tuple[Path, int]:
    """The file that has the row, and its place there."""
    for name, read in DeltaDestination(str(place)).files():
        keys = [key for table in read() for key in table.column("id").to_pylist()]
        if key in keys:
            return place / name, keys.index(key)
    raise AssertionError(f"no file has row {key}")


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda one: one.__name__)
def test_each_damage_to_rows_of_delta_lake_is_found(
    damage: Damage, local_orders: LocalTablestore, delta: Path, tmp_path: Path
) -> None:
    for key in ROWS:
        copy = shutil.copytree(delta, tmp_path / str(key))
        path, row = file_of(copy, key)
        table, expected = damage(pq.read_table(path, partitioning=None), row, key)
        pq.write_table(table, path)
        note_sizes(copy)
        check(compared(local_orders, DeltaDestination(str(copy))), *expected)


@pytest.mark.parametrize("name", ["a", "b", "c", "_version"])
def test_a_column_that_is_lost_is_found_in_each_row(
    name: str, local_orders: LocalTablestore, delta: Path, tmp_path: Path
) -> None:
    copy = shutil.copytree(delta, tmp_path / "copy")
    path, _ = file_of(copy, 1)
    held = pq.read_table(path, partitioning=None)
    pq.write_table(held.drop_columns([name]), path)
    note_sizes(copy)
    found = compared(local_orders, DeltaDestination(str(copy)))
    lost = {(key, column) for key in held.column("id").to_pylist() for column in (NAMES if name not in NAMES else name)}

    assert {(one.key[0], one.column) for one in found.differences} == lost


@pytest.mark.parametrize("left", [None, b"", b"id,a\n", 0.5], ids=["deleted", "emptied", "of another kind", "cut"])
def test_a_file_that_cannot_be_read_is_named_and_so_are_its_rows(
    left: bytes | float | None, local_orders: LocalTablestore, delta: Path, tmp_path: Path
) -> None:
    copy = shutil.copytree(delta, tmp_path / "copy")
    path, _ = file_of(copy, 1)
    whole, held = path.read_bytes(), pq.read_table(path, partitioning=None).column("id").to_pylist()
    if left is None:
        path.unlink()
    else:
        path.write_bytes(left if isinstance(left, bytes) else whole[: len(whole) // 2])
    found = compared(local_orders, DeltaDestination(str(copy)))

    check(found, *(Found(key, text="missing in the mirror") for key in held))
    assert f"the file {path.name} cannot be read" in str(found)


# --- PostgreSQL -------------------------------------------------------------------------------------------------------

STATEMENTS: dict[str, tuple[str, Callable[[int], list[Found]]]] = {
    "row deleted": ("delete from state where id = {key}", lambda key: [Found(key, text="missing in the mirror")]),
    "number changed": ("update state set a = 99 where id = {key}", lambda key: [Found(key, "a", "mirror 99@")]),
    "text changed": ("update state set b = 'other' where id = {key}", lambda key: [Found(key, "b", "'other'@")]),
    "value lost": ("update state set c = null where id = {key}", lambda key: [Found(key, "c", "mirror has none")]),
    "key changed": (
        "update state set id = id + 100 where id = {key}",
        lambda key: [Found(key, text="missing in the mirror"), Found(key + 100, text="only in the mirror")],
    ),
    "rows exchanged": (
        "update state set a = {key} + 1 - (a - {key}) where id in ({key}, {key} + 1)",
        lambda key: [Found(key, "a", f"mirror {key + 1}@"), Found(key + 1, "a", f"mirror {key}@")],
    ),
}


@pytest.fixture(scope="module")
def conninfo(local_orders: LocalTablestore) -> Iterator[str]:
    with PostgresServer() as server:
        destination = PostgresDestination(server.conninfo, "state")
        fill(local_orders, destination)
        destination.close()
        with psycopg.connect(server.conninfo, autocommit=True) as connection:
            connection.execute("create table whole as table state")
        yield server.conninfo


@pytest.mark.parametrize("name", STATEMENTS)
def test_each_damage_to_rows_of_postgresql_is_found(name: str, local_orders: LocalTablestore, conninfo: str) -> None:
    statement, expected = STATEMENTS[name]
    destination = PostgresDestination(conninfo, "state")
    with psycopg.connect(conninfo, autocommit=True) as connection:
        for key in ROWS[:-1]:
            connection.execute(statement.format(key=key).encode())
            check(compared(local_orders, destination), *expected(key))
            connection.execute("truncate state")
            connection.execute("insert into state select * from whole")
        assert compared(local_orders, destination).is_equal
    destination.close()
