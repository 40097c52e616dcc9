"""Workers that know of each other, on virtual time: how long moves and recoveries take, and what the table is asked."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest

from streamclient import ClientConfig, StreamConfig, Worker
from streamclient.core.membership import SessionState, WorkerRow
from streamclient.interfaces import ProcessRecordsInput
from streamclient.model import BalanceBy, Lease, ShutdownReason
from streamclient.testing.fakes import FakeStream
from streamclient.testing.simulation.workers import SimulatedWorker
from streamclient.worker.lease import MemoryLeaseManager, WriteAnswer
from tests.patience import PATIENCE_SECONDS
from tests.placed_records import make_record
from tests.simulation.scene import FaultyLeases, RecordingProcessor
from tests.worker.stage import Stage

LEASE_SECONDS = 20.0
WRITE_SECONDS = 0.1
"""Between two records of each shard."""


class CountingLeases(MemoryLeaseManager):
    """Counts what a status table would be asked."""

    def __init__(self, stream_id: str) -> None:
        super().__init__(stream_id)
        self.counts: Counter[str] = Counter()

    def list_leases(self) -> Sequence[Lease]:
        rows = super().list_leases()
        self.counts.update({"requests": 1, "scans": 1, "lease rows read": len(rows)})
        return rows

    def list_workers(self, *, with_info: bool = False) -> Sequence[WorkerRow]:
        rows = super().list_workers(with_info=with_info)
        self.counts.update({"requests": 1, "worker rows read": len(rows)})
        return rows

    def read_workers(self, worker_ids: Sequence[str]) -> Sequence[WorkerRow]:
        self.counts.update({"requests": 1, "worker rows read": len(worker_ids)})
        return super().read_workers(worker_ids)

    def write_many(self, writes: Sequence[Any]) -> Sequence[WriteAnswer]:
        self.counts.update({"requests": 1, "rows written": len(writes)})
        return super().write_many(writes)


class Fleet(Stage):
    """A world that writes to every shard all the time, and knows when which acquisition processed what."""

    def __init__(self, shards: int, **config: Any) -> None:
        super().__init__(*(f"s{number:03}" for number in range(shards)), **config)
        self.leases: CountingLeases = CountingLeases(self.stream.stream_id)
        self.workers: list[SimulatedWorker] = []
        self.batches: dict[str, list[tuple[float, str]]] = defaultdict(list)
        self.written = 0
        self.journal.on_process = self._process

    def _process(self, processor: RecordingProcessor, given: ProcessRecordsInput) -> None:
        self.batches[processor.shard_id].append((self.simulation.now, processor.lease_identifier))
        self.journal.checkpoint_batch(processor, given)

    def join(self, count: int = 1) -> list[SimulatedWorker]:
        joined = [self.worker(f"w{len(self.workers) + number:02}") for number in range(count)]
        self.workers += joined
        return joined

    def flow(self, seconds: float) -> None:
        """Let so much time pass while records come."""
        for _ in range(round(seconds / WRITE_SECONDS)):
            self.written += 1
            for shard_id in sorted(self.stream._shards):
                self.stream.append(shard_id, make_record(f"k{self.written}", self.written))
            self.simulation.advance(WRITE_SECONDS)

    def owners(self) -> Counter[str]:
        return Counter(lease.owner for lease in self.leases.list_leases())

    def gaps(self, since: float) -> dict[str, float]:
        """By shard that changed hands since: seconds from the last batch of one acquisition to the next one."""
        found: dict[str, float] = {}
        for shard_id, batches in self.batches.items():
            for (before, old), (after, new) in pairwise(batches):
                if old != new and after >= since:
                    found[shard_id] = max(found.get(shard_id, 0.0), after - before)
        return found


@pytest.mark.slow
def test_a_planned_move_interrupts_a_shard_for_less_than_a_second() -> None:
    fleet = Fleet(6)
    fleet.join(2)
    fleet.flow(3)
    joined_at = fleet.simulation.now
    fleet.join()
    fleet.flow(3)
    gaps = fleet.gaps(joined_at)

    assert fleet.owners() == {"w00": 2, "w01": 2, "w02": 2}
    assert len(gaps) == 2
    assert max(gaps.values()) < 1.0


@pytest.mark.slow
def test_a_worker_that_stops_interrupts_its_shards_for_less_than_a_second() -> None:
    fleet = Fleet(6)
    first, *_ = fleet.join(3)
    fleet.flow(3)
    stopped_at = fleet.simulation.now
    first.stop()
    fleet.flow(3)
    gaps = fleet.gaps(stopped_at)

    assert first.is_over
    assert fleet.owners() == {"w01": 3, "w02": 3}
    assert len(gaps) == 2
    assert max(gaps.values()) < 1.0
    assert [row.worker_id for row in fleet.leases.list_workers()] == ["w01", "w02"]


@pytest.mark.slow
def test_shards_of_a_worker_that_dies_run_elsewhere_within_a_lease_duration_and_a_second() -> None:
    for delay in (0.1, 5.9):
        fleet = Fleet(3)
        victim, *_ = fleet.join(3)
        fleet.flow(6 + delay)
        lost = {key for key, status in victim.statuses().items() if status.state.value == "PROCESSING"}
        died_at = fleet.simulation.now
        victim.kill()
        fleet.flow(LEASE_SECONDS + 3)
        gaps = fleet.gaps(died_at)

        assert lost == set(gaps)
        assert max(gaps.values()) <= LEASE_SECONDS + 1.0
        assert sorted(fleet.owners().values()) == [1, 2]


@pytest.mark.slow
def test_a_worker_restarted_under_its_name_after_a_crash_goes_on_at_once() -> None:
    fleet = Fleet(4)
    first, _ = fleet.join(2)
    fleet.flow(3)
    first.kill()
    fleet.flow(1)
    died_at = fleet.simulation.now
    again = fleet.worker("w00")
    fleet.flow(3)

    assert fleet.owners() == {"w00": 2, "w01": 2}
    assert len(fleet.gaps(died_at)) == 2
    assert max(fleet.gaps(died_at).values()) < 1.5
    assert len(again.reads) == 2


@pytest.mark.slow
def test_of_two_processes_with_one_name_the_newer_one_works_and_the_older_one_says_why_it_does_not() -> None:
    fleet = Fleet(4)
    older = fleet.worker("w00")
    fleet.flow(2)
    newer = fleet.worker("w00")
    fleet.flow(2)
    assert len(newer.reads) == 4
    assert older.reads == set()
    stopped = [detail for what, detail in fleet.journal.by_shard["s000"] if what == "shutdown"]
    assert stopped == [ShutdownReason.ZOMBIE]
    fleet.simulation.advance(30)

    assert older.coordinator.health.reason.startswith("another process was started under its name")
    assert newer.coordinator.health.is_healthy
    assert len(newer.reads) == 4
    older.stop()
    fleet.simulation.until(lambda: older.is_over, 10)
    assert [row.state for row in fleet.leases.list_workers()] == [SessionState.RUNNING]


@pytest.mark.slow
def test_after_an_outage_longer_than_a_lease_everybody_goes_on_with_what_it_had() -> None:
    """All sessions are over; nobody takes the silence of the others for their death."""
    fleet = Fleet(3)
    ways = [FaultyLeases(fleet.stream.stream_id, behind=fleet.leases) for _ in range(3)]
    workers = [fleet.worker(f"w{number:02}", lease_manager=way) for number, way in enumerate(ways)]
    fleet.flow(2)
    before = {lease.lease_key: lease.owner for lease in fleet.leases.list_leases()}
    for way in ways:
        way.is_cut_off = True
    fleet.simulation.advance(LEASE_SECONDS * 2)
    assert [worker.reads for worker in workers] == [set(), set(), set()]
    for way in ways:
        way.is_cut_off = False
    fleet.flow(15)

    assert {lease.lease_key: lease.owner for lease in fleet.leases.list_leases()} == before
    assert sum(len(worker.reads) for worker in workers) == 3


@pytest.mark.slow
def test_a_busy_fleet_of_uneven_shards_is_evened_out_by_load_once() -> None:
    """Two of eight shards get twenty times the records of the others."""
    fleet = Fleet(8, balance_by=BalanceBy.RECORDS, taker_interval_millis=2_000, worker_idle_time_millis=500)
    fleet.join(2)
    fleet.simulation.advance(2)
    (hot_owner,) = {fleet.leases.get_lease("s000").owner}  # type: ignore[union-attr]
    hot = [lease.lease_key for lease in fleet.leases.list_leases() if lease.owner == hot_owner][:2]
    for second in range(240):
        for shard_id in sorted(fleet.stream._shards):
            count = 40 if shard_id in hot else 2
            fleet.stream.append(shard_id, *(make_record(f"k{second}-{number}", second) for number in range(count)))
        fleet.simulation.advance(1)
        if second == 150:
            settled = {lease.lease_key: lease.owner for lease in fleet.leases.list_leases()}
    after = {lease.lease_key: lease.owner for lease in fleet.leases.list_leases()}

    assert after[hot[0]] != after[hot[1]]
    assert after == settled


MINUTE = 60.0


def cost(workers: int, shards: int) -> dict[str, float]:
    """What a steady fleet without records asks of the table in a minute."""
    fleet = Fleet(shards, worker_idle_time_millis=500)
    fleet.join(workers)
    fleet.simulation.advance(MINUTE)
    fleet.leases.counts.clear()
    minutes = 4
    fleet.simulation.advance(minutes * MINUTE)
    return {name: count / minutes for name, count in fleet.leases.counts.items()}


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 3, 8])
def test_the_budget_of_the_status_table_is_kept_whatever_the_number_of_workers(workers: int) -> None:
    """The budget of docs/operations.md: signals, heartbeats, and one scan for all in each interval."""
    shards = 12
    counted = cost(workers, shards)

    assert counted["scans"] == pytest.approx(10, rel=0.25)
    assert counted["lease rows read"] / shards == pytest.approx(10, rel=0.25)
    assert counted["worker rows read"] <= (150 * min(workers, 3) + 10 * 1.2) * workers
    assert counted["requests"] <= (150 + 10) * workers + 2 * 12
    assert counted["rows written"] <= 10 * (shards + workers) * 1.05


class Signals(MemoryLeaseManager):
    """Lets a test wait for reads of signals."""

    def __init__(self, stream_id: str, wanted: int) -> None:
        super().__init__(stream_id)
        self._left, self.are_read = wanted, threading.Event()

    def read_workers(self, worker_ids: Sequence[str]) -> Sequence[WorkerRow]:
        self._left -= 1
        if self._left == 0:
            self.are_read.set()
        return super().read_workers(worker_ids)


def test_signals_are_read_between_heartbeats_by_a_clock_that_goes_on_meanwhile() -> None:
    """On virtual time no time passes within a turn; on a real clock, whatever is asked twice is later."""
    stream = FakeStream("orders", ["a"])
    leases = Signals(stream.stream_id, 20)
    config = ClientConfig.for_lease(4 * PATIENCE_SECONDS, signal_interval_millis=10)  # the next heartbeat is far away
    given = StreamConfig(client=None, data_table_name="orders", status_table_name="status")
    with Worker("w", config, given, lambda batch: None, lease_manager=leases, stream_api=stream) as worker:
        assert worker.wait(PATIENCE_SECONDS, until=leases.are_read.is_set)
