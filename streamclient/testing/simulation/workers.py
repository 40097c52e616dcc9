"""Real workers on simulated time. They work only while the caller lets time pass.

``Simulation`` owns the clock. Its pools queue calls instead of running them. Each step of the simulation runs the turns
of all workers, and continues one call. A step without anything to do moves the time forward. Calls into user code run
in threads of their own, so that they can wait. Only one thread runs at a time, so every run can be repeated exactly.
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
"""The shortest time, in seconds, by which the clock advances when no call can run. So the clock advances even if a
deadline is in the past."""

MOST_STEPS = 400_000
"""The largest number of steps in one call of ``Simulation.until``. An hour of a small fleet takes some tens of
thousands of steps."""

STARTED_AT_SECONDS = 1_000.0
"""The initial time of the monotonic clock, in seconds. The time is not 0, which could be mistaken for an
unset value."""

STARTED_AT_WALL_MICROS = 1_600_000_000_000_000


class TrialOver(BaseException):
    """The error that ends the threads of user code that still wait when the simulation is closed."""


class QueuedPool(Executor):
    """A stand-in for a thread pool of one worker, which queues calls until the simulation runs them."""

    def __init__(self, simulation: Simulation, name: str) -> None:
        self.simulation = simulation
        self.name = name
        self.is_frozen = False
        """Whether the worker's process is frozen, so that no call of the pool runs."""
        self.calls: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self.may_wait = not name.endswith(("-scan", "-status", "-fetch"))
        """Whether the pool's calls are user code, which may wait for a checkpoint. Other calls never wait."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Queue a call of ``fn``; return the future of its result."""
        future: Future[Any] = Future()
        self.calls.append((future, partial(fn, *args, **kwargs)))
        return future

    def run_one(self) -> None:
        """Run the oldest queued call until the call ends or waits."""
        future, call = self.calls.popleft()
        if not future.set_running_or_notify_cancel():
            return
        if self.may_wait:
            SimulatedCall(self, partial(_complete, future, call)).go_on()
        else:
            _complete(future, call)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Drop all queued calls."""
        self.calls.clear()


def _complete(future: Future[Any], call: Callable[[], Any]) -> None:
    try:
        future.set_result(call())
    except BaseException as error:
        future.set_exception(error)


class SimulatedCall:
    """One call into user code in its own thread. The thread runs only while the simulation waits for it."""

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
        """Let the thread of the call run until the call ends or waits."""
        self.event = None
        self.pool.simulation.simulated_calls[self._thread.ident or 0] = self
        self._mine.release()
        self._theirs.acquire()

    def wait(self, event: threading.Event, limit: float) -> None:
        """Let the thread of the call wait until ``event`` is set or the simulated time ``limit`` has come."""
        self.event, self.limit = event, limit
        self._theirs.release()
        self._mine.acquire()
        if self.pool.simulation.is_closed:
            raise TrialOver

    def can_go_on(self, now: float) -> bool:
        """Return whether the wait of the call is over at the time ``now``, and its process is not frozen."""
        return not self.pool.is_frozen and self.event is not None and (self.event.is_set() or now >= self.limit)

    def _run(self) -> None:
        self._mine.acquire()
        self._call()
        self.pool.simulation.simulated_calls.pop(threading.get_ident(), None)
        self._theirs.release()


class Simulation:
    """The simulated time, and all workers, pools and calls that run on this time."""

    def __init__(self, seed: int = 1) -> None:
        self.is_closed = False
        self.agenda = Agenda(STARTED_AT_SECONDS)
        """The calls that do not belong to a worker, such as faults. The agenda's time is the time of all workers."""
        self.pools: list[QueuedPool] = []
        self.workers: list[SimulatedWorker] = []
        self.simulated_calls: dict[int, SimulatedCall] = {}
        self.dice = random.Random(seed)
        self.identifiers = 0

    @property
    def now(self) -> float:
        """The time that all monotonic clocks show, in seconds."""
        return self.agenda.now

    def runtime(self) -> Runtime:
        """Return the runtime for one worker of this simulation: its clocks, waits, identifiers, dice and pools."""
        return Runtime(
            monotonic=lambda: self.now,
            wall_micros=lambda: STARTED_AT_WALL_MICROS + int(self.now * MICROS_PER_SECOND),
            wait=self.wait,
            new_identifier=self._identifier,
            dice=random.Random(self.dice.random()),
            make_pool=self._pool,
        )

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Let time pass until ``event`` is set, for at most ``seconds``; return whether ``event`` is set."""
        simulated_call = self.simulated_calls.get(threading.get_ident())
        if simulated_call is None:
            self.until(event.is_set, seconds, required=False)
        elif not event.is_set():
            simulated_call.wait(event, self.now + seconds)
        return event.is_set()

    def advance(self, seconds: float) -> None:
        """Advance the clock by ``seconds``, and run everything that is due in this time."""
        self.until(lambda: False, seconds, required=False)

    def until(self, condition: Callable[[], bool], seconds: float = 600.0, *, required: bool = True) -> None:
        """Run the simulation until ``condition`` returns true, for at most ``seconds`` of simulated time.

        Raises:
            AssertionError: the condition was ``required`` but not reached, or the simulation took too many steps.
        """
        limit = self.now + seconds
        for _ in range(MOST_STEPS):
            if condition():
                return
            if self.now >= limit:
                assert not required, (
                    f"the condition was not reached within {seconds} s: {[w.statuses() for w in self.workers]}"
                )
                return
            self._step(limit, condition)
        raise AssertionError("the simulation does not come to rest")

    def close(self) -> None:
        """End all waiting threads of user code, in all processes. The simulation must not run afterwards."""
        self.is_closed = True
        for simulated_call in list(self.simulated_calls.values()):
            simulated_call.go_on()

    def _step(self, limit: float, condition: Callable[[], bool]) -> None:
        while self.agenda.next_moment <= self.now:  # a loop, because calls may let time pass
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
        """Return the pool ``name``.

        The name of a pool is the worker's name, followed by ``-scan``, ``-status``, ``-renew``, ``-fetch`` or
        ``-processor``.
        """
        return next(pool for pool in self.pools if pool.name == name)


class SimulatedWorker:
    """One real worker, whose turns the simulation runs."""

    def __init__(self, simulation: Simulation, worker: Worker) -> None:
        self.worker = worker
        self.simulation = simulation
        self.is_over = False
        self.frozen_until = float("-inf")
        self._due = float("-inf")
        self.ended: tuple[float, str] | None = None
        """The time of the end, and ``killed`` or ``stopped``; ``None`` while the worker is alive."""
        self.freezes: list[tuple[float, float]] = []
        """The times of the beginning and of the planned end of each freeze of the worker's process."""
        self.error: BaseException | None = None
        """The error that the worker's owner thread would have raised."""
        made_before = len(simulation.pools)
        (self.coordinator,) = worker.prepare()
        self._pools = simulation.pools[made_before:]
        simulation.workers.append(self)

    @property
    def name(self) -> str:
        """The identifier under which the worker appears in the status table."""
        return self.worker.worker_identifier

    @property
    def holdings(self) -> Holdings:
        """The core of the worker, which decides about leases. Callers must not change the core."""
        return self.coordinator.holdings

    def turn(self) -> None:
        """Run one turn of the worker's owner loop, if the loop has work and the process is not frozen."""
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
        """End the worker as ``kill -9`` does, so that no part of the worker runs any more."""
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
        """Continue the worker if its freeze is over."""
        if not self.is_over and self.frozen_until <= self.simulation.now and self.frozen_until != float("-inf"):
            self.frozen_until = float("-inf")
            self._set_frozen(False)

    @property
    def is_frozen(self) -> bool:
        """Whether the worker's process is frozen."""
        return self.frozen_until > self.simulation.now

    def take_along(self, pool: QueuedPool) -> None:
        """Let ``pool`` belong to the worker's process, so that the pool freezes and continues with the worker."""
        self._pools.append(pool)

    def _set_frozen(self, is_frozen: bool) -> None:
        for pool in self._pools:
            pool.is_frozen = is_frozen

    def stop(self) -> None:
        """Ask the worker for an orderly stop."""
        self.coordinator.request_stop()

    @property
    def has_messages(self) -> bool:
        """Whether messages wait for the next turn of the owner loop."""
        return not self.is_over and not self.is_frozen and self.coordinator.loop.has_messages

    @property
    def next_moment(self) -> float:
        """The time of the next turn if no message comes: the deadline that the last turn set, or a freeze's end."""
        return self.frozen_until if self.is_frozen else self._due

    def statuses(self) -> dict[str, Any]:
        """Return the status of each shard in this worker, by shard id."""
        return dict(self.coordinator._statuses())

    @property
    def reads(self) -> set[str]:
        """The ids of the shards whose consumer has a processor or is about to make one."""
        states = (ShardState.PROCESSING, ShardState.INITIALIZING)
        return {key for key, status in self.statuses().items() if status.has_consumer and status.state in states}
