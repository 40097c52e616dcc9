"""Key by key in a real worker: several shards, splits, restarts, and the failure policy."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from streamclient import (
    Backoff,
    ClientConfig,
    KeyedProcessorFactory,
    MemoryLeaseManager,
    StreamConfig,
    StreamRecord,
    Worker,
)
from streamclient.config import FailurePolicy
from streamclient.model import OnFailure, ShardState
from streamclient.testing.fakes import FakeStream
from streamclient.worker.parking import FileParkingStore
from tests.patience import PATIENCE_SECONDS, until
from tests.placed_records import make_record

QUICK: dict[str, Any] = {
    "taker_interval_millis": 50,
    "renewer_interval_millis": 500,
    "sync_shard_interval_millis": 50,
    "max_idle_poll_interval_millis": 50,
    "backoff": Backoff(restart_backoff_min_millis=10),
}


class Work:
    """Does records, refuses some, and notices if two of one key are done at once."""

    def __init__(self, refuses: Callable[[str, int], bool] = lambda key, attempt: False) -> None:
        self.refuses = refuses
        self.done: defaultdict[str, list[int]] = defaultdict(list)
        self.attempts: Counter[tuple[str, int]] = Counter()
        self.under_way: Counter[str] = Counter()
        self.most_at_once = 0
        self.overlaps = 0
        self.lock = threading.Lock()

    def __call__(self, record: StreamRecord) -> None:
        key, number = str(record.key["id"]), record.sequence_info.timestamp_micros
        with self.lock:
            self.attempts[key, number] += 1
            self.overlaps += self.under_way[key]
            self.under_way[key] += 1
            self.most_at_once = max(self.most_at_once, self.under_way.total())
            refused = self.refuses(f"{key}{number}", self.attempts[key, number])
        threading.Event().wait(0.001)
        with self.lock:
            self.under_way[key] -= 1
            if refused:
                raise ValueError(f"cannot digest {key}{number}")
            self.done[key].append(number)


class Scene:
    def __init__(self, work: Work, *shard_ids: str, **settings: Any) -> None:
        self.work = work
        self.stream = FakeStream("orders", shard_ids)
        self.leases = MemoryLeaseManager(self.stream.stream_id)
        self.factory = KeyedProcessorFactory(work, **settings)

    def worker(self, **config: Any) -> Worker:
        return Worker(
            "w1",
            ClientConfig(**{**QUICK, **config}),
            StreamConfig(client=None, data_table_name="orders", status_table_name="s", max_records=20),
            self.factory,
            lease_manager=self.leases,
            stream_api=self.stream,
        )

    def checkpoints(self) -> dict[str, str]:
        return {lease.lease_key: lease.checkpoint for lease in self.leases.list_leases()}

    def until(self, condition: Callable[[], bool]) -> None:
        until(condition, lambda: (self.checkpoints(), self.work.done))


def records(first: int, last: int, keys: str) -> list[StreamRecord]:
    return [make_record(keys[number % len(keys)], number) for number in range(first, last)]


def test_shards_that_split_are_done_in_order_per_key_and_checkpointed_to_their_ends() -> None:
    work = Work()
    scene = Scene(work, "p", checkpoint_interval_millis=0)
    scene.stream.append("p", *records(0, 100, "abcdefgh"))
    scene.stream.split("p", "left", "right")
    scene.stream.append("left", *records(104, 160, "abcd"))
    scene.stream.append("right", *records(104, 160, "efgh"))
    scene.stream.close("left")
    with scene.worker():
        scene.until(
            lambda: scene.checkpoints().items() >= {("p", "SHARD_END"), ("left", "SHARD_END"), ("right", "right@56")}
        )

    assert work.overlaps == 0
    assert work.most_at_once > 1
    expected = {
        key: [number for number in range(100) if "abcdefgh"[number % 8] == key]
        + [number for number in range(104, 160) if "abcd"[number % 4] == key or "efgh"[number % 4] == key]
        for key in "abcdefgh"
    }
    assert work.done == expected


def test_process_record_may_shut_its_worker_down(caplog: pytest.LogCaptureFixture) -> None:
    workers: list[Worker] = []
    answers: list[bool] = []
    scene = Scene(Work(), "s0")
    scene.factory = KeyedProcessorFactory(lambda record: answers.append(workers[0].shutdown()))
    workers.append(scene.worker(shutdown_timeout_millis=round(1_000 * PATIENCE_SECONDS)))
    scene.stream.append("s0", *records(1, 2, "a"))
    workers[0].run()

    assert answers == [False]
    assert [lease.owner for lease in scene.leases.list_leases()] == [""]
    assert [text for text in caplog.messages if "gave up waiting" in text] == []


def test_process_record_waits_for_the_end_of_another_worker() -> None:
    scene, other = Scene(Work(), "s0"), Scene(Work(), "s1")
    answers: list[bool] = []
    with other.worker() as ended:
        until(lambda: ended.has_begun)
        scene.factory = KeyedProcessorFactory(lambda record: answers.append(ended.shutdown()))
        scene.stream.append("s0", *records(1, 2, "a"))
        with scene.worker():
            scene.until(lambda: bool(answers))

    assert answers == [True]


def test_passing_failures_lead_through_a_restart_and_nothing_is_lost_or_out_of_order() -> None:
    work = Work(lambda name, attempt: name in ("a24", "b65") and attempt < 4)
    scene = Scene(work, "s", retries=0)
    scene.stream.append("s", *records(0, 120, "abc"))
    with scene.worker():
        scene.until(lambda: scene.checkpoints().get("s") == "s@120")

    for key in "abc":
        assert list(dict.fromkeys(work.done[key])) == [number for number in range(120) if "abc"[number % 3] == key]
    assert work.attempts["a", 24] >= 4


def test_the_failure_policy_parks_the_failed_record_and_no_innocent_one(tmp_path: Path) -> None:
    """The failure comes to light while later batches are delivered; parked is what failed, and what follows it."""
    work = Work(lambda name, attempt: name == "b10")
    store = FileParkingStore(tmp_path)
    policy = FailurePolicy(retries=0, then=OnFailure.PARK, parking=store, park_rest_of_key=False, most_parked_share=1.0)
    scene = Scene(work, "s", retries=0)
    scene.stream.append("s", *records(0, 120, "abc"))
    with scene.worker(failure_policy=policy):
        scene.until(lambda: scene.checkpoints().get("s") == "s@120")

    (parked,) = store.parked()
    assert (parked.record.key, parked.record.sequence_info.timestamp_micros) == ({"id": "b"}, 10)
    assert "cannot digest b10" in parked.error
    done = {number for numbers in work.done.values() for number in numbers}
    assert done == set(range(120)) - {10}


def test_a_paused_shard_finishes_what_runs_and_goes_on_at_its_watermark() -> None:
    work = Work()
    scene = Scene(work, "s")
    scene.stream.append("s", *records(0, 400, "abcdefgh"))
    with scene.worker() as worker:
        scene.until(lambda: sum(map(len, work.done.values())) > 40)
        worker.pause(reason="a test")
        scene.until(lambda: worker.shard_statuses()["s"].state is ShardState.PAUSED)
        assert work.under_way.total() == 0
        assert scene.factory.pending_bytes == 0
        worker.resume()
        scene.until(lambda: scene.checkpoints().get("s") == "s@400")

    assert work.overlaps == 0
    assert {key: list(dict.fromkeys(numbers)) for key, numbers in work.done.items()} == {
        key: [number for number in range(400) if "abcdefgh"[number % 8] == key] for key in "abcdefgh"
    }
