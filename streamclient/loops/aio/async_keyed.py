"""A processor that handles each record in a task, and stores the position before which all records are done."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Sequence
from functools import partial

from streamclient.base import logs
from streamclient.errors import ShutdownException
from streamclient.interfaces import InitializationInput
from streamclient.loops.aio.async_lanes import AsyncLanes, LaneCrew
from streamclient.model import ShutdownReason
from streamclient.records import StreamRecord, readable_position
from streamclient.worker.checkpointer import RecordProcessorCheckpointer
from streamclient.worker.handlers.async_user_code import AsyncUserCode, MakeCoroutine
from streamclient.worker.handlers.batches import AsyncBatch, Settlement
from streamclient.worker.handlers.event_loop import Waiter, store_through
from streamclient.worker.keyed.lane_order import LaneFailure, named

_log = logs.logger(__name__)


class AsyncKeyedCode(AsyncUserCode):
    """The counterpart of ``KeyedProcessor`` for an event loop.

    Order, retries and the treatment of failing records are the same as in that class. If a record keeps failing, the
    object asks the worker for a new processor. Until the shard is past that record, the new processor finishes each
    batch before it takes the next batch. So the failure policy applies to exactly the batch with that record.
    """

    def __init__(self, crew: LaneCrew) -> None:
        self._crew = crew
        self._lanes = AsyncLanes(crew, self._give_up, self._store_if_due)
        self._has_begun = self._is_careful = False
        self._is_storing = self._is_closed = self._has_timer = False
        self._stored: str | None = None
        self._stored_at = crew.settings.monotonic()
        self._answered: list[Waiter] = []

    async def initialize(self, given: InitializationInput) -> None:
        """Keep ``given`` for later calls, and add the lanes of this shard to the crew that all shards share."""
        if not isinstance(given.checkpointer, RecordProcessorCheckpointer):
            raise TypeError(f"{given.checkpointer!r} cannot begin a checkpoint")
        self._shard, self._marker, self._checkpointer = given.shard_info, given.shutdown_marker, given.checkpointer
        self._has_begun = True
        self._crew.enter(self._lanes)

    async def handle(self, batch: AsyncBatch) -> None:
        """Queue the records of the batch, and wait only while the memory limit is reached.

        After a failure, wait until the batch is done.

        Raises:
            ApplicationException: a record of this batch was given up; the whole batch will come again.
        """
        failed_at = self._crew.failed_at(self._shard)
        if failed_at is not None:
            await self._lanes.finish()
        if self._lanes.order.is_halted:
            return  # a new processor was requested; that processor starts at the checkpoint
        keyed = self._crew.settings.keyed(batch)
        if failed_at is None:
            await self._lanes.take_in(keyed, batch.handed_position)
            self._store_if_due()
            return
        await self._handle_carefully(keyed, batch.handed_position)
        if batch and batch[-1].sequence_info >= failed_at:
            self._crew.passed(self._shard)

    def last_work(
        self, reason: ShutdownReason, end: tuple[AsyncBatch, Settlement], commit: Callable[[], Awaitable[None]]
    ) -> MakeCoroutine | None:
        """Return the function that waits for the records being processed and then stores the position.

        The result is ``None`` before ``initialize``.
        """
        return partial(self._close, reason) if self._has_begun else None

    def is_store_due(self, reason: ShutdownReason, *, has_stored_all: bool, has_unstored: bool) -> bool:
        """Return ``False``, because ``last_work`` stores the position."""
        return False

    async def _handle_carefully(self, keyed: Sequence[tuple[Hashable, StreamRecord]], position: str) -> None:
        """Process this batch to its end before the next batch is taken. No other batch may be pending."""
        self._is_careful = True
        batch = await self._lanes.take_in(keyed, position)
        await self._lanes.finish()
        self._is_careful = False
        failure = self._lanes.order.failure
        if failure is not None:
            self._lanes.order.start_again(batch)
            raise failure.as_error()

    async def _close(self, reason: ShutdownReason) -> None:
        """Wait for the records being processed, then store the position. At the shard's end, wait for all records."""
        lanes, order = self._lanes, self._lanes.order
        try:
            if reason is ShutdownReason.ZOMBIE:
                lanes.cancel()  # the lease is lost, so no position can be stored any more
            elif reason is not ShutdownReason.TERMINATE:
                lanes.drop()
            await lanes.finish()
            while self._is_storing:
                waiter = self._crew.bridge.waiter()
                self._answered.append(waiter)
                await waiter
        finally:
            self._is_closed = True
            self._crew.leave(lanes)
        is_given_away = reason in (ShutdownReason.ZOMBIE, ShutdownReason.STOLEN)
        if is_given_away or (order.failure is None and reason is not ShutdownReason.PROCESS_RESTART):
            self._crew.passed(self._shard)
        if reason is ShutdownReason.ZOMBIE:
            return
        store = store_through(self._crew.bridge, self._checkpointer.begin_checkpoint)
        if reason is ShutdownReason.TERMINATE and order.is_complete:
            await store(None)
        elif order.position not in (None, self._stored):
            await store(order.position)
        if reason is ShutdownReason.TERMINATE and order.failure is not None:
            raise order.failure.as_error()

    # --- after each record, and regularly -----------------------------------------------------------------------------

    def _give_up(self, failure: LaneFailure) -> None:
        """Ask the worker for a new processor, which begins at the checkpoint and gets the failing record again."""
        if not self._is_careful:
            shard_id, text = self._shard.shard_id, "shard %s: %s; starting again at the checkpoint"
            _log.error(text, shard_id, failure.as_error(), extra=logs.of_shard(shard_id))
            self._crew.failed(self._shard, failure.record.sequence_info)
            self._marker.mark_for_process_restart()

    def _store_if_due(self) -> None:
        """Store the position before which all records are done, if a checkpoint is due.

        Otherwise check later, as long as work is left.
        """
        settings, order = self._crew.settings, self._lanes.order
        # The batches of a page in parts have equal positions, and each of them is stored.
        is_stored = order.position is None or order.position is self._stored
        if self._is_storing or self._is_closed or (is_stored and order.is_idle):
            return
        interval_seconds = settings.checkpoint_interval_millis / 1_000
        if not is_stored and (order.is_idle or settings.monotonic() - self._stored_at >= interval_seconds):
            self._store(order.position)
        else:
            self._look_later()

    def _look_later(self) -> None:
        if not self._has_timer:
            self._has_timer = True
            seconds = self._crew.settings.checkpoint_interval_millis / 1_000
            self._crew.bridge.call_later(seconds, self._look_around)

    def _look_around(self) -> None:
        """Warn of slow records, and store a due position.

        A timer calls this method, because the next record may end only after a long time.
        """
        self._has_timer = False
        for slow in self._lanes.slow():
            name, shard_id = named(slow.record), self._shard.shard_id
            text, about = "shard %s: %s has been under way for %.1f s", logs.of_shard(shard_id)
            _log.warning(text, shard_id, name, slow.seconds, extra=about)
        self._store_if_due()

    def _store(self, position: str | None) -> None:
        self._is_storing = True

        def then(error: Exception | None) -> None:
            self._crew.bridge.post(partial(self._store_answered, position, error))

        self._checkpointer.begin_checkpoint(position, then)

    def _store_answered(self, position: str | None, error: Exception | None) -> None:
        self._is_storing = False
        self._stored_at = self._crew.settings.monotonic()
        if error is None:
            self._stored = position
        elif isinstance(error, ShutdownException):
            self._lanes.cancel()  # another worker reads the shard now
        else:
            where = readable_position(str(position))
            shard_id, text = self._shard.shard_id, "shard %s: checkpoint %s is tried again later: %s"
            _log.warning(text, shard_id, where, error, extra=logs.of_shard(shard_id))
            self._look_later()
        answered, self._answered = self._answered, []
        for waiter in answered:
            waiter.ring()
        if error is None:
            self._store_if_due()
