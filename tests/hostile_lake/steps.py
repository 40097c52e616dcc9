"""Steps of a consumer, which a trouble waits for: destinations that tell them, by hooks in their own calls."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from attrs import define, field
from pyiceberg.catalog.sql import SqlCatalog

from streamclient.copying.source_table import COPY
from streamclient.destinations import Commit, DeltaDestination
from streamclient.destinations.iceberg_destination import IcebergDestination
from streamclient.destinations.postgres.postgres_destination import PostgresDestination
from tests.destinations.object_store import COMMIT, Fault, ObjectStore
from tests.hostile_lake.table import Step

_LATER = (Step.PREPARED, Step.ROWS, Step.COMMIT, Step.STORED)
"""Steps of a batch. The trouble waits for the second batch, as the first one may make the table."""


@define(eq=False)
class Steps:
    """Begins the trouble as soon as a consumer comes to its step, once. Thread-safe."""

    wanted: Step
    begin: Callable[[], None] = lambda: None
    has_begun: threading.Event = field(factory=threading.Event)
    _lock: threading.Lock = field(factory=threading.Lock)
    _batches: int = 0

    def reach(self, step: Step) -> None:
        """A consumer is at this step, in the thread that calls."""
        with self._lock:
            self._batches += step is Step.PREPARED
            is_early = step in _LATER and self._batches < 2
            if step is not self.wanted or is_early or self.has_begun.is_set():
                return
            self.has_begun.set()
        self.begin()

    @contextmanager
    def batch(self, commits: Sequence[Commit]) -> Iterator[None]:
        """Around the storing of a batch."""
        is_copied = commits[0].shard.startswith(f"{COPY}/")
        is_plan = commits[0].shard == COPY
        if not is_plan:
            self.reach(Step.COPY if is_copied else Step.PREPARED)
        yield
        if not is_copied and not is_plan:
            self.reach(Step.STORED)


class _Telling:
    """What destinations of all kinds tell."""

    steps: Steps

    def probe(self) -> None:
        self.steps.reach(Step.LOOK)
        super().probe()  # type: ignore[misc]

    def last_commits(self, shards: Sequence[str]) -> Mapping[str, Commit | None]:
        self.steps.reach(Step.LOOK)
        return super().last_commits(shards)  # type: ignore[misc,no-any-return]

    def commit(self, rows: Any, commits: Sequence[Commit]) -> None:
        with self.steps.batch(commits):
            super().commit(rows, commits)  # type: ignore[misc]

    def merge(self, keys: Any, fold: Any, commits: Sequence[Commit]) -> None:
        with self.steps.batch(commits):
            super().merge(keys, fold, commits)  # type: ignore[misc]


class TellingPostgres(_Telling, PostgresDestination):
    def _asked(self, work: Callable[[Any], Any], kind: str = "") -> Any:
        if work != self._tables.create:
            return super()._asked(work, kind)

        def making(cursor: Any) -> Any:
            made = work(cursor)
            self.steps.reach(Step.MAKE)  # within the transaction
            return made

        return super()._asked(making, kind)

    def _copy(self, cursor: Any, rows: Any) -> None:
        super()._copy(cursor, rows)
        self.steps.reach(Step.ROWS)

    def _try_to_store(self, *arguments: Any, **named: Any) -> None:
        super()._try_to_store(*arguments, **named)
        self.steps.reach(Step.COMMIT)  # all is sent but COMMIT


class TellingDelta(_Telling, DeltaDestination):
    def _create(self, rows: Any) -> None:
        self.steps.reach(Step.MAKE)
        super()._create(rows)

    def _properties(self, handle: Any, commits: Sequence[Commit]) -> Any:
        if self.location.scheme == "file":
            self.steps.reach(Step.COMMIT)  # what follows is delta-rs alone
        return super()._properties(handle, commits)


class TellingStore(ObjectStore):
    """A store tells by its objects how far delta-rs has come."""

    steps: Steps

    def next_fault(self, key: str) -> Fault:
        if COMMIT.fullmatch(key):
            self.steps.reach(Step.COMMIT)
        elif key.endswith(".parquet") and "_delta_log" not in key:
            self.steps.reach(Step.ROWS)
        return super().next_fault(key)


class TellingIceberg(_Telling, IcebergDestination):
    def _append(self, *arguments: Any, **named: Any) -> None:
        self.steps.reach(Step.ROWS)
        super()._append(*arguments, **named)


class TellingCatalog(SqlCatalog):
    steps: Steps

    def create_table(self, *arguments: Any, **named: Any) -> Any:
        self.steps.reach(Step.MAKE)
        return super().create_table(*arguments, **named)

    def commit_table(self, *arguments: Any, **named: Any) -> Any:
        self.steps.reach(Step.COMMIT)
        return super().commit_table(*arguments, **named)
