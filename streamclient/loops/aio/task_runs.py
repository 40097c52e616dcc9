"""Functions that await a coroutine for each batch or record. When a call returns, none of its tasks is left."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextvars import copy_context
from functools import partial

from streamclient.base import checks
from streamclient.config import ProcessorKind, processor_kind
from streamclient.errors import ConfigurationError
from streamclient.interfaces import IRecordProcessor, IRecordProcessorFactory
from streamclient.loops.aio.async_keyed import AsyncKeyedCode
from streamclient.loops.aio.async_lanes import LaneCrew, RecordHandler
from streamclient.loops.consumption import RUNS, Consumption, NotedSigterm
from streamclient.worker.handlers.async_user_code import AsyncUserCode, async_code_maker
from streamclient.worker.handlers.batches import Commit, Key
from streamclient.worker.handlers.event_loop import AsyncioBridge, TimedLoopBridge, Waiter
from streamclient.worker.handlers.task_line import TaskLine, TaskSet
from streamclient.worker.handlers.task_receiver import TaskReceivers
from streamclient.worker.keyed.keyed_settings import LaneSettings, primary_key


async def run_tasks(
    consumption: Consumption, handler: object, concurrency: int | None, bridge: TimedLoopBridge | None = None
) -> None:
    """Await ``handler`` for each batch until the worker is stopped. Many shards are handled at the same time.

    Args:
        consumption: the consumption to run, not used or closed yet.
        handler: an ``async def`` function that takes one batch, or a class or function that makes an
            ``AsyncRecordProcessor``.
        concurrency: the largest number of tasks at the same time; with ``None``, each shard may have one.
        bridge: the bridge to the event loop, by default to the caller's event loop; tests give another bridge.

    Raises:
        ConfigurationError: an argument is invalid; no worker was started.
        WorkerFailedError: the worker failed.
        StreamClientException: the consumption was already used or closed.
    """
    checks.optional(checks.positive).require("concurrency", concurrency)
    make_code = _code_maker(handler, consumption.commit)
    run = _TaskRun(consumption, bridge or AsyncioBridge.here(), concurrency)
    await run.until_over(make_code)


async def run_each(
    consumption: Consumption,
    handler: RecordHandler,
    concurrency: int,
    key: Key | None,
    *,
    bridge: TimedLoopBridge | None = None,
    monotonic: Callable[[], float] = time.monotonic,
) -> None:
    """Await ``handler`` for each record until the worker is stopped. The records of one key are handled in order.

    Args:
        consumption: the consumption to run, not used or closed yet.
        handler: an ``async def`` function that takes one record.
        concurrency: the largest number of records that are processed at the same time, over all shards.
        key: returns the key within which records stay in order; by default the primary key.
        bridge: the bridge to the event loop, by default to the caller's event loop; tests give another bridge.
        monotonic: the clock that times retries and checkpoints; tests give another clock.

    Raises:
        ConfigurationError: an argument is invalid; no worker was started.
        WorkerFailedError: the worker failed.
        StreamClientException: the consumption was already used or closed.
    """
    checks.positive.require("concurrency", concurrency)
    _record_handler.require("handler", handler)
    settings = LaneSettings(key=key or primary_key, monotonic=monotonic)
    run = _TaskRun(consumption, bridge or AsyncioBridge.here(), None)
    crew = LaneCrew(handler, settings, concurrency, bridge=run.bridge, tasks=run.tasks)
    run.cancel_records = crew.cancel
    await run.until_over(partial(AsyncKeyedCode, crew))


class RunReceivers(TaskReceivers):
    """The receivers of one run. The worker must not be awaited in the thread of the event loop that runs the tasks."""

    def __init__(self, make_code: Callable[[], AsyncUserCode], line: TaskLine) -> None:
        super().__init__(make_code, line)
        self.loop_thread: int | None = threading.get_ident()
        """The id of the thread of the event loop; ``None`` once the run is over."""

    def is_own_thread(self) -> bool:
        """Return whether the calling thread is the event loop's. ``Worker.shutdown`` then does not wait."""
        return self.loop_thread == threading.get_ident()


class _TaskRun:
    """One call of ``run_tasks`` or ``run_each``, with its worker and with its tasks in the caller's event loop."""

    def __init__(self, consumption: Consumption, bridge: TimedLoopBridge, concurrency: int | None) -> None:
        self.bridge = bridge
        context = copy_context()
        context.run(RUNS.set, RUNS.get() | {consumption})
        self.tasks = TaskSet(context, self._ring)
        self.cancel_records: Callable[[], object] = lambda: None
        """A function that cancels the tasks that process records. The line of batches does not know these tasks."""
        self._consumption = consumption
        self._line = TaskLine(lambda: bridge, concurrency, self.tasks)
        self._has_worker = True
        """Whether the worker still runs; set to ``False`` when this run has noticed the worker's end."""
        self._waiter: Waiter | None = None

    async def until_over(self, make_code: Callable[[], AsyncUserCode]) -> None:
        """Run until the worker has ended and no task is left. Then raise the cancellation that came meanwhile, if any.

        When the caller is cancelled for the first time, cancel the tasks and wait until the leases are handed over.
        After a second cancellation, wait only for the tasks.
        """
        consumption, receivers = self._consumption, RunReceivers(make_code, self._line)
        consumption.begin(
            partial(self._is_alive, threading.current_thread()),
            NotedSigterm(consumption.config.end_on_sigterm),
            receivers,
        )
        is_over = False
        try:
            if not consumption.wakes_when_ended(lambda: self.bridge.post(self._worker_ended)):
                self._worker_ended()
            await self._over()
            is_over = True
        except asyncio.CancelledError:
            is_over = True
            raise
        finally:
            receivers.loop_thread = None
            if is_over:
                consumption.end_sigterm(None)
            else:
                # The coroutine was dropped, or Ctrl-C ended the event loop: nothing can be awaited any more.
                self.bridge.post(partial(self._cancel, is_last=True))
                consumption.drop()
        consumption.raise_failure()

    async def _over(self) -> None:
        cancellation: asyncio.CancelledError | None = None
        while self._has_worker or not self.tasks.is_idle:
            self._waiter = self.bridge.waiter()
            try:
                await self._waiter
            except asyncio.CancelledError as error:
                self._consumption.stop()
                self._cancel(is_last=cancellation is not None)
                cancellation = error
        if cancellation is not None:
            raise cancellation

    def _cancel(self, *, is_last: bool) -> None:
        self.cancel_records()
        if is_last:
            self._has_worker = False
            self._line.close()
        else:
            self._line.drain()

    def _worker_ended(self) -> None:
        self._cancel(is_last=True)
        self._ring()

    def _ring(self) -> None:
        if self._waiter is not None:
            self._waiter.ring()

    def _is_alive(self, thread: threading.Thread) -> bool:
        """Return whether the event loop can still run tasks.

        If the event loop cannot run tasks, abandon all calls. The thread of the consumption calls this method.
        """
        is_alive = thread.is_alive() and not self.bridge.is_closed
        if not is_alive:
            self._line.abandon()
        return is_alive


def _code_maker(handler: object, commit: Commit) -> Callable[[], AsyncUserCode]:
    kind = processor_kind(handler)
    if kind is ProcessorKind.ASYNC_HANDLER or kind is ProcessorKind.ASYNC_MAKER:
        return async_code_maker(kind, handler, commit)
    if kind is ProcessorKind.MAKER and _may_make_async(handler):
        return async_code_maker(ProcessorKind.ASYNC_MAKER, handler, commit)
    plain = "it is not an async def, and would block the event loop; write one, or use streamclient.changes"
    why = kind if isinstance(kind, str) else plain
    raise ConfigurationError(
        "handler must be an async def of one batch, or a class or function that makes an AsyncRecordProcessor, not "
        f"{checks.shown(handler)}{why and f': {why}'}"
    )


def _may_make_async(handler: object) -> bool:
    """Return whether ``handler`` may make async processors.

    A subclass of ``IRecordProcessor``, or an object with the method ``create_processor``, makes other processors.
    """
    made = handler
    while isinstance(made, partial):
        made = made.func
    is_class = isinstance(made, type) and issubclass(made, IRecordProcessor)
    return not is_class and not isinstance(made, IRecordProcessorFactory) and not hasattr(made, "create_processor")


_record_handler = checks.Check(
    "an async def of one StreamRecord",
    lambda value: checks.is_async(value) and len(checks.required_parameters(value)) == 1,
)
