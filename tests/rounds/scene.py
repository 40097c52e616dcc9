"""One round: three worker processes under load, killed and restarted, while shards split and merge.

The seed decides what is written and what happens when, in steps of the writer; the machine decides only how fast.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

from attrs import define, field, frozen
from tablestore import (
    BatchWriteRowRequest,
    CapacityUnit,
    Condition,
    OTSClient,
    PutRowItem,
    ReservedThroughput,
    Row,
    RowExistenceExpectation,
    TableInBatchWriteRowItem,
    TableMeta,
    TableOptions,
)

from streamclient.lease import LeaseManager
from streamclient.server import LocalTablestore
from streamclient.stream import StreamSpecification, TablestoreStreamApi
from streamclient.testing.deliveries import Verdict, judge, read_deliveries, read_history, unread
from streamclient.testing.fleet import Fleet

TABLE = "changes"
STATUS_TABLE = "changes_status"
WORKERS = ("one", "two", "three")
STEPS = 120
"""Batches per round; things happen between them."""
BATCH_ROWS = 20
KEYS = 300
STEP_SECONDS = 0.08
CATCH_UP_SECONDS = 90.0
"""Bound for reading everything after the last write: many lease durations, on a busy machine."""


@frozen
class Round:
    """What one round showed."""

    seed: int
    verdict: Verdict
    kills: int
    splits: int
    merges: int
    seconds: float

    def __str__(self) -> str:
        verdict = self.verdict
        return (
            f"round seed={self.seed} changes={verdict.changes} delivered={verdict.delivered} kills={self.kills} "
            f"splits={self.splits} merges={self.merges} lost={len(verdict.lost)} "
            f"out_of_order={len(verdict.out_of_order)} early_children={len(verdict.children_before_parents)} "
            f"seconds={self.seconds:.1f}"
        )


@define
class Scene:
    """The moving parts of one round."""

    local: LocalTablestore
    client: OTSClient
    fleet: Fleet
    dice: random.Random
    generation: dict[str, int] = field(factory=dict)
    kills: int = 0
    splits: int = 0
    merges: int = 0

    def start_worker(self, name: str) -> None:
        generation = self.generation[name] = self.generation.get(name, 0) + 1
        arguments = {
            "endpoint": self.local.endpoint,
            "access-key-id": self.local.access_key_id,
            "access-key-secret": self.local.access_key_secret,
            "instance": self.local.instance,
            "table": TABLE,
            "status-table": STATUS_TABLE,
            "name": name,
            "lines": str(self.fleet.directory / f"{name}-{generation}.lines"),
        }
        command = ["-m", "tests.rounds.worker"]
        for option, value in arguments.items():
            command += [f"--{option}", value]
        self.fleet.start(name, command)

    def kill_and_restart(self) -> None:
        """Under the same name or a new one: both happen in real fleets, and leases move differently."""
        victim = self.dice.choice(self.fleet.running())
        victim.kill()
        self.kills += 1
        base = victim.name.split("-")[0]
        is_same = self.dice.random() < 0.5
        self.start_worker(victim.name if is_same else f"{base}-{self.kills}")

    def split(self) -> None:
        open_shards = [shard for shard in self.local.shards(TABLE) if shard.is_open]
        if len(open_shards) < 6:
            self.local.split(TABLE, self.dice.choice(open_shards).shard_id)
            self.splits += 1

    def merge(self) -> None:
        open_shards = [shard for shard in self.local.shards(TABLE) if shard.is_open]
        if len(open_shards) > 1:
            place = self.dice.randrange(len(open_shards) - 1)
            self.local.merge(TABLE, open_shards[place].shard_id, open_shards[place + 1].shard_id)
            self.merges += 1


def play(seed: int, directory: Path) -> Round:
    """Play one round; every file of it is left in ``directory``."""
    started = time.monotonic()
    with LocalTablestore() as local, Fleet(directory) as fleet:
        client = local.client()
        make_table(client)
        scene = Scene(local, client, fleet, random.Random(seed))
        for name in WORKERS:
            scene.start_worker(name)
        write_and_disturb(scene)
        stream_api = TablestoreStreamApi(client)
        stream_id = stream_api.list_stream(TABLE)[0].stream_id
        catch_up(scene, stream_api, stream_id)
        codes = fleet.stop()
        if any(codes):
            raise AssertionError(f"workers ended with {codes}; their output is in {directory}")
        verdict = judge(read_history(stream_api, stream_id), read_deliveries(sorted(directory.glob("*.lines"))))
    return Round(seed, verdict, scene.kills, scene.splits, scene.merges, time.monotonic() - started)


def make_table(client: OTSClient) -> None:
    TablestoreStreamApi(client).create_table(
        TableMeta(TABLE, [("id", "STRING")]),
        TableOptions(),
        ReservedThroughput(CapacityUnit(0, 0)),
        stream=StreamSpecification(enable_stream=True, expiration_time_hours=24),
    )


def write_and_disturb(scene: Scene) -> None:
    pause = threading.Event()
    disturbances: dict[int, Callable[[], None]] = {}
    for action, times in ((scene.split, 4), (scene.merge, 2), (scene.kill_and_restart, 3)):
        for _ in range(times):
            disturbances[scene.dice.randrange(10, STEPS)] = action
    for step in range(STEPS):
        write_batch(scene, step)
        if step in disturbances:
            disturbances[step]()
        pause.wait(STEP_SECONDS)


def write_batch(scene: Scene, step: int) -> None:
    numbers = scene.dice.sample(range(KEYS), BATCH_ROWS)
    condition = Condition(RowExistenceExpectation.IGNORE)
    items = [PutRowItem(Row([("id", f"{number:04d}")], [("step", step)]), condition) for number in numbers]
    request = BatchWriteRowRequest()
    request.add(TableInBatchWriteRowItem(TABLE, items))
    if not scene.client.batch_write_row(request).is_all_succeed():
        raise AssertionError("the local server refused a row")


def catch_up(scene: Scene, stream_api: TablestoreStreamApi, stream_id: str) -> None:
    leases = LeaseManager(scene.client, STATUS_TABLE, stream_id)
    pause = threading.Event()
    deadline = time.monotonic() + CATCH_UP_SECONDS
    while missing := unread(stream_api, stream_id, leases.list_leases()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not caught up after {CATCH_UP_SECONDS} s: {missing}")
        pause.wait(0.2)
