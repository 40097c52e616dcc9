"""The workers of a history, the execution of a plan's actions, and the end of all faults when its time is over."""

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
"""The multiple of a history's initial number of shards at which it stops splitting shards."""

FEWEST_SHARDS_CAP = 12
"""The number of shards below which a history does not stop splitting shards."""

MEND_DURATIONS = 3.0
"""The interval, in lease durations, at which an operator lets stopped shards continue."""

HELD_SECONDS = 1.0
"""The number of seconds for which a shard is paused to make it start anew."""

POISON_AHEAD = 8
"""The largest number of records between a shard's position and a poisoned record."""

OUTSIDER = Outsider("outsider", "outside", "outside")

TRIM_HORIZON, SHARD_END = CheckpointPosition.TRIM_HORIZON, CheckpointPosition.SHARD_END

Choice = TypeVar("Choice")


class SimulatedFleet:
    """Starts workers in a world, and keeps them all."""

    def __init__(self, world: SimulatedWorld) -> None:
        self.world = world
        self.workers: dict[str, PythonProcess | JavaWorker] = {}
        """The last life of each worker, by name."""
        self.everybody: list[PythonProcess | JavaWorker] = []
        self.java_client: type[JavaWorker] = JavaWorker
        """The model of a Java worker; measurements put a model here that counts its calls."""
        self._lives: Counter[str] = Counter()

    def start(self, name: str, *, java: bool = False) -> None:
        """Start a worker, or its next life."""
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
        """Return the living processes of this package, by name."""
        found = [worker for worker in self.everybody if worker.is_alive and isinstance(worker, PythonProcess)]
        return sorted(found, key=lambda process: (process.name, process.life))

    def living_javas(self) -> list[JavaWorker]:
        """Return the living Java workers, by name."""
        found = [worker for worker in self.everybody if worker.is_alive and isinstance(worker, JavaWorker)]
        return sorted(found, key=lambda worker: worker.name)


class Storm:
    """The events that happen to one world from outside."""

    def __init__(self, fleet: SimulatedFleet) -> None:
        world = self.world = fleet.world
        self.fleet = fleet
        self.operator = Operator(world)
        for action in world.plan.actions:
            world.agenda.at(action.at, world.act, _DO, self, action)
        world.agenda.after(MEND_DURATIONS * world.plan.duration_seconds, self._mend)

    def calm(self) -> None:
        """End every fault. From now on everything works, and the fleet has to recover.

        A freeze that has begun is not shortened: events that reached the process since the beginning of the freeze wait
        for its end, and later events would overtake them.
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
        """Let shards that wait for an operator continue: accept a loss, or start them anew.

        An order to park that stands at the end of the storm parks its record again after the replay, perhaps with more
        of its key than the failure policy allows. So the operator drops the record instead, and repeats the replay.
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
        """Replace processors at intervals. Otherwise records that they keep for the next batch would wait for ever."""
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
        """Return the time when the last frozen process continues, which may be in the past."""
        everybody: list[PythonProcess | JavaWorker] = [*self.fleet.living(), *self.fleet.living_javas()]
        return max((worker.frozen_until for worker in everybody), default=0.0)

    def _end_orders(self) -> None:
        self.operator.is_off_duty = True
        self._lift_pauses()
        for process in self.fleet.living():
            for held in list(process.held_by_program):
                process.let_go(held)

    def _lift_pauses(self) -> None:
        """Lift pauses repeatedly, because a worker that restores a destroyed row may restore a pause that is over."""
        for key in list(self.world.table.sorted_keys()):
            self.operator.resume(key)
        self.world.agenda.after(self.world.plan.duration_seconds, self._lift_pauses)

    def _begin_new_lives(self) -> None:
        """Replace workers whose processors marked a shard done. They never take it again in the same life."""
        for process in self.fleet.living():
            if process.is_selective and self.fleet.workers[process.name] is process:
                process.crash()
                self.fleet.start(process.name)
        if all(process.is_stopping or self._is_replaced(process) for process in self.fleet.living()):
            self.fleet.start("last")

    def _is_replaced(self, process: PythonProcess) -> bool:
        """Return whether another process was started under the process's name: ``process`` then has no leases."""
        return self.fleet.workers[process.name] is not process

    # --- workers -----------------------------------------------------------------------------------------------

    def _start(self, action: Action) -> bool:
        if self._living(action) is not None:
            return False
        self.fleet.start(action.who, java=action.java)
        return True

    def _twin(self, action: Action) -> bool:
        """Start a twin, if there are sessions. Only sessions distinguish two processes with one name."""
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
        """Trim a shard, preferably one with a backlog.

        Only shards qualify whose checkpoint is a position, or of which a batch is prepared. If a shard was never read,
        its remaining records are all that readers will request.
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
        """Destroy a row, but not twice within a short time.

        A late write that was to repair the first destruction would also fit the second.
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
        """Report a hanging consumer, as the watchdog of its process does."""
        if self.world.hangs.get(key, 0.0) > self.world.now:
            for consumer in list(self.world.readers_of(key)):
                event = events.ConsumerStalled(key, consumer.identifier, "process_records does not return")
                consumer.process.deliver(event)

    def _shard(self, action: Action) -> str:
        """Return the shard of an action, among all shards that ever existed. At least one exists."""
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
        """Let the program of a worker pause the whole worker or one lease, unless the process is frozen."""
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
