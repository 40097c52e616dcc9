"""The order in which the records of a shard are processed: in order within a key, different keys at the same time.

The records of one key wait in a *lane*. A record that is given up halts its shard: waiting records of all keys are
dropped, and records under way end. This module uses no thread, event loop or clock. ``Lanes`` processes records in
threads, and holds a lock around each call of this module. Lanes of an event loop need no lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable

from attrs import define, frozen

from streamclient.errors import ApplicationException
from streamclient.records import StreamRecord
from streamclient.worker.keyed.watermark import Watermark


@frozen
class LaneFailure:
    """A record that was given up, and the error of its last attempt."""

    record: StreamRecord
    error: BaseException

    def as_error(self) -> ApplicationException:
        """Return the error with which the record's batch fails."""
        cause = self.error
        error = ApplicationException(f"{named(self.record)}: {type(cause).__name__}: {cause}")
        error.__cause__ = cause
        return error


def named(record: StreamRecord) -> str:
    """Return a text with a record's key and position, for a log or an error."""
    key = ", ".join(f"{name}={value!r}" for name, value in record.primary_key)
    return f"record {{{key}}} at {record.sequence_info}"


@frozen
class SlowRecord:
    """A record whose processing, including retries, has taken long and still goes on."""

    record: StreamRecord
    seconds: float
    thread_id: int
    """The id of the thread that processes the record; 0 in an event loop."""


@frozen
class LaneItem:
    """A record in its lane, with its size and the number of its batch."""

    record: StreamRecord
    batch: int
    size_bytes: int


@define(eq=False)
class Lane:
    """The lane of one key: its records that are not done, oldest first."""

    key: Hashable
    items: deque[LaneItem]
    is_running: bool = False
    """Whether the first item is being processed."""
    is_dropped: bool = False
    started_at: float = 0.0
    """The time at which the processing of the first item began, in monotonic seconds."""
    thread_id: int = 0
    warn_at: float = 0.0
    """The time of the next warning about the first item, in monotonic seconds."""


class LaneOrder:
    """The lanes of one shard, and the position before which all records are done.

    A *step* processes the first record of a lane. Each lane has one step that waits or runs. After a failure or
    ``drop``, no further record begins, but records under way end.
    """

    def __init__(self, warn_after_seconds: float) -> None:
        self._warn_after_seconds = warn_after_seconds
        self._lanes: dict[Hashable, Lane] = {}
        self._watermark = Watermark()
        self.is_halted: bool = False
        """Whether no further record begins, because a record has failed or ``drop`` was called."""
        self.failure: LaneFailure | None = None
        """The record that was given up, with its error; ``None`` if no record was given up."""

    @property
    def position(self) -> str | None:
        """The last position before which every record is done; ``None`` before the first batch is done."""
        return self._watermark.position

    @property
    def is_idle(self) -> bool:
        """Whether no record waits or is under way."""
        return not self._lanes

    @property
    def is_complete(self) -> bool:
        """Whether every record that was queued so far is done."""
        return not self._watermark.unfinished

    def begin_batch(self, position: str, records: int) -> int:
        """Begin a batch of ``records`` records that ends at ``position``; return its number."""
        return self._watermark.begin(position, records)

    def append(self, key: Hashable, item: LaneItem) -> Lane | None:
        """Queue a record in the lane of its key.

        If the key has no lane, return a new lane with the record, which the caller must open.
        """
        lane = self._lanes.get(key)
        if lane is None:
            return Lane(key, deque([item]))
        lane.items.append(item)
        return None

    def open(self, lane: Lane) -> None:
        """Open a new lane, whose first step was handed over to a thread or an event loop."""
        self._lanes[lane.key] = lane

    def start(self, lane: Lane, now: float, thread_id: int = 0) -> LaneItem | None:
        """Begin a step of a lane; return the record to process, or ``None`` if the lane was dropped."""
        if lane.is_dropped:
            return None
        lane.is_running, lane.thread_id, lane.started_at = True, thread_id, now
        lane.warn_at = now + self._warn_after_seconds
        return lane.items[0]

    def end(self, lane: Lane, *, is_done: bool) -> bool:
        """End a step of a lane; return whether the lane needs another step."""
        lane.is_running = False
        item = lane.items.popleft()
        if is_done:
            self._watermark.finish(item.batch)
        if not lane.items:
            del self._lanes[lane.key]
        return bool(lane.items)

    def give_up(self, failure: LaneFailure) -> bool:
        """Halt the lanes because of ``failure``; return ``False`` if they are halted already."""
        if self.failure is not None or self.is_halted:
            return False
        self.failure, self.is_halted = failure, True
        return True

    def drop(self) -> int:
        """Halt the lanes, and drop the waiting records, which count as not done; return the bytes of these records."""
        self.is_halted = True
        dropped_bytes = 0
        for lane in list(self._lanes.values()):
            kept = [lane.items.popleft()] if lane.is_running else []
            dropped_bytes += sum(item.size_bytes for item in lane.items)
            lane.items = deque(kept)
            lane.is_dropped = not kept
            if lane.is_dropped:
                del self._lanes[lane.key]
        return dropped_bytes

    def start_again(self, batch: int) -> None:
        """Forget the failure, and the last batch ``batch``, which will come again. No record may be under way now."""
        self._watermark.withdraw(batch)
        self.failure, self.is_halted = None, False

    def slow(self, now: float) -> list[SlowRecord]:
        """Return the records under way that need a warning now.

        A record is named again each time its duration has doubled.
        """
        slow = [lane for lane in self._lanes.values() if lane.is_running and now >= lane.warn_at]
        for lane in slow:
            lane.warn_at = now + (now - lane.started_at)
        return [SlowRecord(lane.items[0].record, now - lane.started_at, lane.thread_id) for lane in slow]
