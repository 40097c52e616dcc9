"""A fleet whose workers have a session each on a standalone cluster, and one of them dies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from streamclient.destinations import DeltaDestination
from streamclient.destinations.proof.verification import verify
from streamclient.records import StreamRecord
from streamclient.server import LocalTablestore
from streamclient.tablestore import TablestoreStreamApi
from streamclient.worker.lease import LeaseManager
from tests.datasource.drill import CLUSTER_CONF, CONF, RECORDS, Driver, Source, cluster, environment_for
from tests.patience import until

pytestmark = [pytest.mark.spark, pytest.mark.slow]

CONF_OF_ONE = CONF | CLUSTER_CONF | {"spark.cores.max": "1"}
"""A session takes all cores of a cluster unless it is told not to, and another one waits for ever."""


@pytest.fixture
def source(local: LocalTablestore) -> Source:
    return Source(local, 1)


class Fleet:
    """Two workers on one cluster, and the lake that they write."""

    def __init__(self, source: Source, master: str, lake: Path) -> None:
        self.source, self.lake = source, lake
        local = source.local
        self.stream_id = TablestoreStreamApi(source.client).list_stream("changes")[0].stream_id
        given: dict[str, Any] = {
            "master": master,
            "conf": CONF_OF_ONE,
            "table": "changes",
            "lake": str(lake),
            "local": {
                "endpoint": local.endpoint,
                "instance": local.instance,
                "access_key_id": local.access_key_id,
                "access_key_secret": local.access_key_secret,
            },
        }
        program = Path(__file__).with_name("fleet_process.py")
        self.workers = {name: Driver(given | {"name": name}, environment_for(), program) for name in ("one", "two")}

    def owners(self) -> set[str]:
        if "status" not in self.source.client.list_table():
            return set()
        leases = LeaseManager(self.source.client, "status", self.stream_id).list_leases()
        return {lease.owner for lease in leases if not lease.is_finished}

    def tables(self) -> Iterator[Any]:
        if (self.lake / "_delta_log").exists():
            with closing(DeltaDestination(str(self.lake))) as destination:
                yield from destination.rows()

    def rows(self) -> list[dict[str, Any]]:
        return [row for table in self.tables() for row in table.to_pylist()]

    def wait_for(self, count: int) -> None:
        until(lambda: sum(table.num_rows for table in self.tables()) >= count, lambda: self.workers["two"].lines[-20:])


@pytest.fixture
def fleet(source: Source, tmp_path: Path) -> Iterator[Fleet]:
    with cluster(environment_for(has_package=False)) as master, ExitStack() as stack:
        made = Fleet(source, master, tmp_path / "lake")
        for driver in made.workers.values():
            driver.start()
            stack.callback(driver.kill)
        for driver in made.workers.values():
            driver.wait("started")
        yield made


def identity(record: StreamRecord) -> tuple[Any, ...]:
    place = record.sequence_info
    return record.key["pk"], place.epoch, place.timestamp_micros, place.row_index, record.record_type.value


def stored(row: dict[str, Any]) -> tuple[Any, ...]:
    micros = round(row["_timestamp"].timestamp() * 1_000_000)
    return row["pk"], row["_epoch"], micros, row["_row_index"], row["_operation"]


@pytest.mark.long
def test_a_fleet_with_a_session_each_stores_each_change_once_though_one_dies(source: Source, fleet: Fleet) -> None:
    """Both work off shards through executors of their own; then one is killed with its Java, and the other goes on."""
    source.write(RECORDS)
    source.reshard()
    until(lambda: fleet.owners() == {"one", "two"}, fleet.owners)
    source.write(RECORDS)
    fleet.wait_for(2 * RECORDS)
    source.write(RECORDS)
    fleet.workers["one"].kill()
    source.write(RECORDS)
    fleet.wait_for(4 * RECORDS)
    fleet.workers["two"].ask("stop", "stopped")

    rows = fleet.rows()
    assert Counter(map(stored, rows)) == Counter(map(identity, source.records()))
    assert {row["worker"] for row in rows} == {"one", "two"}
    # An executor of a cluster has a directory of its own, below that of its application.
    assert len({Path(row["directory"]).parent.name for row in rows if row["directory"].count("/app-")}) == 2
    with closing(DeltaDestination(str(fleet.lake))) as destination:
        assert verify(destination).is_whole
