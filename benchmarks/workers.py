"""Records per second from the server to ``process_records``: a real worker, leases and checkpoints included."""

from __future__ import annotations

import itertools
import threading
import time
from functools import partial

from tablestore import OTSClient

from benchmarks.report import Line, Round, compare, interleaved
from benchmarks.settings import Settings
from benchmarks.stage import Stage
from benchmarks.tables import FilledTable
from streamclient import (
    ClientConfig,
    InitializationInput,
    IRecordProcessor,
    ProcessRecordsInput,
    ShutdownInput,
    StreamConfig,
    Worker,
    WorkerStatus,
)
from streamclient.interfaces import RecordProcessorFactory
from streamclient.tunnel import TunnelWorker

SHARDS = (1, 4)
PAGE_SIZES = (1_000, 100)

LONGEST_ROUND_SECONDS = 180.0
"""Bound of one round; it takes seconds."""

LOOK_SECONDS = 0.5
"""Between looks at whether the worker still runs."""

_numbers = itertools.count()


class Meter:
    """Counts records that are done, and knows when all are. Thread-safe."""

    def __init__(self, expected: int) -> None:
        self._expected = expected
        self._lock = threading.Lock()
        self._complete = threading.Event()
        self._started: float | None = None
        self._ended = 0.0
        self._count = 0

    def start(self) -> None:
        """Start the clock; only the first call does.

        Processors call it in ``initialize``, which comes just before the first read: what lies before was taking
        leases, not reading.
        """
        with self._lock:
            if self._started is None:
                self._started = time.perf_counter()

    def add(self, records: int) -> None:
        """Some records are done."""
        with self._lock:
            self._ended = time.perf_counter()
            self._count += records
            if self._count >= self._expected:
                self._complete.set()

    def wait(self, worker: Worker | TunnelWorker | None = None) -> None:
        """Wait until all are done; raises at once if the worker ends before."""
        deadline = time.monotonic() + LONGEST_ROUND_SECONDS
        while not self._complete.wait(LOOK_SECONDS):
            has_failed = worker is not None and worker.worker_status is WorkerStatus.ERROR
            if has_failed or time.monotonic() > deadline:
                raise RuntimeError(f"{self._count} of {self._expected} records came; {_state_of(worker)}")

    @property
    def rate(self) -> float:
        """Records per second since the start."""
        if self._started is None:
            raise RuntimeError("no record came")
        return self._count / (self._ended - self._started)


def _state_of(worker: Worker | TunnelWorker | None) -> str:
    if worker is None:
        return "no worker"
    statuses = worker.channel_statuses() if isinstance(worker, TunnelWorker) else worker.shard_statuses()
    return f"worker: {worker.worker_status}, {worker.exception!r}, {statuses}"


class CheckpointingProcessor(IRecordProcessor):
    """Looks at nothing, and checkpoints each batch."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter

    def initialize(self, initialization_input: InitializationInput) -> None:
        """Reading begins."""
        self._meter.start()

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        """Checkpoint, then count: a record is done once it will not come again."""
        process_records_input.checkpointer.checkpoint()
        self._meter.add(len(process_records_input.records))

    def shutdown(self, shutdown_input: ShutdownInput) -> None:
        """Nothing to finish: each batch was checkpointed."""


def make_worker(
    client: OTSClient, table: FilledTable, page_size: int, factory: RecordProcessorFactory, config: ClientConfig
) -> Worker:
    """A worker with a status table of its own, so that it reads everything from the beginning."""
    number = next(_numbers)
    stream = StreamConfig(
        client=client,
        data_table_name=table.name,
        status_table_name=f"{table.name}_status_{number}",
        max_records=page_size,
    )
    return Worker(f"worker-{number}", config, stream, factory)


def measure(stage: Stage, settings: Settings) -> list[Line]:
    """Every combination of shards and page size, over equally many records."""
    rounds: dict[str, Round] = {}
    for shards, size in itertools.product(SHARDS, PAGE_SIZES):
        table = stage.table(shards, settings.stream_records)
        name = f"to process_records, {shards} shard{'s' * (shards > 1)}, pages of {size}, each checkpointed"
        rounds[name] = partial(_rate, stage.client(), table, size)
    return compare("worker", "records/s", interleaved(settings.slow_rounds, rounds, is_warmed_up=settings.is_warmed_up))


def _rate(client: OTSClient, table: FilledTable, page_size: int) -> float:
    meter = Meter(table.records)
    with make_worker(client, table, page_size, lambda: CheckpointingProcessor(meter), ClientConfig()) as worker:
        meter.wait(worker)
    return meter.rate
