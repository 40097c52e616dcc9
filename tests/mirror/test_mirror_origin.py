"""A mirror knows of which table it is, and by which stream: those of another one are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tablestore import CapacityUnit, OTSClient, ReservedThroughput, Row, TableMeta, TableOptions

from streamclient.copying import Mirror
from streamclient.copying.source_table import COPY, CopyPlan, SourceTable
from streamclient.destinations import Day, DeltaDestination, Key
from streamclient.destinations.commit import Destination, MergingDestination
from streamclient.destinations.memory_destination import MemoryDestination, MemoryPlace
from streamclient.destinations.proof.verification import verify
from streamclient.errors import ConfigurationError, StreamClientException
from streamclient.server import LocalTablestore
from streamclient.tablestore import StreamSpecification, TablestoreStreamApi
from streamclient.testing.contracts.destination_contract import change, store
from tests.mirror.mirroring import IGNORE, LIMITS, QUICK, caught_up, make_table, put, running


def mirror_of(local: LocalTablestore, table: str, to: MergingDestination, history: Destination | None = None) -> Mirror:
    return Mirror(local.client(), table, f"{table}_status", to, history=history, client_config=QUICK, limits=LIMITS)


def switch_off_and_on(client: OTSClient) -> None:
    api = TablestoreStreamApi(client)
    for switch in (StreamSpecification(False), StreamSpecification(True, 24)):
        api.update_table("orders", TableOptions(), stream=switch)


def make_anew(client: OTSClient) -> None:
    client.delete_table("orders")
    make_table(client)


def test_the_mirror_of_another_table_is_refused_before_any_effect(local: LocalTablestore) -> None:
    client = local.client()
    for name in ("orders", "others"):
        make_table(client, name)
    put(client, 1)
    place = MemoryPlace()
    with running(mirror_of(local, "orders", MemoryDestination(place))) as mirror:
        caught_up(mirror)
    tables, entries = client.list_table(), list(place.entries)
    other = mirror_of(local, "others", MemoryDestination(place))
    for use in (other.run, other.verify, other.position):
        with pytest.raises(ConfigurationError, match=r"mirror of table 'orders' of .*, not of table 'others' of"):
            use()

    assert (client.list_table(), place.entries) == (tables, entries)
    elsewhere = OTSClient(local.endpoint, "id", "secret", "elsewhere")
    plan = CopyPlan.from_text(MemoryDestination(place).last_commits([COPY])[COPY].end)  # type: ignore[union-attr]
    with pytest.raises(ConfigurationError, match=f"of instance '{local.instance}', not .* of instance 'elsewhere'"):
        SourceTable(elsewhere, "orders").require_table_of(plan)


@pytest.mark.parametrize("change", [switch_off_and_on, make_anew])
def test_a_table_that_has_another_stream_than_its_mirror_needs_a_new_one(change: Any, local: LocalTablestore) -> None:
    """What was written while there was no stream is in none."""
    client = local.client()
    make_table(client)
    put(client, 1)
    place = MemoryPlace()
    with running(mirror_of(local, "orders", MemoryDestination(place))) as mirror:
        caught_up(mirror)
    change(client)
    again = mirror_of(local, "orders", MemoryDestination(place))
    again.shutdown()  # a run that is not refused ends at once
    for use in (again.run, again.verify):
        with pytest.raises(StreamClientException, match=r"follows stream orders_.* and .* has orders_.* a new mirror"):
            use()

    assert not again.health.is_healthy


def test_a_stream_that_is_switched_off_and_on_during_the_copy_is_found_at_its_end(local: LocalTablestore) -> None:
    class Switches(MemoryDestination):
        def commit(self, rows: Any, commits: Any) -> None:
            super().commit(rows, commits)
            if commits[0].shard == f"{COPY}/0":
                switch_off_and_on(client)

    client = local.client()
    make_table(client)
    put(client, 1)
    with pytest.raises(StreamClientException, match="begin a new mirror"):
        mirror_of(local, "orders", Switches()).run()


def test_a_history_that_is_not_that_of_the_mirror_is_refused_before_any_effect(local: LocalTablestore) -> None:
    """Its rows would be copied as if they were those of the table."""
    client = local.client()
    make_table(client)
    put(client, 1, ("a", "old"))
    old, foreign = MemoryPlace(), MemoryPlace()
    with running(mirror_of(local, "orders", MemoryDestination(), MemoryDestination(old))):
        pass
    store(MemoryDestination(foreign), None, [change(1)], shard="s", end="e")
    for place in (old, foreign):
        state, entries = MemoryDestination(), list(place.entries)
        with pytest.raises(ConfigurationError, match="history has a table already, but not the changes of this mirror"):
            mirror_of(local, "orders", state, MemoryDestination(place)).run()
        assert (state.place.entries, place.entries) == ([], entries)


def test_a_history_where_the_mirror_is_is_refused(local: LocalTablestore, tmp_path: Path) -> None:
    state, place = tmp_path / "state", MemoryPlace()
    (tmp_path / "link").symlink_to(tmp_path)
    one = MemoryDestination(place)
    spellings = (f"{state}/", state.as_uri(), str(tmp_path / "link" / "state"))
    pairs: list[tuple[MergingDestination, Destination]] = [(one, one)]
    pairs += [(DeltaDestination(str(state)), DeltaDestination(url)) for url in spellings]
    for to, history in pairs:
        with pytest.raises(ConfigurationError, match="history and mirror are the same table"):
            mirror_of(local, "orders", to, history)
    assert not state.exists()
    make_table(local.client())
    put(local.client(), 1)
    for _ in range(2):
        # That these are the same only their contents tell.
        with pytest.raises(ConfigurationError, match="history and mirror are the same table"):
            mirror_of(local, "orders", one, MemoryDestination(place)).run()
    assert sum(table.num_rows for table in place.tables) == 0
    with running(mirror_of(local, "orders", one)) as mirror:
        assert mirror.verify().is_equal


@pytest.mark.parametrize("partition", [None, Day(), Key("z")])
def test_the_plan_gives_a_history_its_table_with_the_key_first(
    partition: Any, local: LocalTablestore, tmp_path: Path
) -> None:
    TablestoreStreamApi(local.client()).create_table(
        TableMeta("orders", [("z", "INTEGER"), ("y", "INTEGER")], [("x", "INTEGER")]),
        TableOptions(),
        ReservedThroughput(CapacityUnit(0, 0)),
        stream=StreamSpecification(True, 24),
    )
    history = DeltaDestination(str(tmp_path / "history"), partition_by=partition)
    with running(mirror_of(local, "orders", MemoryDestination(), history)) as mirror:
        local.client().put_row("orders", Row([("z", 1), ("y", 2)], [("x", 3)]), IGNORE)
        caught_up(mirror)

    columns = history.columns()
    assert columns is not None
    assert columns.names[:3] == ["z", "y", "x"]
    assert [table.num_rows for table in history.rows()] == [1]
    assert verify(history, with_rows=True).is_whole
