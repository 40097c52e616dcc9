"""Measure a worker, and show the samples that Prometheus reads from it after it has caught up.

The program starts a local Tablestore for itself. It writes a hundred rows, lets one worker process them, and reads the
worker's metrics port as Prometheus does.
"""

import sys
import urllib.request

try:
    from prometheus_client import CollectorRegistry
except ModuleNotFoundError as missing:
    sys.exit(f'{missing}: run  pip install ".[prometheus,server]"  where streamclient was installed from')
from streamclient import (
    ClientConfig,
    InitializationInput,
    IRecordProcessor,
    ProcessRecordsInput,
    ShutdownInput,
    StreamConfig,
    Worker,
)
from streamclient.metrics import PrometheusMetrics
from streamclient.server import LocalTablestore
from streamclient.tablestore import StreamSpecification, TablestoreStreamApi
from tablestore import (
    CapacityUnit,
    Condition,
    OTSClient,
    ReservedThroughput,
    Row,
    RowExistenceExpectation,
    TableMeta,
    TableOptions,
)

VISITS = 100
LONGEST_WAIT_SECONDS = 60.0
SHOWN = (
    "streamclient_records_processed_total",
    "streamclient_batches_total",
    "streamclient_checkpoints_total",
    "streamclient_lag_seconds",
    "streamclient_leases",
    "streamclient_unhealthy",
)


class Checkpointing(IRecordProcessor):
    """Stores a checkpoint after every batch."""

    def initialize(self, initialization_input: InitializationInput) -> None:
        pass

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        process_records_input.checkpointer.checkpoint()

    def shutdown(self, shutdown_input: ShutdownInput) -> None:
        pass


def make_table(client: OTSClient) -> None:
    TablestoreStreamApi(client).create_table(
        TableMeta("visits", [("page", "STRING")]),
        TableOptions(),
        ReservedThroughput(CapacityUnit(0, 0)),
        stream=StreamSpecification(enable_stream=True, expiration_time_hours=24),
    )
    for number in range(VISITS):
        row = Row([("page", f"{number:03d}")], [("visits", number)])
        client.put_row("visits", row, Condition(RowExistenceExpectation.IGNORE))


def scrape(port: int) -> list[str]:
    """Return the samples of the metrics in ``SHOWN``, as Prometheus reads them."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as response:
        lines = response.read().decode().splitlines()
    return [line for line in lines if line.startswith(SHOWN)]


def main() -> None:
    metrics = PrometheusMetrics(CollectorRegistry())
    with LocalTablestore() as local, metrics.serve(0) as server:
        client = local.client()
        make_table(client)
        stream = StreamConfig(client=client, data_table_name="visits", status_table_name="visits_status")
        with Worker("worker-1", ClientConfig(metrics=metrics), stream, Checkpointing) as worker:
            worker.wait(LONGEST_WAIT_SECONDS, until=lambda: is_caught_up(server.port))
            print(*scrape(server.port), sep="\n")


def is_caught_up(port: int) -> bool:
    return any(line.startswith("streamclient_lag_seconds") and line.endswith(" 0.0") for line in scrape(port))


if __name__ == "__main__":
    main()
