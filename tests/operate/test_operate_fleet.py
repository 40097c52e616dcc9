"""Operators' commands on a running fleet: what is delivered afterwards, in which order, and by whom."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from operate_scene import Scene
from stuck_workers import Steady, working

from streamclient import InitializationInput, ProcessRecordsInput
from streamclient.base.times import MICROS_PER_HOUR, now_micros
from streamclient.worker.runtime import Runtime
from tests.patience import until

pytestmark = pytest.mark.slow

ENOUGH = 40


class Deliveries:
    """What processors were given, in the order in which they were: (worker, shard, number of the change)."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.made: list[tuple[str, str, int]] = []

    def of(self, shard_id: str, *, since: int = 0) -> list[int]:
        with self.lock:
            return [number for _, shard, number in self.made[since:] if shard == shard_id]

    def processor(self, worker: str) -> Recorded:
        return Recorded(self, worker)

    def __len__(self) -> int:
        with self.lock:
            return len(self.made)


class Recorded(Steady):
    def __init__(self, deliveries: Deliveries, worker: str) -> None:
        self._deliveries = deliveries
        self._worker = worker
        self._shard = ""

    def initialize(self, initialization_input: InitializationInput) -> None:
        self._shard = initialization_input.shard_info.shard_id

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        for record in process_records_input.records:
            number: Any = record.columns[0].value
            with self._deliveries.lock:
                self._deliveries.made.append((self._worker, self._shard, number))
        super().process_records(process_records_input)


def worker(scene: Scene, deliveries: Deliveries, name: str, **config: Any) -> Any:
    """A worker whose leases outlast a pause of the machine: these tests count how often a record comes."""
    lasting = {"lease_duration_millis": 20_000, **config}
    return working(scene, lambda: deliveries.processor(name), name=name, max_records=7, **lasting)


@pytest.fixture
def deliveries() -> Deliveries:
    return Deliveries()


def test_a_rewound_parent_is_read_again_before_its_descendants(quick: Scene, deliveries: Deliveries) -> None:
    """Two workers, a split below a split: everything comes again, ancestors first, each shard in order."""
    quick.write(ENOUGH)
    top = quick.shard
    middle, _ = quick.split()
    quick.write(ENOUGH, start=ENOUGH)
    quick.split(middle)
    quick.write(ENOUGH, start=2 * ENOUGH)
    with worker(quick, deliveries, "w1"), worker(quick, deliveries, "w2"):
        until(lambda: len(deliveries) >= 3 * ENOUGH, "everything was read once")
        until(lambda: all(lease.progress for lease in quick.manager.list_leases()), "and checkpointed")
        first = len(deliveries)
        ran = quick.run(
            "leases", "rewind", top, "--to", "oldest", "--with-descendants", "--pause", "30s", "--reason", "rebuild"
        )
        assert ran.code == 0, ran
        until(lambda: len(deliveries) >= first + 3 * ENOUGH, "everything was read again")
    again = deliveries.made[first:]
    parents = {lease.lease_key: lease.parent_shard_ids for lease in quick.manager.list_leases()}
    finished_at = {shard: place for place, (_, shard, _) in enumerate(again)}
    started_at = {shard: place for place, (_, shard, _) in reversed(list(enumerate(again)))}

    assert sorted(number for _, _, number in again) == list(range(3 * ENOUGH))
    assert len(started_at) == 5
    for child, above in parents.items():
        assert all(finished_at[parent] < started_at[child] for parent in above)
    for shard in started_at:
        numbers = deliveries.of(shard, since=first)
        assert numbers == sorted(numbers)


def test_a_rewind_under_a_reading_worker_repeats_and_loses_nothing(quick: Scene, deliveries: Deliveries) -> None:
    quick.write(ENOUGH)
    shard = quick.shard
    position = quick.iterator(after=10)
    with worker(quick, deliveries, "w1"):
        until(lambda: len(deliveries) >= ENOUGH, "everything was read once")
        writer = threading.Thread(target=quick.write, args=(ENOUGH,), kwargs={"start": ENOUGH})
        writer.start()
        ran = quick.run("leases", "rewind", shard, "--to", f"iterator:{position}", "--pause", "30s")
        writer.join()
        assert ran.code == 0, ran
        until(lambda: quick.explain().endswith("has read everything there is."), "it is caught up again")
    numbers = deliveries.of(shard)
    (turn,) = [place for place in range(1, len(numbers)) if numbers[place] < numbers[place - 1]]

    assert numbers[:turn] == list(range(turn))
    assert numbers[turn:] == list(range(10, 2 * ENOUGH))


def test_a_skip_leaves_out_exactly_what_it_said(quick: Scene, deliveries: Deliveries) -> None:
    quick.write(10)
    shard = quick.shard
    with worker(quick, deliveries, "w1"):
        until(lambda: len(deliveries) >= 10, "the first were read")
        assert quick.run("leases", "pause", shard, "--reason", "bad data").code == 0
        quick.write(10, start=10)
        assert "10 records" in quick.run("leases", "skip", shard, "--to", "latest", "--yes").out
        quick.write(10, start=20)
        assert quick.run("leases", "resume", shard).code == 0
        until(lambda: len(deliveries) >= 20, "the last were read")

    assert deliveries.of(shard) == [*range(10), *range(20, 30)]


def test_a_pause_outlives_its_owner(quick: Scene, deliveries: Deliveries) -> None:
    """The next owner obeys it, too, and goes on where the last one stopped."""
    quick.write(10)
    shard = quick.shard
    with worker(quick, deliveries, "w1"):
        until(lambda: len(deliveries) >= 10, "the first were read")
        assert quick.run("leases", "pause", shard, "--reason", "maintenance").code == 0
    quick.write(10, start=10)
    with worker(quick, deliveries, "w2"):
        until(lambda: quick.lease().owner == "w2" and quick.lease().is_paused_by_owner, "the new owner obeys")
        assert "is paused by" in quick.explain()
        assert len(deliveries) == 10
        assert quick.run("leases", "resume", shard).code == 0
        until(lambda: len(deliveries) >= 20, "it goes on")

    assert deliveries.of(shard) == list(range(20))


def test_a_pause_that_ends_by_itself(quick: Scene, deliveries: Deliveries) -> None:
    quick.write(10)
    passed_micros: list[int] = []
    clock = Runtime(wall_micros=lambda: now_micros() + sum(passed_micros))
    with worker(quick, deliveries, "w1", runtime=clock):
        until(lambda: len(deliveries) >= 10, "the first were read")
        assert quick.run("leases", "pause", quick.shard, "--reason", "an hour", "--for", "1h").code == 0
        quick.write(10, start=10)
        assert len(deliveries) == 10
        passed_micros.append(MICROS_PER_HOUR)
        until(lambda: len(deliveries) >= 20, "it goes on")


def test_a_moved_shard_goes_on_at_the_other_worker(quick: Scene, deliveries: Deliveries) -> None:
    quick.write(10)
    shard = quick.shard
    steady = {"auto_steal_lease": False}
    with worker(quick, deliveries, "w1", **steady), worker(quick, deliveries, "w2", **steady):
        until(lambda: len(deliveries) >= 10 and len(quick.manager.list_workers()) == 2, "the first were read")
        other = "w2" if quick.lease().owner == "w1" else "w1"
        assert quick.run("leases", "move", shard, "--to", other).code == 0
        until(lambda: (quick.lease().owner, quick.lease().stealer) == (other, ""), "it moved")
        quick.write(10, start=10)
        until(lambda: len(deliveries) >= 20, "the last were read")

    assert deliveries.of(shard) == list(range(20))
    assert {name for name, _, number in deliveries.made if number >= 10} == {other}
