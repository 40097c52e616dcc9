"""One lap: faults by plan, then calm, and a verdict on everything that happened."""

from __future__ import annotations

import itertools
import random
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from attrs import evolve, frozen

from samples.fenced_sink import position_of
from streamclient.records import SequenceInfo
from streamclient.server import LocalTablestore
from streamclient.tablestore import TablestoreStreamApi
from streamclient.testing.deliveries import (
    Delivery,
    ShardHistory,
    Verdict,
    judge,
    key_text,
    read_deliveries,
    read_history,
)
from streamclient.testing.fleet import Fleet
from streamclient.testing.journal import judge_leases, recoveries
from tests.drill_kit import deal, told_ways
from tests.patience import until
from tests.rounds.plan import FAULTS, WAYS, make_plan
from tests.rounds.scene import SETTING, WORKERS, Scene, catch_up, make_tables, worker_of

STEPS = 170
"""Batches per lap: about 14 seconds, more than four lease durations."""

COUNTED = ("kills", "freezes", "twins", "stops", "splits", "merges", *FAULTS)


@frozen
class Lap:
    """What one lap showed."""

    seed: int
    delivered: Verdict
    """What the fleet was given to process, repeats included."""
    stored: Verdict
    """What is in the sink, in the order in which it came there."""
    fenced_writes: list[str]
    """Writes of lease rows that were accepted from workers without the lease."""
    moves: int
    refused_by_table: int
    """Writes of lease rows by workers that had lost the lease."""
    refused_by_sink: int
    """Attempts of processors to store under an epoch that was over."""
    counts: dict[str, int]
    ways: Counter[str]
    """Processes of each way."""
    slowest_recovery_seconds: float
    """Longest time that a lease of a killed or frozen worker had no owner."""
    catch_up_seconds: float
    seconds: float = 0.0

    @property
    def problems(self) -> list[str]:
        """Everything that must not be."""
        found = [*self.delivered.problems, *self.stored.problems]
        found += [f"accepted from a fenced worker: {text}" for text in self.fenced_writes]
        if self.stored.delivered != self.stored.changes:
            found.append(f"the sink has {self.stored.delivered} changes, the stream {self.stored.changes}")
        return found

    def __str__(self) -> str:
        faults = " ".join(f"{name}={self.counts.get(name, 0)}" for name in COUNTED)
        both = (self.delivered, self.stored)
        return (
            f"round seed={self.seed} {told_ways(self.ways)} "
            f"changes={self.delivered.changes} delivered={self.delivered.delivered} {faults} "
            f"moves={self.moves} refused_by_table={self.refused_by_table} "
            f"refused_by_sink={self.refused_by_sink} slowest_recovery={self.slowest_recovery_seconds:.1f} "
            f"catch_up={self.catch_up_seconds:.1f} lost={sum(len(one.lost) for one in both)} "
            f"out_of_order={sum(len(one.out_of_order) for one in both)} "
            f"early_children={sum(len(one.children_before_parents) for one in both)} "
            f"accepted_from_fenced={len(self.fenced_writes)} seconds={self.seconds:.1f}"
        )


def play(seed: int, directory: Path, steps: int = STEPS, ways: Sequence[str] = WAYS) -> Lap:
    """One round: a new scene, one lap, and the fleet's clean end. Every file of it is left in ``directory``."""
    begun = time.monotonic()
    with opened(seed, directory, ways) as scene:
        catch_up_seconds = disturb(scene, random.Random(seed), steps)
        scene.stop_all()
        lap = judged(scene, seed, catch_up_seconds)
    return evolve(lap, seconds=time.monotonic() - begun)


def soak(seed: int, directory: Path, minutes: float, ways: Sequence[str] = WAYS) -> Iterator[Lap]:
    """Lap after lap in one scene, with one fleet and one table, until the time is over; then the fleet's clean end."""
    end = time.monotonic() + minutes * 60
    with opened(seed, directory, ways) as scene:
        for number in itertools.count(seed):
            begun = time.monotonic()
            lap = judged(scene, number, disturb(scene, random.Random(number), STEPS))
            yield evolve(lap, seconds=time.monotonic() - begun)
            if time.monotonic() > end:
                break
            scene.forget()
        scene.stop_all()


@contextmanager
def opened(seed: int, directory: Path, ways: Sequence[str]) -> Iterator[Scene]:
    """A scene whose workers have been started."""
    with LocalTablestore() as local, Fleet(directory) as fleet:
        client = local.client()
        stream_id = make_tables(client)
        dealt = deal(random.Random(f"ways {seed}"), ways)
        scene = Scene(local, client, stream_id, fleet, random.Random(f"rows {seed}"), dealt)
        local.observe(scene.journal)
        for name in WORKERS:
            scene.start_worker(name)
        # Steps have their time whatever the machine does: they begin once there is a fleet to disturb.
        until(lambda: bool(scene.journal.writings), "a worker's first write")
        yield scene


def disturb(scene: Scene, dice: random.Random, steps: int) -> float:
    """Write and disturb by plan, then calm down and catch up; returns the seconds that catching up took."""
    plan = make_plan(dice, steps, SETTING)
    for step in range(steps):
        for happening in plan:
            if happening.step == step:
                scene.happen(happening)
        scene.go_on()
    scene.calm_down()
    return catch_up(scene)


def judged(scene: Scene, seed: int, catch_up_seconds: float) -> Lap:
    """The verdict on what happened since the scene last forgot."""
    directory = scene.fleet.directory
    history = read_history(TablestoreStreamApi(scene.client), scene.stream_id)
    deliveries = read_deliveries(sorted(directory.glob("*.lines")))
    writings = scene.journal.writings
    events = sorted([*scene.notes, *((one.at_nanos, str(one)) for one in writings)])
    (directory / "journal.txt").write_text("".join(f"{nanos} {text}\n" for nanos, text in events), encoding="utf-8")
    leases = judge_leases(writings, worker_of=worker_of)
    waits = [wait for loss in scene.losses for wait in recoveries(writings, loss.caller, loss.at_nanos).values()]
    return Lap(
        seed=seed,
        delivered=judge(history, deliveries),
        stored=judge(history, stored_changes(scene.sink, history)),
        fenced_writes=leases.fenced_writes,
        moves=leases.moves - scene.forgotten["moves"],
        refused_by_table=len(leases.refused_writes) - scene.forgotten["refused"],
        refused_by_sink=sum(path.read_text().count("\n") for path in directory.glob("*.refusals")),
        counts=dict(scene.counts),
        ways=Counter(scene.way_of.values()),
        slowest_recovery_seconds=max(waits, default=0.0),
        catch_up_seconds=catch_up_seconds,
    )


def stored_changes(sink: Path, history: Sequence[ShardHistory]) -> list[Delivery]:
    """What is in the sink, in the order in which it was stored, as if one processor had been given it."""
    known = {
        (shard.shard.shard_id, position_of(record.sequence_info)): (key_text(record.primary_key), record.sequence_info)
        for shard in history
        for record in shard.records
    }
    with closing(sqlite3.connect(sink)) as connection:
        rows = connection.execute("SELECT rowid, shard_id, position FROM changes ORDER BY rowid").fetchall()
    unknown = ("a change that the stream does not have", SequenceInfo(0, 0, 0))
    return [
        Delivery("sink", shard_id, shard_id, number, (known.get((shard_id, position), unknown),))
        for number, shard_id, position in rows
    ]
