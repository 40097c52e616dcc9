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
from collections.abc import Callable, Iterator
from contextlib import closing
from heapq import heappop, heappush
from itertools import count
from pathlib import Path

from attrs import define, field, frozen
from tablestore import OTSClient

from streamclient.server import LocalTablestore
from streamclient.tablestore import TablestoreStreamApi
from streamclient.testing.deliveries import unread
from streamclient.testing.fleet import Fleet, WorkerProcess
from streamclient.testing.journal import LeaseJournal, judge_leases
from streamclient.worker.lease import LeaseManager
from streamclient.worker.running import EXIT_CODE_OF_SIGTERM
from tests.drill_kit import command, merge, open_shards, put, split
from tests.patience import PATIENCE_SECONDS, until
from tests.rounds.plan import STEP_SECONDS, Happening, Kind, Setting
from tests.rounds.worker import LEASE_DURATION_MILLIS, WORK_SECONDS
from tests.stage import make_table, write

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

GOOD_ENDS = (0, EXIT_CODE_OF_SIGTERM, -signal.SIGKILL, -signal.SIGTERM)
"""Exit codes: stopped in order, by a handler of its own or by the package's; killed; or asked to stop before it had
started to listen."""


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
    ways: Iterator[str]
    """Of the processes, in the order of their starts."""
    journal: LeaseJournal = field(factory=lambda: LeaseJournal(SETTING.status_table))
    step: int = 0
    lives: Counter[str] = field(factory=Counter)
    callers: dict[WorkerProcess, str] = field(factory=dict)
    """Security token of each process."""
    way_of: dict[WorkerProcess, str] = field(factory=dict)
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
        caller, way = f"{name}{LIFE}{self.lives[name]}", next(self.ways)
        words = command(
            "tests.rounds.worker",
            self.local,
            table=SETTING.table,
            status_table=SETTING.status_table,
            name=name,
            token=caller,
            way=way,
            lines=str(self.fleet.directory / f"{caller}.lines"),
            refusals=str(self.fleet.directory / f"{caller}.refusals"),
            sink=str(self.sink),
        )
        process = self.fleet.start(name, words)
        self.callers[process], self.way_of[process] = caller, way
        self.note(f"{caller} starts, way {way}")

    def happen(self, happening: Happening) -> None:
        """Let something happen: put off if there is no worker, left out if there is no shard, to whom it could."""
        self.note(f"{happening.kind.name} {happening.fault} is due")
        losses = {Kind.KILL: self._kill, Kind.FREEZE: self._freeze, Kind.STOP: self._stop}
        if happening.kind in losses:
            victim = self._victim(happening)
            if victim is None:
                self.after(PUT_OFF_STEPS, lambda: self.happen(happening))
            else:
                losses[happening.kind](victim, happening)
                self.counts[happening.kind.value] += 1
            return
        {Kind.SPLIT: self._split, Kind.MERGE: self._merge, Kind.SPELL: self._spell}[happening.kind](happening)

    def note(self, text: str) -> None:
        self.notes.append((time.monotonic_ns(), text))

    def _kill(self, victim: WorkerProcess, happening: Happening) -> None:
        """Restarted under the same name or a new one: both happen in real fleets, and leases move differently."""
        self._await_batch(victim)
        victim.kill()
        self._lost(victim)
        base = victim.name.split("-")[0]
        self.start_worker(victim.name if happening.keeps_name else f"{base}-{sum(self.lives.values())}")

    def _freeze(self, victim: WorkerProcess, happening: Happening) -> None:
        """With a twin, somebody takes it for dead and starts it again under its name."""
        self._await_batch(victim)
        victim.freeze()
        self._lost(victim)
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

    def _stop(self, victim: WorkerProcess, happening: Happening) -> None:
        victim.ask_to_stop()
        self.note(f"{self.callers[victim]} shall stop")
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

    def _split(self, happening: Happening) -> None:
        if len(open_shards(self.local, SETTING.table)) < MOST_OPEN_SHARDS:
            split(self.local, SETTING.table, happening.choice)
            self.counts["splits"] += 1

    def _merge(self, happening: Happening) -> None:
        if len(open_shards(self.local, SETTING.table)) > 1:
            merge(self.local, SETTING.table, happening.choice)
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
        self.way_of = {process: self.way_of[process] for process in self.fleet.running()}
        self.losses.clear()
        self.notes.clear()
        for pattern in ("*.lines", "*.refusals"):
            for path in self.fleet.directory.glob(pattern):
                os.truncate(path, 0)
        with closing(sqlite3.connect(self.sink, timeout=PATIENCE_SECONDS, isolation_level=None)) as connection:
            connection.execute("DELETE FROM changes")

    def _write_batch(self) -> None:
        numbers = self.dice.sample(range(KEYS), BATCH_ROWS)
        write(self.client, SETTING.table, [put(f"{number:04d}", ("step", self.step)) for number in numbers])


def worker_of(caller: str) -> str:
    """The name of the worker that a process is; its later processes start only after the earlier ones have ended."""
    return caller.rpartition(LIFE)[0]


def make_tables(client: OTSClient) -> str:
    """The data table with its stream, and the status table; returns the stream's id."""
    make_table(client, SETTING.table, [("id", "STRING")])
    stream_id: str = TablestoreStreamApi(client).list_stream(SETTING.table)[0].stream_id
    LeaseManager(client, SETTING.status_table, stream_id).create_lease_table_if_not_exists()
    return stream_id


def catch_up(scene: Scene) -> float:
    """Wait until every shard is read and checkpointed to its end or tip; returns the seconds that it took."""
    leases = LeaseManager(scene.client, SETTING.status_table, scene.stream_id)
    begun = time.monotonic()

    def backlog() -> list[str]:
        scene.check_fleet()
        return unread(TablestoreStreamApi(scene.client), scene.stream_id, leases.list_leases())

    until(lambda: not backlog(), backlog)
    return time.monotonic() - begun
