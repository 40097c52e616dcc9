"""The processing of one shard's records in threads: in order within a key, and different keys at the same time."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Hashable, Sequence
from functools import partial

from streamclient.base import checks, logs
from streamclient.base.outages import OutageLog
from streamclient.errors import NoThreadError
from streamclient.records import StreamRecord
from streamclient.worker.keyed.lane_order import Lane, LaneFailure, LaneItem, LaneOrder, SlowRecord
from streamclient.worker.keyed.lane_pool import LanePool
from streamclient.worker.keyed.pending_records import record_bytes

_log = logs.logger(__name__)
_outages = OutageLog(_log)

THREAD_PAUSE_SECONDS = 0.2
"""The pause before a thread is requested again, after the operating system has refused a thread."""


class Lanes:
    """The lanes of one shard, one for each key, and the position before which all records are done. Thread-safe.

    A *step* processes the first record of a lane. Each lane has one step that waits or runs in the pool. After a
    failure or ``drop``, no further record begins, but records under way end.
    """

    def __init__(self, lane_pool: LanePool, failed: Callable[[LaneFailure], None], moved: Callable[[], None]) -> None:
        """Make lanes; a pool thread calls ``failed`` for a record that is given up, and ``moved`` after each record."""
        self._lane_pool = lane_pool
        self._settings = lane_pool.settings
        self._failed = failed
        self._moved = moved
        self._changed = threading.Condition()
        self._order = LaneOrder(self._settings.slow_record_warning_millis / 1_000)
        self._halt = threading.Event()

    @property
    def failure(self) -> LaneFailure | None:
        """The record that was given up, with its error; ``None`` if no record was given up."""
        return self._order.failure

    @property
    def position(self) -> str | None:
        """The last position before which every record is done; ``None`` before the first batch is done."""
        return self._order.position

    @property
    def is_idle(self) -> bool:
        """Whether no record waits or is under way."""
        return self._order.is_idle

    @property
    def is_complete(self) -> bool:
        """Whether every record that was queued so far is done."""
        with self._changed:
            return self._order.is_complete

    @property
    def is_halted(self) -> bool:
        """Whether no further record begins, because a record has failed or ``drop`` was called."""
        return self._halt.is_set()

    def take_in(self, records: Sequence[tuple[Hashable, StreamRecord]], position: str) -> int:
        """Queue the records of a batch that ends at ``position``, with their keys; return the batch's number.

        The call waits for room below the limit of pending bytes. If the lanes halt meanwhile, the remaining records are
        left out, and the batch stays unfinished.
        """
        with self._changed:
            batch = self._order.begin_batch(position, len(records))
        for key, record in records:
            size_bytes = record_bytes(record)
            self._lane_pool.pending.add(size_bytes, lambda: self.is_idle or self.is_halted)
            if not self._put(key, LaneItem(record, batch, size_bytes)):
                self._lane_pool.pending.remove(size_bytes)
                break
        return batch

    def drop(self) -> None:
        """Halt the lanes, and drop the waiting records, which count as not done."""
        with self._changed:
            dropped_bytes = self._drop()
        self._lane_pool.pending.remove(dropped_bytes)

    def finish(self) -> None:
        """Wait until no record waits or is under way."""
        with self._changed:
            self._changed.wait_for(lambda: self.is_idle)

    def start_again(self, batch: int) -> None:
        """Forget the failure, and the last batch ``batch``, which will come again. No record may be under way now."""
        with self._changed:
            self._order.start_again(batch)
            self._halt.clear()

    def slow(self) -> list[SlowRecord]:
        """Return the records under way that need a warning now.

        A record is named again each time its duration has doubled.
        """
        with self._changed:
            return self._order.slow(self._settings.monotonic())

    # --- inside --------------------------------------------------------------------------------------------------

    def _put(self, key: Hashable, item: LaneItem) -> bool:
        with self._changed:
            if self.is_halted:
                return False
            lane = self._order.append(key, item)
            if lane is None:
                return True
            while not self._begins(lane):
                if self._changed.wait_for(self._halt.is_set, THREAD_PAUSE_SECONDS):
                    return False
            self._order.open(lane)
            return True

    def _begins(self, lane: Lane) -> bool:
        """Submit the first step of a lane; return ``False`` if the pool has no thread and the system refuses one."""
        try:
            self._lane_pool.submit(partial(self._step, lane))
        except NoThreadError as error:
            _outages.log(logging.WARNING, "threads", "records wait for a thread: %s", error)
            return False
        return True

    def _step(self, lane: Lane) -> None:
        """Process the first record of a lane.

        The lane's next record gets a step of its own, so that lanes take turns.
        """
        with self._changed:
            item = self._order.start(lane, self._settings.monotonic(), threading.get_ident())
        if item is None:
            return
        error = self._attempt(item.record)
        if error is not None and not self.is_halted:
            self._give_up(LaneFailure(item.record, error))
        with self._changed:
            if self._order.end(lane, is_done=error is None):
                self._lane_pool.submit(partial(self._step, lane))
            self._changed.notify_all()
        self._lane_pool.pending.remove(item.size_bytes)
        self._moved()

    def _attempt(self, record: StreamRecord) -> BaseException | None:
        """Process ``record``, with retries; return the error of the last attempt, or ``None`` if the record is done."""
        settings = self._settings
        for attempt in itertools.count(1):
            try:
                checks.done("process_record", settings.process_record(record))
            except BaseException as error:
                # This includes SystemExit and KeyboardInterrupt, which in a pool's thread end only this call.
                if attempt > settings.retries or self._halt.wait(settings.pause_seconds(attempt)):
                    return error
            else:
                return None
        raise AssertionError("unreachable: attempts are counted without end")

    def _give_up(self, failure: LaneFailure) -> None:
        with self._changed:  # held until the lanes are dropped, so that no record follows a failed one of its key
            if not self._order.give_up(failure):
                return
            dropped_bytes = self._drop()
        self._lane_pool.pending.remove(dropped_bytes)
        self._failed(failure)

    def _drop(self) -> int:
        """Halt the lanes, and drop the waiting records; return their bytes. The caller holds ``_changed``."""
        self._halt.set()
        dropped_bytes = self._order.drop()
        self._changed.notify_all()
        return dropped_bytes
