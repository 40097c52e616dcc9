"""What tests of workers stand on: a world on virtual time, real threads over a fake stream, tables on a server."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from itertools import repeat
from typing import Any

from tablestore import CapacityUnit, Condition, OTSClient, ReservedThroughput, Row, TableMeta, TableOptions

from streamclient import ClientConfig, MemoryLeaseManager, StreamConfig, Worker
from streamclient.interfaces import ProcessRecordsInput
from streamclient.model import CheckpointPosition, Lease
from streamclient.tablestore import StreamSpecification, TablestoreStreamApi
from streamclient.testing.fakes import FakeStream
from streamclient.testing.simulation.workers import SimulatedWorker
from tests.patience import PATIENCE_SECONDS
from tests.placed_records import make_record
from tests.simulation.scene import Journal, RecordingProcessor, World


def records(count: int, start: int = 0) -> list[Any]:
    """``k0``, ``k1`` and so on, each at the time of its number."""
    return [make_record(f"k{number}", number) for number in range(start, start + count)]


def keys(count: int, start: int = 0) -> list[str]:
    return [f"k{number}" for number in range(start, start + count)]


# --- virtual time -----------------------------------------------------------------------------------------------------


class Stage(World):
    """A world with the verbs of these tests."""

    def __init__(self, *shard_ids: str, seed: int = 1, **config: Any) -> None:
        super().__init__(*shard_ids, seed=seed, **config)
        self.shard_ids = set(shard_ids) or {"a"}
        self.until, self.advance = self.simulation.until, self.simulation.advance

    def lease(self, shard_id: str = "a") -> Lease:
        """Return the row of a shard, which must exist."""
        lease = self.leases.get_lease(shard_id)
        assert lease is not None
        return lease

    def is_finished(self, shard_id: str = "a") -> bool:
        """Return whether the end of a shard is stored."""
        lease = self.leases.get_lease(shard_id)
        return lease is not None and lease.checkpoint == CheckpointPosition.SHARD_END

    def write(self, shard_id: str, count: int, start: int = 0) -> None:
        self.stream.append(shard_id, *records(count, start))

    def reader(self, name: str = "w1", **given: Any) -> SimulatedWorker:
        """Start a worker, and wait until it reads all shards."""
        worker = self.worker(name, **given)
        self.until(lambda: worker.reads == self.shard_ids, 200)
        return worker

    def stop(self, worker: SimulatedWorker) -> None:
        """Stop a worker in order."""
        worker.stop()
        self.until(lambda: worker.is_over, 60)

    def hang(self, seconds: float = 1_000_000) -> threading.Event:
        """Have ``process_records`` wait for the event, and return without a checkpoint."""
        go_on = threading.Event()
        self.journal.on_process = lambda processor, given: self.simulation.wait(go_on, seconds) and None
        return go_on

    def refuse(self, error: BaseException, times: int | None = None) -> None:
        """Have ``process_records`` raise ``error`` the first ``times`` times, or always."""
        errors = repeat(error) if times is None else repeat(error, times)

        def process(processor: RecordingProcessor, given: ProcessRecordsInput) -> None:
            raised = next(errors, None)
            if raised is not None:
                raise raised
            self.journal.checkpoint_batch(processor, given)

        self.journal.on_process = process

    def dawdle(self, seconds: float) -> None:
        """Have each call of ``process_records`` take ``seconds``."""

        def process(processor: RecordingProcessor, given: ProcessRecordsInput) -> None:
            self.simulation.wait(threading.Event(), seconds)
            self.journal.checkpoint_batch(processor, given)

        self.journal.on_process = process


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class ManualPool(Executor):
    """Keeps tasks until the test gives one of them a thread."""

    def __init__(self) -> None:
        self.tasks: list[Callable[[], Any]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.tasks.append(partial(fn, *args, **kwargs))
        return Future()

    def run_one(self) -> None:
        self.tasks.pop(0)()

    def run_all(self) -> None:
        while self.tasks:
            self.run_one()


# --- real threads -----------------------------------------------------------------------------------------------------


def worker_on(
    stream: FakeStream,
    journal: Journal | None = None,
    *,
    name: str = "w1",
    factory: Any = None,
    leases: Any = None,
    executor: Executor | None = None,
    runtime: Any = None,
    max_records: int = 1_000,
    **config: Any,
) -> Worker:
    """Make a worker over a fake stream, with leases in memory and short intervals."""
    quick = {"taker_interval_millis": 100, "renewer_interval_millis": 300, "sync_shard_interval_millis": 100}
    return Worker(
        name,
        ClientConfig(**{**quick, **config}),
        StreamConfig(client=None, data_table_name="orders", status_table_name="status", max_records=max_records),
        factory or (journal or Journal()).make,
        executor,
        leases or MemoryLeaseManager(stream.stream_id),
        stream_api=stream,
        runtime=runtime,
    )


class Scene:
    """A fake stream, leases and a journal whose changes can be awaited."""

    def __init__(self, *shard_ids: str) -> None:
        self.stream = FakeStream("orders", shard_ids or ("a",))
        self.leases = MemoryLeaseManager(self.stream.stream_id)
        self.journal = Journal()
        self.changed = threading.Condition()
        note = self.journal.note

        def announce(*entry: Any) -> None:
            with self.changed:
                note(*entry)
                self.changed.notify_all()

        self.journal.note = announce  # type: ignore[method-assign]

    def worker(self, name: str = "w1", executor: Executor | None = None, **config: Any) -> Worker:
        given = {"name": name, "executor": executor, "leases": self.leases, "max_records": 5}
        return worker_on(self.stream, self.journal, **given, **{"taker_interval_millis": 50, **config})

    def write(self, shard_id: str, count: int) -> None:
        self.stream.append(shard_id, *records(count))

    def hang(self) -> threading.Event:
        """Have ``process_records`` wait for the event."""
        go_on = threading.Event()
        self.journal.on_process = lambda processor, given: go_on.wait(PATIENCE_SECONDS) and None
        return go_on

    def until(self, condition: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, PATIENCE_SECONDS), self.journal.entries


# --- tables -----------------------------------------------------------------------------------------------------------


def make_table(client: OTSClient, name: str = "orders", kind: str = "STRING", **options: Any) -> TablestoreStreamApi:
    """Create a table with the key column ``id`` and a stream that keeps a day."""
    api = TablestoreStreamApi(client)
    api.create_table(
        TableMeta(name, [("id", kind)]),
        TableOptions(),
        ReservedThroughput(CapacityUnit(0, 0)),
        stream=StreamSpecification(enable_stream=True, expiration_time_hours=24),
        **options,
    )
    return api


def put(client: OTSClient, key: Any, table: str = "orders", **columns: Any) -> None:
    client.put_row(table, Row([("id", key)], list(columns.items())), Condition("IGNORE"))
