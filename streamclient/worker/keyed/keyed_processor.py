"""The processor of one shard: it queues records by key, and stores the position before which every record is done."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Hashable, Sequence

from streamclient.base import logs
from streamclient.errors import ShutdownException, StreamClientError
from streamclient.interfaces import InitializationInput, IRecordProcessor, ProcessRecordsInput, ShutdownInput
from streamclient.model import ShutdownReason
from streamclient.records import StreamRecord, readable_position
from streamclient.worker.checkpointer import handed_position
from streamclient.worker.keyed.lane_order import LaneFailure, named
from streamclient.worker.keyed.lane_pool import LanePool
from streamclient.worker.keyed.lanes import Lanes

_log = logs.logger(__name__)


class KeyedProcessor(IRecordProcessor):
    """The processor of one shard; see ``KeyedProcessorFactory``. Its three methods are called one at a time."""

    def __init__(self, lane_pool: LanePool) -> None:
        self._lane_pool = lane_pool
        self._lanes = Lanes(lane_pool, self._give_up, self._store_if_due)
        self._is_careful = False
        self._is_replay = False
        self._changed = threading.Condition()
        self._is_storing = False
        self._is_closed = False
        self._stored: str | None = None
        self._stored_at = lane_pool.settings.monotonic()

    def initialize(self, initialization_input: InitializationInput) -> None:
        """Keep the input for later calls, and enter the pool of threads."""
        self._shard = initialization_input.shard_info
        self._checkpointer = initialization_input.checkpointer
        self._marker = initialization_input.shutdown_marker
        self._is_replay = initialization_input.is_replay
        self._lane_pool.enter(self._look_around)

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        """Queue the records; wait only until they fit below the limit of pending bytes.

        After a failure, and in a replay, also wait until the batch is done.

        Raises:
            ApplicationException: a record of this batch was given up; the whole batch will come again.
        """
        failed_at = self._lane_pool.failed_at(self._shard)
        if failed_at is not None:
            self._lanes.finish()
        if self._lanes.is_halted:
            return  # a new processor was requested; that processor starts at the checkpoint
        position = handed_position(process_records_input.checkpointer)
        records = process_records_input.records
        keyed = self._lane_pool.settings.keyed(records)
        if failed_at is None and not self._is_replay:
            self._lanes.take_in(keyed, position)
            return
        self._process_carefully(keyed, position)
        if failed_at is not None and records and records[-1].sequence_info >= failed_at:
            self._lane_pool.passed(self._shard)

    def shutdown(self, shutdown_input: ShutdownInput) -> None:
        """Wait for the records under way, then store the position reached. At the shard's end, wait for all records."""
        try:
            self._close(shutdown_input)
        finally:
            self._lane_pool.leave(self._look_around)

    def _process_carefully(self, keyed: Sequence[tuple[Hashable, StreamRecord]], position: str) -> None:
        """Process this batch to its end before the next batch is taken. No other batch may be pending."""
        self._is_careful = True
        batch = self._lanes.take_in(keyed, position)
        self._lanes.finish()
        self._is_careful = False
        failure = self._lanes.failure
        if failure is not None:
            self._lanes.start_again(batch)
            raise failure.as_error()

    def _close(self, given: ShutdownInput) -> None:
        reason = given.shutdown_reason
        if reason is not ShutdownReason.TERMINATE:
            self._lanes.drop()
        self._lanes.finish()
        with self._changed:
            self._is_closed = True
            self._changed.wait_for(lambda: not self._is_storing)
        failure = self._lanes.failure
        is_given_away = reason in (ShutdownReason.ZOMBIE, ShutdownReason.STOLEN)
        if is_given_away or (failure is None and reason is not ShutdownReason.PROCESS_RESTART):
            self._lane_pool.passed(self._shard)
        if reason is ShutdownReason.ZOMBIE:
            return
        if reason is ShutdownReason.TERMINATE and self._lanes.is_complete:
            given.checkpointer.checkpoint()
        elif self._lanes.position not in (None, self._stored):
            given.checkpointer.checkpoint(self._lanes.position)
        if reason is ShutdownReason.TERMINATE and failure is not None:
            raise failure.as_error()

    # --- in the pool's threads -------------------------------------------------------------------------------

    def _look_around(self) -> None:
        """Log slow records, and store a position that is due.

        The pool calls this method regularly, even if no record ends.
        """
        self._warn_about_slow_records()
        self._store_if_due()

    def _give_up(self, failure: LaneFailure) -> None:
        """Request a new processor for the shard, because of ``failure``.

        The new processor gets the failed record again. It finishes each batch before the next one, so a second failure
        fails only the batch of this record. If the present processor works in this way already, do nothing.
        """
        if self._is_careful:
            return
        shard_id, text = self._shard.shard_id, "shard %s: %s; starting again at the checkpoint"
        _log.error(text, shard_id, failure.as_error(), extra=logs.of_shard(shard_id))
        self._lane_pool.failed(self._shard, failure.record.sequence_info)
        self._marker.mark_for_process_restart()

    def _warn_about_slow_records(self) -> None:
        """Log slow records, because the shard's status does not show that its checkpoint waits for them."""
        for slow in self._lanes.slow():
            frame = sys._current_frames().get(slow.thread_id)
            stack = "" if frame is None else f", now at:\n{''.join(traceback.format_stack(frame))}"
            name, shard_id = named(slow.record), self._shard.shard_id
            text, about = "shard %s: %s has been under way for %.1f s%s", logs.of_shard(shard_id)
            _log.warning(text, shard_id, name, slow.seconds, stack, extra=about)

    def _store_if_due(self) -> None:
        """Store the position before which all records are done, if that is due.

        Only one thread stores at a time, and no thread after ``shutdown``.
        """
        while self._begins_to_store():
            position = self._lanes.position
            is_stored = False
            try:
                self._checkpointer.checkpoint(position)
                is_stored = True
            except ShutdownException:
                self._lanes.drop()  # another worker reads the shard now
            except StreamClientError as error:
                where = readable_position(str(position))
                shard_id, text = self._shard.shard_id, "shard %s: checkpoint %s is tried again later: %s"
                _log.warning(text, shard_id, where, error, extra=logs.of_shard(shard_id))
            with self._changed:
                self._is_storing = False
                self._changed.notify_all()
                self._stored_at = self._lane_pool.settings.monotonic()
                self._stored = position if is_stored else self._stored
            if not is_stored:
                return

    def _begins_to_store(self) -> bool:
        settings = self._lane_pool.settings
        with self._changed:
            position = self._lanes.position
            if self._is_storing or self._is_closed or position is None or position is self._stored:
                return False  # the batches of a page in parts have equal positions, and each of them is stored
            since_millis = (settings.monotonic() - self._stored_at) * 1_000
            self._is_storing = self._lanes.is_idle or since_millis >= settings.checkpoint_interval_millis
            return self._is_storing
