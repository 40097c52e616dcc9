"""Records per second from the server to ``process_records``, by a real worker with its leases and checkpoints."""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from attrs import define, field
from tablestore import OTSClient

from benchmarks.java import JavaMissingError, java_rounds
from benchmarks.report import Aim, Line, Round, aims_beside, beside, compare, interleaved, progress
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
from streamclient.server import DEFAULT_ACCESS_KEY_ID, DEFAULT_ACCESS_KEY_SECRET, DEFAULT_INSTANCE
from streamclient.tablestore import Integrity, with_integrity
from streamclient.tunnel import TunnelWorker
from streamclient.worker.handlers.batches import RecordProcessorFactory

SHARDS = (1, 4)
PAGE_SIZES = (1_000, 100)

LONGEST_ROUND_SECONDS = 180.0
"""The time-out of one round, in seconds. A round usually takes a few seconds."""

LOOK_SECONDS = 0.5
"""The seconds between two checks whether the worker still runs."""

_numbers = itertools.count()


class Meter:
    """Counts processed records, and wakes the waiting thread when all expected records are processed. Thread-safe."""

    def __init__(self, expected: int) -> None:
        self._expected = expected
        self._lock = threading.Lock()
        self._complete = threading.Event()
        self._started: float | None = None
        self._ended = 0.0
        self._count = 0

    def start(self) -> None:
        """Start the clock. Only the first call has an effect.

        Processors call this method in ``initialize``, just before the first read, so that taking leases does not count.
        """
        with self._lock:
            if self._started is None:
                self._started = time.perf_counter()

    def add(self, records: int) -> None:
        """Count ``records`` more processed records."""
        with self._lock:
            self._ended = time.perf_counter()
            self._count += records
            if self._count >= self._expected:
                self._complete.set()

    def wait(self, worker: Worker | TunnelWorker | None = None) -> None:
        """Wait until all expected records are processed.

        Raises:
            RuntimeError: ``worker`` fails, or the longest time for a round has passed.
        """
        deadline = time.monotonic() + LONGEST_ROUND_SECONDS
        while not self._complete.wait(LOOK_SECONDS):
            has_failed = worker is not None and worker.worker_status is WorkerStatus.ERROR
            if has_failed or time.monotonic() > deadline:
                raise RuntimeError(f"{self._count} of {self._expected} records came; {_state_of(worker)}")

    @property
    def rate(self) -> float:
        """The records per second, from ``start`` to the last record."""
        if self._started is None:
            raise RuntimeError("no record came")
        return self._count / (self._ended - self._started)


def _state_of(worker: Worker | TunnelWorker | None) -> str:
    if worker is None:
        return "no worker"
    statuses = worker.channel_statuses() if isinstance(worker, TunnelWorker) else worker.shard_statuses()
    return f"worker: {worker.worker_status}, {worker.exception!r}, {statuses}"


class CheckpointingProcessor(IRecordProcessor):
    """A processor that stores a checkpoint after each batch, and does not look at the records."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter

    def initialize(self, initialization_input: InitializationInput) -> None:
        """Start the meter, because reading begins."""
        self._meter.start()

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        """Store a checkpoint; then count the records, because they are done once they cannot come again."""
        process_records_input.checkpointer.checkpoint()
        self._meter.add(len(process_records_input.records))

    def shutdown(self, shutdown_input: ShutdownInput) -> None:
        """Do nothing: each batch has its checkpoint."""


@contextmanager
def running_worker(
    client: OTSClient, table: FilledTable, page_size: int, factory: RecordProcessorFactory, config: ClientConfig
) -> Iterator[Worker]:
    """Run a worker with a new status table during the block, so that it reads all records from the beginning.

    The status table is deleted at the end, because an instance has at most 64 tables, and there may be more rounds.
    """
    number = next(_numbers)
    status_table = f"{table.name}_status_{number}"
    stream = StreamConfig(
        client=client, data_table_name=table.name, status_table_name=status_table, max_records=page_size
    )
    with Worker(f"worker-{number}", config, stream, factory) as worker:
        yield worker
    client.delete_table(status_table)


class LookingProcessor(CheckpointingProcessor):
    """A processor that looks at each cell of each record once."""

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        """Look at each cell; then store a checkpoint, and count the records."""
        for record in process_records_input.records:
            for _, _value in record.primary_key:
                pass
            for column in record.columns:
                _ = column.value
        super().process_records(process_records_input)


class ColumnsProcessor(CheckpointingProcessor):
    """A processor that takes each batch as columns."""

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        """Make the columns; then store a checkpoint, and count the records."""
        process_records_input.arrow()
        super().process_records(process_records_input)


CANDIDATES: Mapping[str, Callable[[Meter], CheckpointingProcessor]] = {
    "looked at by nobody": CheckpointingProcessor,
    "each cell looked at": LookingProcessor,
    "by column": ColumnsProcessor,
}


JAVA = "Java stream client"
JAVA_TARGETS = {"looked at by nobody": (2.0, 1.2, 2.0), "each cell looked at": (1.2, 1.2, 1.2)}
"""The smallest accepted multiples of the Java client's rate: in wall time with one shard, in wall time with several
shards, and in processor time."""

WITH_MD5, WITHOUT_MD5 = "with the MD5 of answers", "without the MD5 of pages"
"""The ends of the names of candidates that do not have their default setting of MD5. By default streamclient checks the
MD5 of pages, and the Java SDK does not."""

_JAVA_PAGE = PAGE_SIZES[0]

JAVA_STEP_NANOS = 10_000_000
"""The step of Java's clock of processor time, in nanoseconds. A warm client reads some thousand records in one step."""

ROLES = ("fetch", "owner", "processor", "scan", "status", "renew")
"""The roles of a worker's threads, which are parts of the threads' names."""


@define
class Spent:
    """The processor time that one candidate has spent."""

    rates: list[float] = field(factory=list)
    """The records per second of processor time, one figure for each round."""
    seconds: defaultdict[str, float] = field(factory=lambda: defaultdict(float))
    """The processor seconds of all rounds, by the role of the thread."""

    def add(self, records: int, seconds: float, by_role: Mapping[str, float]) -> None:
        """Add one round. Processor time that no thread of the worker has spent counts as ``start and end``."""
        self.rates.append(records / seconds)
        for role, own in by_role.items():
            self.seconds[role] += own
        self.seconds["start and end"] += seconds - sum(by_role.values())

    def shares(self) -> str:
        """Return the share of each role in the processor time, as text."""
        whole = sum(self.seconds.values())
        most_first = sorted(self.seconds, key=self.seconds.__getitem__, reverse=True)
        return ", ".join(f"{role} {self.seconds[role] / whole:.0%}" for role in most_first)


def measure(stage: Stage, settings: Settings) -> list[Line]:
    """Measure every combination of shards and page size with the same number of records, in wall and processor time."""
    rounds: dict[str, Round] = {}
    spent: dict[str, Spent] = {}
    for (shards, size), (what, make) in itertools.product(itertools.product(SHARDS, PAGE_SIZES), CANDIDATES.items()):
        table = stage.table(shards, settings.worker_records)
        name = _name(shards, size, what)
        spent[name] = Spent()
        rounds[name] = partial(_rate, stage.client(), table, size, make, spent[name])
    trusting = with_integrity(stage.client(), Integrity.CHECKSUMS)
    for shards, what in itertools.product(SHARDS, JAVA_TARGETS):
        name, table = _without_md5(shards, what), stage.table(shards, settings.worker_records)
        spent[name] = Spent()
        rounds[name] = partial(_rate, trusting, table, _JAVA_PAGE, CANDIDATES[what], spent[name])
    rounds |= _java_rounds(stage, settings, spent)
    rates = interleaved(settings.slow_rounds, rounds, is_warmed_up=settings.is_warmed_up)
    measured = {name: each.rates[-settings.slow_rounds :] for name, each in spent.items()}

    def in_processor_time(name: str, figure: float) -> str:
        return "; ".join(filter(None, (_beside_checking_java(measured, name), spent[name].shares())))

    return [
        *compare(
            "worker",
            "records/s",
            rates,
            lambda name, _: _beside_checking_java(rates, name),
            lambda name, _: _aims(rates, name, is_wall=True),
        ),
        *compare(
            "worker",
            "records/CPU s of the client",
            measured,
            in_processor_time,
            lambda name, _: _aims(measured, name, is_wall=False),
        ),
    ]


def _name(shards: int, size: int, what: str) -> str:
    return f"to process_records, {shards} shard{'s' * (shards > 1)}, pages of {size}, each checkpointed, {what}"


def _without_md5(shards: int, what: str) -> str:
    return f"{_name(shards, _JAVA_PAGE, what)}, {WITHOUT_MD5}"


def _java_name(shards: int, what: str, *, checks_md5: bool = False) -> str:
    return f"{_name(shards, _JAVA_PAGE, what)}, {JAVA}{f' {WITH_MD5}' if checks_md5 else ''}"


def _aims(rates: Mapping[str, list[float]], name: str, *, is_wall: bool) -> list[Aim]:
    """Return the aims beside the Java client that does the same work; an empty list without the Java client."""
    for shards, (what, (one, several, processor)) in itertools.product(SHARDS, JAVA_TARGETS.items()):
        if name in (_name(shards, _JAVA_PAGE, what), _without_md5(shards, what)):
            target = processor if not is_wall else one if shards == 1 else several
            return aims_beside(rates, name, _java_name(shards, what), target, called=JAVA)
    return []


def _beside_checking_java(rates: Mapping[str, list[float]], name: str) -> str:
    """Return as text the ratio to the Java client that checks MD5, as streamclient does by default."""
    for shards, what in itertools.product(SHARDS, JAVA_TARGETS):
        if name == _name(shards, _JAVA_PAGE, what):
            return beside(rates, name, _java_name(shards, what, checks_md5=True), called=f"{JAVA} {WITH_MD5}")
    return ""


def _java_rounds(stage: Stage, settings: Settings, spent: dict[str, Spent]) -> dict[str, Round]:
    """Return rounds of the official Java client with a warm compiler, or a round whose name says why it is missing."""
    try:
        java_rounds()
    except JavaMissingError as error:
        missing = f"{JAVA}: not here: {error}"
        spent[missing] = Spent([math.nan] * settings.slow_rounds)
        return {missing: lambda: math.nan}
    rounds: dict[str, Round] = {}
    for checks_md5, shards, what in itertools.product((False, True), SHARDS, JAVA_TARGETS):
        name = _java_name(shards, what, checks_md5=checks_md5)
        table, looks = stage.table(shards, settings.worker_records), what == "each cell looked at"
        spent[name] = Spent()
        rounds[name] = partial(_java_rate, stage, table, looks=looks, checks_md5=checks_md5, spent=spent[name])
        if checks_md5:
            continue  # the code is warm already; only Java's own digest is new, and the unmeasured round warms it up
        until = time.monotonic() + settings.java_warm_seconds
        while time.monotonic() < until:
            progress(f"warming up: {name}")
            rounds[name]()
    return rounds


def _java_rate(stage: Stage, table: FilledTable, *, looks: bool, checks_md5: bool, spent: Spent) -> float:
    status_table = f"{table.name}_status_java_{next(_numbers)}"
    keys = (DEFAULT_ACCESS_KEY_ID, DEFAULT_ACCESS_KEY_SECRET, DEFAULT_INSTANCE)
    how = (_JAVA_PAGE, str(looks).lower(), table.records, str(checks_md5).lower())
    found = java_rounds().run("consume", stage.endpoint, *keys, table.name, status_table, *how)
    stage.client().delete_table(status_table)
    if found["records"] != table.records:
        raise RuntimeError(f"{JAVA} found {found['records']} records, expected {table.records}")
    spent.rates.append(table.records / max(found["cpu_nanos"], JAVA_STEP_NANOS) * 1e9)
    return float(table.records / found["nanos"] * 1e9)


def _rate(
    client: OTSClient,
    table: FilledTable,
    page_size: int,
    make: Callable[[Meter], CheckpointingProcessor],
    spent: Spent,
) -> float:
    """Return the rate in wall time. Add the processor time of this process, with start and end, to ``spent``."""
    meter = Meter(table.records)
    before = set(threading.enumerate())
    started = time.process_time()
    with running_worker(client, table, page_size, lambda: make(meter), ClientConfig()) as worker:
        meter.wait(worker)
        by_role = _seconds_by_role(set(threading.enumerate()) - before)
    spent.add(table.records, time.process_time() - started, by_role)
    return meter.rate


def _seconds_by_role(threads: set[threading.Thread]) -> Mapping[str, float]:
    """Return the processor seconds of ``threads`` by role, without threads that have ended."""
    found: defaultdict[str, float] = defaultdict(float)
    for thread in threads:
        role = next((role for role in ROLES if f"-{role}-" in thread.name), "")
        if role and thread.ident is not None and thread.is_alive():
            found[role] += time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
    return found
