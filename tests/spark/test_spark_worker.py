"""Spark processors in a worker: what a failing sink means there."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from tablestore import (
    CapacityUnit,
    Condition,
    ReservedThroughput,
    Row,
    RowExistenceExpectation,
    TableMeta,
    TableOptions,
)

from streamclient import Backoff, ClientConfig, FailurePolicy, OnFailure, StreamConfig, Worker
from streamclient.server import LocalTablestore
from streamclient.spark import BatchContext, SparkConfig, SparkRecordProcessorFactory
from streamclient.tablestore import StreamSpecification, TablestoreStreamApi
from streamclient.worker.parking import FileParkingStore
from tests.patience import PATIENCE_SECONDS

pytestmark = [pytest.mark.spark, pytest.mark.slow]

RECORDS = 6


class Failing:
    """A sink that fails a few times, and then keeps keys."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.keys: list[int] = []
        self.has_all = threading.Event()

    def __call__(self, frame: Any, context: BatchContext) -> None:
        if self.failures:
            self.failures -= 1
            raise OSError("no space left on device")
        self.keys += [row["id"] for row in frame.select("id").collect()]
        if len(self.keys) >= RECORDS:
            self.has_all.set()


def test_a_sink_that_fails_for_a_while_gets_everything_and_no_record_is_blamed(spark: Any, tmp_path: Path) -> None:
    """Nothing is parked by a policy that parks, and nothing waits for the next record to come: there is none."""
    store, sink = FileParkingStore(str(tmp_path / "parked")), Failing(failures=3)
    policy = FailurePolicy(retries=1, first_pause_millis=10, then=OnFailure.PARK, parking=store)
    config = ClientConfig(
        failure_policy=policy, backoff=Backoff(restart_backoff_min_millis=50, restart_backoff_max_millis=200)
    )
    with LocalTablestore() as local:
        client = local.client()
        TablestoreStreamApi(client).create_table(
            TableMeta("orders", [("id", "INTEGER")]),
            TableOptions(),
            ReservedThroughput(CapacityUnit(0, 0)),
            stream=StreamSpecification(enable_stream=True, expiration_time_hours=24),
        )
        for number in range(RECORDS):
            client.put_row("orders", Row([("id", number)], []), Condition(RowExistenceExpectation.IGNORE))
        stream = StreamConfig(client=client, data_table_name="orders", status_table_name="orders_status", max_records=2)
        settings = SparkConfig(max_records=1, max_age_millis=50)
        with (
            SparkRecordProcessorFactory(sink, session=spark, config=settings) as factory,
            Worker("worker-1", config, stream, factory),
        ):
            assert sink.has_all.wait(PATIENCE_SECONDS)

    assert sorted(sink.keys) == list(range(RECORDS))
    assert list(store.parked()) == []
