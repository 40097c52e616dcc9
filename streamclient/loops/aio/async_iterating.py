"""Loops over batches of changes in an event loop, and async handlers; see ``streamclient.aio.changes``."""

from __future__ import annotations

import threading
import types
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from contextvars import ContextVar
from types import TracebackType
from typing import TypeVar

from streamclient.errors import StreamClientException
from streamclient.loops.consumption import BY_HAND, RUNS, Consumption, LoopMark, NotedSigterm
from streamclient.loops.iterating import LoopBase
from streamclient.records import StreamRecord
from streamclient.worker.handlers.batches import AsyncBatch, AsyncRecordProcessor, Key
from streamclient.worker.handlers.event_loop import AsyncioBridge, LoopBridge

Self = TypeVar("Self", bound="AsyncLoop")


class BatchHolder:
    """The task that took a loop's last batch, together with the tasks that it has started since then."""


_held: ContextVar[frozenset[weakref.ref[BatchHolder]]] = ContextVar("_held", default=frozenset())
"""The holders to which the present task belongs, for all loops."""


class AsyncLoop(LoopBase, AsyncIterator[AsyncBatch]):
    """A loop over batches in an event loop. A program that calls ``run`` or ``each`` needs no loop statement.

    ``run`` awaits a handler for each batch, and ``each`` awaits a handler for each record.

    ``streamclient.aio.AsyncChanges`` adds the worker.
    """

    def __init__(self, consumption: Consumption, find_bridge: Callable[[], LoopBridge] = AsyncioBridge.here) -> None:
        """Keep ``find_bridge``, which returns the bridge to the caller's event loop.

        Equal bridges lead to the same event loop.
        """
        super().__init__(consumption)
        self._find_bridge = find_bridge
        self._bridge: LoopBridge | None = None
        self._is_waiting = False
        self._holder = BatchHolder()
        self._is_elsewhere: Callable[[], bool] = lambda: False
        """A function that returns whether a task other than the caller took the last batch and still runs."""

    def __aiter__(self) -> AsyncIterator[AsyncBatch]:
        """Begin a loop. If an earlier loop over this object left a batch, that batch comes first.

        The iterator belongs to one ``async for`` statement. The statement drops the iterator at its end, which shows
        that the loop is over.
        """
        self._consumption.begin_again()
        return AsyncLoopIterator(self)

    async def __anext__(self) -> AsyncBatch:
        """Settle the previous batch, because the loop's body has ended, and wait for the next batch.

        Raises:
            StopAsyncIteration: the object was closed, or the worker was shut down.
            WorkerFailedError: the worker failed.
            StreamClientException: another task waits for a batch, the caller runs in another event loop or in none, or
                ``run`` or ``each`` was called.
            ForkedError: this process is a forked child of the process that made the object.
        """
        return await self._turn(BY_HAND)

    async def _turn(self, mark: LoopMark) -> AsyncBatch:
        """Return the next batch for the loop that ``mark`` belongs to."""
        bridge = self._enter()
        self._consumption.turn_begins(mark)
        self._is_waiting = True
        try:
            return await self._next(bridge)
        finally:
            self._is_waiting = False

    async def _next(self, bridge: LoopBridge) -> AsyncBatch:
        consumption = self._consumption
        delivery = consumption.turn()
        if delivery is None:
            if (self._bridge or bridge).gives_way():
                await _others()
            delivery = consumption.take()
        while delivery is None:
            if consumption.line.has_ended:
                consumption.end_sigterm(None)
                consumption.raise_failure()
                raise StopAsyncIteration
            await _slept(bridge, consumption.line.sleep)
            delivery = consumption.take()
        if self._is_elsewhere() or not self._is_holder():
            self._holder = BatchHolder()
            _held.set(frozenset({each for each in _held.get() if each() is not None} | {weakref.ref(self._holder)}))
        self._is_elsewhere = bridge.elsewhere()
        return delivery.async_batch(bridge)

    async def run(
        self,
        handler: Callable[[AsyncBatch], Awaitable[None]] | Callable[[], AsyncRecordProcessor],
        *,
        concurrency: int | None = None,
    ) -> None:
        """Await ``handler`` for each batch until the object is closed. Many shards are handled at the same time.

        Args:
            handler: an ``async def`` function that takes one batch, or a class or function that makes an
                ``AsyncRecordProcessor``.
            concurrency: the largest number of tasks at the same time; with ``None``, each shard may have one.
        """
        from streamclient.loops.aio.task_runs import run_tasks  # noqa: PLC0415

        await run_tasks(self._consumption, handler, concurrency)

    async def each(
        self, handler: Callable[[StreamRecord], Awaitable[object]], *, concurrency: int = 100, key: Key | None = None
    ) -> None:
        """Await ``handler`` for each record until the object is closed. The records of one key are handled in order.

        Args:
            handler: an ``async def`` function that does the work for one record.
            concurrency: the largest number of records that are processed at the same time, over all shards.
            key: returns the key within which records stay in order; by default the primary key.
        """
        from streamclient.loops.aio.task_runs import run_each  # noqa: PLC0415

        self.require_turns()
        await run_each(self._consumption, handler, concurrency, key)

    async def aclose(self) -> None:
        """Stop the worker, and return when its leases are handed over. A second call is harmless.

        If another task runs the loop, the loop ends after its present body. In the following cases, the present batch
        is given back, and its position is stored only if the batch was already committed:

        - the loop's own task, which took the last batch, calls this method;
        - a task that the loop's task has started since then calls this method; ``asyncio.shield`` starts such a task;
        - ``break`` or an exception has ended the loop.

        If a coroutine that ``run`` or ``each`` awaits calls this method, or a task that it has started, the call only
        asks for the end and returns immediately.
        """
        await self._close(is_over=self._is_holder() or not self._is_elsewhere())

    async def __aenter__(self: Self) -> Self:  # noqa: PYI019
        """Do nothing; the worker begins when the loop begins."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Call ``aclose``; then raise the error that made the worker fail, unless the block itself raises."""
        await self.aclose()
        if error is None:
            self._consumption.raise_failure()

    def _enter(self) -> LoopBridge:
        """Start the worker at the first call; refuse a second waiting task, and a caller in another event loop."""
        consumption, bridge = self._consumption, self._find_bridge()
        consumption.require_here()
        if self._is_waiting:
            raise StreamClientException("another task waits for a batch of these changes; only one task may wait")
        if self._bridge is None and not consumption.ended.is_set():
            self._begin(bridge)
        if self._bridge is not None and self._bridge != bridge:
            raise StreamClientException(
                "these changes are iterated in another event loop; call changes() in each event loop"
            )
        return bridge

    def _is_holder(self) -> bool:
        """Return whether the present task took the loop's last batch, or was started later by the task that took it."""
        return weakref.ref(self._holder) in _held.get()

    def _begin(self, bridge: LoopBridge) -> None:
        consumption, thread = self._consumption, threading.current_thread()
        try:
            consumption.begin(
                lambda: thread.is_alive() and not bridge.is_closed, NotedSigterm(consumption.config.end_on_sigterm)
            )
        except StreamClientException:
            if not consumption.end_unbegun():
                raise
        else:
            self._bridge = bridge

    async def _close(self, *, is_over: bool) -> None:
        consumption, bridge = self._consumption, self._find_bridge()
        consumption.require_here()
        consumption.stop()
        if consumption in RUNS.get():
            return  # the worker, and so ``run`` or ``each``, waits for the present task
        if is_over:
            consumption.leave()
        else:
            consumption.leave_if_over()
        if not consumption.ended.is_set():
            await _slept(bridge, consumption.wakes_when_ended)
        consumption.end_sigterm(None)


class AsyncLoopIterator(AsyncIterator[AsyncBatch]):
    """The iterator of one ``async for`` statement.

    Python deletes the iterator when the statement ends, even after ``break`` or an error.
    """

    def __init__(self, loop: AsyncLoop) -> None:
        self._loop = loop
        self._mark = LoopMark()

    async def __anext__(self) -> AsyncBatch:
        """Return the next batch. Errors are the same as in ``AsyncLoop.__anext__``."""
        return await self._loop._turn(self._mark)

    def __del__(self) -> None:
        self._mark.is_over = True


@types.coroutine
def _others() -> Generator[None, None, None]:
    """Let other tasks run, because a loop that never waits would keep the event loop for itself."""
    yield


async def _slept(bridge: LoopBridge, sleep: Callable[[Callable[[], object]], bool]) -> None:
    """Wait until the function that ``sleep`` receives is called; do not wait if ``sleep`` returns ``False``."""
    waiter = bridge.waiter()
    if sleep(lambda: bridge.post(waiter.ring)):
        await waiter
