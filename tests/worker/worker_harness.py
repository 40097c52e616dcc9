"""Workers on virtual time: nothing happens unless a test lets it happen, and only one thing at a time.

``Simulation`` owns the clock. Its pools queue calls instead of running them; each step takes the owners' turns, goes on
with one call, and lets time leap when there is nothing to do. Calls into user code run in threads of their own, so
that they can wait, but exactly one thread runs while the others stand still: runs repeat exactly.
"""

from __future__ import annotations

import random
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any

from streamclient.config import ClientConfig, StreamConfig
from streamclient.core.leases import LeaseWrite, WriteKind, WriteOutcome
from streamclient.errors import DependencyException, ErrorKind
from streamclient.interfaces import IRecordProcessor
from streamclient.lease import MemoryLeaseManager, WriteAnswer
from streamclient.model import (
    InitializationInput,
    InitialPosition,
    Lease,
    ProcessRecordsInput,
    ShutdownInput,
    ShutdownReason,
)
from streamclient.testing.fakes import FakeStream
from streamclient.worker import Runtime, Worker
from streamclient.worker.assembly import Machinery
from streamclient.worker.scheduling import Job

SMALLEST_STEP = 0.001
UNREACHABLE = DependencyException("no route to the status table", kind=ErrorKind.AMBIGUOUS)
MOST_STEPS = 200_000


class QueuedPool(Executor):
    """Keeps calls until the simulation runs them."""

    def __init__(self, simulation: Simulation, name: str) -> None:
        self.simulation = simulation
        self.name = name
        self.is_frozen = False
        self.calls: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self.may_wait = not name.endswith(("-status", "-fetch"))

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.calls.append((future, partial(fn, *args, **kwargs)))
        return future

    def run_one(self) -> None:
        future, call = self.calls.popleft()
        if not future.set_running_or_notify_cancel():
            return
        if self.may_wait:
            Strand(self, partial(_complete, future, call)).go_on()
        else:
            _complete(future, call)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self.calls.clear()


def _complete(future: Future[Any], call: Callable[[], Any]) -> None:
    try:
        future.set_result(call())
    except BaseException as error:
        future.set_exception(error)


class Strand:
    """One call in a thread of its own, which runs only while the simulation stands still."""

    def __init__(self, pool: QueuedPool, call: Callable[[], None]) -> None:
        self.pool = pool
        self.event: threading.Event | None = None
        self.limit = 0.0
        self._call = call
        self._mine = threading.Semaphore(0)
        self._theirs = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def go_on(self) -> None:
        """Run until the call ends or waits."""
        self.event = None
        self.pool.simulation.strands[self._thread.ident or 0] = self
        self._mine.release()
        self._theirs.acquire()

    def wait(self, event: threading.Event, limit: float) -> None:
        """In the strand: stand still until the event is set or the time has come."""
        self.event, self.limit = event, limit
        self._theirs.release()
        self._mine.acquire()

    def can_go_on(self, now: float) -> bool:
        return not self.pool.is_frozen and self.event is not None and (self.event.is_set() or now >= self.limit)

    def _run(self) -> None:
        self._mine.acquire()
        self._call()
        del self.pool.simulation.strands[threading.get_ident()]
        self._theirs.release()


class _Ticker:
    """Runs the scheduler's jobs on virtual time."""

    def __init__(self, simulation: Simulation, jobs: Sequence[Job]) -> None:
        self.due = {job.name: simulation.now for job in jobs}
        self.jobs = {job.name: job for job in jobs}
        self.is_stopped = False

    def run_due(self, now: float) -> bool:
        ran = False
        for name, due in self.due.items():
            if due <= now and not self.is_stopped:
                self.due[name] = due + self.jobs[name].interval_millis / 1_000
                self.jobs[name].function()
                ran = True
        return ran

    def stop(self) -> None:
        self.is_stopped = True


class Simulation:
    """Virtual time and every worker in it."""

    def __init__(self, seed: int = 1) -> None:
        self.now = 1_000.0
        self.pools: list[QueuedPool] = []
        self.tickers: list[_Ticker] = []
        self.workers: list[SimulatedWorker] = []
        self.strands: dict[int, Strand] = {}
        self.dice = random.Random(seed)
        self.identifiers = 0

    def runtime(self) -> Runtime:
        return Runtime(
            monotonic=lambda: self.now,
            wall_micros=lambda: 1_600_000_000_000_000 + int(self.now * 1_000_000),
            wait=self.wait,
            new_identifier=self._identifier,
            dice=random.Random(self.dice.random()),
            make_pool=self._pool,
            start_schedule=self._schedule,
        )

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Let everything else go on until the event is set or the time is over."""
        limit = self.now + seconds
        strand = self.strands.get(threading.get_ident())
        if strand is not None:
            if not event.is_set():
                strand.wait(event, limit)
            return event.is_set()
        for _ in range(MOST_STEPS):
            if event.is_set() or self.now >= limit:
                return event.is_set()
            self._step(limit, event.is_set)
        raise AssertionError("a wait does not end")

    def advance(self, seconds: float) -> None:
        """Let everything happen that happens within a time."""
        self.until(lambda: False, seconds, required=False)

    def until(self, condition: Callable[[], bool], seconds: float = 600.0, *, required: bool = True) -> None:
        """Let everything go on until a condition holds."""
        limit = self.now + seconds
        for _ in range(MOST_STEPS):
            if condition():
                return
            if self.now >= limit:
                assert not required, f"not reached within {seconds} s: {[w.statuses() for w in self.workers]}"
                return
            self._step(limit, condition)
        raise AssertionError("the simulation does not come to rest")

    def _step(self, limit: float, condition: Callable[[], bool]) -> None:
        for ticker in self.tickers:
            ticker.run_due(self.now)
        for worker in self.workers:
            worker.turn()
        ready: list[Callable[[], None]] = [p.run_one for p in self.pools if p.calls and not p.is_frozen]
        ready += [strand.go_on for strand in self.strands.values() if strand.can_go_on(self.now)]
        if ready:
            self.dice.choice(ready)()
        elif not condition() and not any(worker.has_messages for worker in self.workers):
            self.now = min(limit, max(self.now + SMALLEST_STEP, self._next_moment(limit)))

    def _next_moment(self, limit: float) -> float:
        moments = [due for ticker in self.tickers if not ticker.is_stopped for due in ticker.due.values()]
        moments += [worker.next_moment for worker in self.workers if not worker.is_over]
        moments += [strand.limit for strand in self.strands.values() if not strand.pool.is_frozen]
        return min([*moments, limit])

    def _identifier(self) -> str:
        self.identifiers += 1
        return f"tenancy-{self.identifiers}"

    def _pool(self, name: str, most_threads: int) -> QueuedPool:
        pool = QueuedPool(self, name)
        self.pools.append(pool)
        return pool

    def _schedule(self, jobs: Sequence[Job]) -> _Ticker:
        ticker = _Ticker(self, jobs)
        self.tickers.append(ticker)
        return ticker

    def pool(self, name: str) -> QueuedPool:
        return next(pool for pool in self.pools if pool.name == name)


class SimulatedWorker:
    """One worker, run turn by turn by the simulation."""

    def __init__(self, simulation: Simulation, worker: Worker) -> None:
        self.worker = worker
        self.simulation = simulation
        self.is_over = False
        self.error: BaseException | None = None
        self.machinery: Machinery = worker.prepare()
        coordinator = self.machinery.coordinator
        self.ticker = simulation._schedule([each.job() for each in coordinator.recurring])
        simulation.workers.append(self)

    def turn(self) -> None:
        if self.is_over or self.machinery.loop.is_inside:
            return
        try:
            self.machinery.coordinator.step(0.0)
        except Exception as error:
            self.error = error
            self.machinery.coordinator.fail()
        if self.machinery.coordinator.is_finished:
            self.ticker.stop()
            self.machinery.coordinator.close()
            self.is_over = True

    def kill(self) -> None:
        """As by ``kill -9``: nothing of it happens any more."""
        self.is_over = True
        self.ticker.stop()
        for pool in self.simulation.pools:
            if pool.name.startswith(f"{self.worker.worker_identifier}-"):
                pool.is_frozen = True

    def stop(self) -> None:
        self.machinery.coordinator.request_stop()

    @property
    def has_messages(self) -> bool:
        return not self.is_over and self.machinery.loop.has_messages

    @property
    def next_moment(self) -> float:
        return self.machinery.coordinator.next_deadline()

    def statuses(self) -> dict[str, Any]:
        return dict(self.machinery.coordinator._statuses())

    @property
    def reads(self) -> set[str]:
        """Shards whose consumer has a processor or will have one."""
        return {key for key, status in self.statuses().items() if status.state.value in ("PROCESSING", "INITIALIZING")}


class RecordingProcessor(IRecordProcessor):
    """Writes every call down and checkpoints each batch; a test may replace what it does."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.shard_id = ""
        self.tenancy = ""

    def initialize(self, initialization_input: InitializationInput) -> None:
        self.shard_id = initialization_input.shard_info.shard_id
        self.tenancy = initialization_input.shard_info.lease_identifier
        self.journal.note(self, "initialize", initialization_input.initial_checkpoint)
        self.journal.on_initialize(self, initialization_input)

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        keys = [record.key["id"] for record in process_records_input.records]
        self.journal.note(self, "process", keys)
        self.journal.on_process(self, process_records_input)

    def shutdown(self, shutdown_input: ShutdownInput) -> None:
        self.journal.note(self, "shutdown", shutdown_input.shutdown_reason)
        self.journal.on_shutdown(self, shutdown_input)


class Journal:
    """What all processors of a test were told, in order."""

    def __init__(self) -> None:
        self.entries: list[tuple[str, str, Any]] = []
        self.by_shard: dict[str, list[tuple[str, Any]]] = defaultdict(list)
        self.accepted: dict[str, list[Any]] = defaultdict(list)
        self.on_initialize: Callable[[RecordingProcessor, InitializationInput], None] = lambda p, i: None
        self.on_process: Callable[[RecordingProcessor, ProcessRecordsInput], None] = self.checkpoint_batch
        self.on_shutdown: Callable[[RecordingProcessor, ShutdownInput], None] = self.checkpoint_end

    def note(self, processor: RecordingProcessor, what: str, detail: Any) -> None:
        self.entries.append((processor.shard_id, what, detail))
        self.by_shard[processor.shard_id].append((what, detail))

    def checkpoint_batch(self, processor: RecordingProcessor, given: ProcessRecordsInput) -> None:
        given.checkpointer.checkpoint()
        self.accepted[processor.shard_id] += [record.key["id"] for record in given.records]

    @staticmethod
    def checkpoint_end(processor: RecordingProcessor, given: ShutdownInput) -> None:
        if given.shutdown_reason is not ShutdownReason.ZOMBIE:
            given.checkpointer.checkpoint()

    def make(self) -> IRecordProcessor:
        return RecordingProcessor(self)

    def delivered(self, shard_id: str) -> list[Any]:
        return [key for what, detail in self.by_shard[shard_id] if what == "process" for key in detail]

    def shutdowns(self, shard_id: str) -> list[ShutdownReason]:
        return [detail for what, detail in self.by_shard[shard_id] if what == "shutdown"]


class FaultyLeases(MemoryLeaseManager):
    """Leases in memory behind a bad network."""

    def __init__(self, stream_id: str, behind: MemoryLeaseManager | None = None) -> None:
        super().__init__(stream_id)
        self.behind = behind or self
        self.is_cut_off = False
        self.lose_answers_of: set[WriteKind] = set()

    def list_leases(self) -> Sequence[Lease]:
        self._refuse()
        return super().list_leases() if self.behind is self else self.behind.list_leases()

    def get_lease(self, lease_key: str) -> Lease | None:
        self._refuse()
        return super().get_lease(lease_key) if self.behind is self else self.behind.get_lease(lease_key)

    def write_many(self, writes: Sequence[LeaseWrite]) -> Sequence[WriteAnswer]:
        if self.is_cut_off:
            return [WriteAnswer(WriteOutcome.UNCERTAIN, UNREACHABLE)] * len(writes)
        answers = super().write_many(writes) if self.behind is self else self.behind.write_many(writes)
        lost = [write.kind in self.lose_answers_of for write in writes]
        self.lose_answers_of -= {write.kind for write in writes}
        return [
            WriteAnswer(WriteOutcome.UNCERTAIN, UNREACHABLE) if gone else answer
            for gone, answer in zip(lost, answers, strict=True)
        ]

    def _refuse(self) -> None:
        if self.is_cut_off:
            raise UNREACHABLE


class World:
    """A fake stream, leases in memory, a journal and a simulation, ready for workers."""

    def __init__(self, *shard_ids: str, seed: int = 1, **config: Any) -> None:
        self.simulation = Simulation(seed)
        self.stream = FakeStream("orders", shard_ids or ("a",))
        self.leases = MemoryLeaseManager(self.stream.stream_id)
        self.journal = Journal()
        self.config = config

    def worker(
        self, name: str = "w1", *, lease_manager: Any = None, max_records: int = 1_000, **config: Any
    ) -> SimulatedWorker:
        position = config.pop("initial_position", InitialPosition.oldest())
        worker = Worker(
            name,
            ClientConfig(**{**self.config, **config}),
            StreamConfig(
                client=object(),
                data_table_name="orders",
                status_table_name="s",
                max_records=max_records,
                initial_position=position,
            ),
            self.journal.make,
            lease_manager=lease_manager or self.leases,
            stream_api=self.stream,
            runtime=self.simulation.runtime(),
        )
        return SimulatedWorker(self.simulation, worker)

    def checkpoint(self, shard_id: str) -> str:
        lease = self.leases.get_lease(shard_id)
        assert lease is not None
        return lease.checkpoint

    def owner(self, shard_id: str) -> str:
        lease = self.leases.get_lease(shard_id)
        return "" if lease is None else lease.owner
