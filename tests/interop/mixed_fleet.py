"""A stream, workers of both languages on it, and what the status table's own stream tells about them."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from attrs import evolve, frozen
from java_worker import JavaWorker
from tablestore import OTSClient, Row

from streamclient import (
    ClientConfig,
    InitializationInput,
    IRecordProcessor,
    IRecordProcessorCheckpointer,
    ProcessRecordsInput,
    SequenceInfo,
    ShutdownInput,
    ShutdownReason,
    StreamConfig,
    Worker,
)
from streamclient.model import Lease
from streamclient.records import RecordType, StreamRecord
from streamclient.server import LocalTablestore
from streamclient.tablestore import TablestoreStreamApi
from streamclient.testing.deliveries import Delivery, key_text, read_history, unread
from streamclient.worker.lease import LeaseManager
from streamclient.worker.lease.lease_rows import parse_parents
from tests.patience import PATIENCE_SECONDS, until
from tests.stage import STREAM, make_table, put_rows

TABLE = "changes"
STATUS_TABLE = "changes_status"
KEYS = 200
BATCH_ROWS = 20

LEASE_DURATION_MILLIS = 5_000
"""A quarter of the default, to keep the test short; long enough for a Java worker on a busy machine."""

INTERVAL_MILLIS = 700
"""Renewals, scans and shard syncs of both sides."""

BATCH_MILLIS = 15
"""How long either side works on a batch, so that hand-overs meet workers in the middle of one."""

MAX_RECORDS = 50


Event = dict[str, Any]


class EventLog:
    """Events of the processors of one Python worker, in the words of the Java worker. Thread-safe."""

    def __init__(self, worker: str) -> None:
        self._worker = worker
        self._lock = threading.Lock()
        self._events: list[Event] = []

    def say(self, event: str, **fields: object) -> None:
        with self._lock:
            self._events.append({"event": event, "nanos": time.monotonic_ns(), "worker": self._worker, **fields})

    @property
    def events(self) -> list[Event]:
        with self._lock:
            return list(self._events)


class RecordingProcessor(IRecordProcessor):
    """The Python twin of the Java processor: the same events, the same pace, the same checkpoints."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._tenancy: dict[str, str] = {}
        self._pace = threading.Event()

    def initialize(self, initialization_input: InitializationInput) -> None:
        info = initialization_input.shard_info
        self._tenancy = {"shard": info.shard_id, "lease": info.lease_identifier}
        self._log.say("initialize", checkpoint=initialization_input.initial_checkpoint, **self._tenancy)

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        records = [_described(record) for record in process_records_input.records]
        self._log.say("records", records=records, **self._tenancy)
        self._pace.wait(BATCH_MILLIS / 1000)
        self._checkpoint(process_records_input.checkpointer)
        self._log.say("done", **self._tenancy)

    def shutdown(self, shutdown_input: ShutdownInput) -> None:
        if shutdown_input.shutdown_reason is not ShutdownReason.ZOMBIE:
            self._checkpoint(shutdown_input.checkpointer)
        self._log.say("shutdown", reason=shutdown_input.shutdown_reason.value, **self._tenancy)

    def _checkpoint(self, checkpointer: IRecordProcessorCheckpointer) -> None:
        checkpointer.checkpoint()
        self._log.say("checkpoint", value=checkpointer.largest_permitted_checkpoint_value, **self._tenancy)


def _described(record: StreamRecord) -> list[Any]:
    info = record.sequence_info
    return [record.record_type.value, record.key["id"], info.epoch, info.timestamp_micros, info.row_index]


class PythonWorker:
    """One of our workers on a thread of its own."""

    def __init__(self, name: str, client: OTSClient) -> None:
        self.name = name
        self._log = EventLog(name)
        config = ClientConfig(
            lease_duration_millis=LEASE_DURATION_MILLIS,
            renewer_interval_millis=INTERVAL_MILLIS,
            taker_interval_millis=INTERVAL_MILLIS,
            sync_shard_interval_millis=INTERVAL_MILLIS,
            max_idle_poll_interval_millis=100,
        )
        stream = StreamConfig(
            client=client, data_table_name=TABLE, status_table_name=STATUS_TABLE, max_records=MAX_RECORDS
        )
        self.worker = Worker(name, config, stream, lambda: RecordingProcessor(self._log))
        self._thread = threading.Thread(target=self.worker.run, name=name)
        self._thread.start()

    @property
    def events(self) -> list[Event]:
        return self._log.events

    def stop(self) -> None:
        self.worker.shutdown()
        self._thread.join(PATIENCE_SECONDS)
        assert not self._thread.is_alive(), f"{self.name} did not stop"
        assert self.worker.exception is None, self.worker.exception


class Scene:
    """The stream, its status table with a stream of its own, and the workers, present and past."""

    def __init__(self, local: LocalTablestore, class_path: str, directory: Path, split_points: Sequence[str]) -> None:
        self.local = local
        self.client = local.client()
        self.api = TablestoreStreamApi(self.client)
        self._class_path = class_path
        self._directory = directory
        self.workers: dict[str, PythonWorker | JavaWorker] = {}
        self._running: list[str] = []
        self._step = 0
        self._writer: threading.Thread | None = None
        self._writer_stops = threading.Event()
        make_table(self.client, TABLE, split_points=list(split_points))
        LeaseManager(self.client, STATUS_TABLE, "any").create_lease_table_if_not_exists()
        self.api.update_table(STATUS_TABLE, stream=STREAM)
        self.stream_id = self.api.list_stream(TABLE)[0].stream_id
        self.leases = LeaseManager(self.client, STATUS_TABLE, self.stream_id)

    # --- workers -------------------------------------------------------------------------------------------------

    def start_python(self, name: str) -> None:
        self.workers[name] = PythonWorker(name, self.local.client())
        self._running.append(name)

    def start_java(self, name: str) -> None:
        settings: dict[str, object] = {
            "endpoint": self.local.endpoint,
            "accessKeyId": self.local.access_key_id,
            "accessKeySecret": self.local.access_key_secret,
            "instance": self.local.instance,
            "dataTable": TABLE,
            "statusTable": STATUS_TABLE,
            "worker": name,
            "leaseDurationMillis": LEASE_DURATION_MILLIS,
            "intervalMillis": INTERVAL_MILLIS,
            "batchMillis": BATCH_MILLIS,
            "maxRecords": MAX_RECORDS,
        }
        self.workers[name] = JavaWorker(self._class_path, self._directory / f"{name}.log", settings)
        self._running.append(name)

    def stop(self, name: str) -> None:
        self._running.remove(name)
        worker = self.workers[name]
        code = worker.stop()
        if isinstance(worker, JavaWorker):
            end = worker.events[-1] if worker.events else {}
            assert code == 0, f"{name} ended with {code}: {end}; its log is {worker.log}"

    def close(self) -> None:
        """Stop whatever still runs, whatever happened before."""
        self.stop_writing()
        for name in list(self._running):
            self._running.remove(name)
            self.workers[name].stop()

    # --- changes -------------------------------------------------------------------------------------------------

    def write(self, batches: int) -> None:
        """Write batches of rows, over all keys in turn."""
        for _ in range(batches):
            self._step += 1
            first = self._step * BATCH_ROWS
            numbers = (number * 37 % KEYS for number in range(first, first + BATCH_ROWS))
            rows = [Row([("id", f"{number * 5:03}")], [("n", self._step)]) for number in numbers]
            put_rows(self.client, TABLE, rows)

    def start_writing(self) -> None:
        """Write without a pause to speak of, until ``stop_writing``."""

        def work() -> None:
            while not self._writer_stops.wait(0.05):
                self.write(1)

        self._writer = threading.Thread(target=work, name="writer")
        self._writer.start()

    def stop_writing(self) -> None:
        self._writer_stops.set()
        if self._writer is not None:
            self._writer.join(PATIENCE_SECONDS)

    # --- what is to be seen --------------------------------------------------------------------------------------

    def wait_until(self, what: str, reached: Callable[[], object]) -> None:
        """Wait as long as all workers run; a failure tells the rows of the status table."""

        def is_reached() -> bool:
            self._check_running()
            # A look takes many requests, so the next one comes a tenth of a second later.
            return bool(reached()) or threading.Event().wait(0.1)

        until(is_reached, lambda: "\n".join([what, *map(str, self.leases.list_leases())]))

    def _check_running(self) -> None:
        for name in self._running:
            worker = self.workers[name]
            if isinstance(worker, JavaWorker):
                assert worker.is_running, f"{name} died; its log is {worker.log}"
            else:
                assert worker.worker.exception is None, worker.worker.exception

    def owned(self, name: str) -> list[Lease]:
        """Open shards that a worker holds and nobody asked for."""
        return [lease for lease in self.leases.list_leases() if lease.owner == name and _is_settled(lease)]

    def caught_up(self) -> bool:
        return not unread(self.api, self.stream_id, self.leases.list_leases())

    def events(self) -> list[Event]:
        """Events of all workers, by time."""
        every = [event for worker in self.workers.values() for event in worker.events]
        return sorted(every, key=lambda event: int(event["nanos"]))

    def deliveries(self) -> list[Delivery]:
        return [_delivery(event) for event in self.events() if event["event"] == "records"]

    def row_changes(self) -> list[RowChange]:
        """Every change of every lease row, from the stream of the status table itself."""
        stream_id = self.api.list_stream(STATUS_TABLE)[0].stream_id
        rows: dict[str, Lease | None] = {}
        changes = []
        for shard in read_history(self.api, stream_id):
            for record in shard.records:
                if record.key["StatusType"] != "LeaseKey":
                    continue
                key = str(record.key["StatusValue"])
                before = rows.get(key)
                rows[key] = _after(before, record)
                at_micros = record.sequence_info.timestamp_micros
                changes.append(RowChange(key, at_micros, record.record_type, before, rows[key]))
        return changes


def _is_settled(lease: Lease) -> bool:
    return not lease.is_finished and not lease.stealer


def _delivery(event: Event) -> Delivery:
    records = tuple((key_text([("id", key)]), SequenceInfo(*sequence)) for _, key, *sequence in event["records"])
    return Delivery(event["worker"], event["shard"], event["lease"], event["nanos"], records)


# --- the status table's history ----------------------------------------------------------------------------------


@frozen
class RowChange:
    """One write that was applied to a lease row."""

    shard_id: str
    at_micros: int
    record_type: RecordType
    before: Lease | None
    after: Lease | None

    @property
    def is_reset(self) -> bool:
        """A put over an existing row: the Java client creates without a condition."""
        return self.record_type is RecordType.PUT and self.before is not None

    @property
    def hand_over(self) -> tuple[str, str] | None:
        """(old owner, new owner) of a transfer."""
        if self.before is None or self.after is None or not self.after.is_handed_over or self.before.is_handed_over:
            return None
        return (self.before.owner, self.after.owner) if self.before.owner != self.after.owner else None

    @property
    def mark(self) -> tuple[str, str] | None:
        """(owner, stealer) of a steal."""
        before, after = self.before, self.after
        if before is None or after is None or before.stealer or not after.is_marked or self.is_reset:
            return None
        return (after.owner, after.stealer)

    def __str__(self) -> str:
        return f"{self.at_micros} {self.before or f'{self.shard_id} absent'} -> {self.after or 'absent'}"


FIELDS = {"LeaseCounter": "counter", "LeaseOwner": "owner", "LeaseStealer": "stealer", "Checkpoint": "checkpoint"}


def _after(before: Lease | None, record: StreamRecord) -> Lease | None:
    if record.record_type is RecordType.DELETE:
        return None
    base = before
    if base is None or record.record_type is RecordType.PUT:
        base = Lease(str(record.key["StatusValue"]), str(record.key["StreamId"]))
    changes: dict[str, Any] = {FIELDS[cell.name]: cell.value for cell in record.columns if cell.name in FIELDS}
    parents = [str(cell.value) for cell in record.columns if cell.name == "ParentShardIds"]
    if parents:
        changes["parent_shard_ids"] = parse_parents(parents[0])
    return evolve(base, **changes)


def counter_jumps(changes: Iterable[RowChange]) -> list[str]:
    """Writes that moved a counter by anything but one, or by nothing although they were no mark.

    A row that a Java worker has put anew begins at 0 again: whoever takes it then goes above the counter it had.
    """
    found = []
    had: dict[str, int] = {}
    for change in changes:
        before, after = change.before, change.after
        if before is None or after is None:
            continue
        if change.is_reset:
            had[change.shard_id] = max(before.counter, had.get(change.shard_id, 0))
            continue
        is_mark = after == evolve(before, stealer=after.stealer)
        is_take = not before.owner and bool(after.owner)
        is_taken_above = is_take and after.counter == had.pop(change.shard_id, -1) + 1
        if after.counter - before.counter != (0 if is_mark else 1) and not is_taken_above:
            found.append(str(change))
    return found


@frozen
class Span:
    """From the delivery of a batch until its processor was done with it."""

    worker: str
    shard_id: str
    lease_identifier: str
    begin_nanos: int
    end_nanos: int


def spans(events: Sequence[Event]) -> list[Span]:
    """Processing times, from events by time. A batch that never ended (a killed worker) has none."""
    begun: dict[tuple[str, str, str], int] = {}
    found = []
    for event in events:
        if event["event"] not in ("records", "done"):
            continue
        place = (event["worker"], event["shard"], event["lease"])
        if event["event"] == "records":
            begun[place] = event["nanos"]
        elif place in begun:
            found.append(Span(*place, begun.pop(place), event["nanos"]))
    return sorted(found, key=lambda span: span.begin_nanos)


def overlaps(found: Sequence[Span]) -> list[str]:
    """Batches of one shard that two acquisitions had in hand at once."""
    last: dict[str, Span] = {}
    problems = []
    for span in found:
        other = last.get(span.shard_id)
        if other is not None and span.begin_nanos < other.end_nanos:
            problems.append(f"{other} overlaps {span}")
        if other is None or span.end_nanos > other.end_nanos:
            last[span.shard_id] = span
    return problems


def without_lease(found: Sequence[Span], changes: Sequence[RowChange]) -> list[str]:
    """Batches during which the row named another owner. A row that Java's create reset names nobody for a moment."""
    # Both clocks are of this machine: the monotonic one of the events, the wall clock of the server.
    offset_micros = (time.time_ns() - time.monotonic_ns()) // 1000
    by_shard: dict[str, list[RowChange]] = defaultdict(list)
    for change in changes:
        by_shard[change.shard_id].append(change)
    problems = []
    for span in found:
        begin = span.begin_nanos // 1000 + offset_micros
        end = span.end_nanos // 1000 + offset_micros
        rows = by_shard[span.shard_id]
        owners = [change.after.owner if change.after else "" for change in rows if begin < change.at_micros < end]
        at_begin = [change.after.owner if change.after else "" for change in rows if change.at_micros <= begin]
        strangers = {*owners, *at_begin[-1:]} - {span.worker, ""}
        if strangers:
            problems.append(f"{span} while the row named {sorted(strangers)}")
    return problems
