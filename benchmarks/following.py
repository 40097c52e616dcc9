"""``python -m benchmarks.following``: the writer and the consumers of ``benchmarks.latency``, each in its own process.

One process writes rows, each with the moment at which it was due. The other process consumes the rows and records how
old they are. ``benchmarks/java`` has the same programs in Java, with the same commands.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from typing import Any

from benchmarks.java import RoundsProcess
from benchmarks.leases import await_leases
from benchmarks.pages import KeptConnection
from benchmarks.stage import connect
from benchmarks.tables import attributes, make_table
from benchmarks.tunnel_target import new_tunnel
from streamclient import (
    ClientConfig,
    InitializationInput,
    IRecordProcessor,
    ProcessRecordsInput,
    ShutdownInput,
    StreamConfig,
    StreamRecord,
    TablestoreStreamApi,
    Worker,
)
from streamclient.tunnel import StartOffset, StreamTunnelConfig, TunnelType, TunnelWorker
from streamclient.wire import schema
from streamclient.wire.plainbuffer import Cell, Row, encode_row

WORKER, TUNNEL = "worker", "tunnel worker"

LONGEST_SECONDS = 180.0
"""The time-out for the last records, in seconds. They usually take a fraction of a second; at most a minute if the
machine is busy."""

CHECKPOINT_NANOS = 1_000_000_000
"""The nanoseconds between two checkpoints of a shard. ``Follow.java`` has the same value."""

DUE = "due"
"""The column with the moment at which a row was due, in nanoseconds of ``CLOCK_REALTIME``. It is 0 in a row that only
warms up. ``Follow.java`` reads the column, too."""

LEAD_SECONDS = 0.05
"""The seconds from the call of ``put_all`` to the first slot, so that preparations do not make the first row late."""

_SECOND_NANOS = 1_000_000_000


def status_table_of(table: str) -> str:
    """Return the name of the status table that consumers of ``table`` use."""
    return f"{table}_status"


def start_process() -> RoundsProcess:
    """Start a process that runs this module."""
    return RoundsProcess([sys.executable, "-m", "benchmarks.following"])


# --- the writer ----------------------------------------------------------------------------------------------------


class Writer:
    """Puts rows over one kept connection, with as little client code as possible."""

    def __init__(self, endpoint: str, table: str) -> None:
        self._connection = KeptConnection(endpoint)
        self._table = table
        self._dice = random.Random(1)

    def put(self, number: int, due_nanos: int) -> None:
        """Put one row with a random key, the number ``number``, and the moment at which it was due."""
        key = (("customer", f"customer-{self._dice.randrange(1_000):03d}"), ("order_id", number))
        cells = tuple(Cell(name, value) for name, value in [*attributes(number), (DUE, due_nanos)])
        request = schema.PutRowRequest(
            table_name=self._table, row=encode_row(Row(key, cells)), condition=schema.Condition(row_existence=0)
        )
        self._connection.send("PutRow", request.SerializeToString())

    def put_all(self, rate: int, count: int, *, counts: bool) -> list[int]:
        """Put ``count`` rows, each at a random moment within its slot of ``1 / rate`` seconds.

        Return how late each put began, in nanoseconds. A slow put makes the next puts late. Their rows keep the moment
        at which they were due, so the delay counts. Moments within slots are random, because a consumer with a fixed
        pause could keep step with puts at a fixed rhythm.
        """
        late = []
        begin = time.time_ns() + round(LEAD_SECONDS * _SECOND_NANOS)
        for number in range(count):
            due = begin + round((number + self._dice.random()) * _SECOND_NANOS / rate)
            wait = due - time.time_ns()
            if wait > 0:
                time.sleep(wait / _SECOND_NANOS)
            late.append(time.time_ns() - due)
            self.put(number, due if counts else 0)
        return late

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def _write(endpoint: str, table: str, rate: str, count: str, counts: str) -> dict[str, Any]:
    with closing(Writer(endpoint, table)) as writer:
        late = writer.put_all(int(rate), int(count), counts=counts == "true")
    return {"late_nanos": late}


def _floor(endpoint: str, table: str, count: str) -> dict[str, Any]:
    """Measure the time of a put and of the read of its record, one after the other. No consumer is faster."""
    client = connect(endpoint)
    streams, stream_id = TablestoreStreamApi(client), make_table(client, table, 1)
    iterator = streams.get_shard_iterator(stream_id, streams.describe_stream(stream_id).shards[0].shard_id)
    nanos = []
    with closing(Writer(endpoint, table)) as writer:
        for number in range(int(count)):
            begun = time.time_ns()
            writer.put(number, begun)
            page = streams.get_stream_record(iterator)
            ages = [time.time_ns() - int(record[DUE]) for record in page.records]
            if len(ages) != 1:
                raise RuntimeError(f"a read after one put returned {len(ages)} records")
            nanos += ages
            iterator = page.next_position.text
    client.delete_table(table)
    return {"nanos": nanos}


# --- the consumer --------------------------------------------------------------------------------------------------


class Ages:
    """Records the age of each record when the consumer gets it. Thread-safe."""

    def __init__(self) -> None:
        self._nanos: list[int] = []
        self._lock = threading.Condition()

    def note(self, records: Sequence[StreamRecord]) -> None:
        """Store the ages of ``records``, which the consumer has just got."""
        now = time.time_ns()
        dues = [int(record[DUE]) for record in records]
        with self._lock:
            self._nanos += [now - due for due in dues if due]
            self._lock.notify_all()

    def wait(self, count: int) -> list[int]:
        """Wait until ``count`` records have come, and return their ages in nanoseconds.

        Raises:
            RuntimeError: the records did not come within ``LONGEST_SECONDS``.
        """
        with self._lock:
            if not self._lock.wait_for(lambda: len(self._nanos) >= count, LONGEST_SECONDS):
                raise RuntimeError(f"{len(self._nanos)} of {count} records came")
            return self._nanos


class NotingProcessor(IRecordProcessor):
    """Stores the ages of the records of one shard, and a checkpoint once a second."""

    def __init__(self, ages: Ages) -> None:
        self._ages = ages
        self._stored_nanos = 0

    def initialize(self, initialization_input: InitializationInput) -> None:
        """Do nothing."""

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        """Store the ages of the records first; then, once a second, a checkpoint."""
        self._ages.note(process_records_input.records)
        now = time.monotonic_ns()
        if now - self._stored_nanos >= CHECKPOINT_NANOS:
            self._stored_nanos = now
            process_records_input.checkpointer.checkpoint()

    def shutdown(self, shutdown_input: ShutdownInput) -> None:
        """Do nothing: the table is deleted afterwards."""


class Follower:
    """Runs one consumer at a time, from the command ``begin`` to the command ``end``."""

    def __init__(self) -> None:
        self._running = ExitStack()
        self._ages = Ages()

    def begin(self, endpoint: str, table: str, shards: str, kind: str, settings: str) -> object:
        """Start a consumer, and return once it reads all shards."""
        self._running, self._ages = ExitStack(), Ages()
        client, config, ages = connect(endpoint), ClientConfig(**json.loads(settings)), self._ages
        worker: Worker | TunnelWorker
        if kind == TUNNEL:
            changes = StreamTunnelConfig(StartOffset.EARLIEST)
            target = self._running.enter_context(new_tunnel(client, table, TunnelType.STREAM, changes))
            worker = self._running.enter_context(TunnelWorker(target.tunnel_id, target.client, ages.note))
        else:
            stream = StreamConfig(client=client, data_table_name=table, status_table_name=status_table_of(table))
            worker = self._running.enter_context(Worker("worker", config, stream, lambda: NotingProcessor(ages)))
        await_leases(worker, int(shards))
        return {}

    def end(self, count: str) -> dict[str, Any]:
        """Wait for ``count`` records that are measured; then end the consumer, and return the ages."""
        with self._running:
            return {"nanos": self._ages.wait(int(count))}


def main() -> None:
    """Run the rounds that the standard input names, and print their results, until the input ends."""
    follower = Follower()
    rounds: dict[str, Callable[..., Any]] = {
        "write": _write,
        "floor": _floor,
        "begin": follower.begin,
        "end": follower.end,
    }
    for line in sys.stdin:
        word, *arguments = line.rstrip("\n").split("\t")
        print(json.dumps(rounds[word](*arguments)), flush=True)


if __name__ == "__main__":
    main()
