"""A destination that keeps rows and commits in the memory of one process.

It serves tests of code that writes to destinations. It is also the shortest example of how to write a destination.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from typing import TYPE_CHECKING

from attrs import define, field

from streamclient.destinations.commit import Commit, LogEntry, check_commits, is_stored, last_of
from streamclient.destinations.destination_packages import compute, pyarrow
from streamclient.destinations.rows.arrow_schemas import check_fit, check_table_types
from streamclient.destinations.rows.change_rows import SHARD

if TYPE_CHECKING:
    from pyarrow import Schema, Table


@define(eq=False)
class MemoryPlace:
    """A table in memory, with its commits. Any number of ``MemoryDestination`` handles may share it."""

    tables: list[Table] = field(factory=list)
    entries: list[LogEntry] = field(factory=list)
    columns: Schema | None = None
    lock: threading.Lock = field(factory=threading.Lock)


class MemoryDestination:
    """A ``Destination`` over a ``MemoryPlace``, by default over a new one. Thread-safe."""

    def __init__(self, place: MemoryPlace | None = None, *, application: str = "default") -> None:
        self.place: MemoryPlace = place if place is not None else MemoryPlace()
        self._application = application
        self._key: list[str] = []

    @property
    def application(self) -> str:
        """The name of the fleet whose commits this handle reads and writes."""
        return self._application

    def probe(self) -> None:
        """Do nothing, because a table in memory needs no check; see ``Destination.probe``."""

    def columns(self) -> Schema | None:
        """Return the columns of the stored rows, or ``None``; see ``Destination.columns``."""
        return self.place.columns

    def last_commits(self, shards: Sequence[str]) -> dict[str, Commit | None]:
        """Return the last commit of each of ``shards``; see ``Destination.last_commits``."""
        with self.place.lock:
            found = last_of(self.place.entries, self._application)
        return {shard: found.get(shard) for shard in shards}

    def commit(self, rows: Table, commits: Sequence[Commit]) -> None:
        """Store rows and commits in one step; see ``Destination.commit``."""
        check_commits(commits, self._application)
        with self.place.lock:
            self._store(lambda: rows, self.place.tables, commits)

    def key_by(self, columns: Sequence[str]) -> None:
        """Set the key columns of the rows; see ``MergingDestination.key_by``."""
        self._key = list(columns)

    def another(self) -> MemoryDestination:
        """Return another handle over the same table; see ``MergingDestination.another``."""
        return copy(self)

    def merge(self, keys: Table, fold: Callable[[Table], Table], commits: Sequence[Commit]) -> None:
        """Replace rows by their keys, and store commits; see ``MergingDestination.merge``."""
        check_commits(commits, self._application)
        pa = pyarrow()
        with self.place.lock:
            columns = self.place.columns if self.place.columns is not None else keys.schema
            whole = pa.concat_tables([columns.empty_table(), *self.place.tables], promote_options="default")
            wanted = set(zip(*(keys.column(name).to_pylist() for name in self._key), strict=True))
            values = zip(*(whole.column(name).to_pylist() for name in self._key), strict=True)
            marks = pa.array([value in wanted for value in values], pa.bool_())
            self._store(lambda: fold(whole.filter(marks)), [whole.filter(compute().invert(marks))], commits)

    def rows_below(self, column: str, bound: int) -> Iterator[Table]:
        """Return the rows whose ``column`` is below ``bound``; see ``MergingDestination.rows_below``."""
        for table in self.rows():
            yield table.filter(compute().field(column) < bound)

    def _store(self, rows: Callable[[], Table], kept: Sequence[Table], commits: Sequence[Commit]) -> None:
        """Store ``kept`` and the result of ``rows`` as the new content. If ``commits`` are stored, do nothing."""
        pa = pyarrow()
        found = last_of(self.place.entries, self._application)
        if is_stored({commit.shard: found.get(commit.shard) for commit in commits}, commits):
            return
        known = self.place.columns if self.place.columns is not None else pa.schema([])
        fitted = check_fit(rows(), known, "memory")
        new = [field for field in check_table_types(fitted.schema) if field.name not in known.names]
        self.place.columns = pa.schema([*known, *new])
        self.place.tables = [*kept, fitted]
        self.place.entries.append(LogEntry(str(len(self.place.entries)), tuple(commits)))

    def log(self) -> Iterator[LogEntry]:
        """Return the entries of the log, oldest first; see ``Destination.log``."""
        with self.place.lock:
            return iter(list(self.place.entries))

    def rows(self, shards: Sequence[str] | None = None) -> Iterator[Table]:
        """Return the stored rows of ``shards``; see ``Destination.rows``."""
        with self.place.lock:
            tables, columns = list(self.place.tables), self.place.columns
        for table in tables:
            whole = pyarrow().concat_tables([columns.empty_table(), table], promote_options="default")  # type: ignore[union-attr]
            wanted = whole if shards is None else whole.filter(compute().field(SHARD).isin(list(shards)))
            if wanted.num_rows:
                yield wanted

    def close(self) -> None:
        """Do nothing, because the handle has no connections."""
