"""Real tables that are damaged behind the destination's back: ``verify`` finds each damage, with its shard and range.

Hundreds of different ones, each kind at several commits; damages of the log's rules alone are in
``test_destination_proof``.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from attrs import evolve
from deltalake import write_deltalake
from psycopg import sql
from pyiceberg.catalog.sql import SqlCatalog

from streamclient.destinations import Commit, DeltaDestination, PostgresDestination
from streamclient.destinations.commit import Destination
from streamclient.destinations.delta.maintenance import carry
from streamclient.destinations.iceberg_destination import IcebergDestination
from streamclient.destinations.proof.verification import Finding, Flaw, verify
from streamclient.testing.contracts.destination_contract import change, store
from tests.destinations.postgres_server import PostgresServer

pytestmark = pytest.mark.slow

SHARDS = ("shard-a", "shard-b", "shard-c")
COMMITS = 4
RECORDS = 4

Place = tuple[str, int]

PLACES: tuple[Place, ...] = (("shard-a", 1), ("shard-b", 2), ("shard-c", 4))
"""Of the damaged commits: a first one, one between, and a last one."""


def fill(destination: Destination) -> None:
    """Each commit has its own file, or its own step."""
    lasts: dict[str, Commit | None] = dict.fromkeys(SHARDS)
    for number in range(COMMITS):
        for base, shard in enumerate(SHARDS):
            records = [change(1_000 * base + 10 * number + n, v=n, w=f"text {n}") for n in range(RECORDS)]
            lasts[shard] = store(destination, lasts[shard], records, shard=shard, epoch=1 + number // 2)


def commits_of(destination: Destination) -> dict[Place, Commit]:
    return {(one.shard, one.number): one for entry in destination.log() for one in entry.commits}


def check(destination: Destination, commits: Mapping[Place, Commit], place: Place, expected: Expected) -> None:
    """What is found is what is expected, and only in the ranges that are damaged."""
    ends = {shard: commits[shard, COMMITS].end for shard in SHARDS}
    findings = verify(destination, with_rows=True, checkpoints=ends).findings
    found = {one.flaw for one in findings}
    damaged = [commits[one] for one in (place, *expected.others)]

    assert expected.flaws <= found, (place, findings)
    assert all(touches(one, damaged) for one in findings), (place, findings)
    assert any(one.shard == place[0] for one in findings), (place, findings)


def touches(finding: Finding, damaged: list[Commit]) -> bool:
    if finding.flaw is Flaw.UNREADABLE or (finding.flaw is Flaw.ROWS_UNKNOWN and not (finding.start or finding.end)):
        return True  # it names the file, or that nobody is named
    if finding.flaw is Flaw.FENCE:
        return finding.shard in {one.shard for one in damaged}  # what fences is the last commit, whichever is damaged
    return any(
        finding.shard == one.shard and {finding.start, finding.end} & {one.start, one.end, "elsewhere"}
        for one in damaged
    )


class Expected:
    """Flaws that must be found, and places beside the damaged one that may be named too."""

    def __init__(self, *flaws: Flaw, others: tuple[Place, ...] = ()) -> None:
        self.flaws, self.others = set(flaws), others


# --- files of rows ----------------------------------------------------------------------------------------------------


def number_of(path: Path) -> Place:
    (row,) = pq.read_table(path, columns=["_shard_id", "_commit"], partitioning=None).slice(0, 1).to_pylist()
    return row["_shard_id"], row["_commit"]


def files_of(directory: Path) -> dict[Place, Path]:
    return {number_of(path): path for path in sorted(directory.glob("*.parquet"))}


def rewritten(path: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    pq.write_table(change(pq.read_table(path, partitioning=None)), path)


def with_value(table: pa.Table, name: str, row: int, value: Any) -> pa.Table:
    values = table.column(name).to_pylist()
    values[row] = value
    place = table.column_names.index(name)
    return table.set_column(place, table.schema.field(name), pa.array(values, table.schema.field(name).type))


def other_place(place: Place) -> Place:
    return place[0], place[1] % COMMITS + 1


FileDamage = Callable[[Path, dict[Place, Path], Place, random.Random], Expected]


def delete_file(path: Path, files: dict[Place, Path], place: Place, dice: random.Random) -> Expected:
    path.unlink()
    return Expected(Flaw.UNREADABLE, Flaw.ROWS_LOST)


def truncate_file(path: Path, files: dict[Place, Path], place: Place, dice: random.Random) -> Expected:
    path.write_bytes(path.read_bytes()[: dice.randrange(1, path.stat().st_size - 1)])
    return Expected(Flaw.UNREADABLE, Flaw.ROWS_LOST)


def empty_file(path: Path, files: dict[Place, Path], place: Place, dice: random.Random) -> Expected:
    path.write_bytes(b"")
    return Expected(Flaw.UNREADABLE, Flaw.ROWS_LOST)


def file_of_another_kind(path: Path, files: dict[Place, Path], place: Place, dice: random.Random) -> Expected:
    path.write_text("id,v\n1,2\n")
    return Expected(Flaw.UNREADABLE, Flaw.ROWS_LOST)


def file_of_another_commit(path: Path, files: dict[Place, Path], place: Place, dice: random.Random) -> Expected:
    other = other_place(place)
    shutil.copyfile(files[other], path)
    return Expected(Flaw.ROWS_LOST, Flaw.ROWS_REPEATED, others=(other,))


def drop_row(path: Path, files: dict[Place, Path], place: Place, dice: random.Random) -> Expected:
    rewritten(path, lambda table: table.take(sorted(dice.sample(range(RECORDS), RECORDS - 1))))
    return Expected(Flaw.ROWS_LOST)


def double_row(path: Path, files: dict[Place, Path], place: Place, dice: random.Random) -> Expected:
    rewritten(path, lambda table: pa.concat_tables([table, table.slice(dice.randrange(RECORDS), 1)]))
    return Expected(Flaw.ROWS_REPEATED)


def change_value(path: Path, files: dict[Place, Path], place: Place, dice: random.Random) -> Expected:
    name, value = dice.choice([("v", 77), ("w", "other"), ("id", -1), ("_operation", "DELETE")])
    rewritten(path, lambda table: with_value(table, name, dice.randrange(RECORDS), value))
    return Expected(Flaw.ROWS_ALTERED)


def lose_value(path: Path, files: dict[Place, Path], place: Place, dice: random.Random) -> Expected:
    rewritten(path, lambda table: with_value(table, dice.choice(["v", "w", "id"]), dice.randrange(RECORDS), None))
    return Expected(Flaw.ROWS_ALTERED)


def lose_column(path: Path, files: dict[Place, Path], place: Place, dice: random.Random) -> Expected:
    rewritten(path, lambda table: table.drop_columns([dice.choice(["v", "w", "_versions", "_operation"])]))
    return Expected(Flaw.ROWS_ALTERED)


def change_type(path: Path, files: dict[Place, Path], place: Place, dice: random.Random) -> Expected:
    """Whole numbers that became texts which are none."""

    def worded(table: pa.Table) -> pa.Table:
        return table.set_column(table.column_names.index("v"), "v", pa.array(["word"] * table.num_rows))

    rewritten(path, worded)
    return Expected(Flaw.UNREADABLE, Flaw.ROWS_LOST)


def move_row_to_another_commit(path: Path, files: dict[Place, Path], place: Place, dice: random.Random) -> Expected:
    other = other_place(place)
    rewritten(path, lambda table: with_value(table, "_commit", dice.randrange(RECORDS), other[1]))
    return Expected(Flaw.ROWS_LOST, Flaw.ROWS_REPEATED, others=(other,))


def move_row_to_another_shard(path: Path, files: dict[Place, Path], place: Place, dice: random.Random) -> Expected:
    other = SHARDS[SHARDS.index(place[0]) - 1], place[1]
    rewritten(path, lambda table: with_value(table, "_shard_id", dice.randrange(RECORDS), other[0]))
    return Expected(Flaw.ROWS_LOST, Flaw.ROWS_REPEATED, others=(other,))


def lose_the_shard_of_a_row(path: Path, files: dict[Place, Path], place: Place, dice: random.Random) -> Expected:
    rewritten(path, lambda table: with_value(table, "_shard_id", dice.randrange(RECORDS), None))
    return Expected(Flaw.ROWS_LOST, Flaw.ROWS_UNKNOWN)


def lose_the_commit_of_a_row(path: Path, files: dict[Place, Path], place: Place, dice: random.Random) -> Expected:
    rewritten(path, lambda table: with_value(table, "_commit", dice.randrange(RECORDS), None))
    return Expected(Flaw.ROWS_LOST, Flaw.ROWS_UNKNOWN)


FILE_DAMAGES: tuple[FileDamage, ...] = (
    delete_file,
    truncate_file,
    empty_file,
    file_of_another_kind,
    file_of_another_commit,
    drop_row,
    double_row,
    change_value,
    lose_value,
    lose_column,
    change_type,
    move_row_to_another_commit,
    move_row_to_another_shard,
    lose_the_shard_of_a_row,
    lose_the_commit_of_a_row,
)


@pytest.fixture(scope="module")
def delta(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("delta") / "table"
    fill(DeltaDestination(str(directory)))
    return directory


@pytest.mark.parametrize("damage", FILE_DAMAGES, ids=lambda one: one.__name__)
def test_each_damage_to_a_file_of_delta_lake_is_found(damage: FileDamage, delta: Path, tmp_path: Path) -> None:
    commits, dice = commits_of(DeltaDestination(str(delta))), random.Random(damage.__name__)
    for number, place in enumerate(PLACES):
        copy = shutil.copytree(delta, tmp_path / str(number))
        files = files_of(copy)
        expected = damage(files[place], files, place, dice)
        if Flaw.UNREADABLE not in expected.flaws:
            note_sizes(copy)
        check(DeltaDestination(str(copy)), commits, place, expected)


def note_sizes(directory: Path) -> None:
    """Have the log name the sizes that the files have now: without that each other size is found at once."""
    for path in (directory / "_delta_log").glob("*.json"):
        actions = [json.loads(line) for line in path.read_text().splitlines()]
        for add in (one["add"] for one in actions if "add" in one):
            add["size"] = (directory / add["path"]).stat().st_size
        path.write_text("\n".join(map(json.dumps, actions)))


def test_a_file_of_another_size_than_the_log_says_is_found(delta: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(delta, tmp_path / "copy")
    commits, files = commits_of(DeltaDestination(str(delta))), files_of(copy)
    rewritten(files[PLACES[1]], lambda table: pa.concat_tables([table] * 100))

    check(DeltaDestination(str(copy)), commits, PLACES[1], Expected(Flaw.UNREADABLE, Flaw.ROWS_LOST))


# --- the log of Delta Lake --------------------------------------------------------------------------------------------

Actions = list[dict[str, Any]]


def hide_commit(actions: Actions, place: Place) -> Expected:
    actions[:] = [one for one in actions if "commitInfo" not in one]
    return Expected(Flaw.ROWS_UNKNOWN, *([] if place[1] == COMMITS else [Flaw.HOLE]))


def entry_in(actions: Actions) -> tuple[dict[str, Any], str]:
    """What Delta says of a commit, and under which name our entry stands there."""
    (info,) = (one["commitInfo"] for one in actions if "commitInfo" in one)
    (name,) = (name for name, value in info.items() if isinstance(value, str) and '"content"' in value)
    return info, name


def with_entry(actions: Actions, change: Callable[[dict[str, Any]], object], kind: str = "commits") -> None:
    info, name = entry_in(actions)
    plain = json.loads(info[name])
    change(plain[kind][0])
    info[name] = json.dumps(plain)


def alter_commit(actions: Actions, place: Place) -> Expected:
    with_entry(actions, lambda commit: commit.update(count=RECORDS + 1))
    return Expected(Flaw.ALTERED)


def lower_epoch(actions: Actions, place: Place) -> Expected:
    """To one that no earlier commit has."""
    with_entry(actions, lambda commit: commit.update(epoch=0))
    return Expected(Flaw.EPOCH)


def raise_epoch(actions: Actions, place: Place) -> Expected:
    """All owners of today would be refused."""
    with_entry(actions, lambda commit: commit.update(epoch=9))
    return Expected(Flaw.EPOCH, Flaw.FENCE)


def cut_commit(actions: Actions, place: Place) -> Expected:
    info, name = entry_in(actions)
    info[name] = info[name][:-9]
    return Expected(Flaw.UNREADABLE, Flaw.ROWS_UNKNOWN)


def lose_rows_of_commit(actions: Actions, place: Place) -> Expected:
    actions[:] = [one for one in actions if "add" not in one]
    return Expected(Flaw.ROWS_LOST)


LOG_DAMAGES = (hide_commit, alter_commit, lower_epoch, raise_epoch, cut_commit, lose_rows_of_commit)


@pytest.mark.parametrize("damage", LOG_DAMAGES, ids=lambda one: one.__name__)
def test_each_damage_to_an_entry_of_delta_lake_is_found(
    damage: Callable[[Actions, Place], Expected], delta: Path, tmp_path: Path
) -> None:
    commits = commits_of(DeltaDestination(str(delta)))
    for number, place in enumerate(PLACES):
        copy = shutil.copytree(delta, tmp_path / str(number))
        expected = with_actions(entry_path(copy, place), partial(damage, place=place))
        check(DeltaDestination(str(copy)), commits, place, expected)


def entry_path(directory: Path, place: Place) -> Path:
    version = 1 + SHARDS.index(place[0]) + len(SHARDS) * (place[1] - 1)  # behind the table's creation
    return directory / "_delta_log" / f"{version:020}.json"


def with_actions(path: Path, damage: Callable[[Actions], Expected]) -> Expected:
    actions = [json.loads(line) for line in path.read_text().splitlines()]
    expected = damage(actions)
    path.write_text("\n".join(map(json.dumps, actions)))
    return expected


def test_each_lost_entry_of_delta_lake_is_found_as_one_hole(delta: Path, tmp_path: Path) -> None:
    """The table lives on, by the summary behind it."""
    commits = commits_of(DeltaDestination(str(delta)))
    for number, place in enumerate(PLACES):
        copy = shutil.copytree(delta, tmp_path / str(number))
        DeltaDestination(str(copy)).handle().create_checkpoint()
        entry_path(copy, place).unlink()
        missed = Flaw.FENCE if place[1] == COMMITS else Flaw.HOLE
        check(DeltaDestination(str(copy)), commits, place, Expected(Flaw.UNREADABLE, missed, Flaw.ROWS_UNKNOWN))
        log = verify(DeltaDestination(str(copy)))

        assert [one.flaw for one in log.findings if one.flaw is not Flaw.EPOCH] == [Flaw.UNREADABLE, missed]


def cleared(delta: Path, copy: Path) -> Path:
    """A copy whose last entry alone says what was committed; its path."""
    shutil.copytree(delta, copy)
    destination = DeltaDestination(str(copy))
    carry(destination)
    destination.handle().create_checkpoint()
    *others, last = sorted((copy / "_delta_log").glob("*.json"))
    for path in others:
        path.unlink()
    return last


CARRIED_DAMAGES: dict[str, tuple[Callable[[dict[str, Any]], object], Flaw]] = {
    "count": (lambda commit: commit.update(count=RECORDS + 1), Flaw.ALTERED),
    "digest": (lambda commit: commit.update(digest="0" * 64), Flaw.ALTERED),
    "epoch": (lambda commit: commit.update(epoch=9), Flaw.FENCE),
    "number": (lambda commit: commit.update(number=COMMITS - 1), Flaw.ALTERED),
    "total": (lambda commit: commit.update(total=COMMITS * RECORDS + 1), Flaw.ROWS_LOST),
    "shard": (lambda commit: commit.update(shard="shard-d"), Flaw.CHECKPOINT),
}


@pytest.mark.parametrize("name", CARRIED_DAMAGES)
def test_each_damage_to_what_is_carried_on_is_found(name: str, delta: Path, tmp_path: Path) -> None:
    """It is all that is left of shards that are idle."""
    change, flaw = CARRIED_DAMAGES[name]
    commits = commits_of(DeltaDestination(str(delta)))
    path = cleared(delta, tmp_path / "copy")
    ends = {shard: commits[shard, COMMITS].end for shard in SHARDS}
    assert verify(DeltaDestination(str(tmp_path / "copy")), with_rows=True, checkpoints=ends).findings == []
    with_entry(actions := [json.loads(line) for line in path.read_text().splitlines()], change, "carried")
    path.write_text("\n".join(map(json.dumps, actions)))
    findings = verify(DeltaDestination(str(tmp_path / "copy")), with_rows=True, checkpoints=ends).findings

    assert flaw in {one.flaw for one in findings if one.shard == SHARDS[0]}, findings
    assert {one.shard for one in findings} <= {SHARDS[0], "shard-d"}, findings


@pytest.mark.parametrize("flaw", [Flaw.ROWS_LOST, Flaw.ROWS_REPEATED])
def test_rows_of_commits_whose_entries_are_cleared_away_are_counted(flaw: Flaw, delta: Path, tmp_path: Path) -> None:
    cleared(delta, tmp_path / "copy")
    destination = DeltaDestination(str(tmp_path / "copy"))
    shard, number = PLACES[1]
    if flaw is Flaw.ROWS_LOST:
        destination.handle().delete(f"_shard_id = '{shard}' AND _commit = {number} AND v = 1")
    else:
        write_deltalake(destination.handle(), next(iter(destination.rows([shard]))).slice(0, 1), mode="append")
    findings = verify(destination, with_rows=True).findings

    last = commits_of(DeltaDestination(str(delta)))[shard, COMMITS]
    assert [(one.flaw, one.shard, one.start, one.end) for one in findings] == [(flaw, shard, "TRIM_HORIZON", last.end)]


# --- Iceberg ----------------------------------------------------------------------------------------------------------

ICEBERG_DAMAGES = tuple(one for one in FILE_DAMAGES if one not in (lose_column, change_type))
"""Files carry the numbers of their columns here, and what a reader makes of others is its own affair."""


def iceberg_at(directory: Path) -> IcebergDestination:
    catalog = SqlCatalog("damage", uri=f"sqlite:///{directory}/catalog.db", warehouse=f"file://{directory}/data")
    if not catalog.namespace_exists("lake"):
        catalog.create_namespace("lake")
    return IcebergDestination(catalog, "lake.orders")


@pytest.fixture(scope="module")
def iceberg(tmp_path_factory: pytest.TempPathFactory) -> Iterator[IcebergDestination]:
    directory = tmp_path_factory.mktemp("iceberg")
    destination = iceberg_at(directory)
    fill(destination)
    yield destination
    destination._catalog.engine.dispose()  # type: ignore[attr-defined]


@pytest.mark.parametrize("damage", ICEBERG_DAMAGES, ids=lambda one: one.__name__)
def test_each_damage_to_a_file_of_iceberg_is_found(damage: FileDamage, iceberg: IcebergDestination) -> None:
    """In place, as the table names its files by their whole paths; each is put back."""
    commits, dice = commits_of(iceberg), random.Random(damage.__name__)
    files = {number_of(path): path for name, _ in iceberg.files() if (path := Path(name.removeprefix("file://")))}
    whole = {place: path.read_bytes() for place, path in files.items()}
    for place in PLACES:
        try:
            check(iceberg, commits, place, damage(files[place], files, place, dice))
        finally:
            files[place].write_bytes(whole[place])


def test_a_last_commit_that_iceberg_remembers_otherwise_is_found(iceberg: IcebergDestination) -> None:
    commits = commits_of(iceberg)
    place = "shard-b", COMMITS
    name, text = iceberg._property("shard-b"), commits[place].to_json()
    for other in (evolve(commits[place], epoch=9).to_json(), commits["shard-b", 1].to_json(), None):
        try:
            alter_property(iceberg, name, other)
            check(iceberg, commits, place, Expected(Flaw.FENCE))
        finally:
            alter_property(iceberg, name, text)


def alter_property(iceberg: IcebergDestination, name: str, text: str | None) -> None:
    with iceberg._catalog.load_table("lake.orders").transaction() as step:
        if text is None:
            step.remove_properties(name)
        else:
            step.set_properties({name: text})


# --- PostgreSQL -------------------------------------------------------------------------------------------------------

OF_ONE_ROW = "ctid = (select ctid from orders where _shard_id = {shard} and _commit = {number} limit 1)"
OF_COMMIT = "_shard_id = {shard} and _commit = {number}"

SQL_DAMAGES: dict[str, tuple[str, Callable[[Place], Expected]]] = {
    "row deleted": (f"delete from orders where {OF_ONE_ROW}", lambda place: Expected(Flaw.ROWS_LOST)),
    "row doubled": (
        f"insert into orders select * from orders where {OF_ONE_ROW}",
        lambda place: Expected(Flaw.ROWS_REPEATED),
    ),
    "value changed": (f"update orders set v = v + 7 where {OF_ONE_ROW}", lambda place: Expected(Flaw.ROWS_ALTERED)),
    "value lost": (f"update orders set w = null where {OF_ONE_ROW}", lambda place: Expected(Flaw.ROWS_ALTERED)),
    "shard lost": (
        f"update orders set _shard_id = null where {OF_ONE_ROW}",
        lambda place: Expected(Flaw.ROWS_LOST, Flaw.ROWS_UNKNOWN),
    ),
    "row of another commit": (
        f"update orders set _commit = _commit %% {COMMITS} + 1 where {OF_ONE_ROW}".replace("%%", "%"),
        lambda place: Expected(Flaw.ROWS_LOST, Flaw.ROWS_REPEATED, others=(other_place(place),)),
    ),
    "rows of a commit deleted": (f"delete from orders where {OF_COMMIT}", lambda place: Expected(Flaw.ROWS_LOST)),
    "commit deleted": (
        "delete from orders_commits where shard = {shard} and number = {number}",
        lambda place: Expected(Flaw.ROWS_UNKNOWN, *([] if place[1] == COMMITS else [Flaw.HOLE])),
    ),
    "last commit replaced": (
        """update orders_shards set commit = (select commit from orders_commits as older
        where older.shard = orders_shards.shard and number = 1) where shard = {shard}""",
        lambda place: Expected(Flaw.FENCE),
    ),
    "last commit lost": (
        "update orders_shards set commit = null where shard = {shard}",
        lambda place: Expected(Flaw.FENCE),
    ),
    "end of the log lost": (
        f"delete from orders_commits where shard = {{shard}} and number = {COMMITS}",
        lambda place: Expected(Flaw.FENCE, Flaw.CHECKPOINT, others=((place[0], COMMITS),)),
    ),
    "epoch of the last commit raised": (
        """update orders_shards set commit = replace(commit, '"epoch":2', '"epoch":9') where shard = {shard}""",
        lambda place: Expected(Flaw.FENCE),
    ),
    "count wrong": (
        """update orders_commits set commit = replace(commit, '"count":4', '"count":5')
        where shard = {shard} and number = {number}""",
        lambda place: Expected(Flaw.ALTERED),
    ),
}


SQL_TABLES = ("orders", "orders_commits", "orders_shards")


@pytest.fixture(scope="module")
def conninfo() -> Iterator[str]:
    with PostgresServer() as server:
        destination = PostgresDestination(server.conninfo, "orders")
        fill(destination)
        destination.close()
        with psycopg.connect(server.conninfo, autocommit=True) as connection:
            for table in SQL_TABLES:
                connection.execute(f"create table whole_{table} as table {table}".encode())
        yield server.conninfo


@pytest.mark.parametrize("name", SQL_DAMAGES)
def test_each_damage_to_postgresql_is_found(name: str, conninfo: str) -> None:
    statement, expected = SQL_DAMAGES[name]
    destination = PostgresDestination(conninfo, "orders")
    commits = commits_of(destination)
    with psycopg.connect(conninfo, autocommit=True) as connection:
        for place in PLACES:
            values = {"shard": sql.Literal(place[0]), "number": sql.Literal(place[1])}
            done = connection.execute(sql.SQL(statement).format(**values))  # type: ignore[arg-type]
            assert done.rowcount > 0
            try:
                check(destination, commits, place, expected(place))
            finally:
                for table in SQL_TABLES:
                    connection.execute(f"truncate {table}".encode())
                    connection.execute(f"insert into {table} select * from whole_{table}".encode())
    destination.close()
