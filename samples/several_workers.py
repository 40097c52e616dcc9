"""Share the shards of a table among several workers in one process, through leases in a SQLite file.

The program starts a local Tablestore for itself. It splits the table's shard a few times, lets two workers share the
shards, and shows that they process each record once.
"""

import tempfile
import threading
from collections import Counter
from functools import partial
from pathlib import Path

from streamclient import (
    ClientConfig,
    InitializationInput,
    IRecordProcessor,
    ProcessRecordsInput,
    ShutdownInput,
    StreamConfig,
    Worker,
)
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

from samples.lease_manager import SqliteLeaseManager

KEYS = 400
QUICK = ClientConfig(
    lease_duration_millis=3_000,
    renewer_interval_millis=500,
    taker_interval_millis=500,
    sync_shard_interval_millis=500,
)


class Tally:
    """Counts the records of each worker, and sets ``is_complete`` when all expected records are counted."""

    def __init__(self, expected: int) -> None:
        self.by_worker: Counter[str] = Counter()
        self.is_complete = threading.Event()
        self._expected = expected
        self._lock = threading.Lock()

    def add(self, worker: str, records: int) -> None:
        with self._lock:
            self.by_worker[worker] += records
            if sum(self.by_worker.values()) >= self._expected:
                self.is_complete.set()


class Counting(IRecordProcessor):
    """Stores a checkpoint after each batch, and adds the number of records in the batch to the tally."""

    def __init__(self, worker: str, tally: Tally) -> None:
        self.worker = worker
        self.tally = tally

    def initialize(self, initialization_input: InitializationInput) -> None:
        pass

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        process_records_input.checkpointer.checkpoint()
        self.tally.add(self.worker, len(process_records_input.records))

    def shutdown(self, shutdown_input: ShutdownInput) -> None:
        if shutdown_input.shutdown_reason.name == "TERMINATE":
            shutdown_input.checkpointer.checkpoint()


def make_table(client: OTSClient) -> None:
    TablestoreStreamApi(client).create_table(
        TableMeta("visits", [("page", "STRING")]),
        TableOptions(),
        ReservedThroughput(CapacityUnit(0, 0)),
        stream=StreamSpecification(enable_stream=True, expiration_time_hours=24),
    )


def write(client: OTSClient, first: int, last: int) -> None:
    for number in range(first, last):
        row = Row([("page", f"{number:04d}")], [("visits", number)])
        client.put_row("visits", row, Condition(RowExistenceExpectation.IGNORE))


def main() -> None:
    with LocalTablestore() as local, tempfile.TemporaryDirectory() as directory:
        client = local.client()
        make_table(client)
        write(client, 0, KEYS // 2)
        for _ in range(3):
            largest = max((shard for shard in local.shards("visits") if shard.is_open), key=lambda s: s.record_count)
            local.split("visits", largest.shard_id)
        write(client, KEYS // 2, KEYS)

        manager = SqliteLeaseManager(Path(directory) / "leases.sqlite")
        tally = Tally(KEYS)
        config = StreamConfig(client=client, data_table_name="visits", status_table_name="not_used")
        workers = [
            Worker(name, QUICK, config, partial(Counting, name, tally), lease_manager=manager)
            for name in ("worker-1", "worker-2")
        ]
        with workers[0], workers[1]:
            workers[0].wait(600, until=lambda: tally.is_complete.is_set() or workers[1].exception is not None)
        manager.close()
    print(f"{sum(tally.by_worker.values())} records, by {len(tally.by_worker)} workers")


if __name__ == "__main__":
    main()
