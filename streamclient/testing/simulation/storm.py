"""The workers of a fleet's history, and the storm, which carries out the plan's actions and then ends all faults."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeVar

from attrs import evolve

from streamclient.core import events
from streamclient.model import CheckpointPosition, Lease, ShutdownReason
from streamclient.testing.simulation.actors.consumer_actor import Consumer
from streamclient.testing.simulation.actors.java.java_worker import JavaWorker
from streamclient.testing.simulation.actors.operator_actor import Operator
from streamclient.testing.simulation.actors.process_actor import PythonProcess
from streamclient.testing.simulation.plan import Action
from streamclient.testing.simulation.simulated_faults import Do
from streamclient.testing.simulation.simulated_table import Outsider
from streamclient.testing.simulation.world import SimulatedWorld

MOST_SHARDS_FACTOR = 4
"""A history stops splitting shards at this multiple of its initial number of shards."""

FEWEST_SHARDS_CAP = 12
"""A history with fewer shards than this number may always split them."""

MEND_DURATIONS = 3.0
"""The interval, in lease durations, at which an operator lets stopped shards continue. A shard stops after a failure or
a loss."""

HELD_SECONDS = 1.0
"""The time, in seconds, for which a stopped shard is paused, so that it starts anew afterwards."""

POISON_AHEAD = 8
"""The largest number of records between the first unprocessed record of a shard and a new poison record."""

OUTSIDER = Outsider("outsider", "outside", "outside")

TRIM_HORIZON, SHARD_END = CheckpointPosition.TRIM_HORIZON, CheckpointPosition.SHARD_END

Choice = TypeVar("Choice")


class SimulatedFleet:
    """All workers of a simulated world, including workers that have ended."""

    def __init__(self, world: SimulatedWorld) -> None:
        self.world = world
        self.workers: dict[str, PythonProcess | JavaWorker] = {}
        """The newest process of each worker, by the worker's name."""
        self.everybody: list[PythonProcess | JavaWorker] = []
        self.java_client: type[JavaWorker] = JavaWorker
        """The class of Java workers. Measurements replace this class by a class that counts calls."""
        self._lives: Counter[str] = Counter()

    def start(self, name: str, *, java: bool = False) -> None:
        """Start a worker under ``name`` or, if the name was already used, a new process of the same worker."""
        self._lives[name] += 1
        worker: PythonProcess | JavaWorker
        if java:
            worker = self.java_client(self.world, name, self._lives[name])
        else:
            worker = PythonProcess(self.world, name, self._lives[name])
            self.world.processes.append(worker)
        self.workers[name] = worker
        self.everybody.append(worker)
        self.world.started(worker)
        worker.start()

    def living(self) -> list[PythonProcess]:
        """Return the living processes with a Python worker, ordered by name and by the number of the process."""
        found = [worker for worker in self.everybody if worker.is_alive and isinstance(worker, PythonProcess)]
        return sorted(found, key=lambda process: (process.name, process.life))

    def living_javas(self) -> list[JavaWorker]:
        """Return the living Java workers, ordered by name."""
        found = [worker for worker in self.everybody if worker.is_alive and isinstance(worker, JavaWorker)]
        return sorted(found, key=lambda worker: worker.name)


class Storm:
    """The actions of a plan, carried out on the workers, the stream and the table of one world."""

    def __init__(self, fleet: SimulatedFleet) -> None:
        world = self.world = fleet.world
        self.fleet = fleet
        self.operator = Operator(world)
        for action in world.plan.actions:
            world.agenda.at(action.at, world.act, _DO, self, action)
        world.agenda.after(MEND_DURATIONS * world.plan.duration_seconds, self._mend)

    def calm(self) -> None:
        """End every fault except freezes, so that the fleet can recover.

        A freeze keeps its planned end, because events of the frozen process wait for this end. If the freeze ended
        earlier, later events would overtake these events.
        """
        world = self.world
        world.note("outside", "calm")
        world.network.calm()
        world.is_writing = False
        for lasting in (world.hangs, world.failing, world.dragging):
            lasting.clear()
        for shard in world.stream.shards.values():
            shard.poisoned.clear()
        world.replay_parked()
        world.stale = (0.0, 0.0)
        self._flush()
        self._end_orders()
        for java in self.fleet.living_javas()[1:] if world.plan.seed % 2 else self.fleet.living_javas():
            java.crash()
        self._begin_new_lives()

    def _mend(self) -> None:
        """Let shards that wait for an operator continue: accept their loss, or start them anew.

        After the storm, all parked records are replayed. But an order to park one of these records may still be in the
        lease row. A worker would obey the order, park the record again, and then also park later records of its key.
        These might be more records than the failure policy allows. So the operator adds an order to skip the record,
        which replaces the earlier order, and repeats the replay.
        """
        if self.operator.has_parked and not self.world.is_writing:
            for key in self.world.table.sorted_keys():
                self.operator.drop_parked(key)
            self.world.replay_parked()
        for process in self.fleet.living():
            for consumer in list(process.consumers.values()):
                if consumer.is_given_up:
                    self._decide(process, consumer)
        self.world.agenda.after(MEND_DURATIONS * self.world.plan.duration_seconds, self._mend)

    def _flush(self) -> None:
        """Replace all processors, because records that a processor keeps for its next batch could wait for ever."""
        for process in self.fleet.living():
            for consumer in process.consumers.values():
                consumer.mark(ShutdownReason.PROCESS_RESTART)

    def _decide(self, process: PythonProcess, consumer: Consumer) -> None:
        self.world.injected["decision"] += 1
        if consumer.machine.lost is not None:
            consumer.accept_loss()
        elif not process.is_frozen:
            process.hold(consumer.lease_key)
            self.world.agenda.after(HELD_SECONDS, process.let_go, consumer.lease_key)

    def last_thaw(self) -> float:
        """Return the time when the last freeze ends, which may be in the past."""
        everybody: list[PythonProcess | JavaWorker] = [*self.fleet.living(), *self.fleet.living_javas()]
        return max((worker.frozen_until for worker in everybody), default=0.0)

    def _end_orders(self) -> None:
        self.operator.is_off_duty = True
        self._lift_pauses()
        for process in self.fleet.living():
            for held in list(process.held_by_program):
                process.let_go(held)

    def _lift_pauses(self) -> None:
        """End all pauses, and repeat this after each lease duration.

        Once is not enough, because a worker that restores a destroyed row may bring an ended pause back.
        """
        for key in list(self.world.table.sorted_keys()):
            self.operator.resume(key)
        self.world.agenda.after(self.world.plan.duration_seconds, self._lift_pauses)

    def _begin_new_lives(self) -> None:
        """Replace workers whose processors marked a shard as done, because such a worker never takes the shard again.

        Start another worker if all living workers are stopping or replaced.
        """
        for process in self.fleet.living():
            if process.is_selective and self.fleet.workers[process.name] is process:
                process.crash()
                self.fleet.start(process.name)
        if all(process.is_stopping or self._is_replaced(process) for process in self.fleet.living()):
            self.fleet.start("last")

    def _is_replaced(self, process: PythonProcess) -> bool:
        """Return whether a newer process has the name of ``process``. A replaced process holds no leases."""
        return self.fleet.workers[process.name] is not process

    # --- workers -----------------------------------------------------------------------------------------------

    def _start(self, action: Action) -> bool:
        if self._living(action) is not None:
            return False
        self.fleet.start(action.who, java=action.java)
        return True

    def _twin(self, action: Action) -> bool:
        """Start a second process under the name of a living worker, if the plan has sessions.

        Without sessions, other workers cannot distinguish two processes with the same name.
        """
        if not self.world.plan.has_sessions or not isinstance(self._living(action), PythonProcess):
            return False
        self.fleet.start(action.who)
        return True

    def _crash(self, action: Action) -> bool:
        worker = self._living(action)
        if worker is None:
            return False
        worker.crash()
        return True

    def _stop(self, action: Action) -> bool:
        """Stop a worker. A Java worker crashes instead, because it releases nothing when it stops."""
        worker = self._living(action)
        if worker is None or (isinstance(worker, PythonProcess) and worker.is_stopping):
            return False
        worker.stop() if isinstance(worker, PythonProcess) else worker.crash()
        return True

    def _freeze(self, action: Action) -> bool:
        worker = self._living(action)
        if worker is None:
            return False
        worker.freeze(action.seconds)
        return True

    def _living(self, action: Action) -> PythonProcess | JavaWorker | None:
        worker = self.fleet.workers.get(action.who)
        return worker if worker is not None and worker.is_alive else None

    # --- the stream --------------------------------------------------------------------------------------------

    def _split(self, action: Action) -> bool:
        world = self.world
        is_full = len(world.stream.shards) >= max(FEWEST_SHARDS_CAP, MOST_SHARDS_FACTOR * world.plan.shards)
        name = _pick(world.stream.open_ids, action.where)
        return not is_full and name is not None and bool(world.stream.split(name, world.now))

    def _merge(self, action: Action) -> bool:
        name = _pick(self.world.stream.open_ids, action.where)
        return name is not None and bool(self.world.stream.merge(name, self.world.now))

    def _expire(self, action: Action) -> bool:
        world = self.world
        name = _pick([name for name in world.stream.expirable_ids() if name in world.table.rows], action.where)
        if name is None:
            return False
        world.stream.expire(name, world.now)
        return True

    def _trim(self, action: Action) -> bool:
        """Trim a shard, preferably a shard with a backlog.

        Only shards that a worker has begun to read are trimmed: their checkpoint is an iterator, or a batch is
        prepared. A shard that was never read would lose nothing, because its reader begins at the oldest record.
        """
        rows, shards, processed = self.world.table.rows, self.world.stream.shards, self.world.sink.processed
        ends = (TRIM_HORIZON, SHARD_END)
        begun = [key for key in sorted(rows) if rows[key].checkpoint not in ends or rows[key].pending is not None]
        listed = [key for key in begun if shards[key].is_listed]
        unread = [key for key in listed if processed.get(key, 0) < shards[key].size]
        key = _pick(unread or listed, action.where)
        return key is not None and self.world.stream.trim(key, action.amount)

    def _stale(self, action: Action) -> bool:
        self.world.stale = (self.world.now + action.seconds, action.amount)
        return True

    # --- rows --------------------------------------------------------------------------------------------------

    def _delete_row(self, action: Action) -> bool:
        return self._destroy(action, lambda row: None)

    def _reset_row(self, action: Action) -> bool:
        return self._destroy(action, _anew)

    def _destroy(self, action: Action, change: Callable[[Lease], Lease | None]) -> bool:
        """Destroy a row. Leave the row alone if it was destroyed a short time ago.

        A worker repairs a destroyed row by a conditional write, which may arrive late. After a second destruction the
        row would look as it did after the first one. So the table would accept a late repair of the first one.
        """
        key = _pick(self.world.table.sorted_keys(), action.where)
        if key is None or self.world.has_begun_anew(key):
            return False
        self.world.destroyed(key)
        self.world.table.put(OUTSIDER, action.do.value, key, change(self.world.table.rows[key]))
        return True

    # --- processors --------------------------------------------------------------------------------------------

    def _fail(self, action: Action) -> bool:
        self.world.failing[self._shard(action)] = self.world.now + action.seconds
        return True

    def _poison(self, action: Action) -> bool:
        key = self._shard(action)
        place = self.world.sink.processed.get(key, 0) + int(POISON_AHEAD * action.where)
        self.world.stream.shards[key].poisoned.add(place)
        return True

    def _drag(self, action: Action) -> bool:
        self.world.dragging[self._shard(action)] = (self.world.now + action.seconds, action.amount)
        return True

    def _hang(self, action: Action) -> bool:
        key = self._shard(action)
        self.world.hangs[key] = self.world.now + action.seconds
        if action.amount:
            self.world.agenda.after(action.amount, self._report_stall, key)
        return True

    def _report_stall(self, key: str) -> None:
        """Report the consumers of a shard whose processors hang, as the watchdogs of the processes do."""
        if self.world.hangs.get(key, 0.0) > self.world.now:
            for consumer in list(self.world.readers_of(key)):
                event = events.ConsumerStalled(key, consumer.identifier, "process_records does not return")
                consumer.process.deliver(event)

    def _shard(self, action: Action) -> str:
        """Return the shard that an action selects by ``where`` among all shards that ever existed."""
        shards = sorted(self.world.stream.shards)
        return shards[min(int(action.where * len(shards)), len(shards) - 1)]

    def _done(self, action: Action) -> bool:
        key = _pick(sorted(self.world.stream.open_ids), action.where)
        readers = self.world.readers_of(key) if key is not None else []
        is_done = action.do is Do.DONE
        for consumer in readers:
            consumer.mark(ShutdownReason.PROCESS_DONE if is_done else ShutdownReason.PROCESS_RESTART)
            consumer.process.is_selective |= is_done
        return bool(readers)

    # --- orders ------------------------------------------------------------------------------------------------

    def _pause(self, action: Action) -> bool:
        key = _pick(self.world.table.sorted_keys(), action.where)
        return key is not None and self.operator.pause(key, action.seconds, ends_itself=action.amount > 0)

    def _rewind(self, action: Action) -> bool:
        key = _pick(self.world.table.sorted_keys(), action.where)
        return key is not None and self.operator.rewind(key, action.seconds, action.amount)

    def _release(self, action: Action) -> bool:
        key = _pick(self.world.table.sorted_keys(), action.where)
        return key is not None and self.operator.release(key, action.seconds)

    def _move(self, action: Action) -> bool:
        key, worker = _pick(self.world.table.sorted_keys(), action.where), self._living(action)
        return key is not None and worker is not None and self.operator.move(key, worker.name)

    def _take_out(self, action: Action) -> bool:
        key = _pick(self.world.table.sorted_keys(), action.where)
        return key is not None and self.operator.take_out(key, is_skip=action.amount > 0)

    def _hold(self, action: Action) -> bool:
        """Let a worker's own program pause the whole worker or one lease. If the process is frozen, do nothing."""
        worker, key = self._living(action), _pick(self.world.table.sorted_keys(), action.where)
        if not isinstance(worker, PythonProcess) or worker.is_frozen or key is None:
            return False
        worker.hold(None if action.do is Do.HOLD_ALL else key)
        self.world.agenda.after(action.seconds, worker.let_go, None if action.do is Do.HOLD_ALL else key)
        return True


def _pick(choices: Sequence[Choice], where: float) -> Choice | None:
    return choices[min(int(where * len(choices)), len(choices) - 1)] if choices else None


def _anew(row: Lease) -> Lease:
    return evolve(Lease(row.lease_key, row.stream_id), parent_shard_ids=row.parent_shard_ids)


_DO: dict[Do, Callable[[Storm, Action], bool]] = {
    Do.START: Storm._start,
    Do.TWIN: Storm._twin,
    Do.CRASH: Storm._crash,
    Do.STOP: Storm._stop,
    Do.FREEZE: Storm._freeze,
    Do.SPLIT: Storm._split,
    Do.MERGE: Storm._merge,
    Do.EXPIRE: Storm._expire,
    Do.STALE: Storm._stale,
    Do.DELETE_ROW: Storm._delete_row,
    Do.RESET_ROW: Storm._reset_row,
    Do.TRIM: Storm._trim,
    Do.FAIL: Storm._fail,
    Do.POISON: Storm._poison,
    Do.DRAG: Storm._drag,
    Do.HANG: Storm._hang,
    Do.DONE: Storm._done,
    Do.REPLACE: Storm._done,
    Do.PAUSE: Storm._pause,
    Do.REWIND: Storm._rewind,
    Do.RELEASE: Storm._release,
    Do.MOVE: Storm._move,
    Do.TAKE_OUT: Storm._take_out,
    Do.HOLD: Storm._hold,
    Do.HOLD_ALL: Storm._hold,
}
