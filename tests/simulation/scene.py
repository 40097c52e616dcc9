"""A scene for tests of the real ``Worker``: a fake stream, leases in memory, a journal of processor calls."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from streamclient.config import ClientConfig, StreamConfig
from streamclient.core.leases import LeaseWrite
from streamclient.core.membership import WorkerRow, WorkerWrite
from streamclient.core.write_rules import WorkerWriteKind, WriteKind, WriteOutcome
from streamclient.errors import DependencyException, ErrorKind
from streamclient.interfaces import InitializationInput, IRecordProcessor, ProcessRecordsInput, ShutdownInput
from streamclient.model import InitialPosition, Lease, ShutdownReason
from streamclient.testing.fakes import FakeStream
from streamclient.testing.simulation.workers import SimulatedWorker, Simulation
from streamclient.worker import Worker
from streamclient.worker.lease import MemoryLeaseManager, WriteAnswer

UNREACHABLE = DependencyException("no route to the status table", kind=ErrorKind.AMBIGUOUS)


class RecordingProcessor(IRecordProcessor):
    """Writes every call down and checkpoints each batch; a test may replace this behaviour."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.shard_id = ""
        self.lease_identifier = ""

    def initialize(self, initialization_input: InitializationInput) -> None:
        self.shard_id = initialization_input.shard_info.shard_id
        self.lease_identifier = initialization_input.shard_info.lease_identifier
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
    """All calls to the processors of a test, in order."""

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
    """Leases in memory, accessed through a bad network."""

    def __init__(self, stream_id: str, behind: MemoryLeaseManager | None = None) -> None:
        super().__init__(stream_id)
        self.behind = behind or self
        self.is_cut_off = False
        self.lose_answers_of: set[WriteKind | WorkerWriteKind] = set()

    def list_leases(self) -> Sequence[Lease]:
        self._refuse()
        return super().list_leases() if self.behind is self else self.behind.list_leases()

    def get_lease(self, lease_key: str) -> Lease | None:
        self._refuse()
        return super().get_lease(lease_key) if self.behind is self else self.behind.get_lease(lease_key)

    def write_many(self, writes: Sequence[LeaseWrite | WorkerWrite]) -> Sequence[WriteAnswer]:
        if self.is_cut_off:
            return [WriteAnswer(WriteOutcome.UNCERTAIN, UNREACHABLE)] * len(writes)
        answers = super().write_many(writes) if self.behind is self else self.behind.write_many(writes)
        lost = [write.kind in self.lose_answers_of for write in writes]
        self.lose_answers_of -= {write.kind for write in writes}
        return [
            WriteAnswer(WriteOutcome.UNCERTAIN, UNREACHABLE) if gone else answer
            for gone, answer in zip(lost, answers, strict=True)
        ]

    def list_workers(self, *, with_info: bool = False) -> Sequence[WorkerRow]:
        self._refuse()
        if self.behind is self:
            return super().list_workers(with_info=with_info)
        return self.behind.list_workers(with_info=with_info)

    def read_workers(self, worker_ids: Sequence[str]) -> Sequence[WorkerRow]:
        self._refuse()
        return super().read_workers(worker_ids) if self.behind is self else self.behind.read_workers(worker_ids)

    def wake(self, worker_ids: Sequence[str]) -> None:
        self._refuse()
        if self.behind is self:
            super().wake(worker_ids)
        else:
            self.behind.wake(worker_ids)

    def _refuse(self) -> None:
        if self.is_cut_off:
            raise UNREACHABLE


UNHURRIED = {"worker_idle_time_millis": 200}
"""Reads of a fake stream have no price but steps of the simulation; with the default, there are many more."""


class World:
    """A fake stream, leases in memory, a journal and a simulation, ready for workers."""

    def __init__(self, *shard_ids: str, seed: int = 1, **config: Any) -> None:
        self.simulation = Simulation(seed)
        self.stream = FakeStream("orders", shard_ids or ("a",))
        self.leases = MemoryLeaseManager(self.stream.stream_id)
        self.journal = Journal()
        self.config = config

    def worker(
        self,
        name: str = "w1",
        *,
        factory: Any = None,
        lease_manager: Any = None,
        max_records: int = 1_000,
        **config: Any,
    ) -> SimulatedWorker:
        position = config.pop("initial_position", InitialPosition.oldest())
        worker = Worker(
            name,
            ClientConfig(**{**UNHURRIED, **self.config, **config}),
            StreamConfig(
                client=None,
                data_table_name="orders",
                status_table_name="s",
                max_records=max_records,
                initial_position=position,
            ),
            factory or self.journal.make,
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
