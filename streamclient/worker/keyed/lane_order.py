"""The choice of the next record: in order within a key, keys side by side. Pure: no thread, no event loop, no clock.

A record that is given up halts its shard: waiting records of all keys are dropped, and records under way end. ``Lanes``
runs the steps in threads, any of which takes the next step of any key, and locks around each call here. Lanes of an
event loop need no lock.
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
    """A record that was given up."""

    record: StreamRecord
    error: BaseException

    def as_error(self) -> ApplicationException:
        """Return the error with which the record's batch fails."""
        cause = self.error
        error = ApplicationException(f"{named(self.record)}: {type(cause).__name__}: {cause}")
        error.__cause__ = cause
        return error


def named(record: StreamRecord) -> str:
    """Return a record's key and place for a log or an error."""
    key = ", ".join(f"{name}={value!r}" for name, value in record.primary_key)
    return f"record {{{key}}} at {record.sequence_info}"


@frozen
class SlowRecord:
    """A record that has been under way for long, including its retries."""

    record: StreamRecord
    seconds: float
    thread_id: int
    """The thread that processes the record; 0 in an event loop."""


@frozen
class LaneItem:
    """A record in its lane."""

    record: StreamRecord
    batch: int
    size_bytes: int


@define(eq=False)
class Lane:
    """The records of one key, oldest first."""

    key: Hashable
    items: deque[LaneItem]
    is_running: bool = False
    """Whether the first item is being processed."""
    is_dropped: bool = False
    started_at: float = 0.0
    """Time at which the processing of the first item began, in monotonic seconds."""
    thread_id: int = 0
    warn_at: float = 0.0
    """Time of the next warning."""


class LaneOrder:
    """The lanes of one shard, and the position before which all records are done.

    Each lane has one step that waits or runs, which processes the lane's first record. After a failure or ``drop`` no
    further record begins; records under way end.
    """

    def __init__(self, warn_after_seconds: float) -> None:
        self._warn_after_seconds = warn_after_seconds
        self._lanes: dict[Hashable, Lane] = {}
        self._watermark = Watermark()
        self.is_halted: bool = False
        """Whether records do not begin any more."""
        self.failure: LaneFailure | None = None
        """The only record that was given up."""

    @property
    def position(self) -> str | None:
        """The last position before which every record is done; ``None`` before the first."""
        return self._watermark.position

    @property
    def is_idle(self) -> bool:
        """Whether no record waits or is under way."""
        return not self._lanes

    @property
    def is_complete(self) -> bool:
        """Whether every record that ever came is done."""
        return not self._watermark.unfinished

    def begin_batch(self, position: str, records: int) -> int:
        """Begin a batch of ``records`` records that ends at ``position``; return its number."""
        return self._watermark.begin(position, records)

    def append(self, key: Hashable, item: LaneItem) -> Lane | None:
        """Queue a record in the lane of its key; if the key has no lane, return a new one, to be opened."""
        lane = self._lanes.get(key)
        if lane is None:
            return Lane(key, deque([item]))
        lane.items.append(item)
        return None

    def open(self, lane: Lane) -> None:
        """Open a new lane, whose first step waits."""
        self._lanes[lane.key] = lane

    def start(self, lane: Lane, now: float, thread_id: int = 0) -> LaneItem | None:
        """Begin a step of a lane; return the record to process, or ``None`` if the lane was dropped."""
        if lane.is_dropped:
            return None
        lane.is_running, lane.thread_id, lane.started_at = True, thread_id, now
        lane.warn_at = now + self._warn_after_seconds
        return lane.items[0]

    def end(self, lane: Lane, *, is_done: bool) -> bool:
        """End a step; return whether the lane needs another one."""
        lane.is_running = False
        item = lane.items.popleft()
        if is_done:
            self._watermark.finish(item.batch)
        if not lane.items:
            del self._lanes[lane.key]
        return bool(lane.items)

    def give_up(self, failure: LaneFailure) -> bool:
        """Begin no further record, because one failed; return ``False`` if another one has already failed."""
        if self.failure is not None or self.is_halted:
            return False
        self.failure, self.is_halted = failure, True
        return True

    def drop(self) -> int:
        """Begin no further record, and forget the waiting ones, which are not done; return their bytes."""
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
        """Forget a failure and its batch ``batch``, which is the last one. No record must be under way.

        The batch comes again.
        """
        self._watermark.withdraw(batch)
        self.failure, self.is_halted = None, False

    def slow(self, now: float) -> list[SlowRecord]:
        """Return the records under way that need a warning now. A record returns each time its duration has doubled."""
        slow = [lane for lane in self._lanes.values() if lane.is_running and now >= lane.warn_at]
        for lane in slow:
            lane.warn_at = now + (now - lane.started_at)
        return [SlowRecord(lane.items[0].record, now - lane.started_at, lane.thread_id) for lane in slow]
