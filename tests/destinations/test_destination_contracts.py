"""Every destination keeps the contract, and the contract finds those that do not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from streamclient.destinations import Commit, Day, DeltaDestination, Key
from streamclient.destinations.commit import LogEntry, last_of
from streamclient.destinations.memory_destination import MemoryDestination, MemoryPlace
from streamclient.testing.contracts.destination_contract import (
    DESTINATION_SCENARIOS,
    check_destination,
    check_destination_scenario,
)


@pytest.mark.parametrize("scenario", DESTINATION_SCENARIOS)
def test_memory_keeps_the_contract(scenario: str) -> None:
    place = MemoryPlace()
    check_destination_scenario(scenario, lambda name, application: MemoryDestination(place, application=application))


@pytest.mark.slow
@pytest.mark.parametrize("partition", [None, Day(), Key("id")], ids=["whole", "by day", "by key"])
@pytest.mark.parametrize("scenario", DESTINATION_SCENARIOS)
def test_delta_in_a_directory_keeps_the_contract(scenario: str, partition: Day | Key | None, tmp_path: Path) -> None:
    check_destination_scenario(
        scenario,
        lambda name, application: DeltaDestination(
            str(tmp_path / name), application=application, partition_by=partition
        ),
    )


class _Broken(MemoryDestination):
    """Stores without asking anything, apart from what a subclass still asks."""

    def commit(self, rows: Any, commits: Sequence[Commit]) -> None:
        known = last_of(self.place.entries, self.application)
        if not self.is_done(known, commits):
            self.store(rows, commits)

    def is_done(self, known: dict[str, Commit], commits: Sequence[Commit]) -> bool:
        return False

    def store(self, rows: Any, commits: Sequence[Commit]) -> None:
        import pyarrow as pa

        known = self.place.columns if self.place.columns is not None else pa.schema([])
        self.place.columns = pa.schema([*known, *(one for one in rows.schema if one.name not in known.names)])
        self.place.tables.append(rows)
        self.place.entries.append(LogEntry(str(len(self.place.entries)), tuple(commits)))


class KnowsNoEpochs(_Broken):
    def is_done(self, known: dict[str, Commit], commits: Sequence[Commit]) -> bool:
        return all(one.shard in known and known[one.shard].digest == one.digest for one in commits)


class KnowsRepeatsByEpochOnly(_Broken):
    def is_done(self, known: dict[str, Commit], commits: Sequence[Commit]) -> bool:
        return any(one.shard in known and evolve(known[one.shard]) == one for one in commits)


class ForgetsEmptyCommits(MemoryDestination):
    def commit(self, rows: Any, commits: Sequence[Commit]) -> None:
        if rows.num_rows:
            super().commit(rows, commits)


class CastsInSilence(MemoryDestination):
    def commit(self, rows: Any, commits: Sequence[Commit]) -> None:
        import pyarrow as pa

        known = self.place.columns or pa.schema([])
        wanted = pa.schema([known.field(one.name) if one.name in known.names else one for one in rows.schema])
        super().commit(rows.cast(wanted, safe=False), commits)


class StoresShardByShard(MemoryDestination):
    def commit(self, rows: Any, commits: Sequence[Commit]) -> None:
        for one in commits:
            super().commit(rows.filter(_of_shard(one.shard)), [one])


def _of_shard(shard: str) -> Any:
    import pyarrow.compute as pc

    return pc.field("_shard_id") == shard


@pytest.mark.parametrize(
    ("broken", "named"),
    [
        (_Broken, "a repeat changes nothing"),
        (KnowsNoEpochs, "an older owner is refused"),
        (KnowsRepeatsByEpochOnly, "a successor finishes the same batch once"),
        (ForgetsEmptyCommits, "a position moves without rows"),
        (CastsInSilence, "a column of another type is refused"),
        (StoresShardByShard, "several shards are one step"),
    ],
)
def test_a_destination_that_breaks_a_rule_is_found_out(broken: type[MemoryDestination], named: str) -> None:
    places: dict[str, MemoryPlace] = {}

    def make(name: str, application: str) -> MemoryDestination:
        return broken(places.setdefault(name, MemoryPlace()), application=application)

    with pytest.raises(AssertionError, match=named):
        check_destination(make)
