"""Tables out of sight, and what other packages raise of what lies there: nothing but our errors comes out.

Delta Lake and Iceberg; PostgreSQL has its own (``test_postgres_trouble``), as it has servers and rights.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from streamclient.destinations import Commit, DeltaDestination, IcebergDestination
from streamclient.destinations.delta.maintenance import carry, clean, compact
from streamclient.destinations.proof.verification import verify
from streamclient.errors import DependencyException, ErrorKind, StreamClientError, StreamClientException
from streamclient.testing.contracts.destination_contract import batch, change, rows_for, store, stored_numbers
from tests.patience import PATIENCE_SECONDS
from tests.rings import every

pytestmark = pytest.mark.slow

ANSWER_SECONDS = 0.5
"""How long refused work is repeated; each call of the catalog may take as long as a busy machine needs."""


class DeltaPlace:
    calls: ClassVar[dict[str, Callable[[Any], Any]]] = {
        "rows_below": lambda one: list(one.rows_below("id", 5)),
        "handle": lambda one: one.handle(),
        "compact": compact,
        "clean": clean,
        "carry": carry,
    }

    def __init__(self, directory: Path) -> None:
        self.table = directory / "table"
        self.entries, self.data = self.table / "_delta_log", self.table
        self.wording = str(self.table)

    def opened(self) -> DeltaDestination:
        return DeltaDestination(str(self.table), answer_seconds=ANSWER_SECONDS)


class IcebergPlace:
    calls: ClassVar[dict[str, Callable[[Any], Any]]] = {"fenced_shards": lambda one: one.fenced_shards()}

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.table = directory / "warehouse"
        self.entries, self.data = self.table / "lake" / "orders" / "metadata", self.table / "lake" / "orders" / "data"
        self.wording = "lake.orders"
        self._catalogs: list[SqlCatalog] = []
        self._catalog().create_namespace("lake")

    def _catalog(self) -> SqlCatalog:
        uri = f"sqlite:///{self._directory}/catalog.db"
        self._catalogs.append(SqlCatalog("tests", uri=uri, warehouse=f"file://{self.table}"))
        return self._catalogs[-1]

    def opened(self) -> IcebergDestination:
        made = IcebergDestination(self._catalog(), "lake.orders", answer_seconds=ANSWER_SECONDS)
        made._catalog._answer_seconds = PATIENCE_SECONDS
        return made

    def close(self) -> None:
        for one in self._catalogs:
            one.engine.dispose()


PLACES = {"delta": DeltaPlace, "iceberg": IcebergPlace}

CALLS: dict[str, Callable[[Any], Any]] = {
    "probe": lambda one: one.probe(),
    "columns": lambda one: one.columns(),
    "last_commits": lambda one: one.last_commits(["shard-1"]),
    "log": lambda one: list(one.log()),
    "rows": lambda one: list(one.rows()),
    "files": lambda one: [list(read()) for _, read in one.files()],
    "commit": lambda one: store(one, one.last, [change(9)]),
    "verify": verify,
    "verify with rows": lambda one: verify(one, with_rows=True),
}


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    made = PLACES[request.param](tmp_path)
    yield made
    if isinstance(made, IcebergPlace):
        made.close()


def filled(destination: Any) -> Commit:
    last = store(destination, None, [change(1), change(2)])
    return store(destination, last, [change(3)])


def rewritten(directory: Path, content: Callable[[bytes], bytes], suffixes: tuple[str, ...]) -> None:
    for path in directory.rglob("*"):
        if path.is_file() and path.name.endswith(suffixes):
            path.write_bytes(content(path.read_bytes()))


def without(directory: Path, suffixes: tuple[str, ...]) -> None:
    for path in directory.rglob("*"):
        if path.is_file() and path.name.endswith(suffixes):
            path.unlink()


def into_a_file(directory: Path) -> None:
    shutil.rmtree(directory)
    directory.write_bytes(b"")


LOGS, DATA = (".json", ".avro"), (".parquet",)

DAMAGES: dict[str, Callable[[Any], object]] = {
    "the table is away": lambda one: one.table.rename(one.table.with_name("away")),
    "the log is away": lambda one: one.entries.rename(one.entries.with_name("away")),
    "the data is gone": lambda one: without(one.data, DATA),
    "the log is no JSON": lambda one: rewritten(one.entries, lambda old: b"{oops", LOGS),
    "the log is empty": lambda one: rewritten(one.entries, lambda old: b"", LOGS),
    "the log is of another": lambda one: rewritten(one.entries, lambda old: b'{"add":5}\n', LOGS),
    "the data is no Parquet": lambda one: rewritten(one.data, lambda old: b"x" * len(old), DATA),
    "the data is cut": lambda one: rewritten(one.data, lambda old: old[:20], DATA),
    "the table is a file": lambda one: into_a_file(one.table),
}


@pytest.mark.parametrize("is_seen", [True, False], ids=["seen", "new"])
@pytest.mark.parametrize("damage", every(2, DAMAGES))
def test_only_our_errors_leave_a_destination(damage: str, is_seen: bool, place: Any) -> None:
    foreign, speechless = {}, {}
    destination = place.opened()
    last = filled(destination)
    other = place.opened() if is_seen else None
    if other is not None:
        other.columns()
    DAMAGES[damage](place)
    for name, call in (CALLS | place.calls).items():
        try:
            used = other if other is not None else place.opened()
            used.last = last
            call(used)
        except StreamClientError as error:
            if not any(one in str(error) for one in (place.wording, "shard-1", ".parquet")):
                speechless[name] = str(error)
        except Exception as error:
            foreign[name] = repr(error)

    assert (foreign, speechless) == ({}, {})


@pytest.mark.parametrize("moved", [lambda one: one.table, lambda one: one.entries], ids=["the table", "its log alone"])
def test_a_table_that_is_away_for_a_moment_is_waited_for(moved: Callable[[Any], Path], place: Any) -> None:
    """It is moved back into its place, where nothing may be in the way."""
    destination = place.opened()
    last = filled(destination)
    following = batch(last, [change(4)])
    rows = rows_for(destination, [change(4)], following)
    here = moved(place)
    there = here.with_name("away")
    before = sorted(here.parent.rglob("*"))
    here.rename(there)
    for handle in (destination, place.opened()):
        with pytest.raises(StreamClientError) as raised:
            handle.commit(rows, [following])
        if handle is destination and isinstance(handle, DeltaDestination):
            assert isinstance(raised.value, DependencyException)
            assert raised.value.kind is ErrorKind.TRANSIENT
            assert "is gone" in str(raised.value)
        assert not here.exists()
    there.rename(here)
    assert sorted(here.parent.rglob("*")) == before

    destination.commit(rows, [following])

    assert stored_numbers(place.opened()) == [1, 2, 3, 4]
    assert verify(place.opened(), with_rows=True).is_whole


def test_a_commit_into_a_directory_that_took_the_place_of_the_table_is_not_taken_for_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a disk is unmounted in the middle of a commit: its place is a directory too, and takes every file."""
    place = DeltaPlace(tmp_path)
    destination = place.opened()
    last = filled(destination)
    append, away = DeltaDestination._append, tmp_path / "away"

    def late(self: DeltaDestination, *arguments: Any) -> None:
        place.table.rename(away)
        place.entries.mkdir(parents=True)
        append(self, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(DeltaDestination, "_append", late)
        with pytest.raises(DependencyException):
            store(destination, last, [change(4)])
    shutil.rmtree(place.table)
    away.rename(place.table)

    store(destination, last, [change(4)])

    assert stored_numbers(DeltaDestination(str(place.table))) == [1, 2, 3, 4]


def test_a_new_process_makes_no_table_for_a_commit_that_follows_others(place: Any) -> None:
    """There is none where it looks, so its table is away."""
    destination = place.opened()
    following = batch(batch(None, [change(1)]), [change(2)])
    with pytest.raises(StreamClientException, match="commit 2 of shard shard-1"):
        destination.commit(pa.table({"id": [2]}), [following])

    assert destination.columns() is None
    assert not place.table.exists()
