"""Figures of journeys: how many files and functions of the package an event touches.

A *journey* is one event in a worker or in a local Tablestore, from its beginning to its end: for example a renewal of a
lease. Its *footprints* are all functions of the package that run meanwhile, on any thread but the main one.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

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

from streamclient import (
    ClientConfig,
    InitializationInput,
    IRecordProcessor,
    LeaseManager,
    ProcessRecordsInput,
    ShutdownInput,
    StreamConfig,
    Worker,
)
from streamclient.core import leases
from streamclient.model import Lease, ShardState
from streamclient.server import (
    DEFAULT_ACCESS_KEY_ID,
    DEFAULT_ACCESS_KEY_SECRET,
    DEFAULT_INSTANCE,
    LocalTablestore,
)
from streamclient.tablestore import StreamSpecification, TablestoreStreamApi
from tools.structure import PACKAGE

TABLE = "journeys"
STATUS_TABLE = "journeys_status"
WORKER = "worker-1"
QUIET = ClientConfig(
    lease_duration_millis=120_000,
    taker_interval_millis=40_000,
    sync_shard_interval_millis=600_000,
    signal_interval_millis=30_000,
)
"""A configuration with long intervals, so that other work of the worker leaves no footprints during a journey."""

PATIENCE_SECONDS = 120.0
"""The seconds after which the program fails if a step of a journey has not happened."""


class Footprints:
    """The recorder of the functions of the package that run, on every thread but the main one."""

    def __init__(self) -> None:
        self._seen: set[tuple[str, str]] = set()
        self._is_recording = False

    def install(self) -> None:
        """Watch all threads that start later. The main thread is not watched: it plays the outside world."""
        threading.setprofile(self._notice)

    @contextmanager
    def recording(self) -> Iterator[set[tuple[str, str]]]:
        """Collect the file and the name of each function that is called during the block."""
        self._seen = set()
        self._is_recording = True
        try:
            yield self._seen
        finally:
            self._is_recording = False

    def _notice(self, frame: FrameType, event: str, argument: object) -> None:
        if self._is_recording and event == "call" and threading.current_thread() is not threading.main_thread():
            code = frame.f_code
            if code.co_filename.startswith(str(PACKAGE)):
                self._seen.add((code.co_filename, code.co_qualname if sys.version_info >= (3, 11) else code.co_name))


class Resting(IRecordProcessor):
    """Sets an event when it is initialized, and another event when it has stored the checkpoint after a record."""

    def __init__(self) -> None:
        self.has_begun = threading.Event()
        self.has_stored = threading.Event()

    def initialize(self, initialization_input: InitializationInput) -> None:
        """Set the event ``has_begun``."""
        self.has_begun.set()

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        """Store the position after the records, and set the event ``has_stored``."""
        process_records_input.checkpointer.checkpoint()
        self.has_stored.set()

    def shutdown(self, shutdown_input: ShutdownInput) -> None:
        """Do nothing."""


def make_table(client: Any) -> None:
    """Create a table with a stream and one shard."""
    meta = TableMeta(TABLE, [("id", "STRING")])
    throughput = ReservedThroughput(CapacityUnit(0, 0))
    stream = StreamSpecification(True, 24)
    TablestoreStreamApi(client).create_table(meta, TableOptions(), throughput, stream=stream)


def put_row(client: Any) -> None:
    """Write one change to the table."""
    client.put_row(TABLE, Row([("id", "a")], [("city", "Hangzhou")]), Condition(RowExistenceExpectation.IGNORE))


def await_event(event: threading.Event, what: str) -> None:
    """Wait for a step of a journey; ``what`` names it in the error if it takes too long."""
    if not event.wait(PATIENCE_SECONDS):
        raise SystemExit(f"{what} did not happen within {PATIENCE_SECONDS:.0f} s")


def worker_journeys(footprints: Footprints) -> Iterator[tuple[str, set[tuple[str, str]]]]:
    """Yield the name and the footprints of each journey in a worker. Its server runs in another process."""
    with server_process() as endpoint:
        client = OTSClient(endpoint, DEFAULT_ACCESS_KEY_ID, DEFAULT_ACCESS_KEY_SECRET, DEFAULT_INSTANCE)
        make_table(client)
        (stream,) = TablestoreStreamApi(client).list_stream(TABLE)
        (shard,) = TablestoreStreamApi(client).describe_stream(stream.stream_id).shards
        manager = LeaseManager(client, STATUS_TABLE, stream.stream_id)
        manager.create_lease_table_if_not_exists()
        manager.create_lease(Lease(shard.shard_id, stream.stream_id, owner="another"))
        processor = Resting()
        config = StreamConfig(client=client, data_table_name=TABLE, status_table_name=STATUS_TABLE)
        worker = Worker(WORKER, QUIET, config, lambda: processor)
        with worker:
            await_true(lambda: WORKER in {row.worker_id for row in manager.list_workers()}, "the worker's session")
            with footprints.recording() as seen:
                manager.write_many([leases.transfer(lease_of(manager), WORKER)])
                manager.wake([WORKER])
                await_event(processor.has_begun, "the first call of the processor")
            yield "take, and start reading", seen
            worker.pause(reason="so that reading leaves no footprints")
            await_true(lambda: worker.shard_statuses()[shard.shard_id].state is ShardState.PAUSED, "the pause")
            counter = lease_of(manager).counter
            with footprints.recording() as seen:
                await_true(lambda: lease_of(manager).counter > counter, "a renewal")
            yield "renew", seen
            processor.has_begun.clear()
            worker.resume()
            await_event(processor.has_begun, "the first call after the pause")
            with footprints.recording() as seen:
                put_row(client)
                await_event(processor.has_stored, "the checkpoint of one record")
            yield "one record, to its checkpoint", seen
            with footprints.recording() as seen:
                worker.shutdown()
            yield "stop", seen


def server_journeys(footprints: Footprints) -> Iterator[tuple[str, set[tuple[str, str]]]]:
    """Yield the name and the footprints of each journey in the local Tablestore."""
    with LocalTablestore() as server:
        client = server.client()
        make_table(client)
        put_row(client)
        with footprints.recording() as seen:
            put_row(client)
        yield "PutRow", seen
        api = TablestoreStreamApi(client)
        (stream,) = api.list_stream(TABLE)
        (shard,) = api.describe_stream(stream.stream_id).shards
        position = api.get_shard_iterator(stream.stream_id, shard.shard_id)
        with footprints.recording() as seen:
            api.get_stream_record(position)
        yield "GetStreamRecord", seen


@contextmanager
def server_process() -> Iterator[str]:
    """Run a local Tablestore in a process of its own; yield its endpoint."""
    command = [sys.executable, "-m", "streamclient", "server", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().split()[-1]
        finally:
            process.terminate()


def lease_of(manager: LeaseManager) -> Lease:
    """Return the lease of the only shard."""
    (lease,) = manager.list_leases()
    return lease


def await_true(is_true: Callable[[], bool], what: str) -> None:
    """Call ``is_true`` repeatedly until it returns true; ``what`` names the step in the error after a time-out."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not is_true():
        if time.monotonic() > deadline:
            raise SystemExit(f"{what} did not happen within {PATIENCE_SECONDS:.0f} s")


def print_journeys() -> None:
    """Print a table with the number of files in the core, of all files, and of functions that each journey touches."""
    footprints = Footprints()
    footprints.install()
    print(f"{'journey':<34}{'files of core':>14}{'files':>8}{'functions':>11}")
    for journeys in (worker_journeys, server_journeys):
        for name, seen in journeys(footprints):
            files = {file for file, _ in seen}
            core = [file for file in files if file.startswith(str(PACKAGE / "core"))]
            print(f"{name:<34}{len(core):>14}{len(files):>8}{len(seen):>11}")
