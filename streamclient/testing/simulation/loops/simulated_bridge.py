"""An event loop on simulated time, which the simulation runs step by step.

Order and cancellation are the same as in asyncio. Posted functions run in the order in which they were posted. A
cancelled coroutine gets ``CancelledError`` where it waits, even if the awaited result has just come.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from typing import Any

from streamclient.testing.simulation.workers import QueuedPool, Simulation
from streamclient.worker.handlers.event_loop import TimedLoopBridge

MOST_CLOSINGS = 5
"""The largest number of calls of ``close`` for one coroutine. A coroutine that awaits while it is closed needs another
call."""


class LoopQueue(QueuedPool):
    """The functions that wait to run in one event loop. The queue freezes with the other pools of its process."""

    def __init__(self, simulation: Simulation, name: str, failed: Callable[[Exception], object]) -> None:
        super().__init__(simulation, name)
        self._failed = failed
        simulation.pools.append(self)

    def run_one(self) -> None:
        """Run the function that has waited longest, and report an error that the function raises."""
        _, function = self.calls.popleft()
        try:
            function()
        except Exception as error:
            self._failed(error)


class SimulatedWaiter:
    """A wait of a coroutine. The wait ends when another part of the simulation calls ``ring``."""

    def __init__(self) -> None:
        self.is_rung = False
        self.task: SimulatedTask | None = None
        """The task that waits; ``None`` if no task waits."""

    def __await__(self) -> Generator[SimulatedWaiter, None, None]:
        if not self.is_rung:
            yield self

    def ring(self) -> None:
        """End the wait, and let the waiting task go on."""
        self.is_rung = True
        if self.task is not None:
            self.task.wake()


class SimulatedTask:
    """A coroutine that runs in one simulated event loop."""

    def __init__(
        self,
        bridge: SimulatedBridge,
        coroutine: Coroutine[Any, Any, None],
        ended: Callable[[BaseException | None], None],
    ) -> None:
        self.bridge, self._coroutine, self._ended = bridge, coroutine, ended
        self.is_over = self._must_cancel = False
        self.cancellations = 0
        """The number of times that the coroutine was cancelled."""
        self._waits_for: SimulatedWaiter | None = None
        bridge.post(self._step)

    def cancel(self) -> bool:
        """Cancel the coroutine, which goes on with ``CancelledError``; return ``False`` if it has already ended."""
        if self.is_over:
            return False
        self._must_cancel = True
        self.cancellations += 1
        self._go_on()
        return True

    def wake(self) -> None:
        """Let the coroutine go on after its wait."""
        self._go_on()
        self.bridge.rung()

    def close(self) -> None:
        """Close the coroutine where it waits, as the garbage collector does."""
        self.is_over = True
        for _ in range(MOST_CLOSINGS):
            with suppress(Exception):
                self._coroutine.close()
                return

    def _go_on(self) -> None:
        waiter, self._waits_for = self._waits_for, None
        if waiter is not None:
            waiter.task = None
            self.bridge.post(self._step)

    def _step(self) -> None:
        if self.is_over:
            return
        must_cancel, self._must_cancel = self._must_cancel, False
        self.bridge.current = self
        try:
            waiter = self._coroutine.throw(asyncio.CancelledError()) if must_cancel else self._coroutine.send(None)
        except StopIteration:
            self._end(None)
        except BaseException as error:
            self._end(error.with_traceback(None))  # a traceback would keep objects alive that the program dropped
        else:
            self._wait(waiter)
        finally:
            self.bridge.current = None

    def _wait(self, waiter: SimulatedWaiter | None) -> None:
        """Let the coroutine go on when ``waiter`` is rung or, without a waiter, after all posted functions."""
        if waiter is None:
            self.bridge.post(self._step)
        else:
            self._waits_for, waiter.task = waiter, self
            if waiter.is_rung or self._must_cancel:
                self._go_on()
        self.bridge.waited()

    def _end(self, error: BaseException | None) -> None:
        self.is_over = True
        self._ended(error)


class SimulatedBridge(TimedLoopBridge):
    """One simulated event loop. Its code stops when its process is frozen or dies, and when the loop is closed."""

    def __init__(self, simulation: Simulation, name: str, failed: Callable[[Exception], object]) -> None:
        """Make an event loop. ``failed`` is called with the exception that a posted function raises."""
        self.queue = LoopQueue(simulation, f"{name}-loop", failed)
        self.tasks: list[SimulatedTask] = []
        self.current: SimulatedTask | None = None
        """The task that runs now; ``None`` while no task runs."""
        self.waited: Callable[[], object] = lambda: None
        """A function that the event loop calls whenever a task begins to wait."""
        self.rung: Callable[[], object] = lambda: None
        """A function that the event loop calls whenever the wait of a task ends, before the task goes on."""
        self._simulation = simulation
        self._is_closed = False

    def post(self, function: Callable[[], object]) -> bool:
        """Let ``function`` run in the event loop soon; return ``False`` if the event loop is closed."""
        if not self._is_closed:
            self.queue.submit(function)
        return not self._is_closed

    def waiter(self) -> SimulatedWaiter:
        """Return a new waiter, which a coroutine can await until it is rung."""
        return SimulatedWaiter()

    def start(
        self, coroutine: Coroutine[Any, Any, None], ended: Callable[[BaseException | None], None]
    ) -> SimulatedTask:
        """Run ``coroutine`` as a task of the event loop. At its end, call ``ended`` with its error or with ``None``."""
        task = SimulatedTask(self, coroutine, ended)
        self.tasks.append(task)
        return task

    def elsewhere(self) -> Callable[[], bool]:
        """Return a function that returns ``True`` if it is called outside the present task before this task has ended.

        If no task runs at present, the function always returns ``False``.
        """
        task = self.current
        return lambda: task is not None and not task.is_over and self.current is not task

    def call_later(self, seconds: float, function: Callable[[], object]) -> None:
        """Run ``function`` in the event loop after ``seconds``."""
        self._simulation.agenda.after(seconds, self.post, function)

    async def sleep(self, seconds: float) -> None:
        """Wait until ``seconds`` of simulated time have passed."""
        waiter = self.waiter()
        self.call_later(seconds, waiter.ring)
        await waiter

    async def within(self, seconds: float, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Await a coroutine, at most ``seconds``, as ``asyncio.timeout`` does.

        Raises:
            TimeoutError: the time was up, and the coroutine was cancelled.
        """
        task, is_done, is_late = self.current, False, False
        if task is None:
            raise ValueError("only a task can await")
        before = task.cancellations

        def cancel() -> None:
            nonlocal is_late
            if not is_done:
                is_late = True
                task.cancel()

        self.call_later(seconds, cancel)
        try:
            return await coroutine
        except asyncio.CancelledError:
            if is_late and task.cancellations == before + 1:
                raise TimeoutError from None
            raise
        finally:
            is_done = True

    def close(self) -> None:
        """Close the event loop. Its tasks stay where they wait, and posted functions do not run any more."""
        self._is_closed = True
        self.queue.calls.clear()

    def close_tasks(self) -> None:
        """Close the event loop and all its coroutines that have not ended, because the history is over."""
        self.close()
        for task in self.tasks:
            if not task.is_over:
                task.close()

    @property
    def is_closed(self) -> bool:
        """Whether the event loop is closed, so that it runs no code any more."""
        return self._is_closed
