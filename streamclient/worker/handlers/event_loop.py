"""The one way from the worker's threads into an event loop, so that coroutines here use nothing else of asyncio."""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, Protocol

from streamclient.base.pools import start_thread
from streamclient.errors import ApplicationException, StreamClientException


class Waiter(Protocol):
    """An object that a coroutine awaits until another function rings."""

    def __await__(self) -> Any:
        """Wait for the ring. Cancellation ends the wait and takes nothing."""

    def ring(self) -> None:
        """End the wait. Only inside the event loop; a second ring does nothing."""


class Task(Protocol):
    """A coroutine that runs in the event loop."""

    def cancel(self) -> object:
        """Cancel the coroutine. Only inside the event loop."""


class LoopBridge(ABC):
    """One event loop, as the worker's threads and the coroutines of this package see it."""

    @abstractmethod
    def post(self, function: Callable[[], object]) -> bool:
        """Run a function in the event loop soon; return ``False`` if the loop is closed. Usable from any thread."""

    @abstractmethod
    def waiter(self) -> Waiter:
        """Return a new waiter. Only inside the event loop."""

    @abstractmethod
    def start(self, coroutine: Coroutine[Any, Any, None], ended: Callable[[BaseException | None], None]) -> Task:
        """Run a coroutine in the event loop, and call ``ended`` there with its error. Only inside the event loop."""

    def elsewhere(self) -> Callable[[], bool]:
        """Return a function that tells whether another task asks while the present task still runs.

        Only inside the event loop.
        """
        return lambda: False

    @property
    @abstractmethod
    def is_closed(self) -> bool:
        """Whether the event loop runs nothing any more. Usable from any thread."""


class TimedLoopBridge(LoopBridge):
    """A bridge into an event loop that keeps time, too."""

    @abstractmethod
    def call_later(self, seconds: float, function: Callable[[], object]) -> None:
        """Run a function in the event loop after ``seconds``. Only inside the event loop."""


class _AsyncioWaiter:
    def __init__(self, future: asyncio.Future[None]) -> None:
        self._future = future

    def __await__(self) -> Any:
        return self._future.__await__()

    def ring(self) -> None:
        if not self._future.done():
            self._future.set_result(None)


class AsyncioBridge(TimedLoopBridge):
    """An event loop of asyncio, or another one with its interface, such as uvloop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    @classmethod
    def here(cls) -> AsyncioBridge:
        """Return the bridge into the event loop that runs in this thread.

        Raises:
            StreamClientException: none runs here.
        """
        try:
            return cls(asyncio.get_running_loop())
        except RuntimeError:
            raise StreamClientException(
                "no event loop runs in this thread: use it in a coroutine, for example under asyncio.run, or use "
                "streamclient.changes in a plain function"
            ) from None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AsyncioBridge) and other._loop is self._loop

    def __hash__(self) -> int:
        return hash(self._loop)

    def post(self, function: Callable[[], object]) -> bool:
        """Run a function in the event loop soon."""
        try:
            self._loop.call_soon_threadsafe(function)
        except RuntimeError:  # the loop is closed
            return False
        return True

    def waiter(self) -> Waiter:
        """Return a new waiter."""
        return _AsyncioWaiter(self._loop.create_future())

    def start(self, coroutine: Coroutine[Any, Any, None], ended: Callable[[BaseException | None], None]) -> Task:
        """Run a coroutine as a task of this loop, in the caller's context variables."""
        task = self._loop.create_task(coroutine)

        def done(over: asyncio.Task[None]) -> None:
            ended(asyncio.CancelledError() if over.cancelled() else over.exception())

        task.add_done_callback(done)
        return task

    def elsewhere(self) -> Callable[[], bool]:
        """Return what tells whether the present task still runs and another one asks."""
        task = asyncio.current_task(self._loop)
        return lambda: task is not None and not task.done() and asyncio.current_task(self._loop) is not task

    def call_later(self, seconds: float, function: Callable[[], object]) -> None:
        """Run a function in the event loop after ``seconds``."""
        self._loop.call_later(seconds, function)

    @property
    def is_closed(self) -> bool:
        """Whether the event loop is closed."""
        return self._loop.is_closed()


class _ContainedBridge(AsyncioBridge):
    """The bridge into an event loop that must survive ``SystemExit`` and ``KeyboardInterrupt`` of a coroutine."""

    def start(self, coroutine: Coroutine[Any, Any, None], ended: Callable[[BaseException | None], None]) -> Task:
        """Run a coroutine as a task of this loop. An exit that it asks for counts as an error of this task alone."""

        def closed(error: BaseException | None) -> None:
            coroutine.close()  # a task that is cancelled before its first step never reaches it
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
            OSError: the system refused what an event loop needs, such as a file.
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

    def close(self, seconds: float) -> None:
        """Cancel all tasks of the event loop, close the loop, and wait for the thread, at most ``seconds``.

        A task that ignores its cancellation keeps the thread, which is a daemon. Do not call this in the thread itself.
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
    """End what user code left in this event loop."""
    loop = asyncio.get_running_loop()
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    await loop.shutdown_asyncgens()
    await loop.shutdown_default_executor()


Begin = Callable[[str | None, Callable[[Exception | None], None]], None]
"""Begins to store a position, as a checkpointer's ``begin_checkpoint`` does. ``None`` stands for the largest permitted
position."""


def store_through(bridge: LoopBridge, begin: Begin) -> Callable[[str | None], Awaitable[None]]:
    """Return a function that stores a position without a waiting thread, by ``begin`` of a checkpointer."""

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
