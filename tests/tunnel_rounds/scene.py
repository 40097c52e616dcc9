"""One round: a tunnel of each kind over one table, three worker processes, writers running, and disturbances.

The seed decides what is written and what happens when, in steps of the writer; the machine decides only how fast.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from attrs import define, field, frozen
from tablestore import OTSClient

from streamclient.server import LocalTablestore
from streamclient.tablestore import TablestoreStreamApi
from streamclient.testing.deliveries import Delivery, ShardHistory, judge, key_text, read_deliveries, read_history
from streamclient.testing.fleet import Fleet
from streamclient.tunnel import ChannelStatus, ChannelType, TunnelClient, TunnelDescription, TunnelStage, TunnelType
from tests.drill_kit import command, deal, merge, put, split, told_ways
from tests.patience import until
from tests.stage import make_table, write
from tests.tunnel_rounds.worker import BEGUN, WAYS

TABLE = "changes"
KINDS = {"base": TunnelType.BASE_DATA, "stream": TunnelType.STREAM, "both": TunnelType.BASE_AND_STREAM}
STEPS = 100
STEP_ROWS = 40
STEP_SECONDS = 0.1


@frozen
class Round:
    """What one round showed."""

    seed: int
    ways: Counter[str]
    """Processes of each way."""
    rows: int
    changes: int
    delivered: int
    problems: list[str]
    seconds: float

    def __str__(self) -> str:
        return (
            f"round seed={self.seed} {told_ways(self.ways)} rows={self.rows} changes={self.changes} "
            f"delivered={self.delivered} problems={len(self.problems)} seconds={self.seconds:.1f}"
        )


@define
class Scene:
    """The moving parts of one round."""

    local: LocalTablestore
    client: OTSClient
    fleet: Fleet
    dice: random.Random
    rows: int
    ways: Iterator[str]
    """Of the processes, in the order of their starts."""
    tunnels: dict[str, str] = field(factory=dict)
    started: Counter[str] = field(factory=Counter)
    """Processes of each way."""

    def start_worker(self) -> None:
        way = next(self.ways)
        self.started[way] += 1
        name = f"w{sum(self.started.values())}"
        words = command(
            "tests.tunnel_rounds.worker",
            self.local,
            name=name,
            way=way,
            directory=str(self.fleet.directory),
            tunnels=self.tunnels,
        )
        self.fleet.start(name, words)

    def kill(self) -> None:
        self.dice.choice(self.fleet.running()).kill()

    def split(self) -> None:
        split(self.local, TABLE, self.dice.random())

    def merge(self) -> None:
        merge(self.local, TABLE, self.dice.random())


def play(seed: int, directory: Path, rows: int, ways: Sequence[str] = WAYS) -> Round:
    """Play one round; every file of it is left in ``directory``."""
    started = time.monotonic()
    with LocalTablestore() as local, Fleet(directory) as fleet:
        dealt = deal(random.Random(f"ways {seed}"), ways)
        scene = Scene(local, local.client(), fleet, random.Random(seed), rows, dealt)
        make_table(scene.client, TABLE, [("id", "INTEGER")])
        write(scene.client, TABLE, [put(key, ("value", 0)) for key in range(rows)])
        scene.split()
        tunnels = TunnelClient(scene.client)
        for kind, tunnel_type in KINDS.items():
            scene.tunnels[kind] = tunnels.create_tunnel(TABLE, kind, tunnel_type)
        created = {kind: tunnels.describe_tunnel(TABLE, kind).info.create_time_micros for kind in KINDS}
        for _ in range(3):
            scene.start_worker()
        write_and_disturb(scene)
        written = time.time_ns() // 1_000
        until(
            lambda: all(is_past(tunnels.describe_tunnel(TABLE, kind), written) for kind in KINDS),
            lambda: f"to catch up; files in {directory}",
        )
        for process in fleet.running():
            until(partial(has_begun, process.log), process.log.read_text)
        codes = fleet.stop()
        stream_api = TablestoreStreamApi(scene.client)
        history = read_history(stream_api, stream_api.list_stream(TABLE)[0].stream_id)
    problems = [f"a worker ended with {codes}"] if any(codes) else []
    delivered = changes = 0
    for kind in KINDS:
        deliveries = read_deliveries(sorted(directory.glob(f"*.{kind}.lines")))
        expected = [] if kind == "base" else since(history, created[kind])
        delivered += sum(len(delivery.records) for delivery in deliveries)
        changes += sum(len(shard.records) for shard in expected)
        problems += [f"{kind}: {problem}" for problem in problems_of(kind, rows, expected, deliveries)]
    return Round(seed, scene.started, rows, changes, delivered, problems, time.monotonic() - started)


def has_begun(log: Path) -> bool:
    """Whether a worker process ends in order when it is asked to."""
    return BEGUN in log.read_text()


def write_and_disturb(scene: Scene) -> None:
    """Every disturbance happens, in an order that the seed decides."""
    pause = threading.Event()
    actions: list[Callable[[], None]] = [scene.split, scene.merge, scene.kill, scene.start_worker]
    scene.dice.shuffle(actions)
    places = sorted(scene.dice.sample(range(5, STEPS - 5), len(actions)))
    due = dict(zip(places, actions, strict=True))
    for step in range(1, STEPS + 1):
        keys = scene.dice.sample(range(scene.rows), min(STEP_ROWS, scene.rows))
        write(scene.client, TABLE, [put(key, ("value", step)) for key in keys])
        if step in due:
            due[step]()
        pause.wait(STEP_SECONDS)


def is_past(described: TunnelDescription, written_micros: int) -> bool:
    """Whether the full data is consumed and every stream channel is past the last write."""
    if described.info.stage is not TunnelStage.PROCESS_STREAM:
        return False
    left = [
        channel
        for channel in described.channels
        if channel.status is not ChannelStatus.TERMINATED and channel.channel_type is ChannelType.STREAM
    ]
    return all(channel.consume_point_micros > written_micros for channel in left)


def since(history: Sequence[ShardHistory], micros: int) -> list[ShardHistory]:
    """The part of the history that a tunnel made at that time delivers."""
    return [
        ShardHistory(
            shard.shard, tuple(each for each in shard.records if each.sequence_info.timestamp_micros >= micros)
        )
        for shard in history
    ]


def problems_of(kind: str, rows: int, expected: Sequence[ShardHistory], deliveries: Sequence[Delivery]) -> list[str]:
    """What is missing, out of order, or early."""
    base = [each for each in deliveries if is_base(each)]
    changes = [each for each in deliveries if not is_base(each)]
    problems = judge(expected, changes).problems
    if kind == "stream":
        return problems + [f"full data from {each.shard_id}" for each in base]
    seen = {key for each in base for key, _ in each.records}
    missing = [str(key) for key in range(rows) if key_text((("id", key),)) not in seen]
    problems += [f"{len(missing)} rows of full data are missing, such as {missing[:3]}"] if missing else []
    first_change = min((each.at_nanos for each in changes), default=None)
    if first_change is not None and any(each.at_nanos > first_change for each in base):
        problems.append("full data came after the first change")
    return problems


def is_base(delivery: Delivery) -> bool:
    return delivery.shard_id.startswith("BaseData")
