"""The cost of metrics: records per second of processor time with and without metrics, and the time of one call."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry

from benchmarks.report import Line, Round, compare, interleaved, seconds_of
from benchmarks.settings import Settings
from benchmarks.stage import Stage
from benchmarks.tables import FilledTable
from benchmarks.workers import CheckpointingProcessor, Meter
from streamclient import ClientConfig, IMetrics, Lease, StreamConfig, Worker
from streamclient.base.position import Position
from streamclient.core import events, leases
from streamclient.core.held import Acquisition, HeldLease
from streamclient.core.write_rules import WriteOutcome
from streamclient.metrics import OpenTelemetryMetrics, PrometheusMetrics, labelled
from streamclient.metrics.metric_table import RECORDS_PROCESSED
from streamclient.tablestore import RecordPage
from streamclient.worker.instruments import Instruments

PAGE_SIZES = (1_000, 100)
"""The numbers of records per page. Most metrics are measured once per page, so they cost most with small pages."""

STATUS_TABLE = "metrics_status"
"""The name of the status table. It is deleted after each round, because an instance has at most 64 tables."""

CONTROL = "no metrics, once more"
"""The name of the control, which is equal to the first candidate. Its ratio differs from 1 only by noise."""

CALLS = 5_000


def measure(stage: Stage, settings: Settings) -> list[Line]:
    """Measure workers with each kind of metrics, for each page size; then single calls of the metrics."""
    table = stage.table(1, settings.stream_records)
    lines = []
    for size in PAGE_SIZES:
        candidates = {**_candidates(), CONTROL: None}
        rounds: dict[str, Round] = {
            f"to process_records, pages of {size}, {name}": partial(_rate, stage, table, size, metrics)
            for name, metrics in candidates.items()
        }
        rates = interleaved(settings.rounds, rounds, is_warmed_up=settings.is_warmed_up)
        lines += compare("metrics", "records/s of CPU", rates)
    return lines + _calls(settings)


def _candidates() -> dict[str, IMetrics | None]:
    return {
        "no metrics": None,
        "PrometheusMetrics": PrometheusMetrics(CollectorRegistry()),
        "OpenTelemetryMetrics": OpenTelemetryMetrics(MeterProvider(metric_readers=[InMemoryMetricReader()])),
    }


def _rate(stage: Stage, table: FilledTable, page_size: int, metrics: IMetrics | None) -> float:
    """Return records per second of the processor time of all threads. Wall time would depend on other programs."""
    meter, client = Meter(table.records), stage.client()
    config = ClientConfig(metrics=metrics)
    stream = StreamConfig(
        client=client, data_table_name=table.name, status_table_name=STATUS_TABLE, max_records=page_size
    )
    started = time.process_time()
    with Worker("worker-1", config, stream, lambda: CheckpointingProcessor(meter)) as worker:
        meter.wait(worker)
    seconds = time.process_time() - started
    client.delete_table(STATUS_TABLE)
    return table.records / seconds


def _calls(settings: Settings) -> list[Line]:
    """Measure calls without a worker: one increment of a counter, and all metrics of a batch with its checkpoint."""
    lines = []
    for what, round_of in (("increment a counter", _increments), ("measure one batch", _batches)):
        rounds: dict[str, Round] = {
            f"{what}, {name}": partial(_calls_per_second, round_of(labelled(metrics, stream="orders", worker="w1")))
            for name, metrics in _candidates().items()
        }
        rates = interleaved(settings.rounds, rounds, is_warmed_up=settings.is_warmed_up)
        lines += compare(
            "metrics", "calls/s of CPU", rates, lambda name, figure: f"{1e6 / figure:,.2f} microseconds per call"
        )
    return lines


def _increments(metrics: IMetrics) -> Callable[[], None]:
    return lambda: metrics.increment(RECORDS_PROCESSED, 100, shard="shard-1")


def _batches(metrics: IMetrics) -> Callable[[], None]:
    row = Lease("shard-1", "orders_1", owner="w1", counter=5)
    held = {"shard-1": HeldLease(row, "tenancy-1", 2_000.0, 5, 1_000.0, Acquisition(1))}
    instruments = Instruments(metrics, "w1", held, time.monotonic)
    write = leases.checkpoint(row, "iterator")
    asked = events.CheckpointRequested(1, "shard-1", "tenancy-1", "iterator")
    answered = events.Answered(events.WriteLease(write), WriteOutcome.ACCEPTED, 1_000.0)
    page = RecordPage((), Position("iterator"))

    def measure_one() -> None:
        instruments.measured(lambda: page)
        instruments.handled(asked, [events.WriteLease(write)], 1_000.0)
        instruments.handled(answered, [events.AnswerCheckpoint(1, events.CheckpointOutcome.STORED)], 1_000.0)
        instruments.user_code_ended("shard-1", "process_records", time.monotonic(), None)
        instruments.accepted("shard-1", 100)
        instruments.page_done("shard-1", 20_000)
        instruments.found_nothing("shard-1")

    return measure_one


def _calls_per_second(call: Callable[[], None]) -> float:
    def call_many() -> None:
        for _ in range(CALLS):
            call()

    return CALLS / seconds_of(call_many, time.process_time)
