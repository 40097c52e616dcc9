"""Tasks of an event loop for records: one after the other within a key, and different keys at the same time.

``KeyedProcessorFactory`` does the same with threads.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from functools import partial

from streamclient.base import checks
from streamclient.records import StreamRecord
from streamclient.worker.handlers.event_loop import Task, TimedLoopBridge, Waiter
from streamclient.worker.handlers.task_line import TaskSet, unasked_cancellation
from streamclient.worker.keyed.keyed_settings import LaneSettings
from streamclient.worker.keyed.lane_order import Lane, LaneFailure, LaneItem, LaneOrder, SlowRecord
from streamclient.worker.keyed.lane_pool import FailedShards
from streamclient.worker.keyed.pending_records import record_bytes

RecordHandler = Callable[[StreamRecord], Awaitable[object]]
"""A coroutine function that does the work for one record."""


class LaneCrew(FailedShards):
    """The handler, the tasks and the memory limit that all shards of a run share. Only for use in the event loop."""

    def __init__(
        self,
        handler: RecordHandler,
        settings: LaneSettings,
        most_tasks: int,
        *,
        bridge: TimedLoopBridge,
        tasks: TaskSet,
    ) -> None:
        super().__init__()
        self.settings = settings
        self.bridge = bridge
        self._handler = handler
        self._most_tasks = most_tasks
        self._tasks = tasks
        self._running = 0
        self._ready: deque[tuple[AsyncLanes, Lane]] = deque()
        self._members: set[AsyncLanes] = set()
        self._used_bytes = 0
        self._room: list[Waiter] = []

    def enter(self, lanes: AsyncLanes) -> None:
        """Add the lanes of a shard that begins."""
        self._members.add(lanes)

    def leave(self, lanes: AsyncLanes) -> None:
        """Remove the lanes of a shard that has no work left."""
        self._members.discard(lanes)

    def cancel(self) -> None:
        """Cancel the tasks of all records that are being processed, and begin no further record."""
        for lanes in list(self._members):
            lanes.cancel()

    async def add_bytes(self, size_bytes: int, may_enter: Callable[[], bool]) -> None:
        """Wait until a record fits below the memory limit or ``may_enter`` returns ``True``; then count its bytes."""
        while self._used_bytes + size_bytes > self.settings.most_pending_bytes and not may_enter():
            waiter = self.bridge.waiter()
            self._room.append(waiter)
            await waiter
        self._used_bytes += size_bytes

    def remove_bytes(self, size_bytes: int) -> None:
        """Subtract the bytes of records that are done or dropped from the counted bytes."""
        self._used_bytes -= size_bytes
        rung, self._room = self._room, []
        for waiter in rung:
            waiter.ring()

    def step(self, lanes: AsyncLanes, lane: Lane) -> None:
        """Process the first record of ``lane`` as soon as fewer than ``most_tasks`` tasks run."""
        self._ready.append((lanes, lane))
        self._begin()

    def _begin(self) -> None:
        while self._ready and self._running < self._most_tasks:
            lanes, lane = self._ready.popleft()
            item = lanes.order.start(lane, self.settings.monotonic())
            if item is not None:
                self._running += 1
                ended = partial(self._ended, lanes, lane, item)
                lanes.tasks[lane] = self._tasks.start(self.bridge, self._attempts(lanes, item.record), ended)

    async def _attempts(self, lanes: AsyncLanes, record: StreamRecord) -> None:
        """Process a record. After an error, try again as often as the settings allow, and finally raise the error."""
        for attempt in itertools.count(1):
            try:
                checks.done("the handler", await self._handler(record))
                return
            except Exception:
                if attempt > self.settings.retries or await lanes.halts_within(self.settings.pause_seconds(attempt)):
                    raise

    def _ended(self, lanes: AsyncLanes, lane: Lane, item: LaneItem, error: BaseException | None) -> None:
        self._running -= 1
        lanes.step_ended(lane, item, error)
        self._begin()


class AsyncLanes:
    """The lanes of one shard: queues of records, one for each key. Only for use in the event loop."""

    def __init__(self, crew: LaneCrew, failed: Callable[[LaneFailure], None], moved: Callable[[], None]) -> None:
        """Make the lanes of a shard. They call ``failed`` if a record is given up, and ``moved`` after each record."""
        self.order: LaneOrder = LaneOrder(crew.settings.slow_record_warning_millis / 1_000)
        self.tasks: dict[Lane, Task] = {}
        """The task of each record that is being processed, by the record's lane."""
        self._crew = crew
        self._failed = failed
        self._moved = moved
        self._is_cancelled = False
        self._finished: list[Waiter] = []
        self._pausing: list[Waiter] = []

    async def take_in(self, records: Sequence[tuple[Hashable, StreamRecord]], position: str) -> int:
        """Queue the records of a batch that ends at ``position``, with their keys; return the batch's number.

        The call waits while the memory limit is reached. If the lanes halt meanwhile, the call leaves out the remaining
        records, and the batch stays unfinished.
        """
        batch = self.order.begin_batch(position, len(records))
        for key, record in records:
            size_bytes = record_bytes(record)
            await self._crew.add_bytes(size_bytes, lambda: self.order.is_idle or self.order.is_halted)
            if self.order.is_halted:
                self._crew.remove_bytes(size_bytes)
                break
            lane = self.order.append(key, LaneItem(record, batch, size_bytes))
            if lane is not None:
                self.order.open(lane)
                self._crew.step(self, lane)
        return batch

    def drop(self) -> None:
        """Begin no further record, and forget the waiting records, which then count as not done."""
        self._crew.remove_bytes(self.order.drop())
        _ring(self._pausing)
        self._ring_if_finished()

    def cancel(self) -> None:
        """Begin no further record, and cancel the tasks of the records that are being processed.

        Cancelled records count as neither done nor failed.
        """
        self.drop()
        under_way = [] if self._is_cancelled else list(self.tasks.values())
        self._is_cancelled = True
        for task in under_way:
            task.cancel()

    async def finish(self) -> None:
        """Wait until no record waits or is being processed."""
        while not self.order.is_idle:
            waiter = self._crew.bridge.waiter()
            self._finished.append(waiter)
            await waiter

    async def halts_within(self, seconds: float) -> bool:
        """Wait for ``seconds``; return ``True`` early if ``drop`` or a failure halts the lanes meanwhile."""
        waiter = self._crew.bridge.waiter()
        if not self.order.is_halted:
            self._pausing.append(waiter)
            self._crew.bridge.call_later(seconds, waiter.ring)
            try:
                await waiter
            finally:
                if waiter in self._pausing:
                    self._pausing.remove(waiter)
        return self.order.is_halted

    def slow(self) -> list[SlowRecord]:
        """Return the records that are being processed and need a warning now.

        A record needs another warning each time its duration has doubled.
        """
        return self.order.slow(self._crew.settings.monotonic())

    def step_ended(self, lane: Lane, item: LaneItem, error: BaseException | None) -> None:
        """Note that the work on the first record of a lane has ended: it is done, was given up, or was cancelled."""
        self.tasks.pop(lane, None)
        if error is not None and not self._is_cancelled and not self.order.is_halted:
            is_cancellation = isinstance(error, asyncio.CancelledError)
            failure = LaneFailure(item.record, unasked_cancellation("the handler") if is_cancellation else error)
            if self.order.give_up(failure):
                self.drop()
                self._failed(failure)
        if self.order.end(lane, is_done=error is None and not self._is_cancelled):
            self._crew.step(self, lane)
        self._crew.remove_bytes(item.size_bytes)
        self._ring_if_finished()
        self._moved()

    def _ring_if_finished(self) -> None:
        if self.order.is_idle:
            _ring(self._finished)


def _ring(waiters: list[Waiter]) -> None:
    rung = list(waiters)
    waiters.clear()
    for waiter in rung:
        waiter.ring()
