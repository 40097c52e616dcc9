"""The simulated world with rows of workers: sessions, signals, verdicts, wakes, and what all that costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from attrs import define, field
from simulated_world import SimulatedWorker, World

from streamclient.core import events, membership
from streamclient.core.leases import WriteOutcome
from streamclient.core.membership import WorkerRow, WorkerWrite, WorkerWriteKind
from streamclient.model import Lease


@define(eq=False)
class FleetWorld(World):
    """Laws of its own: killed sessions are over in true time, and never beat again."""

    has_worker_rows: bool = True
    rows: dict[str, WorkerRow] = field(factory=dict)
    processes: dict[str, SimulatedWorker] = field(factory=dict)
    """Whose nonce is whose."""
    killed: set[str] = field(factory=set)
    costs: Counter[str] = field(factory=Counter)
    """Requests by kind, and rows read and written."""

    def more_handlers(self) -> dict[type, Callable[[SimulatedWorker, Any], None]]:
        return {
            events.ReadSignals: self._read_signals,
            events.WriteWorker: self._write_worker,
            events.WakeWorkers: self._wake_workers,
        }

    def scanned(self, worker: SimulatedWorker, rows: tuple[Lease, ...]) -> None:
        """Worker rows are read after those of leases."""
        self.costs.update({"scans": 1, "lease rows read": len(rows), "scans of " + worker.name: 1})
        self.after(self.delay() / 2, partial(self._list_workers, worker, rows))

    def _list_workers(self, worker: SimulatedWorker, rows: tuple[Lease, ...]) -> None:
        workers = tuple(self.rows[name] for name in sorted(self.rows))
        self.costs["worker rows read"] += len(workers)
        self.after(self.delay(), partial(self.deliver, worker, events.RowsRead(rows, workers=workers)))

    def _read_signals(self, worker: SimulatedWorker, command: events.ReadSignals) -> None:
        self.costs.update({"signal reads": 1, "signal rows read": len(command.names)})
        if not self.is_table_reachable or self.chance(self.faults.unreadable):
            failed = events.SignalsUnreadable(ConnectionError("read failed"))
            self.after(self.delay(), partial(self.deliver, worker, failed))
        else:
            self.after(self.delay(), partial(self._look_up_workers, worker, command.names))

    def _look_up_workers(self, worker: SimulatedWorker, names: tuple[str, ...]) -> None:
        found = tuple(self.rows[name] for name in names if name in self.rows)
        self.after(self.delay(), partial(self.deliver, worker, events.SignalsRead(names, found)))

    def _wake_workers(self, worker: SimulatedWorker, command: events.WakeWorkers) -> None:
        self.costs["wakes"] += len(command.names)
        is_lost = not self.is_table_reachable or self.chance(self.faults.lost_request)
        error = TimeoutError("no answer") if is_lost or self.chance(self.faults.lost_answer) else None
        if not is_lost:
            self.after(self.delay(), partial(self._wake, command.names))
        sent = events.WakesSent(command.names, error)
        self.after(self.delay() + self.delay(), partial(self.deliver, worker, sent))

    def _wake(self, names: tuple[str, ...]) -> None:
        self.rows.update({name: membership.woken(self.rows[name]) for name in names if name in self.rows})

    def _write_worker(self, worker: SimulatedWorker, command: events.WriteWorker) -> None:
        write, sent_at = command.write, worker.local(self.now)
        self.costs[write.kind.value] += 1
        if write.result is not None and write.kind is WorkerWriteKind.REGISTER:
            self.processes[write.result.nonce] = worker
        uncertain = events.WorkerWriteAnswered(write, WriteOutcome.UNCERTAIN, sent_at, TimeoutError("no answer"))
        if not self.is_table_reachable or self.chance(self.faults.lost_request):
            self.after(self.delay() + self.delay(), partial(self.deliver, worker, uncertain))
        elif self.chance(self.faults.late_request):
            answer_after = self.delay()
            self.after(answer_after, partial(self.deliver, worker, uncertain))
            self.after(answer_after + 10 * self.delay(), partial(self._land_worker, write))
        else:
            self.after(self.delay(), partial(self._land_worker_and_answer, worker, write, sent_at))

    def _land_worker_and_answer(self, worker: SimulatedWorker, write: WorkerWrite, sent_at: float) -> None:
        outcome = WriteOutcome.ACCEPTED if self._land_worker(write) else WriteOutcome.REFUSED
        error = None
        if self.chance(self.faults.lost_answer):
            outcome, error = WriteOutcome.UNCERTAIN, TimeoutError("no answer")
        elif self.chance(self.faults.false_refusal):
            outcome = WriteOutcome.REFUSED
        answer = events.WorkerWriteAnswered(write, outcome, sent_at, error)
        self.after(self.delay(), partial(self.deliver, worker, answer))

    def _land_worker(self, write: WorkerWrite) -> bool:
        row = self.rows.get(write.worker_id)
        if not membership.permits(row, write):
            return False
        self._check_session_laws(write, row)
        after = membership.apply_write(row, write)
        self.history.append(f"{self.now:.3f} {write.kind.value} {row} -> {after}")
        if after is None:
            self.rows.pop(write.worker_id, None)
        else:
            self.rows[write.worker_id] = after
        return True

    def _check_session_laws(self, write: WorkerWrite, row: WorkerRow | None) -> None:
        if write.kind is WorkerWriteKind.BEAT and row is not None:
            assert row.nonce not in self.killed, f"{write} after the session was killed"
        if write.kind is WorkerWriteKind.KILL and row is not None:
            self.killed.add(row.nonce)
            process = self.processes[row.nonce]
            session = process.holdings._situation.presence.session
            is_over = session.row is None or session.row.nonce != row.nonce
            until = session.valid_until
            assert not process.is_alive or is_over or until <= process.local(self.now), f"{write}: valid until {until}"

    def moves(self) -> list[str]:
        """The entries of the history that are neither heartbeats nor checkpoints."""
        return [line for line in super().moves() if " beat " not in line and " remove " not in line]
