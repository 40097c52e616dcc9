"""The bridge from a worker's threads into an event loop. A worker reaches an event loop only through the bridge."""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, Protocol

from streamclient.base.pools import start_thread
from streamclient.errors import ApplicationException, StreamClientException

TURN_SECONDS = 0.005
"""The interval, in seconds, at which a loop over batches lets the other tasks of its event loop run, even if the next
batch is ready. Python's threads switch at the same interval (``sys.getswitchinterval``). In a measurement, a loop that
let the other tasks run before each batch was a tenth slower."""


class Waiter(Protocol):
    """An object that one coroutine awaits until other code calls ``ring``."""

    def __await__(self) -> Any:
        """Wait until ``ring`` is called. A cancellation ends the wait without any other effect."""

    def ring(self) -> None:
        """End the wait. Only inside the event loop; a second call does nothing."""


class Task(Protocol):
    """A coroutine that runs in the event loop."""

    def cancel(self) -> object:
        """Cancel the coroutine. Only inside the event loop."""


class LoopBridge(ABC):
    """A bridge into one event loop, for the worker's threads and for the coroutines of this package."""

    @abstractmethod
    def post(self, function: Callable[[], object]) -> bool:
        """Run ``function`` in the event loop soon; return ``False`` if the loop is closed. Usable from any thread."""

    @abstractmethod
    def waiter(self) -> Waiter:
        """Return a new waiter, which a coroutine can await. Only inside the event loop."""

    @abstractmethod
    def start(self, coroutine: Coroutine[Any, Any, None], ended: Callable[[BaseException | None], None]) -> Task:
        """Run a coroutine, and afterwards call ``ended`` with its error or ``None``. Only inside the event loop."""

    def gives_way(self) -> bool:
        """Return whether a loop over batches must let other tasks run before it takes the next batch.

        If the next batch is always ready, the loop never waits, and so would never let other tasks run. Only inside the
        event loop.
        """
        return True

    def elsewhere(self) -> Callable[[], bool]:
        """Return a function that tells whether another task calls it while the present task still runs.

        The present task is the task that calls ``elsewhere``. By default, the function always returns ``False``. Only
        inside the event loop.
        """
        return lambda: False

    @property
    @abstractmethod
    def is_closed(self) -> bool:
        """Whether the event loop is closed, so that it runs no function any more. Usable from any thread."""


class TimedLoopBridge(LoopBridge):
    """A bridge into an event loop that can also run functions later."""

    @abstractmethod
    def call_later(self, seconds: float, function: Callable[[], object]) -> None:
        """Run ``function`` in the event loop after ``seconds``. Only inside the event loop."""


class _AsyncioWaiter:
    def __init__(self, future: asyncio.Future[None]) -> None:
        self._future = future

    def __await__(self) -> Any:
        return self._future.__await__()

    def ring(self) -> None:
        if not self._future.done():
            self._future.set_result(None)


class AsyncioBridge(TimedLoopBridge):
    """A bridge into an event loop of asyncio, or into a loop with the same interface, such as uvloop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._gives_way_at = 0.0

    @classmethod
    def here(cls) -> AsyncioBridge:
        """Return the bridge into the event loop that runs in this thread.

        Raises:
            StreamClientException: no event loop runs in this thread.
        """
        try:
            return cls(asyncio.get_running_loop())
        except RuntimeError:
            raise StreamClientException(
                "no event loop runs in this thread: call this in a coroutine, for example under asyncio.run, or use "
                "streamclient.changes in a plain function"
            ) from None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AsyncioBridge) and other._loop is self._loop

    def __hash__(self) -> int:
        return hash(self._loop)

    def post(self, function: Callable[[], object]) -> bool:
        """Run ``function`` in the event loop soon; return ``False`` if the loop is closed. Usable from any thread."""
        try:
            self._loop.call_soon_threadsafe(function)
        except RuntimeError:  # the loop is closed
            return False
        return True

    def waiter(self) -> Waiter:
        """Return a new waiter, which a coroutine of this event loop can await."""
        return _AsyncioWaiter(self._loop.create_future())

    def start(self, coroutine: Coroutine[Any, Any, None], ended: Callable[[BaseException | None], None]) -> Task:
        """Run a coroutine as a task of this loop, in the caller's context variables."""
        task = self._loop.create_task(coroutine)

        def done(over: asyncio.Task[None]) -> None:
            ended(asyncio.CancelledError() if over.cancelled() else over.exception())

        task.add_done_callback(done)
        return task

    def gives_way(self) -> bool:
        """Return ``True`` once every ``TURN_SECONDS``, to let other tasks run, and otherwise ``False``."""
        now = self._loop.time()
        if now < self._gives_way_at:
            return False
        self._gives_way_at = now + TURN_SECONDS
        return True

    def elsewhere(self) -> Callable[[], bool]:
        """Return a function that tells whether another task calls it while the present task still runs."""
        task = asyncio.current_task(self._loop)
        return lambda: task is not None and not task.done() and asyncio.current_task(self._loop) is not task

    def call_later(self, seconds: float, function: Callable[[], object]) -> None:
        """Run ``function`` in the event loop after ``seconds``."""
        self._loop.call_later(seconds, function)

    @property
    def is_closed(self) -> bool:
        """Whether the event loop is closed."""
        return self._loop.is_closed()


class _ContainedBridge(AsyncioBridge):
    """The bridge into an event loop that must survive ``SystemExit`` and ``KeyboardInterrupt`` of a coroutine."""

    def start(self, coroutine: Coroutine[Any, Any, None], ended: Callable[[BaseException | None], None]) -> Task:
        """Run a coroutine as a task of this loop. Its ``SystemExit`` counts as an error of this task alone."""

        def closed(error: BaseException | None) -> None:
            coroutine.close()  # a task that is cancelled before its first step never starts the coroutine
            ended(error)

        return super().start(_contained(coroutine), closed)


async def _contained(coroutine: Coroutine[Any, Any, None]) -> None:
    try:
        await coroutine
    except (SystemExit, KeyboardInterrupt) as error:
        raise ApplicationException(f"user code in the event loop raised {error!r}") from error


class EventLoopThread:
    """An event loop in a thread of its own, which starts when the loop is first needed. Thread-safe."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def bridge(self) -> LoopBridge:
        """Return the bridge into the event loop; the first call starts the thread.

        Raises:
            NoThreadError: the system refused the thread; a later call tries again.
            OSError: the system refused a resource that an event loop needs, such as a file descriptor.
        """
        with self._lock:
            if self._loop is None:
                loop = asyncio.new_event_loop()
                try:
                    self._thread = start_thread(partial(_run_loop, loop), self._name)
                except BaseException:
                    loop.close()
                    raise
                self._loop = loop
            return _ContainedBridge(self._loop)

    @property
    def is_inside(self) -> bool:
        """Whether the calling thread is the thread of the event loop."""
        return threading.current_thread() is self._thread

    def close(self, seconds: float) -> None:
        """Cancel all tasks of the event loop, close the loop, and wait for the thread, at most ``seconds``.

        A task that ignores its cancellation keeps the thread, which is a daemon. Do not call ``close`` in that thread.
        """
        with self._lock:
            loop, thread = self._loop, self._thread
        if loop is not None and thread is not None:
            AsyncioBridge(loop).post(loop.stop)
            thread.join(seconds)


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
        loop.run_until_complete(_wind_up())
    finally:
        loop.close()


async def _wind_up() -> None:
    """End the tasks, generators and threads that user code has left in this event loop."""
    loop = asyncio.get_running_loop()
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    await loop.shutdown_asyncgens()
    await loop.shutdown_default_executor()


Begin = Callable[[str | None, Callable[[Exception | None], None]], None]
"""A function that begins to store a position, such as ``begin_checkpoint`` of a checkpointer. ``None`` stands for the
largest permitted position."""


def store_through(bridge: LoopBridge, begin: Begin) -> Callable[[str | None], Awaitable[None]]:
    """Return an async function that stores a position through ``begin``, so that no thread waits for the answer."""

    async def store(position: str | None) -> None:
        waiter = bridge.waiter()
        answers: list[Exception | None] = []

        def then(error: Exception | None) -> None:
            answers.append(error)
            bridge.post(waiter.ring)

        begin(position, then)
        await waiter
        error = answers[0]
        if error is not None:
            raise error

    return store
