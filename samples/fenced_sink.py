"""A SQLite sink that stores the epoch and position of each shard, and refuses writers that have lost their shard.

The program starts a local Tablestore for itself. One worker hangs in the middle of a batch until its lease has expired
and another worker has taken over the shard. When the first worker goes on, as a frozen process would, the sink refuses
its batch.
"""

import sqlite3
import tempfile
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from streamclient import (
    ClientConfig,
    FencedException,
    InitializationInput,
    IRecordProcessor,
    ProcessRecordsInput,
    SequenceInfo,
    ShutdownInput,
    StreamConfig,
    StreamRecord,
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

SCHEMA = """
CREATE TABLE IF NOT EXISTS shards (shard_id TEXT PRIMARY KEY, epoch INTEGER, position TEXT);
CREATE TABLE IF NOT EXISTS changes (
    shard_id TEXT, position TEXT, key TEXT, operation TEXT, epoch INTEGER, PRIMARY KEY (shard_id, position)
);
"""


def position_of(sequence: SequenceInfo) -> str:
    """Return a record's position as a text. These texts sort in the order of the shard's records."""
    return f"{sequence.epoch:010d}/{sequence.timestamp_micros:020d}/{sequence.row_index:010d}"


class FencedSink:
    """A SQLite file that stores each change once. Threads and processes may share it."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None, timeout=60)
        self._connection.executescript(SCHEMA)

    def close(self) -> None:
        self._connection.close()

    def count(self) -> int:
        """Return the number of stored changes."""
        with self._lock:
            return int(self._connection.execute("SELECT count(*) FROM changes").fetchone()[0])

    def take_over(self, shard_id: str, epoch: int) -> None:
        """Fence off owners with a smaller epoch than ``epoch``: they can no longer write for the shard."""
        with self._transaction(shard_id, epoch):
            pass

    def store(self, shard_id: str, epoch: int, records: Sequence[StreamRecord]) -> int:
        """Store all records that are not stored yet, in one transaction; return the number of stored records."""
        with self._transaction(shard_id, epoch) as position:
            new = [record for record in records if position_of(record.sequence_info) > position]
            for record in new:
                self._insert(shard_id, epoch, record)
            if new:
                last = position_of(new[-1].sequence_info)
                self._connection.execute("UPDATE shards SET position = ? WHERE shard_id = ?", (last, shard_id))
        return len(new)

    def replay(self, shard_id: str, epoch: int, records: Sequence[StreamRecord]) -> None:
        """Store parked records, which are before the shard's position. Skip records that are stored already.

        A replay does not change the shard's epoch and position, because they belong to the shard's owner.
        """
        with self._lock:
            for record in records:
                self._insert(shard_id, epoch, record)

    def _insert(self, shard_id: str, epoch: int, record: StreamRecord) -> None:
        values = (shard_id, position_of(record.sequence_info), str(record.key), record.record_type.name, epoch)
        self._connection.execute("INSERT OR IGNORE INTO changes VALUES (?, ?, ?, ?, ?)", values)

    @contextmanager
    def _transaction(self, shard_id: str, epoch: int) -> Generator[str, None, None]:
        """Open a transaction that refuses an old epoch; yield the shard's position.

        The check of the epoch is part of the transaction, so no other owner can take over after the check.
        """
        with self._lock:
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                query = "SELECT epoch, position FROM shards WHERE shard_id = ?"
                greatest, position = self._connection.execute(query, (shard_id,)).fetchone() or (0, "")
                if epoch < greatest:
                    raise FencedException(
                        f"the shard was taken over with epoch {greatest}; this writer has epoch {epoch}"
                    )
                self._connection.execute("REPLACE INTO shards VALUES (?, ?, ?)", (shard_id, epoch, position))
                yield position
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")


class Storing(IRecordProcessor):
    """Stores the changes of one shard in the sink, under the epoch of the worker's acquisition."""

    def __init__(self, sink: FencedSink, before_store: Callable[[], None] = lambda: None) -> None:
        self.sink = sink
        self.before_store = before_store

    def initialize(self, initialization_input: InitializationInput) -> None:
        self.shard = initialization_input.shard_info
        self.is_replay = initialization_input.is_replay
        if not self.is_replay:
            self.sink.take_over(self.shard.shard_id, self.shard.epoch)

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        self.before_store()
        store = self.sink.replay if self.is_replay else self.sink.store
        store(self.shard.shard_id, self.shard.epoch, process_records_input.records)
        process_records_input.checkpointer.checkpoint()

    def shutdown(self, shutdown_input: ShutdownInput) -> None:
        if shutdown_input.shutdown_reason.name == "TERMINATE":
            shutdown_input.checkpointer.checkpoint()


class Telling(Storing):
    """Stores changes like its base class, and prints each step."""

    def __init__(self, worker: str, sink: FencedSink, before_store: Callable[[], None] = lambda: None) -> None:
        super().__init__(sink, before_store)
        self.worker = worker
        self.is_done = threading.Event()

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        print(f"{self.worker} has {len(process_records_input.records)} records and epoch {self.shard.epoch}")
        try:
            super().process_records(process_records_input)
            print(f"{self.worker} has stored them")
        except FencedException as error:
            print(f"{self.worker} is refused: {error}")
            raise
        finally:
            self.is_done.set()


QUICK = ClientConfig(
    lease_duration_millis=2_000,
    renewer_interval_millis=400,
    taker_interval_millis=400,
    sync_shard_interval_millis=400,
    shutdown_timeout_millis=500,
)


def make_table(client: OTSClient) -> None:
    TablestoreStreamApi(client).create_table(
        TableMeta("payments", [("account", "STRING")]),
        TableOptions(),
        ReservedThroughput(CapacityUnit(0, 0)),
        stream=StreamSpecification(enable_stream=True, expiration_time_hours=24),
    )
    for account in ("ann", "bob", "eve"):
        row = Row([("account", account)], [("amount", 10)])
        client.put_row("payments", row, Condition(RowExistenceExpectation.IGNORE))


def main() -> None:
    with LocalTablestore() as local, tempfile.TemporaryDirectory() as directory:
        client = local.client()
        make_table(client)
        sink = FencedSink(Path(directory) / "payments.sqlite")
        config = StreamConfig(client=client, data_table_name="payments", status_table_name="payments_status")
        hangs, wakes = threading.Event(), threading.Event()

        def freeze() -> None:
            hangs.set()
            wakes.wait(600)

        first, second = Telling("worker-1", sink, freeze), Telling("worker-2", sink)
        with Worker("worker-1", QUICK, config, lambda: first) as worker:
            worker.wait(600, until=hangs.is_set)
        # The worker has ended although its call still hangs, so nothing renews its lease, and the lease expires.
        with Worker("worker-2", QUICK, config, lambda: second) as worker:
            worker.wait(600, until=second.is_done.is_set)
            wakes.set()
            first.is_done.wait(600)
        print(f"{sink.count()} changes in the sink, each once")
        sink.close()


if __name__ == "__main__":
    main()
