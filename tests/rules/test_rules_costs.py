"""Rules about cost: what a worker asks of the status table and of the stream, counted by the server."""

from __future__ import annotations

import time

import pytest
from rules_scene import SHORT_LEASE_MILLIS, TABLE, Scene, gate, is_well

from streamclient.core.consumer import reading_pace
from streamclient.core.costs import Cost
from streamclient.core.worker_info import WorkerInfo
from streamclient.worker import statuses
from tests.patience import PATIENCE_SECONDS

pytestmark = pytest.mark.slow

SHARDS = 12
CONFIG = {"lease_duration_millis": SHORT_LEASE_MILLIS, "taker_interval_millis": 300, "renewer_interval_millis": 300}
ROUNDS = 3
OF_THE_STREAM = ("ListStream", "DescribeStream", "GetShardIterator", "GetStreamRecord")


def test_heartbeats_and_scans_are_shared_by_all_leases(scene: Scene) -> None:
    """Requests grow with time, not with leases: a scan, a batch of heartbeats, a look at the own row per interval.

    A scan lists leases, then workers. Leases that were taken at different times fall due in different intervals, so a
    batch need not hold all of them. Children that wait for their parents cost nothing on top.
    """
    shards = [scene.root]
    for number in range(SHARDS - 1):
        shards += scene.split(shards.pop(), f"{number + 1:03}")
    with gate() as held, scene.worker(**CONFIG) as worker:
        scene.diary.on_process = lambda writer, given: held.hold()
        scene.until(lambda: all(scene.diary.starts(shard) for shard in shards))
        scene.write("000")
        assert held.entered.wait(PATIENCE_SECONDS)
        children = scene.split(shards[0], "0005")
        scene.until(lambda: all(scene.row(child) is not None for child in children))
        scene.until(lambda: scene.lease(children[0]).owner == scene.lease(children[1]).owner == "w1")
        leases = len(scene.leases.list_leases())
        start = time.monotonic()
        scene.local.reset_requests()
        scene.until(lambda: written_rows(scene) >= ROUNDS * leases)
        intervals = (time.monotonic() - start) / 0.3
        requests = {count.operation: count for count in scene.local.requests() if count.table == "orders_status"}
        assert is_well(worker)
        held.open()

    assert set(requests) <= {"BatchWriteRow", "GetRange", "BatchGetRow"}
    assert requests["GetRange"].requests <= 2 * (intervals + 3)
    assert requests["BatchGetRow"].requests <= intervals + 3
    assert requests["BatchWriteRow"].requests <= intervals + 3
    assert requests["BatchWriteRow"].rows_written >= 4 * requests["BatchWriteRow"].requests


def written_rows(scene: Scene) -> int:
    return sum(count.rows_written for count in scene.local.requests() if count.operation == "BatchWriteRow")


def test_an_idle_shard_is_read_ever_more_rarely(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pause grows by a seventh with each read; eight eager ones take 0.12 s, and a busy machine only adds to it.

    The server notes when they came: whoever looks from outside may look late the first time, and not the second time.
    """
    monkeypatch.setattr(reading_pace, "ALIVE_SECONDS", 0.1)
    reads: list[float] = []
    scene.local.observe(lambda seen: reads.append(time.monotonic()) if seen.operation == "GetStreamRecord" else None)
    with scene.worker(max_idle_poll_interval_millis=1_000):
        scene.until(lambda: len(reads) >= 25)

    assert reads[24] - reads[16] > 0.35


def test_empty_batches_are_delivered_only_on_request(scene: Scene) -> None:
    with scene.worker():
        scene.until(lambda: scene.requests("GetStreamRecord", TABLE) >= 6)
    assert scene.diary.batches() == []

    with scene.worker(deliver_empty_batches=True):
        scene.until(lambda: scene.diary.batches()[:2] == [[], []])


def test_a_worker_states_a_cost_that_the_server_counted_too(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of its first time: what the server has counted when it is read is no less, as the worker went on meanwhile."""
    monkeypatch.setattr(statuses, "COST_SECONDS", 0.5)
    scene.write("000")
    scene.local.reset_requests()
    with scene.worker(**CONFIG):
        told: list[Cost] = []

        def is_told() -> bool:
            infos = [WorkerInfo.from_json(row.info) for row in scene.leases.list_workers(with_info=True)]
            told[:] = [info.cost for info in infos if info.cost is not None]
            return bool(told)

        scene.until(lambda: scene.requests("GetStreamRecord", TABLE) >= 6)
        scene.until(is_told)
    (cost,) = told
    counts = scene.local.requests()
    stream = [count for count in counts if count.operation in OF_THE_STREAM]
    status = [count for count in counts if count.table == "orders_status"]

    assert cost.seconds >= 0.5
    assert 0 < cost.stream_requests <= sum(count.requests for count in stream)
    assert 0 < cost.stream_read_units <= sum(count.read_units for count in stream)
    assert 0 < cost.status_table_requests <= sum(count.requests for count in status)
    assert 0 < cost.status_table_read_units <= sum(count.read_units for count in status)
    assert 0 < cost.status_table_write_units <= sum(count.write_units for count in status)
