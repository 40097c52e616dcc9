"""Workers on virtual time: nothing happens unless the caller lets time pass, and only one thing at a time.

``Simulation`` owns the clock. Its pools queue calls instead of running them. Each step takes the owners' turns,
continues one call, and lets time leap when there is nothing to do. Calls into user code run in threads of their own, so
that they can wait, but exactly one thread runs while the others stand still: runs repeat exactly.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any

from streamclient.base.times import MICROS_PER_SECOND
from streamclient.core.holdings import Holdings
from streamclient.model import ShardState
from streamclient.testing.simulation.kernel import Agenda
from streamclient.worker import Runtime, Worker

SMALLEST_STEP_SECONDS = 0.001
"""The shortest time by which the clock advances when nothing can run, so that a deadline in the past does not block
it."""

MOST_STEPS = 400_000
"""The largest number of steps of one wait. An hour of a small fleet takes some tens of thousands of steps."""

STARTED_AT_SECONDS = 1_000.0
"""The initial time of the monotonic clock, in seconds: not zero, which could pass for an unset value."""

STARTED_AT_WALL_MICROS = 1_600_000_000_000_000


class TrialOver(BaseException):
    """Raised in user code that still waits when its simulation is closed, so that its thread ends."""


class QueuedPool(Executor):
    """Keeps calls until the simulation runs them."""

    def __init__(self, simulation: Simulation, name: str) -> None:
        self.simulation = simulation
        self.name = name
        self.is_frozen = False
        """Whether the pool's process is frozen: no part of a frozen process runs."""
        self.calls: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self.may_wait = not name.endswith(("-scan", "-status", "-fetch"))
        """Whether the pool's calls are user code, which may wait for a checkpoint. Other calls never wait."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Queue a call."""
        future: Future[Any] = Future()
        self.calls.append((future, partial(fn, *args, **kwargs)))
        return future

    def run_one(self) -> None:
        """Run the oldest call until it ends or waits."""
        future, call = self.calls.popleft()
        if not future.set_running_or_notify_cancel():
            return
        if self.may_wait:
            SimulatedCall(self, partial(_complete, future, call)).go_on()
        else:
            _complete(future, call)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Drop the queued calls."""
        self.calls.clear()


def _complete(future: Future[Any], call: Callable[[], Any]) -> None:
    try:
        future.set_result(call())
    except BaseException as error:
        future.set_exception(error)


class SimulatedCall:
    """One call in a thread of its own, which runs only while the simulation stands still."""

    def __init__(self, pool: QueuedPool, call: Callable[[], None]) -> None:
        self.pool = pool
        self.event: threading.Event | None = None
        self.limit = 0.0
        self._call = call
        self._mine = threading.Semaphore(0)
        self._theirs = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def go_on(self) -> None:
        """Run the call until it ends or waits."""
        self.event = None
        self.pool.simulation.simulated_calls[self._thread.ident or 0] = self
        self._mine.release()
        self._theirs.acquire()

    def wait(self, event: threading.Event, limit: float) -> None:
        """Wait in the thread of the call until the event is set or the time ``limit`` has come."""
        self.event, self.limit = event, limit
        self._theirs.release()
        self._mine.acquire()
        if self.pool.simulation.is_closed:
            raise TrialOver

    def can_go_on(self, now: float) -> bool:
        """Return whether the awaited event or time has come, in a process that is not frozen."""
        return not self.pool.is_frozen and self.event is not None and (self.event.is_set() or now >= self.limit)

    def _run(self) -> None:
        self._mine.acquire()
        self._call()
        self.pool.simulation.simulated_calls.pop(threading.get_ident(), None)
        self._theirs.release()


class Simulation:
    """Virtual time and every worker in it."""

    def __init__(self, seed: int = 1) -> None:
        self.is_closed = False
        self.agenda = Agenda(STARTED_AT_SECONDS)
        """The calls from outside of every worker. The time of this agenda is the time of all workers."""
        self.pools: list[QueuedPool] = []
        self.workers: list[SimulatedWorker] = []
        self.simulated_calls: dict[int, SimulatedCall] = {}
        self.dice = random.Random(seed)
        self.identifiers = 0

    @property
    def now(self) -> float:
        """The time of all monotonic clocks."""
        return self.agenda.now

    def runtime(self) -> Runtime:
        """Return the substitute for the outside world that a worker of this simulation gets."""
        return Runtime(
            monotonic=lambda: self.now,
            wall_micros=lambda: STARTED_AT_WALL_MICROS + int(self.now * MICROS_PER_SECOND),
            wait=self.wait,
            new_identifier=self._identifier,
            dice=random.Random(self.dice.random()),
            make_pool=self._pool,
        )

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Let everything else go on until the event is set or ``seconds`` have passed; return whether it is set."""
        simulated_call = self.simulated_calls.get(threading.get_ident())
        if simulated_call is None:
            self.until(event.is_set, seconds, required=False)
        elif not event.is_set():
            simulated_call.wait(event, self.now + seconds)
        return event.is_set()

    def advance(self, seconds: float) -> None:
        """Advance the clock by ``seconds``, and run everything that falls due."""
        self.until(lambda: False, seconds, required=False)

    def until(self, condition: Callable[[], bool], seconds: float = 600.0, *, required: bool = True) -> None:
        """Let everything continue until ``condition`` returns true, for at most ``seconds``."""
        limit = self.now + seconds
        for _ in range(MOST_STEPS):
            if condition():
                return
            if self.now >= limit:
                assert not required, f"not reached within {seconds} s: {[w.statuses() for w in self.workers]}"
                return
            self._step(limit, condition)
        raise AssertionError("the simulation does not come to rest")

    def close(self) -> None:
        """End every waiting thread of user code, in all processes. Nothing may be run afterwards."""
        self.is_closed = True
        for simulated_call in list(self.simulated_calls.values()):
            simulated_call.go_on()

    def _step(self, limit: float, condition: Callable[[], bool]) -> None:
        while self.agenda.next_moment <= self.now:  # a call may have let time pass
            self.agenda.run_until(self.now)
        for worker in self.workers:
            worker.thaw()
            worker.turn()
        ready: list[Callable[[], None]] = [p.run_one for p in self.pools if p.calls and not p.is_frozen]
        ready += [call.go_on for call in self.simulated_calls.values() if call.can_go_on(self.now)]
        if ready:
            self.dice.choice(ready)()
        elif not condition() and not any(worker.has_messages for worker in self.workers):
            self.agenda.now = min(limit, max(self.now + SMALLEST_STEP_SECONDS, self._next_moment()))

    def _next_moment(self) -> float:
        moments = [worker.next_moment for worker in self.workers if not worker.is_over]
        moments += [call.limit for call in self.simulated_calls.values() if not call.pool.is_frozen]
        return min([self.agenda.next_moment, *moments])

    def _identifier(self) -> str:
        self.identifiers += 1
        return f"tenancy-{self.identifiers}"

    def _pool(self, name: str, most_threads: int) -> QueuedPool:
        pool = QueuedPool(self, name)
        self.pools.append(pool)
        return pool

    def pool(self, name: str) -> QueuedPool:
        """Return the pool called ``name``.

        A pool's name is the worker's name followed by ``-scan``, ``-status``, ``-renew``, ``-fetch`` or ``-processor``.
        """
        return next(pool for pool in self.pools if pool.name == name)


class SimulatedWorker:
    """One worker, run turn by turn by the simulation."""

    def __init__(self, simulation: Simulation, worker: Worker) -> None:
        self.worker = worker
        self.simulation = simulation
        self.is_over = False
        self.frozen_until = float("-inf")
        self._due = float("-inf")
        self.ended: tuple[float, str] | None = None
        """The time and the manner of the end: ``killed`` or ``stopped``; ``None`` while the worker lives."""
        self.freezes: list[tuple[float, float]] = []
        """The beginning and the planned end of each freeze."""
        self.error: BaseException | None = None
        """The error that the worker's owner thread would have raised."""
        made_before = len(simulation.pools)
        (self.coordinator,) = worker.prepare()
        self._pools = simulation.pools[made_before:]
        simulation.workers.append(self)

    @property
    def name(self) -> str:
        """The worker identifier."""
        return self.worker.worker_identifier

    @property
    def holdings(self) -> Holdings:
        """The worker's decisions about leases; to be read and never to be changed."""
        return self.coordinator.holdings

    def turn(self) -> None:
        """Take one turn of the owner thread, if there is work for it and its process is not frozen."""
        if self.is_over or self.coordinator.loop.is_inside or (not self.has_messages and self.next_moment > self._now):
            return
        try:
            self.coordinator.step(0.0)
        except Exception as error:
            self.error = error
            self.coordinator.fail(error)
        self._due = self.coordinator.next_deadline()
        if self.coordinator.is_finished:
            self.coordinator.close()
            self._end("stopped")

    @property
    def _now(self) -> float:
        return self.simulation.now

    def kill(self) -> None:
        """End the worker as ``kill -9`` does: no part of it runs any more."""
        self._end("killed")
        self._set_frozen(True)

    def _end(self, manner: str) -> None:
        self.is_over = True
        self.ended = self.ended or (self.simulation.now, manner)

    def freeze(self, seconds: float) -> None:
        """Freeze the worker as SIGSTOP does, and continue it after ``seconds`` as SIGCONT does."""
        if not self.is_over:
            self.frozen_until = self.simulation.now + seconds
            self.freezes.append((self.simulation.now, self.frozen_until))
            self._set_frozen(True)

    def thaw(self) -> None:
        """Continue the worker, if its freeze is over."""
        if not self.is_over and self.frozen_until <= self.simulation.now and self.frozen_until != float("-inf"):
            self.frozen_until = float("-inf")
            self._set_frozen(False)

    @property
    def is_frozen(self) -> bool:
        """Whether the process is frozen."""
        return self.frozen_until > self.simulation.now

    def take_along(self, pool: QueuedPool) -> None:
        """Freeze one more pool of the same process together with the worker."""
        self._pools.append(pool)

    def _set_frozen(self, is_frozen: bool) -> None:
        for pool in self._pools:
            pool.is_frozen = is_frozen

    def stop(self) -> None:
        """Request an orderly stop."""
        self.coordinator.request_stop()

    @property
    def has_messages(self) -> bool:
        """Whether a turn would have something to do at once."""
        return not self.is_over and not self.is_frozen and self.coordinator.loop.has_messages

    @property
    def next_moment(self) -> float:
        """The time when a turn is due even without events; known since the last turn."""
        return self.frozen_until if self.is_frozen else self._due

    def statuses(self) -> dict[str, Any]:
        """Return the status of each shard, by id."""
        return dict(self.coordinator._statuses())

    @property
    def reads(self) -> set[str]:
        """The shards whose consumer has a processor or will have one."""
        states = (ShardState.PROCESSING, ShardState.INITIALIZING)
        return {key for key, status in self.statuses().items() if status.has_consumer and status.state in states}
