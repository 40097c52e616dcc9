"""Workers over real HTTP: a table, its stream and its status table in the local Tablestore."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tablestore import OTSClient

from streamclient import (
    ClientConfig,
    InitialPosition,
    LeaseManager,
    StreamConfig,
    Worker,
    WorkerStatus,
)
from streamclient.testing.deliveries import DeliveryRecorder, Verdict, judge, read_deliveries, read_history
from tests.patience import until
from tests.worker.stage import make_table, put

if TYPE_CHECKING:
    from streamclient.server import LocalTablestore

TABLE, STATUS = "orders", "orders_status"
QUICK: dict[str, Any] = {
    "lease_duration_millis": 10_000,
    "taker_interval_millis": 200,
    "renewer_interval_millis": 500,
    "sync_shard_interval_millis": 300,
    "max_idle_poll_interval_millis": 100,
}


class Scene:
    """A table that is written to, and workers whose deliveries are recorded."""

    def __init__(self, local: LocalTablestore, folder: Path) -> None:
        self.local = local
        self.folder = folder
        self.client = local.client()
        self.stream_api = make_table(self.client, TABLE)
        self.dice = random.Random(7)
        self.files = ExitStack()
        (summary,) = self.stream_api.list_stream(TABLE)
        self.stream_id = summary.stream_id
        self.version = 0

    def write(self, count: int) -> None:
        for _ in range(count):
            self.version += 1
            put(self.client, f"key-{self.dice.randrange(40):02}", TABLE, version=self.version)

    def worker(self, name: str, client: OTSClient | None = None, **config: Any) -> Worker:
        position = config.pop("initial_position", InitialPosition.oldest())

        def make() -> DeliveryRecorder:
            path = self.folder / f"{name}-{uuid.uuid4()}.jsonl"
            return DeliveryRecorder(name, self.files.enter_context(path.open("a", encoding="utf-8")))

        return Worker(
            name,
            ClientConfig(**{**QUICK, **config}),
            StreamConfig(
                client=client or self.local.client(),
                data_table_name=TABLE,
                status_table_name=STATUS,
                max_records=20,
                initial_position=position,
            ),
            make,
        )

    def open_shards(self) -> list[str]:
        described = self.stream_api.describe_stream(self.stream_id).shards
        parents = {parent for shard in described for parent in shard.parent_shard_ids}
        return [shard.shard_id for shard in described if shard.shard_id not in parents]

    def owners(self) -> dict[str, str]:
        leases = LeaseManager(self.client, STATUS, self.stream_id).list_leases()
        return {lease.lease_key: lease.owner for lease in leases if not lease.is_finished}

    def verdict(self) -> Verdict:
        return judge(
            read_history(self.stream_api, self.stream_id), read_deliveries(sorted(self.folder.glob("*.jsonl")))
        )

    def until(self, condition: Callable[[], bool]) -> None:
        until(condition, lambda: (self.owners(), self.verdict()))

    def until_all_is_delivered(self) -> None:
        self.until(lambda: not self.verdict().lost)


@pytest.fixture
def scene(local: LocalTablestore, tmp_path: Path) -> Iterator[Scene]:
    made = Scene(local, tmp_path)
    with made.files:
        yield made


@pytest.mark.slow
def test_two_workers_share_a_table_through_split_merge_and_shutdown(scene: Scene) -> None:
    """The way of every change: taken, stolen, split, merged, handed over; nothing lost, nothing out of order."""
    scene.write(60)
    with scene.worker("w1") as first:
        scene.until_all_is_delivered()
        (root,) = scene.open_shards()
        children = scene.local.split(TABLE, root)
        scene.write(60)
        with scene.worker("w2") as second:
            scene.until(lambda: sorted(scene.owners().values()) == ["w1", "w2"])
            scene.write(60)
            scene.until_all_is_delivered()
            scene.local.merge(TABLE, *children)
            scene.write(40)
            scene.until(lambda: set(scene.owners()) == set(scene.open_shards()))
            scene.until_all_is_delivered()
            (last,) = scene.open_shards()
            holder, other = (first, second) if scene.owners()[last] == "w1" else (second, first)
            assert holder.shutdown()
            assert holder.worker_status is WorkerStatus.SHUTDOWN
            assert scene.owners()[last] == other.worker_identifier
            scene.write(30)
            scene.until_all_is_delivered()
            assert (first.exception, second.exception) == (None, None)

    verdict = scene.verdict()
    assert verdict.is_clean, verdict
    assert verdict.changes == verdict.delivered == 250


@pytest.mark.slow
def test_a_worker_that_starts_at_latest_reads_only_what_comes_later(scene: Scene) -> None:
    scene.write(20)
    with scene.worker("w1", initial_position=InitialPosition.latest()) as worker:
        scene.until(lambda: any(status.reason == "" for status in worker.shard_statuses().values()))
        scene.write(10)
        scene.until(lambda: scene.verdict().delivered >= 10)

    assert 10 <= scene.verdict().delivered < 30
