"""A table whose shards split and merge, and a fleet of worker processes that are killed, frozen, stopped and lied to.

The seed decides what is written and what happens when, in steps of the writer; the machine decides only how fast.
"""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from heapq import heappop, heappush
from itertools import count
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

from streamclient.server import LocalTablestore
from streamclient.server.engine import ShardView
from streamclient.tablestore import StreamSpecification, TablestoreStreamApi
from streamclient.testing.deliveries import unread
from streamclient.testing.fleet import Fleet, WorkerProcess
from streamclient.testing.journal import LeaseJournal, judge_leases
from streamclient.worker.lease import LeaseManager
from tests.patience import PATIENCE_SECONDS
from tests.rounds.plan import STEP_SECONDS, Happening, Kind, Setting
from tests.rounds.worker import LEASE_DURATION_MILLIS, WORK_SECONDS

SETTING = Setting("changes", "changes_status", LEASE_DURATION_MILLIS / 1_000)
WORKERS = ("one", "two", "three")
MOST_OPEN_SHARDS = 6
BATCH_ROWS = 20
KEYS = 300

PUT_OFF_STEPS = 10
"""If nobody is left to be harmed: frozen workers wake up, and stopped ones come back, within a few of these."""

STOP_POLL_STEPS = 5

LONGEST_WAIT_FOR_BATCH_SECONDS = 0.5
"""The writer stands still meanwhile, so what it wrote last is read by then, or the victim reads nothing."""

TWIN_STEPS = 25
"""A process whose name another one uses ends by itself never, and does nothing more: two seconds to see that."""

LIFE = "-life-"
"""Between a worker's name and the number of its process, in security tokens and file names."""

GOOD_ENDS = (0, -signal.SIGKILL, -signal.SIGTERM)
"""Exit codes: stopped in order, killed, or asked to stop before it had started to listen."""


@frozen
class Loss:
    """A worker process that was killed or frozen."""

    caller: str
    at_nanos: int


@define
class Scene:
    """The moving parts."""

    local: LocalTablestore
    client: OTSClient
    stream_id: str
    fleet: Fleet
    dice: random.Random
    """Of the rows that are written."""
    journal: LeaseJournal = field(factory=lambda: LeaseJournal(SETTING.status_table))
    step: int = 0
    lives: Counter[str] = field(factory=Counter)
    callers: dict[WorkerProcess, str] = field(factory=dict)
    """Security token of each process."""
    counts: Counter[str] = field(factory=Counter)
    losses: list[Loss] = field(factory=list)
    notes: list[tuple[int, str]] = field(factory=list)
    """What happened, by monotonic nanoseconds, for whoever has to find out why."""
    forgotten: Counter[str] = field(factory=Counter)
    """What the journal told before the present lap: it goes on, as it has to know who holds what."""
    _later: list[tuple[int, int, Callable[[], None]]] = field(factory=list)
    _numbers: count[int] = field(factory=count)

    @property
    def sink(self) -> Path:
        """Where all workers store."""
        return self.fleet.directory / "sink.sqlite"

    # --- the fleet -------------------------------------------------------------------------------------------------

    def start_worker(self, name: str) -> None:
        self.lives[name] += 1
        caller = f"{name}{LIFE}{self.lives[name]}"
        arguments = {
            "endpoint": self.local.endpoint,
            "access-key-id": self.local.access_key_id,
            "access-key-secret": self.local.access_key_secret,
            "instance": self.local.instance,
            "table": SETTING.table,
            "status-table": SETTING.status_table,
            "name": name,
            "token": caller,
            "lines": str(self.fleet.directory / f"{caller}.lines"),
            "refusals": str(self.fleet.directory / f"{caller}.refusals"),
            "sink": str(self.sink),
        }
        command = ["-m", "tests.rounds.worker"]
        for option, value in arguments.items():
            command += [f"--{option}", value]
        self.callers[self.fleet.start(name, command)] = caller
        self.note(f"{caller} starts")

    def happen(self, happening: Happening) -> None:
        """Let something happen: put off if there is no worker, left out if there is no shard, to whom it could."""
        act = {
            Kind.KILL: self._kill,
            Kind.FREEZE: self._freeze,
            Kind.STOP: self._stop,
            Kind.SPLIT: self._split,
            Kind.MERGE: self._merge,
            Kind.SPELL: self._spell,
        }[happening.kind]
        self.note(f"{happening.kind.name} {happening.fault} is due")
        act(happening)

    def note(self, text: str) -> None:
        self.notes.append((time.monotonic_ns(), text))

    def _kill(self, happening: Happening) -> None:
        """Restarted under the same name or a new one: both happen in real fleets, and leases move differently."""
        victim = self._victim(happening)
        if victim is None:
            self.after(PUT_OFF_STEPS, lambda: self.happen(happening))
            return
        self._await_batch(victim)
        victim.kill()
        self._lost(victim)
        self.counts["kills"] += 1
        base = victim.name.split("-")[0]
        self.start_worker(victim.name if happening.keeps_name else f"{base}-{sum(self.lives.values())}")

    def _freeze(self, happening: Happening) -> None:
        """With a twin, somebody takes it for dead and starts it again under its name."""
        victim = self._victim(happening)
        if victim is None:
            self.after(PUT_OFF_STEPS, lambda: self.happen(happening))
            return
        self._await_batch(victim)
        victim.freeze()
        self._lost(victim)
        self.counts["freezes"] += 1
        self.after(happening.steps, lambda: self._thaw(victim))
        if happening.has_twin:
            self.counts["twins"] += 1
            self.after(happening.steps + TWIN_STEPS, victim.ask_to_stop)
            del self.fleet.processes[victim.name]
            self.fleet.processes[self.callers[victim]] = victim
            self.start_worker(victim.name)

    def _thaw(self, victim: WorkerProcess) -> None:
        victim.thaw()
        self.note(f"{self.callers[victim]} goes on")

    def _stop(self, happening: Happening) -> None:
        victim = self._victim(happening)
        if victim is None:
            self.after(PUT_OFF_STEPS, lambda: self.happen(happening))
            return
        victim.ask_to_stop()
        self.note(f"{self.callers[victim]} shall stop")
        self.counts["stops"] += 1
        self.after(STOP_POLL_STEPS, lambda: self._start_again(victim))

    def _start_again(self, victim: WorkerProcess) -> None:
        if victim.is_running:
            self.after(STOP_POLL_STEPS, lambda: self._start_again(victim))
            return
        self.start_worker(victim.name)

    def check_fleet(self) -> None:
        """Raise if a process ended by itself, or badly."""
        for process in self.fleet.processes.values():
            if process.exit_code not in (None, *GOOD_ENDS):
                output = process.log.read_text()[-2_000:]
                raise AssertionError(f"{process.name} ended with {process.exit_code}: {output}")

    def stop_all(self) -> None:
        """The fleet's clean end."""
        self.fleet.stop()
        self.check_fleet()

    def _victim(self, happening: Happening) -> WorkerProcess | None:
        """One that runs and was not told anything, a holder of leases if there is one; ``None`` if it is the last."""
        able = [process for process in self.fleet.running() if not process.is_frozen and not process.is_stopping]
        callers = set(judge_leases(self.journal.writings).holders.values())
        holding = [process for process in able if self.callers[process] in callers] or able
        return holding[int(happening.choice * len(holding))] if len(able) > 1 else None

    def _await_batch(self, victim: WorkerProcess) -> None:
        """Wait, not for long, until it has been given a batch and not stored it: the moment that is hardest on it."""
        lines = self.fleet.directory / f"{self.callers[victim]}.lines"
        size = lines.stat().st_size if lines.exists() else 0
        deadline = time.monotonic() + LONGEST_WAIT_FOR_BATCH_SECONDS
        while time.monotonic() < deadline and (not lines.exists() or lines.stat().st_size == size):
            threading.Event().wait(WORK_SECONDS / 10)

    def _lost(self, victim: WorkerProcess) -> None:
        self.note(f"{self.callers[victim]} is {'frozen' if victim.is_frozen else 'dead'}")
        self.losses.append(Loss(self.callers[victim], time.monotonic_ns()))

    # --- shards and faults -----------------------------------------------------------------------------------------

    def _open_shards(self) -> list[ShardView]:
        return [shard for shard in self.local.shards(SETTING.table) if shard.is_open]

    def _split(self, happening: Happening) -> None:
        shards = self._open_shards()
        if len(shards) < MOST_OPEN_SHARDS:
            self.local.split(SETTING.table, shards[int(happening.choice * len(shards))].shard_id)
            self.counts["splits"] += 1

    def _merge(self, happening: Happening) -> None:
        shards = self._open_shards()
        if len(shards) > 1:
            place = int(happening.choice * (len(shards) - 1))
            self.local.merge(SETTING.table, shards[place].shard_id, shards[place + 1].shard_id)
            self.counts["merges"] += 1

    def _spell(self, happening: Happening) -> None:
        numbers = [self.local.add_fault(rule) for rule in happening.rules]
        self.after(happening.steps, lambda: self._end_spell(happening.fault, numbers))

    def _end_spell(self, fault: str, numbers: list[int]) -> None:
        struck = {status.fault_id: status.struck for status in self.local.faults()}
        self.counts[fault] += sum(struck.get(number, 0) for number in numbers)
        for number in numbers:
            self.local.remove_fault(number)
        self.note(f"SPELL {fault} is over")

    # --- time ------------------------------------------------------------------------------------------------------

    def after(self, steps: int, act: Callable[[], None]) -> None:
        """Do something so many steps later."""
        heappush(self._later, (self.step + steps, next(self._numbers), act))

    def go_on(self) -> None:
        """One step: a batch, and what is due."""
        self.step += 1
        self.check_fleet()
        self._write_batch()
        self._do_what_is_due(self.step)
        threading.Event().wait(STEP_SECONDS)

    def calm_down(self) -> None:
        """Everything that was begun ends: frozen workers wake up, spells are over, stopped ones come back."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self._later:
            if time.monotonic() > deadline:
                raise AssertionError(f"a worker that was asked to stop runs after {PATIENCE_SECONDS} s")
            self.step = max(self.step, self._later[0][0])
            self._do_what_is_due(self.step)
            threading.Event().wait(STEP_SECONDS)

    def _do_what_is_due(self, step: int) -> None:
        while self._later and self._later[0][0] <= step:
            heappop(self._later)[2]()

    def forget(self) -> None:
        """Before the next lap: what was read by everybody is over, in the stream too, as after its retention."""
        leases = judge_leases(self.journal.writings)
        self.forgotten = Counter(moves=leases.moves, refused=len(leases.refused_writes))
        self.local.trim(SETTING.table, keep_last=0)
        self.counts.clear()
        self.losses.clear()
        self.notes.clear()
        for pattern in ("*.lines", "*.refusals"):
            for path in self.fleet.directory.glob(pattern):
                os.truncate(path, 0)
        with closing(sqlite3.connect(self.sink, timeout=PATIENCE_SECONDS, isolation_level=None)) as connection:
            connection.execute("DELETE FROM changes")

    def _write_batch(self) -> None:
        numbers = self.dice.sample(range(KEYS), BATCH_ROWS)
        condition = Condition(RowExistenceExpectation.IGNORE)
        items = [PutRowItem(Row([("id", f"{number:04d}")], [("step", self.step)]), condition) for number in numbers]
        request = BatchWriteRowRequest()
        request.add(TableInBatchWriteRowItem(SETTING.table, items))
        if not self.client.batch_write_row(request).is_all_succeed():
            raise AssertionError("the local server refused a row")


def worker_of(caller: str) -> str:
    """The name of the worker that a process is; its later processes start only after the earlier ones have ended."""
    return caller.rpartition(LIFE)[0]


def make_tables(client: OTSClient) -> str:
    """The data table with its stream, and the status table; returns the stream's id."""
    streams = TablestoreStreamApi(client)
    streams.create_table(
        TableMeta(SETTING.table, [("id", "STRING")]),
        TableOptions(),
        ReservedThroughput(CapacityUnit(0, 0)),
        stream=StreamSpecification(enable_stream=True, expiration_time_hours=24),
    )
    stream_id: str = streams.list_stream(SETTING.table)[0].stream_id
    LeaseManager(client, SETTING.status_table, stream_id).create_lease_table_if_not_exists()
    return stream_id


def catch_up(scene: Scene) -> float:
    """Wait until every shard is read and checkpointed to its end or tip; returns the seconds that it took."""
    leases = LeaseManager(scene.client, SETTING.status_table, scene.stream_id)
    streams = TablestoreStreamApi(scene.client)
    begun = time.monotonic()
    while missing := unread(streams, scene.stream_id, leases.list_leases()):
        scene.check_fleet()
        if time.monotonic() > begun + PATIENCE_SECONDS:
            raise AssertionError(f"not caught up {PATIENCE_SECONDS} s after the last fault: {missing}")
        threading.Event().wait(0.1)
    return time.monotonic() - begun
