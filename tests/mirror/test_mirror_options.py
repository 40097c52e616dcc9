"""Options of a table that are changed while it is mirrored: the next start takes them."""

from __future__ import annotations

import pytest
from tablestore import Row, TableOptions

from streamclient.base.times import now_micros
from streamclient.copying import Mirror
from streamclient.copying.differences import Cells
from streamclient.destinations.folding.row_changes import cells_of
from streamclient.destinations.memory_destination import MemoryDestination, MemoryPlace
from streamclient.records import KeyValue
from streamclient.server import LocalTablestore
from tests.mirror.mirroring import IGNORE, LIMITS, QUICK, caught_up, make_table, put, running
from tests.mirror.test_mirror import DAY_SECONDS, SetClock
from tests.patience import until


def mirror_of(local: LocalTablestore, place: MemoryPlace) -> Mirror:
    return Mirror(local.client(), "orders", "status", MemoryDestination(place), client_config=QUICK, limits=LIMITS)


def rows_in(place: MemoryPlace) -> dict[KeyValue, Cells]:
    return {row.key[0]: row.cells for table in MemoryDestination(place).rows() for row in cells_of(table, ["id"])}


def test_once_fewer_versions_are_kept_both_are_compared_by_those(local: LocalTablestore) -> None:
    client = local.client()
    make_table(client, max_version=3)
    newest = now_micros() // 1_000
    versions = [newest - 2, newest - 1, newest]
    for number in (1, 2):
        put(client, number, *((name, version, version) for name in "ab" for version in versions))
    place = MemoryPlace()
    with running(mirror_of(local, place)) as mirror:
        caught_up(mirror)
    client.update_table("orders", TableOptions(max_version=1))
    with running(mirror_of(local, place)) as mirror:
        assert (mirror.verify().rows, mirror.verify().count) == (2, 0)
        for gone in (newest, newest - 1):
            # The one before shows again, and nothing else is left.
            client.update_row("orders", Row([("id", 1)], {"DELETE": [("a", None, gone)]}), IGNORE)
            caught_up(mirror)
            assert mirror.verify().differences == []

    assert {name: [*kept] for name, kept in rows_in(place)[1].items()} == {"b": versions[::-1]}, (
        "a column that nobody changed"
    )


def test_rows_without_columns_expire_by_a_time_to_live_that_is_set_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two days: rows that were copied so, that came so, and one that has lost its column, which was older."""
    clock, place = SetClock(), MemoryPlace()
    with LocalTablestore(clock=clock) as local:
        client = local.client()
        make_table(client, max_time_deviation=10 * DAY_SECONDS)
        put(client, 1)
        put(client, 2, ("a", 1, clock.now_micros() // 1_000 - 3 * DAY_SECONDS * 1_000))
        with running(mirror_of(local, place)) as mirror:
            caught_up(mirror)
            put(client, 3)
            client.update_row("orders", Row([("id", 2)], {"DELETE_ALL": ["a"]}), IGNORE)
            caught_up(mirror)
        client.update_table("orders", TableOptions(2 * DAY_SECONDS, max_time_deviation=10 * DAY_SECONDS))
        with running(mirror_of(local, place)) as mirror:
            put(client, 4, ("a", 1, clock.now_micros() // 1_000 + 5 * DAY_SECONDS * 1_000))
            caught_up(mirror)
            assert (mirror.verify().rows, mirror.verify().count) == (4, 0)
            # Three days later, for both the server and the mirror.
            clock.shift_micros = 3 * DAY_SECONDS * 1_000_000
            for module in ("mirror_writer", "mirror_comparison", "mirror_copy", "source_table"):
                monkeypatch.setattr(f"streamclient.copying.{module}.now_micros", clock.now_micros)
            until(lambda: [*rows_in(place)] == [4], "the end of the rows without columns")
            assert (mirror.verify().rows, mirror.verify().count) == (1, 0)
