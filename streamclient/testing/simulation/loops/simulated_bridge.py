"""An event loop on simulated time: posted functions and coroutines, one step at a time, when the simulation says so.

Order and cancellation are the same as in asyncio. Posted functions run first come, first served. A cancellation reaches
a coroutine where it waits, even if the awaited result has just come.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from typing import Any

from streamclient.testing.simulation.workers import QueuedPool, Simulation
from streamclient.worker.handlers.event_loop import TimedLoopBridge

MOST_CLOSINGS = 5
"""The largest number of times that a coroutine is closed again because it awaits while it is closed."""


class LoopQueue(QueuedPool):
    """The functions that wait to run in one event loop. It freezes with the other pools of its process."""

    def __init__(self, simulation: Simulation, name: str, failed: Callable[[Exception], object]) -> None:
        super().__init__(simulation, name)
        self._failed = failed
        simulation.pools.append(self)

    def run_one(self) -> None:
        """Run the oldest function; nothing that runs in the event loop may raise."""
        _, function = self.calls.popleft()
        try:
            function()
        except Exception as error:
            self._failed(error)


class SimulatedWaiter:
    """A wait of a coroutine, until ``ring`` is called."""

    def __init__(self) -> None:
        self.is_rung = False
        self.task: SimulatedTask | None = None
        """The task that waits."""

    def __await__(self) -> Generator[SimulatedWaiter, None, None]:
        if not self.is_rung:
            yield self

    def ring(self) -> None:
        """End the wait."""
        self.is_rung = True
        if self.task is not None:
            self.task.wake()


class SimulatedTask:
    """A coroutine of one event loop."""

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
        """Cancel the coroutine: it goes on with ``CancelledError``. Return whether it has not ended."""
        if self.is_over:
            return False
        self._must_cancel = True
        self.cancellations += 1
        self._go_on()
        return True

    def wake(self) -> None:
        """Go on after a wait."""
        self._go_on()
        self.bridge.rung()

    def close(self) -> None:
        """Close the coroutine where it stands, as the collector of garbage does."""
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
            self._end(error.with_traceback(None))  # which would keep what the program has dropped
        else:
            self._wait(waiter)
        finally:
            self.bridge.current = None

    def _wait(self, waiter: SimulatedWaiter | None) -> None:
        """Go on when the waiter is rung. Without a waiter, go on after all that is already posted."""
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
    """One event loop. Everything in it stops with its process, and when the loop is closed."""

    def __init__(self, simulation: Simulation, name: str, failed: Callable[[Exception], object]) -> None:
        """Make it. ``failed`` is called with the exception of a posted function."""
        self.queue = LoopQueue(simulation, f"{name}-loop", failed)
        self.tasks: list[SimulatedTask] = []
        self.current: SimulatedTask | None = None
        """The task that runs."""
        self.waited: Callable[[], object] = lambda: None
        """Called each time that a task begins to wait."""
        self.rung: Callable[[], object] = lambda: None
        """Called each time that a wait ends, before the task goes on."""
        self._simulation = simulation
        self._is_closed = False

    def post(self, function: Callable[[], object]) -> bool:
        """Run a function in the event loop soon."""
        if not self._is_closed:
            self.queue.submit(function)
        return not self._is_closed

    def waiter(self) -> SimulatedWaiter:
        """Return a new waiter."""
        return SimulatedWaiter()

    def start(
        self, coroutine: Coroutine[Any, Any, None], ended: Callable[[BaseException | None], None]
    ) -> SimulatedTask:
        """Run a coroutine in the event loop."""
        task = SimulatedTask(self, coroutine, ended)
        self.tasks.append(task)
        return task

    def elsewhere(self) -> Callable[[], bool]:
        """Return a function that tells whether another task asks while the present task still runs."""
        task = self.current
        return lambda: task is not None and not task.is_over and self.current is not task

    def call_later(self, seconds: float, function: Callable[[], object]) -> None:
        """Run a function in the event loop after ``seconds``."""
        self._simulation.agenda.after(seconds, self.post, function)

    async def sleep(self, seconds: float) -> None:
        """Wait for simulated time to pass."""
        waiter = self.waiter()
        self.call_later(seconds, waiter.ring)
        await waiter

    async def within(self, seconds: float, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Await a coroutine, at most ``seconds``, as ``asyncio.timeout`` does.

        Raises:
            TimeoutError: the time is up; the coroutine was cancelled.
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
        """Close the event loop. Nothing in it goes on, and its tasks stay where they stand."""
        self._is_closed = True
        self.queue.calls.clear()

    def close_tasks(self) -> None:
        """Close the coroutines that have not ended, when the history is over."""
        self.close()
        for task in self.tasks:
            if not task.is_over:
                task.close()

    @property
    def is_closed(self) -> bool:
        """Whether the event loop runs nothing any more."""
        return self._is_closed
