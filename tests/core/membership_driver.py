"""One ``Holdings`` with a session, driven over dicts of lease rows and worker rows, by steps or by its own clock."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from holdings_driver import STREAM_ID, Driver, landed, only, scanned

from streamclient.core import events, membership
from streamclient.core.membership import WorkerRow, WorkerWrite
from streamclient.core.write_rules import WriteOutcome
from streamclient.model import Lease, Shard

STEP_SECONDS = 0.05
"""After each deadline a little more time passes, as it does between a question and its answer."""


def session(name: str, beat: int = 1, **fields: Any) -> WorkerRow:
    values: dict[str, Any] = {"nonce": f"{name}-1", **fields}
    return WorkerRow(name, STREAM_ID, beat=beat, **values)


class FleetDriver(Driver):
    """As ``Driver``; other workers beat with every step of ``run``, unless they are in ``silent``."""

    has_worker_rows = True

    def __init__(self, *rows: Lease, workers: Iterable[str | WorkerRow] = (), name: str = "me", **config: Any) -> None:
        super().__init__(*rows, name=name, **config)
        found = [session(each) if isinstance(each, str) else each for each in workers]
        self.workers = {each.worker_id: each for each in found}
        self.silent: set[str] = set()
        self.shards: tuple[Shard, ...] = ()
        self.woken: list[str] = []
        self.scans: list[float] = []
        self.reads: list[tuple[str, ...]] = []
        self.answers_worker: Callable[[WorkerWrite], WriteOutcome] = self.land_worker
        self.owed: list[events.Command] = []
        """Commands that were neither carried out nor answered yet."""

    def send(self, event: events.Event) -> list[events.Command]:
        commands = super().send(event)
        self.owed += [command for command in commands if isinstance(command, events.ReadSignals | events.ReadRows)]
        return commands

    def land_worker(self, write: WorkerWrite) -> WriteOutcome:
        return landed(self.workers, write.worker_id, write)

    def kill(self, name: str) -> None:
        self.land_worker(membership.kill(self.workers[name]))

    def others_beat(self) -> None:
        for name, each in list(self.workers.items()):
            if name != "me" and name not in self.silent and each.is_live:
                self.land_worker(membership.beat(each))

    def carry_out(self, command: events.Command, *, draws: bool = True) -> list[events.Command]:
        match command:
            case events.ReadRows():
                self.scans.append(self.now)
                rows = tuple(self.table[key] for key in sorted(self.table))
                return self.send(scanned(rows, workers=tuple(self.workers[n] for n in sorted(self.workers))))
            case events.ListShards():
                return self.list_shards(*self.shards)
            case events.ReadSignals(names):
                self.reads.append(names)
                found = tuple(self.workers[name] for name in names if name in self.workers)
                return self.send(events.Answered(events.ReadSignals(names), found))
            case events.WriteWorker(write):
                return self.send(events.Answered(events.WriteWorker(write), self.answers_worker(write), self.now))
            case events.WakeWorkers(names):
                self.woken += names
                return self.send(events.Answered(events.WakeWorkers(names)))
        return super().carry_out(command, draws=draws)

    def start(self) -> list[events.Command]:
        """Register and scan."""
        return self.settle(self.send(events.TakeDue()))

    def settle_until_take(self) -> list[events.Command]:
        """As ``start``, but no lease write is carried out: they are returned."""
        pending, left = list(self.send(events.TakeDue())), []
        while pending:
            command = pending.pop(0)
            if isinstance(command, events.WriteLease):
                left.append(command)
            else:
                pending += self.carry_out(command)
        return left

    def run(self, seconds: float, *, ticks: bool = True) -> list[events.Command]:
        """Let time pass: own deadlines, and heartbeats, takes and listings at their intervals; all is carried out."""
        end, done = self.now + seconds, []
        due = {
            events.RenewDue(): self.config.renewer_interval_millis / 1_000,
            events.TakeDue(): self.config.taker_interval_millis / 1_000,
            events.SyncDue(): self.config.sync_shard_interval_millis / 1_000,
        }
        times = dict.fromkeys(due, self.now) if ticks else {}
        while True:
            deadline = self.holdings.next_deadline(self.now)
            moment = min([*times.values(), end if deadline is None else deadline])
            if moment >= end:
                break
            self.now = max(self.now, moment)
            self.others_beat()
            for event, at in times.items():
                if at <= self.now:
                    times[event] = at + due[event]
                    done += self.settle(self.send(event))
            done += self.settle(self.send(events.Tick()))
            self.now += STEP_SECONDS
        self.now = end
        return done


def started(*rows: Lease, **given: Any) -> FleetDriver:
    """Start a worker with a session; wakes, scans and reads of its start are forgotten."""
    driver = FleetDriver(*rows, **given)
    driver.start()
    driver.woken.clear()
    driver.scans.clear()
    driver.reads.clear()
    return driver


def texts(driver: FleetDriver) -> list[str]:
    return [report.text for report in only(driver.log, events.Report)]
