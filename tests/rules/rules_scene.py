"""One small world for the tests of rules: a real local Tablestore, a table with a stream, workers, and a diary.

Everything goes through the public interface: processors write into the diary what they were told, and the status table
is looked at through a lease manager of the test's own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from itertools import count
from random import Random
from typing import TYPE_CHECKING, Any

from attrs import frozen
from tablestore import Row

from streamclient import (
    Backoff,
    CheckpointPosition,
    ClientConfig,
    DependencyException,
    ErrorKind,
    InitializationInput,
    InitialPosition,
    IRecordProcessor,
    IRetryStrategy,
    Lease,
    LeaseManager,
    ProcessRecordsInput,
    RetryableAction,
    ShutdownInput,
    ShutdownReason,
    StreamConfig,
    Worker,
    WorkerStatus,
)
from streamclient.core.events import Command, Event, WriteLease
from streamclient.core.holdings import Holdings
from streamclient.core.leases import LeaseWrite
from streamclient.core.membership import WorkerRow, WorkerWrite
from streamclient.core.write_rules import WriteOutcome
from streamclient.tablestore import ReadRetry, TablestoreStreamApi
from streamclient.worker.lease.lease_store import WriteAnswer
from streamclient.worker.lease.lease_verbs import check_write
from tests.patience import PATIENCE_SECONDS
from tests.stage import make_table

if TYPE_CHECKING:
    from streamclient.server import LocalTablestore

TABLE, STATUS = "orders", "orders_status"

LONG_LEASE_MILLIS = 3_600_000
"""Far beyond ``PATIENCE_SECONDS``: what happens within a test did not happen because a lease expired."""

SHORT_LEASE_MILLIS = 6_000
"""For tests that wait for heartbeats: one is due when a third of the duration has passed since the last write."""

QUICK: dict[str, Any] = {
    "lease_duration_millis": LONG_LEASE_MILLIS,
    "taker_interval_millis": 100,
    "renewer_interval_millis": 300,
    "sync_shard_interval_millis": 200,
    "max_idle_poll_interval_millis": 50,
    "backoff": Backoff(restart_backoff_min_millis=50, restart_backoff_max_millis=200),
}


@frozen
class Entry:
    """One call into user code."""

    worker: str
    shard_id: str
    tenancy: str
    what: str
    detail: Any


class Diary:
    """What all processors were told, in order, and what they shall do; may be changed while workers run."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.changed = threading.Condition()
        self.on_process: Callable[[Writer, ProcessRecordsInput], None] = lambda writer, given: (
            given.checkpointer.checkpoint()
        )
        self.on_shutdown: Callable[[Writer, ShutdownInput], None] = checkpoint_unless_zombie

    def note(self, entry: Entry) -> None:
        with self.changed:
            self.entries.append(entry)
            self.changed.notify_all()

    def _found(self, what: str, shard_id: str | None, worker: str | None) -> list[Entry]:
        with self.changed:
            entries = list(self.entries)
        return [e for e in entries if e.what == what and shard_id in (None, e.shard_id) and worker in (None, e.worker)]

    def starts(self, shard_id: str | None = None, worker: str | None = None) -> list[Entry]:
        """Calls of ``initialize``; the detail is the initial checkpoint."""
        return self._found("initialize", shard_id, worker)

    def batches(self, shard_id: str | None = None, worker: str | None = None) -> list[list[str]]:
        """Keys of each delivered batch."""
        return [entry.detail for entry in self._found("process", shard_id, worker)]

    def delivered(self, shard_id: str | None = None, worker: str | None = None) -> list[str]:
        """All delivered keys, repeats included."""
        return [key for batch in self.batches(shard_id, worker) for key in batch]

    def accepted(self, shard_id: str | None = None) -> list[str]:
        """Keys of batches from which ``process_records`` returned without an error."""
        return [key for entry in self._found("accepted", shard_id, None) for key in entry.detail]

    def shutdowns(self, shard_id: str | None = None, worker: str | None = None) -> list[ShutdownReason]:
        """Reasons of each call of ``shutdown``."""
        return [entry.detail for entry in self._found("shutdown", shard_id, worker)]


def checkpoint_unless_zombie(writer: Writer, given: ShutdownInput) -> None:
    if given.shutdown_reason is not ShutdownReason.ZOMBIE:
        given.checkpointer.checkpoint()


class Writer(IRecordProcessor):
    """Writes into the diary, then does what the diary says."""

    def __init__(self, diary: Diary, worker: str) -> None:
        self.diary = diary
        self.worker = worker
        self.shard_id = ""
        self.tenancy = ""

    def _note(self, what: str, detail: Any) -> None:
        self.diary.note(Entry(self.worker, self.shard_id, self.tenancy, what, detail))

    def initialize(self, initialization_input: InitializationInput) -> None:
        self.shard_id = initialization_input.shard_info.shard_id
        self.tenancy = initialization_input.shard_info.lease_identifier
        self._note("initialize", initialization_input.initial_checkpoint)

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        keys = [record.key["id"] for record in process_records_input.records]
        self._note("process", keys)
        self.diary.on_process(self, process_records_input)
        self._note("accepted", keys)

    def shutdown(self, shutdown_input: ShutdownInput) -> None:
        self._note("shutdown", shutdown_input.shutdown_reason)
        self.diary.on_shutdown(self, shutdown_input)


class Never(IRetryStrategy):
    """Tries nothing again."""

    def should_retry(self, action: RetryableAction, error: Exception, retries: int) -> bool:
        return False

    def backoff_millis(self, action: RetryableAction, error: Exception, retries: int) -> int:
        raise AssertionError("there is nothing to wait for")


class SeveredLeases(LeaseManager):
    """The way of one worker to the status table, which a test can cut while other workers keep theirs."""

    is_severed = False

    def list_leases(self) -> Sequence[Lease]:
        self._refuse()
        return super().list_leases()

    def get_lease(self, lease_key: str) -> Lease | None:
        self._refuse()
        return super().get_lease(lease_key)

    def list_workers(self, *, with_info: bool = False) -> Sequence[WorkerRow]:
        self._refuse()
        return super().list_workers(with_info=with_info)

    def read_workers(self, worker_ids: Sequence[str]) -> Sequence[WorkerRow]:
        self._refuse()
        return super().read_workers(worker_ids)

    def wake(self, worker_ids: Sequence[str]) -> None:
        self._refuse()
        super().wake(worker_ids)

    def write_many(self, writes: Sequence[LeaseWrite | WorkerWrite]) -> Sequence[WriteAnswer]:
        for write in writes:
            if isinstance(write, LeaseWrite):
                check_write(write, self._stream_id)
        if self.is_severed:
            return [WriteAnswer(WriteOutcome.UNCERTAIN, _no_route())] * len(writes)
        return super().write_many(writes)

    def _refuse(self) -> None:
        if self.is_severed:
            raise _no_route()


def _no_route() -> DependencyException:
    return DependencyException("no route to the status table", kind=ErrorKind.AMBIGUOUS)


class Scene:
    """A table that a test writes, splits and reads, and the status table beside it."""

    def __init__(self, local: LocalTablestore) -> None:
        self.local = local
        self.client = local.client()
        self.stream_api = TablestoreStreamApi(self.client)
        self.diary = Diary()
        make_table(self.client, TABLE)
        (summary,) = self.stream_api.list_stream(TABLE)
        self.stream_id = summary.stream_id
        (root,) = local.shards(TABLE)
        self.root: str = root.shard_id
        self.leases = LeaseManager(self.client, STATUS, self.stream_id)

    # --- the data table ------------------------------------------------------------------------------------------

    def write(self, *keys: str) -> None:
        """Put one row per key; each is one change."""
        for key in keys:
            self.client.put_row(TABLE, Row([("id", key)], [("v", 1)]))

    def split(self, shard_id: str, at: str) -> tuple[str, str]:
        """Close a shard and open two children."""
        return self.local.split(TABLE, shard_id, at=at)

    # --- the status table ----------------------------------------------------------------------------------------

    def store(self, *leases: Lease) -> None:
        """Create lease rows as they are given."""
        self.leases.create_lease_table_if_not_exists()
        for lease in leases:
            assert self.leases.create_lease(lease)

    def lease(self, shard_id: str) -> Lease:
        """The stored row."""
        found = self.row(shard_id)
        assert found is not None, f"no row for {shard_id}"
        return found

    def row(self, shard_id: str) -> Lease | None:
        """The stored row, if there is one yet."""
        try:
            return self.leases.get_lease(shard_id)
        except DependencyException as error:
            if error.code == "OTSObjectNotExist":
                return None
            raise

    def share(self, *shard_ids: str) -> None:
        """Give w1 the finished root and the first child, w2 the second one; nothing in that is worth moving."""
        first, second = shard_ids
        root = frozenset({self.root})
        self.store(
            Lease(self.root, self.stream_id, owner="w1", checkpoint=CheckpointPosition.SHARD_END),
            Lease(first, self.stream_id, owner="w1", parent_shard_ids=root),
            Lease(second, self.stream_id, owner="w2", parent_shard_ids=root),
        )

    def mark(self, shard_id: str, stealer: str) -> None:
        """Ask the owner for a lease, as another worker would."""
        assert self.leases.steal_lease(self.lease(shard_id), stealer)

    def requests(self, operation: str, table: str = STATUS) -> int:
        """How many requests of an operation there were."""
        counts = self.local.requests()
        return sum(each.requests for each in counts if (each.operation, each.table) == (operation, table))

    # --- workers -------------------------------------------------------------------------------------------------

    def worker(
        self,
        name: str = "w1",
        *,
        executor: Executor | None = None,
        lease_manager: LeaseManager | None = None,
        max_records: int = 5,
        is_impatient: bool = False,
        **config: Any,
    ) -> Worker:
        """A worker; an impatient one meets each error of the service itself, for nothing below it tries again."""
        patience: dict[str, Any] = {}
        if is_impatient:
            config["lease_manager_retry_strategy"] = Never()
            patience["stream_api"] = TablestoreStreamApi(self.local.client(), retry=ReadRetry(retries=0))
        return Worker(
            name,
            ClientConfig(**{**QUICK, **config}),
            StreamConfig(
                client=self.local.client(), data_table_name=TABLE, status_table_name=STATUS, max_records=max_records
            ),
            lambda: Writer(self.diary, name),
            executor,
            lease_manager,
            **patience,
        )

    @contextmanager
    def working(self, name: str = "w1", **settings: Any) -> Iterator[Worker]:
        """A worker that is well when the test is done with it."""
        with self.worker(name, **settings) as worker:
            yield worker
            assert is_well(worker)

    def severed_leases(self, **config: Any) -> SeveredLeases:
        """A lease manager for one worker whose way to the table can be cut."""
        return SeveredLeases(self.local.client(), STATUS, self.stream_id, ClientConfig(**{**QUICK, **config}))

    def until(self, condition: Callable[[], bool], seconds: float = PATIENCE_SECONDS) -> None:
        """Wait for a condition on the diary, the status table or the server, asking again at every entry."""
        pause_seconds = 0.05
        for _ in range(int(seconds / pause_seconds)):
            if condition():
                return
            with self.diary.changed:
                self.diary.changed.wait(pause_seconds)
        raise AssertionError(f"not reached; the diary: {self.diary.entries[-30:]}; leases: {self._rows()}")

    def scans_pass(self, count: int) -> None:
        """Let the workers look at the whole status table so many times more."""
        enough = self.requests("GetRange") + count
        self.until(lambda: self.requests("GetRange") >= enough)

    def _rows(self) -> list[str]:
        return [str(lease) for lease in self.leases.list_leases()]


def is_well(worker: Worker) -> bool:
    """Whether a worker runs and nothing made it fail."""
    return worker.worker_status is WorkerStatus.RUNNING and worker.exception is None


class Decisions:
    """The decisions of one worker; everything it is told is told by the test."""

    def __init__(self, worker: str, config: ClientConfig) -> None:
        numbers = count()
        self.now = 0.0
        self.holdings = Holdings(
            worker,
            "stream",
            config,
            InitialPosition.oldest(),
            Random(1),
            new_identifier=lambda: f"tenancy-{next(numbers)}",
            wall_start_micros=0,
        )

    def tell(self, event: Event) -> list[Command]:
        return self.holdings.handle(event, self.now)

    def writes(self, event: Event) -> list[LeaseWrite]:
        return [command.write for command in self.tell(event) if isinstance(command, WriteLease)]


class Gate:
    """Holds user code until the test lets it go on; opens by itself when the test ends."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self._open = threading.Event()

    def hold(self) -> None:
        """In user code: announce, and wait."""
        self.entered.set()
        assert self._open.wait(PATIENCE_SECONDS * 2), "the test never opened the gate"

    @property
    def is_open(self) -> bool:
        return self._open.is_set()

    def open(self) -> None:
        self._open.set()


@contextmanager
def gate() -> Iterator[Gate]:
    made = Gate()
    try:
        yield made
    finally:
        made.open()
