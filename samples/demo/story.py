"""The events of the demo. Each happens when a given share of the changes is written, however fast the machine is."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

from attrs import define, field, frozen
from streamclient import Lease, LeaseManager, TablestoreStreamApi
from streamclient.server import LocalTablestore
from streamclient.testing import Fleet, read_deliveries, unread
from tablestore import OTSClient

from samples.demo.writer import TABLE, Writer, make_table

STATUS_TABLE = "orders_status"
FIRST_WORKERS = ("worker-1", "worker-2", "worker-3")
LATE_WORKER = "worker-4"
CATCH_UP_SECONDS = 60.0
"""The longest time, in seconds, for reading the remaining records after the last write. A few seconds are usual."""
READY_SECONDS = 120.0
"""The longest time, in seconds, for the start of a worker's Spark, which takes 5 to 15 seconds on two idle cores."""
TICK_SECONDS = 0.25
PROGRESS_SECONDS = 3.0


@frozen
class Beat:
    """An event that happens once the writer has written ``share`` of its changes."""

    share: float
    action: Callable[[], str]


@define
class Stage:
    """The server, the fleet and the folder of one run of the demo, with a method for each kind of event."""

    directory: Path
    local: LocalTablestore
    client: OTSClient
    fleet: Fleet
    say: Callable[[str], None]
    started: float = field(factory=time.monotonic)

    @property
    def lake(self) -> Path:
        """The folder of the Delta table, to which the workers write."""
        return self.directory / "lake"

    def start_worker(self, name: str) -> str:
        """Start a worker process, and return without waiting for it."""
        arguments = {
            "endpoint": self.local.endpoint,
            "access-key-id": self.local.access_key_id,
            "access-key-secret": self.local.access_key_secret,
            "instance": self.local.instance,
            "table": TABLE,
            "status-table": STATUS_TABLE,
            "name": name,
            "lake": str(self.lake),
            "lines": str(self.directory / f"{name}.lines"),
            "ready": str(self.directory / f"{name}.ready"),
        }
        command = ["-m", "samples.demo.worker"]
        for option, value in arguments.items():
            command += [f"--{option}", value]
        self.fleet.start(name, command)
        return f"{name} starts"

    def kill_busiest(self) -> str:
        """Kill the worker that reads the most shards, without clean-up or hand-over."""
        reading = Counter(lease.owner for lease in self.leases() if not lease.is_finished)
        victim = max(self.fleet.running(), key=lambda process: reading[process.name])
        victim.kill()
        count = reading[victim.name]
        return f"kill -9 {victim.name}, which was reading {count} shard{'' if count == 1 else 's'}"

    def split_largest(self) -> str:
        """Split the open shard with the most records."""
        open_shards = [shard for shard in self.local.shards(TABLE) if shard.is_open]
        largest = max(open_shards, key=lambda shard: shard.record_count)
        children = self.local.split(TABLE, largest.shard_id)
        return f"shard {largest.shard_id[:8]} splits into {children[0][:8]} and {children[1][:8]}"

    def merge_smallest(self) -> str:
        """Merge the two neighbouring open shards that have the fewest records together."""
        open_shards = [shard for shard in self.local.shards(TABLE) if shard.is_open]
        left, right = min(pairwise(open_shards), key=lambda pair: pair[0].record_count + pair[1].record_count)
        child = self.local.merge(TABLE, left.shard_id, right.shard_id)
        return f"shards {left.shard_id[:8]} and {right.shard_id[:8]} merge into {child[:8]}"

    @property
    def streams(self) -> TablestoreStreamApi:
        """The stream operations of the local Tablestore."""
        return TablestoreStreamApi(self.client)

    def leases(self) -> list[Lease]:
        """Return the current leases; an empty list before the first worker has created the status table."""
        if STATUS_TABLE not in self.client.list_table():
            return []
        stream_id = self.streams.list_stream(TABLE)[0].stream_id
        return list(LeaseManager(self.client, STATUS_TABLE, stream_id).list_leases())

    def delivered(self) -> int:
        """Count the records delivered to processors so far, including repeated deliveries."""
        return sum(len(delivery.records) for delivery in read_deliveries(self.directory.glob("*.lines")))


def script(stage: Stage) -> list[Beat]:
    """Return the events in order: shards split and merge while the fleet reads, one worker dies, and another joins."""
    return [
        Beat(0.05, stage.split_largest),
        Beat(0.10, stage.split_largest),
        Beat(0.15, stage.split_largest),
        Beat(0.20, stage.split_largest),
        Beat(0.25, stage.split_largest),
        Beat(0.45, stage.kill_busiest),
        Beat(0.50, lambda: stage.start_worker(LATE_WORKER)),
        Beat(0.60, stage.merge_smallest),
        Beat(0.72, stage.split_largest),
        Beat(0.85, stage.merge_smallest),
    ]


def play(stage: Stage, *, seed: int, count: int, seconds: float) -> int:
    """Run the whole demo until all workers have shut down; return the number of acknowledged changes."""
    make_table(stage.client)
    for name in FIRST_WORKERS:
        stage.say(stage.start_worker(name))
    wait_until_ready(stage)
    writer = Writer(stage.client, seed=seed, count=count, seconds=seconds)
    writer.start()
    follow(stage, writer, count)
    writer.join()
    stage.say(f"the writer is done: {writer.acknowledged} changes")
    catch_up(stage)
    stage.say("everything is read; the workers are told to stop")
    codes = stage.fleet.stop()
    if any(codes):
        raise RuntimeError(f"workers ended with exit codes {codes}; see {stage.fleet.directory}/*.log")
    return writer.acknowledged


def ticks(bound_seconds: float) -> Iterator[None]:
    """Yield every ``TICK_SECONDS``, so that the caller can check a state; raise an error after ``bound_seconds``."""
    pause = threading.Event()
    deadline = time.monotonic() + bound_seconds
    while time.monotonic() < deadline:
        yield
        pause.wait(TICK_SECONDS)
    raise TimeoutError(f"the awaited state was not reached within {bound_seconds:.0f} s")


def wait_until_ready(stage: Stage) -> None:
    """Wait until Spark has started in one worker. The writer then begins, and the other workers join later."""
    for _ in ticks(READY_SECONDS):
        failed = [process for process in stage.fleet.processes.values() if not process.is_running]
        if failed:
            raise RuntimeError(f"{failed[0].name} ended immediately:\n{failed[0].log.read_text()[-3000:]}")
        if any((stage.directory / f"{name}.ready").exists() for name in FIRST_WORKERS):
            return


def follow(stage: Stage, writer: Writer, count: int) -> None:
    """Show progress, and run each event once the writer has written the event's share of the changes."""
    beats = script(stage)
    shown = 0.0
    for _ in ticks(600):
        while beats and writer.acknowledged >= beats[0].share * count:
            stage.say(beats.pop(0).action())
        if time.monotonic() - shown > PROGRESS_SECONDS:
            shown = time.monotonic()
            stage.say(progress(stage, writer))
        if writer.is_done:
            return


def progress(stage: Stage, writer: Writer) -> str:
    """Return one line: the changes written and delivered, and the number of shards that each worker reads."""
    leases = stage.leases()
    reading = Counter(lease.owner for lease in leases if lease.owner and not lease.is_finished)
    owners = "  ".join(f"{process.name}: {reading[process.name]}" for process in stage.fleet.running())
    finished = sum(lease.is_finished for lease in leases)
    delivered = stage.delivered()
    return f"written {writer.acknowledged:6d}  delivered {delivered:6d}  shards read by {owners}  ended: {finished}"


def catch_up(stage: Stage) -> None:
    """Wait until the workers have stored a checkpoint after the last record of every shard."""
    stream_id = stage.streams.list_stream(TABLE)[0].stream_id
    for _ in ticks(CATCH_UP_SECONDS):
        if not unread(stage.streams, stream_id, stage.leases()):
            return
