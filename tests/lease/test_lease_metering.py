"""Requests to the status table, counted by the client: as many as the server counts."""

from __future__ import annotations

import pytest

from streamclient import ErrorKind, Lease, LeaseManager
from streamclient.core import leases as rule
from streamclient.metrics import MemoryMetrics, labelled
from streamclient.metrics import metric_table as t
from streamclient.server import Fail, FaultRule, LocalTablestore
from streamclient.worker.lease import LeaseStore
from streamclient.worker.lease.lease_metering import metered
from streamclient.worker.lease.lease_store import as_lease_store

STREAM = "stream-1"
LABELS = {"stream": "orders", "worker": "w1"}


@pytest.fixture
def metrics() -> MemoryMetrics:
    return MemoryMetrics()


@pytest.fixture
def manager(local: LocalTablestore, metrics: MemoryMetrics) -> LeaseManager:
    made = LeaseManager(local.client(), "status", STREAM, metrics=labelled(metrics, **LABELS))
    made.create_lease_table_if_not_exists()
    assert made.wait_until_lease_table_ready()
    return made


def requests(metrics: MemoryMetrics) -> dict[tuple[str, str], float]:
    found = metrics.snapshot(t.STATUS_TABLE_REQUESTS)
    return {(series.labels["operation"], series.labels["result"]): series.value for series in found}


def rows(metrics: MemoryMetrics) -> tuple[float, float]:
    return (metrics.value(t.STATUS_TABLE_ROWS_READ) or 0, metrics.value(t.STATUS_TABLE_ROWS_WRITTEN) or 0)


def use(store: LeaseStore) -> None:
    """Every call of a store, also those that find nothing or are refused."""
    made = [Lease(f"s{number:03}", STREAM) for number in range(250)]
    assert store.list_leases() == []
    store.write_many([rule.create(lease) for lease in made])
    store.write_many([rule.create(made[0])])
    store.list_leases()
    store.get_lease("s001")
    store.get_lease("absent")
    store.write_many([rule.take(lease, "w1") for lease in made[:3]])
    store.write_many([])
    store.draw_epochs([lease.lease_key for lease in made[:120]])
    store.draw_epochs(["s000", "s240"])
    store.forget_epochs(["s000"])


@pytest.mark.slow
def test_the_client_counts_what_the_server_counts(
    manager: LeaseManager, metrics: MemoryMetrics, local: LocalTablestore
) -> None:
    use(as_lease_store(manager))

    served = [count for count in local.requests() if count.table == "status"]
    counted = requests(metrics)
    by_operation: dict[str, float] = {}
    for (operation, _), number in counted.items():
        by_operation[operation] = by_operation.get(operation, 0) + number
    assert by_operation == {count.operation: count.requests for count in served}
    assert rows(metrics) == (sum(c.rows_read for c in served), sum(c.rows_written for c in served))
    units = [metrics.value(t.STATUS_TABLE_UNITS, kind=kind) for kind in ("read", "write")]
    assert units == [sum(c.read_units for c in served), sum(c.write_units for c in served)]
    assert min(units) > 250
    assert sum(number for (_, result), number in counted.items() if result != "ok") == sum(c.errors for c in served)


@pytest.mark.parametrize(
    ("code", "kind"), [("OTSServerBusy", ErrorKind.THROTTLED), ("OTSNoPermissionAccess", ErrorKind.PERMANENT)]
)
def test_failed_requests_are_counted_by_kind_each_retry_by_itself(
    manager: LeaseManager, metrics: MemoryMetrics, local: LocalTablestore, code: str, kind: ErrorKind
) -> None:
    local.add_fault(FaultRule("BatchWriteRow", Fail(code), times=2))
    for _ in range(3):
        manager.write_many([rule.create(Lease("s1", STREAM))])

    counted = requests(metrics)
    assert counted["BatchWriteRow", kind.value] == 2
    assert counted["BatchWriteRow", "ok"] == 1
    assert rows(metrics) == (0, 1)


def test_without_metrics_the_client_is_used_as_it_is(local: LocalTablestore) -> None:
    client = local.client()
    assert metered(client, None) is client
