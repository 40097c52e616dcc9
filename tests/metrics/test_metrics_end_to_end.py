"""A measured worker on a real server: what it says it asked is what the server was asked."""

from __future__ import annotations

import pytest
import tablestore as sdk
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from streamclient import (
    ClientConfig,
    InitializationInput,
    IRecordProcessor,
    Metric,
    ProcessRecordsInput,
    ShutdownInput,
    StreamConfig,
    Worker,
)
from streamclient.metrics import METRICS, PrometheusMetrics
from streamclient.metrics import metric_table as t
from streamclient.server import Fail, FaultRule, LocalTablestore
from streamclient.tablestore import StreamSpecification, TablestoreStreamApi
from tests.patience import until

READS_OF_THE_STREAM = {"ListStream", "DescribeStream", "GetShardIterator", "GetStreamRecord"}
QUICK = {"renewer_interval_millis": 200, "taker_interval_millis": 200, "sync_shard_interval_millis": 500}
ROWS = 50


class Accepting(IRecordProcessor):
    def initialize(self, initialization_input: InitializationInput) -> None:
        pass

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        process_records_input.checkpointer.checkpoint()

    def shutdown(self, shutdown_input: ShutdownInput) -> None:
        pass


def fill(client: sdk.OTSClient, table: str) -> None:
    TablestoreStreamApi(client).create_table(
        sdk.TableMeta(table, [("id", "INTEGER")]),
        sdk.TableOptions(),
        sdk.ReservedThroughput(sdk.CapacityUnit(0, 0)),
        stream=StreamSpecification(enable_stream=True, expiration_time_hours=24),
    )
    for number in range(ROWS):
        client.put_row(table, sdk.Row([("id", number)], [("n", number)]), sdk.Condition("IGNORE"))


def by_operation(metrics: PrometheusMetrics, metric: Metric) -> dict[str, float]:
    totals: dict[str, float] = {}
    for series in metrics.snapshot(metric):
        operation = series.labels["operation"]
        totals[operation] = totals.get(operation, 0) + series.value
    return totals


def served(local: LocalTablestore, table: str) -> dict[str, float]:
    return {count.operation: count.requests for count in local.requests() if count.table == table}


@pytest.mark.slow
def test_a_worker_counts_what_the_server_was_asked(local: LocalTablestore, caplog: pytest.LogCaptureFixture) -> None:
    registry = CollectorRegistry()
    metrics = PrometheusMetrics(registry)
    client = local.client()
    fill(client, "orders")
    local.reset_requests()
    local.add_fault(FaultRule("GetStreamRecord", Fail("OTSServerBusy"), times=2))
    stream = StreamConfig(client=client, data_table_name="orders", status_table_name="status")
    with Worker("w1", ClientConfig(metrics=metrics, **QUICK), stream, Accepting):
        until(lambda: metrics.value(t.LAG_SECONDS) == 0.0)
        until(lambda: (metrics.value(t.SCAN_SECONDS) or 0) >= 3)

    def stream_requests_agree() -> bool:
        asked: dict[str, float] = {}
        for count in local.requests():
            if count.operation in READS_OF_THE_STREAM:
                asked[count.operation] = asked.get(count.operation, 0) + count.requests
        return by_operation(metrics, t.STREAM_REQUESTS) == asked

    until(stream_requests_agree)
    until(lambda: by_operation(metrics, t.STATUS_TABLE_REQUESTS) == served(local, "status"))
    counts = local.requests()
    stream_units = sum(count.read_units for count in counts if count.operation == "GetStreamRecord")
    assert metrics.value(t.STREAM_UNITS) == stream_units > 0
    status = [count for count in counts if count.table == "status"]
    assert metrics.value(t.STATUS_TABLE_UNITS, kind="read") == sum(count.read_units for count in status) > 0
    assert metrics.value(t.STATUS_TABLE_UNITS, kind="write") == sum(count.write_units for count in status) > 0
    assert metrics.value(t.STREAM_REQUESTS, operation="GetStreamRecord", result="throttled") == 2
    assert metrics.value(t.RECORDS_PROCESSED) == ROWS
    assert metrics.value(t.RECORDS_SIZE_BYTES) > ROWS * 20
    assert metrics.value(t.LEASE_MOVES, move="taken") == metrics.value(t.LEASE_MOVES, move="left") == 1
    for series in metrics.snapshot():
        assert (series.labels["stream"], series.labels["worker"]) == ("orders", "w1")
    assert "figures are missing" not in caplog.text
    _is_parsed_as_it_is(registry, metrics)


def _is_parsed_as_it_is(registry: CollectorRegistry, metrics: PrometheusMetrics) -> None:
    """Prometheus' own parser finds each number where it belongs."""
    samples = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for sample in family.samples
    }
    for series in metrics.snapshot():
        name = series.metric.name if series.distribution is None else f"{series.metric.name}_sum"
        assert samples[name, tuple(sorted(series.labels.items()))] == pytest.approx(series.value)
    assert {series.metric for series in metrics.snapshot()} <= set(METRICS)


@pytest.mark.slow
def test_streams_of_one_worker_are_told_apart(local: LocalTablestore) -> None:
    metrics = PrometheusMetrics(CollectorRegistry())
    client = local.client()
    for table in ("orders", "visits"):
        fill(client, table)
    streams = [
        StreamConfig(client=client, data_table_name=table, status_table_name="status") for table in ("orders", "visits")
    ]
    with Worker("w1", ClientConfig(metrics=metrics, **QUICK), streams, Accepting):
        until(lambda: all(metrics.value(t.LAG_SECONDS, stream=name) == 0.0 for name in ("orders", "visits")))

    for name in ("orders", "visits"):
        assert metrics.value(t.RECORDS_PROCESSED, stream=name) == ROWS
        assert metrics.value(t.STATUS_TABLE_REQUESTS, stream=name) > 0
