"""Every destination that replaces rows keeps the contract, and the contract finds those that do not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from streamclient.destinations import Commit, DeltaDestination, Key, PostgresDestination
from streamclient.destinations.memory import MemoryDestination, MemoryPlace
from streamclient.testing.merging_contracts import (
    MERGING_SCENARIOS,
    check_merging_destination,
    check_merging_scenario,
)
from tests.destinations.postgres_server import PostgresServer


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer() as started:
        yield started


@pytest.mark.parametrize("scenario", MERGING_SCENARIOS)
def test_memory_merges_by_the_contract(scenario: str) -> None:
    place = MemoryPlace()
    check_merging_scenario(scenario, lambda name, application: MemoryDestination(place, application=application))


@pytest.mark.parametrize("partition", [None, Key("id")], ids=["whole", "partitioned"])
@pytest.mark.parametrize("scenario", MERGING_SCENARIOS)
def test_delta_merges_by_the_contract(scenario: str, partition: Key | None, tmp_path: Path) -> None:
    def make(name: str, application: str) -> DeltaDestination:
        return DeltaDestination(
            str(tmp_path / name), application=application, partition_by=partition, answer_seconds=120.0
        )

    check_merging_scenario(scenario, make)


@pytest.mark.parametrize("scenario", MERGING_SCENARIOS)
def test_postgres_merges_by_the_contract(scenario: str, server: PostgresServer) -> None:
    check_merging_scenario(
        scenario,
        lambda name, application: PostgresDestination(
            server.conninfo, name, application=application, answer_seconds=60.0
        ),
    )


class ForgetsMergesOfNothing(MemoryDestination):
    """As Delta's MERGE does by itself."""

    def merge(self, keys: Any, fold: Callable[[Any], Any], commits: Sequence[Commit]) -> None:
        if keys.num_rows:
            super().merge(keys, fold, commits)


class AddsWithoutRemoving(MemoryDestination):
    def merge(self, keys: Any, fold: Callable[[Any], Any], commits: Sequence[Commit]) -> None:
        super().merge(keys.slice(0, 0), lambda present: fold(present.slice(0, 0)), commits)


@pytest.mark.parametrize(
    ("broken", "named"),
    [
        (ForgetsMergesOfNothing, "a merge that changes nothing is remembered"),
        (AddsWithoutRemoving, "rows are replaced added and removed in one step"),
    ],
)
def test_a_destination_that_merges_wrongly_is_found_out(broken: type[MemoryDestination], named: str) -> None:
    places: dict[str, MemoryPlace] = {}

    def make(name: str, application: str) -> MemoryDestination:
        return broken(places.setdefault(name, MemoryPlace()), application=application)

    with pytest.raises(AssertionError, match=named):
        check_merging_destination(make)
