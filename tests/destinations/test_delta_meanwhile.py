"""What others do to a Delta table while a handle is kept, or while it is opened: a property, a directory that comes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import deltalake
import pytest
from deltalake.exceptions import DeltaError, TableNotFoundError

from streamclient.destinations import DeltaDestination
from streamclient.destinations.delta.maintenance import clean, compact
from streamclient.destinations.delta.object_stores import PROPERTIES, Location, open_table
from streamclient.errors import ConfigurationError, DependencyException
from streamclient.testing.contracts.destination_contract import batch, change, rows_for, store, stored_numbers

# --- properties -------------------------------------------------------------------------------------------------------

UNSAFE = {
    "it forgets transactions": ({**PROPERTIES, "delta.setTransactionRetentionDuration": "interval 1 days"}, "forgets"),
    "it has deletion vectors": ({**PROPERTIES, "delta.enableDeletionVectors": "true"}, "deletion vectors"),
    "its log is cleared": ({"delta.enableExpiredLogCleanup": "true"}, "is cleared by others"),
    "a property was removed": ({}, "is cleared by others"),
    "it maps names": ({**PROPERTIES, "delta.columnMapping.mode": "name"}, "mapped column names"),
}


def set_properties(table: Path, properties: dict[str, str]) -> None:
    """As another program does, which writes what delta-rs does not."""
    log = table / "_delta_log"
    (metadata,) = (
        one for line in (log / f"{0:020}.json").read_text().splitlines() if "metaData" in (one := json.loads(line))
    )
    metadata["metaData"]["configuration"] = properties
    version = max(int(one.stem) for one in log.glob("*.json")) + 1
    (log / f"{version:020}.json").write_text(json.dumps(metadata))


@pytest.mark.parametrize("name", UNSAFE)
def test_a_property_that_is_unsafe_is_noticed_by_a_handle_that_is_kept(name: str, tmp_path: Path) -> None:
    properties, named = UNSAFE[name]
    destination = DeltaDestination(str(tmp_path / "t"))
    last = store(destination, None, [change(1)])
    rows = rows_for(destination, [change(2)], second := batch(last, [change(2)]))
    set_properties(tmp_path / "t", properties)
    for work in (
        lambda: destination.commit(rows, [second]),
        lambda: destination.commit(rows, [second]),
        lambda: list(destination.rows()),
        lambda: compact(destination),
        lambda: clean(destination),
    ):
        with pytest.raises(ConfigurationError, match=named):
            work()
    set_properties(tmp_path / "t", PROPERTIES)
    destination.commit(rows, [second])

    assert stored_numbers(destination) == [1, 2]


def test_a_table_that_was_refused_when_it_was_opened_is_refused_by_the_next_call(tmp_path: Path) -> None:
    store(DeltaDestination(str(tmp_path / "t")), None, [change(1)])
    set_properties(tmp_path / "t", {})
    destination = DeltaDestination(str(tmp_path / "t"))
    for _ in range(3):
        with pytest.raises(ConfigurationError, match="is cleared by others"):
            destination.probe()


def test_a_property_that_is_set_while_a_commit_is_on_its_way_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    destination = DeltaDestination(str(tmp_path / "t"))
    last = store(destination, None, [change(1)])
    rows = rows_for(destination, [change(2)], second := batch(last, [change(2)]))
    append, tries = DeltaDestination._append, []

    def overtaken(self: DeltaDestination, *given: Any) -> None:
        tries.append(given)
        set_properties(tmp_path / "t", {})
        append(self, *given)

    monkeypatch.setattr(DeltaDestination, "_append", overtaken)
    with pytest.raises(ConfigurationError, match="is cleared by others"):
        destination.commit(rows, [second])

    assert len(tries) == 1


# --- a directory that comes -------------------------------------------------------------------------------------------

MOMENTS = ('Invalid table location: Path does not exist: "t/".', 'Invalid table location: "t/" is not a directory.')


@pytest.mark.parametrize("said", MOMENTS)
def test_a_directory_that_is_made_while_it_is_opened_is_opened_again(
    said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store(DeltaDestination(str(tmp_path / "t")), None, [change(1)])
    tries: list[str] = []

    class Coming(deltalake.DeltaTable):
        def __init__(self, *given: Any, **named: Any) -> None:
            tries.append(said)
            if len(tries) <= 3:
                raise DeltaError(said)
            super().__init__(*given, **named)

    monkeypatch.setattr("deltalake.DeltaTable", Coming)

    assert DeltaDestination(str(tmp_path / "t")).columns() is not None
    assert len(tries) == 4


@pytest.mark.parametrize("said", MOMENTS)
def test_a_directory_that_stays_as_it_is_is_named(said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "t").mkdir()
    pauses: list[float] = []

    def refuse(*_: object, **__: object) -> None:
        raise DeltaError(said)

    monkeypatch.setattr("deltalake.DeltaTable", refuse)
    monkeypatch.setattr("streamclient.destinations.delta.object_stores.time.sleep", pauses.append)
    with pytest.raises(DependencyException, match="Invalid table location"):
        DeltaDestination(str(tmp_path / "t")).columns()

    assert 0.5 < sum(pauses) < 5.0


def test_a_table_whose_first_entry_is_not_written_yet_is_waited_for_by_those_who_need_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = Location(str(tmp_path / "t"), "file", {})
    with pytest.raises(TableNotFoundError):
        open_table(location, is_awaited=True)
    (tmp_path / "t" / "_delta_log").mkdir(parents=True)
    destination = DeltaDestination(str(tmp_path / "t"))
    assert destination.columns() is None
    pauses: list[float] = []

    def write(pause: float) -> None:
        pauses.append(pause)
        if len(pauses) == 3:
            store(destination, None, [change(1)])

    monkeypatch.setattr("streamclient.destinations.delta.object_stores.time.sleep", write)

    assert (DeltaDestination(str(tmp_path / "t")).handle().version(), len(pauses)) == (1, 3)
    assert open_table(location, is_awaited=True).version() == 1


def test_a_probe_beside_another_ones_that_removes_the_directory_makes_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A probe leaves no directory that it has made, and so may take one from another probe."""
    mkdir = Path.mkdir
    removed: list[Path] = []

    def overtaken(self: Path, *given: Any, **named: Any) -> None:
        if len(removed) < 3:
            removed.append(self)
            raise FileNotFoundError(self)
        mkdir(self, *given, **named)

    monkeypatch.setattr(Path, "mkdir", overtaken)
    DeltaDestination(str(tmp_path / "lake" / "t")).probe()

    assert len(removed) == 3
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_is_removed_while_it_is_looked_at_is_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the probe of another handle."""
    place = tmp_path / "t"
    place.mkdir()
    exists, looks = os.path.exists, []

    def removed(path: Any) -> bool:
        found = exists(path)
        if Path(path) == place and found:
            looks.append(path)
            if len(looks) == 2:
                place.rmdir()
        return found

    monkeypatch.setattr("os.path.exists", removed)

    assert DeltaDestination(str(place)).location.path == str(place)
