"""A reader that follows a stream without leases: every change of every shard, parents before children.

The reader stores no position, so after a stop, a new reader cannot continue where this reader stopped. Readers do not
share the shards of a stream. Use workers for lasting work.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from functools import partial
from threading import Event

from attrs import evolve, frozen

from streamclient.base.backoff import doubling_millis
from streamclient.base.position import ReadTrail
from streamclient.base.reasons import times
from streamclient.config import ClientConfig
from streamclient.core.consumer.reading_pace import ShardPace, WorkerPace
from streamclient.core.shard_tree import NOT_SHOWN, ListedEnds, ShardTree
from streamclient.errors import DependencyException, DisorderError, TrimmedDataException
from streamclient.model import Shard
from streamclient.records import StreamRecord, place_of
from streamclient.tablestore.stream_api import RecordPage, StreamApi

LIST_SECONDS = 5.0
"""The seconds between two listings of the shards. If a shard seems to have ended, but the last listing has no child of
the shard, the follower lists the shards immediately."""

SHORTEST_MILLIS = 100
"""The shortest time between two reads of a shard without changes, in milliseconds. A person who watches the changes
does not notice this delay."""

IDLE_SECONDS = 0.5
"""The pause after a failed read, in seconds."""

LONGEST_DOUBT_SECONDS = 20.0
"""The longest pause, in seconds, before a shard is read again after a page that cannot be true. The first pause lasts
``IDLE_SECONDS``. Each further doubtful page doubles the pause."""

QUIET_DOUBTS = 4
"""The number of consecutive doubtful pages of a shard after which the follower first reports the doubt. It reports
again each time the number has doubled. Most shards recover before the first report."""

RECORDS_PER_READ = 100


@frozen
class FollowedRecord:
    """A record, and the shard from which it was read."""

    shard_id: str
    record: StreamRecord


@frozen
class _Doubt:
    """The number of a shard's consecutive doubtful pages, and the time of the shard's next read.

    A page is doubtful if it contradicts the shard's records or the list of shards.
    """

    count: int
    until: float
    """The time of the next read of the shard, by the monotonic clock."""


@frozen
class LostRecords:
    """The report that records left the stream before they were read. Reading continues at the oldest kept record."""

    shard_id: str


@frozen
class Interruption:
    """The report of a failed read or a doubtful page. The follower reads again after a pause."""

    error: DependencyException


Followed = FollowedRecord | LostRecords | Interruption


class StreamFollower:
    """A reader of one stream, in the calling thread. Setting ``stop`` ends the reading at the next change.

    Args:
        streams: the operations that read the stream.
        stream_id: the id of the stream.
        since_micros: begin with records written at or after this time, in microseconds since 1970; ``None`` begins at
            the oldest record that is kept. Shards that open later are read from their beginning.
        shard_ids: the shards to read, regardless of their parents; by default all shards, parents before children.
    """

    def __init__(
        self,
        streams: StreamApi,
        stream_id: str,
        *,
        since_micros: int | None = None,
        shard_ids: Collection[str] | None = None,
        stop: Event | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._streams = streams
        self._stream_id = stream_id
        self._since_micros = since_micros
        self._shard_ids = None if shard_ids is None else frozenset(shard_ids)
        self._stop = Event() if stop is None else stop
        self._monotonic = monotonic
        self._shards: dict[str, Shard] = {}
        self._first: frozenset[str] = frozenset()
        self._positions: dict[str, str] = {}
        self._ended: set[str] = set()
        self._listed_at = 0.0
        self._ends = ListedEnds()
        self._tree = ShardTree()
        self._candidates: deque[str] = deque()
        """The ids of shards that may be ready to be read. ``_open_shards`` checks and removes each of them."""
        self._trails: dict[str, ReadTrail] = {}
        """For each shard that is read, the last yielded record and the position at which this record was read. By
        this pair, the follower finds its way back after a doubtful page. The keys are shard ids."""
        self._doubts: dict[str, _Doubt] = {}
        self._table_pace = WorkerPace(ClientConfig(worker_idle_time_millis=SHORTEST_MILLIS)).table()
        self._paces: dict[str, ShardPace] = {}
        self._due: dict[str, float] = {}
        """The time of each shard's next read, by the monotonic clock. For a shard in ``_doubts``, the time there counts
        instead."""
        self._reports: list[Interruption] = []
        """Interruptions that ``changes`` has not yielded yet."""
        self._circles: Collection[tuple[str, ...]] = ()

    def changes(self) -> Iterator[Followed]:
        """Yield changes until ``stop`` is set. Each shard's changes come in order, after the changes of its parents.

        If the constructor was given ``shard_ids``, the method also ends when all these shards are read to their ends.

        Raises:
            DependencyException: a read failed permanently. A transient failure is yielded as an ``Interruption``.
        """
        self._list()
        self._first = frozenset(self._shards)
        while not self._stop.is_set() and not self._is_done():
            came = False
            ended = len(self._ended)
            try:
                for change in self._round():
                    came = True
                    yield change
                    if self._stop.is_set():
                        return
            except DependencyException as error:
                if not error.retriable:
                    raise
                yield Interruption(error)
                self._stop.wait(IDLE_SECONDS)
            else:
                if not came and len(self._ended) <= ended:
                    self._stop.wait(self._seconds_to_next())

    def _seconds_to_next(self) -> float:
        """Return the seconds until the next read of a shard or the next listing of the shards."""
        doubts = (doubt.until for doubt in self._doubts.values())
        quiet = (due for shard_id, due in self._due.items() if shard_id not in self._doubts)
        return max(0.0, min(self._listed_at + LIST_SECONDS, *doubts, *quiet) - self._monotonic())

    def _round(self) -> Iterator[Followed]:
        """Read one page of each shard whose next read is due, and yield the changes in these pages.

        After these pages, list the shards if the last listing is older than ``LIST_SECONDS``.
        """
        for shard_id in self._open_shards():
            doubt = self._doubts.get(shard_id)
            due = self._due.get(shard_id, 0.0) if doubt is None else doubt.until
            if self._monotonic() >= due:
                yield from self._read(shard_id)
        if self._monotonic() - self._listed_at >= LIST_SECONDS:
            self._list()
        reports, self._reports = self._reports, []
        yield from reports

    def _is_done(self) -> bool:
        return self._shard_ids is not None and self._shard_ids <= self._ended

    @property
    def known(self) -> Collection[str]:
        """The ids of the shards in the last listing, and of shards that left the listing but are still read."""
        return self._shards.keys()

    def _list(self) -> None:
        """List the shards. Forget each shard that left the listing, unless it is still read."""
        described = self._streams.describe_stream(self._stream_id)
        in_reading = {shard_id: shard for shard_id, shard in self._shards.items() if shard_id in self._positions}
        self._shards = {**in_reading, **{shard.shard_id: shard for shard in described.shards}}
        self._ended &= self._shards.keys() | (self._shard_ids or frozenset())
        self._ends.listed(described.shards, self._monotonic())
        self._tree = ShardTree.of(self._shards.values())
        self._candidates = deque(self._shards)
        self._report_circles()
        self._listed_at = self._monotonic()

    def _report_circles(self) -> None:
        circles = set(self._tree.circles.values())
        for circle in sorted(circles.difference(self._circles)):
            text = (
                "are each other's parents in the list of shards, so none of them is ever read: the service is at fault"
            )
            self._reports.append(Interruption(DependencyException(f"shards {', '.join(circle)} {text}")))
        self._circles = circles

    def _open_shards(self) -> list[str]:
        """Look up the first position of each candidate that may begin; return the ids of all shards being read."""
        while self._candidates:
            shard_id = self._candidates[0]
            is_new = shard_id not in self._positions and shard_id not in self._ended
            if is_new and self._may_begin(shard_id):
                self._positions[shard_id] = self._beginning(shard_id)
            self._candidates.popleft()
        return list(self._positions)

    def _may_begin(self, shard_id: str) -> bool:
        if self._shard_ids is not None:
            return shard_id in self._shard_ids
        return self._tree.may_begin(shard_id, self._ended)

    def _beginning(self, shard_id: str) -> str:
        is_new = shard_id not in self._first
        since = None if is_new else self._since_micros
        return self._streams.get_shard_iterator(self._stream_id, shard_id, since)

    def _read(self, shard_id: str) -> Iterator[Followed]:
        position = self._positions[shard_id]
        trail = self._trails.setdefault(shard_id, ReadTrail())
        began = self._monotonic()
        try:
            page = self._streams.get_stream_record(position, RECORDS_PER_READ)
        except TrimmedDataException:
            if trail.goes_back:
                self._positions[shard_id] = trail.forget_way()
                self._read_again(shard_id, began)
                return
            self._positions[shard_id] = self._streams.get_shard_iterator(self._stream_id, shard_id)
            del self._trails[shard_id]
            yield LostRecords(shard_id)
            return
        except DisorderError as error:
            self._in_doubt(shard_id, str(error), trail)
            return
        records, following = page.records, page.next_position
        judged = trail.judge(position, following.text, len(records), partial(place_of, records))
        if judged.why:
            self._in_doubt(shard_id, judged.why, trail)
            return
        if following.is_shard_end and not self._ends.confirms(shard_id, began, self._list):
            if not self._ends.has_child(shard_id):  # a child that appeared after the read removes the doubt
                self._in_doubt(shard_id, NOT_SHOWN)
            return
        if judged.taken == len(records) > 0 and not following.is_shard_end:
            if not judged.is_way:
                trail.arrive()
            self._positions[shard_id] = following.text  # a page without a new record does not end a doubt
            self._read_again(shard_id, began)
            return
        self._took(shard_id, page, began)
        if records:
            trail.take(position, place_of(records, -1))
        for record in records[judged.taken :]:
            yield FollowedRecord(shard_id, record)

    def _read_again(self, shard_id: str, began: float) -> None:
        """Let the shard's next read begin ``SHORTEST_MILLIS`` after ``began``, the time at which the last read began.

        This applies whether the shard is in doubt or not.
        """
        due = began + SHORTEST_MILLIS / 1_000
        if shard_id in self._doubts:
            self._doubts[shard_id] = evolve(self._doubts[shard_id], until=due)
        else:
            self._due[shard_id] = due

    def _took(self, shard_id: str, page: RecordPage, began: float) -> None:
        self._doubts.pop(shard_id, None)
        pace = self._paces.setdefault(shard_id, self._table_pace.shard())
        if page.next_position.is_shard_end:
            del self._positions[shard_id], self._trails[shard_id], self._paces[shard_id]
            self._due.pop(shard_id, None)
            pace.rest()
            self._ended.add(shard_id)
            self._candidates += self._tree.children.get(shard_id, ())
            return
        self._positions[shard_id] = page.next_position.text
        if page.records:
            pace.records_came(began)
            self._due[shard_id] = 0.0
        else:
            pace.nothing_came(began)
            self._due[shard_id] = began + pace.interval(began)

    def _in_doubt(self, shard_id: str, why: str, trail: ReadTrail | None = None) -> None:
        """Count a doubtful page, which is not used, and set the time of the next read.

        If ``trail`` is given, it chooses the position of the next read. Otherwise the position stays the same.
        """
        if trail is not None:
            self._positions[shard_id] = trail.turn(self._positions[shard_id])
        before = self._doubts.get(shard_id)
        count = 1 if before is None else before.count + 1
        pause = doubling_millis(count, round(IDLE_SECONDS * 1_000), round(LONGEST_DOUBT_SECONDS * 1_000)) / 1_000
        self._doubts[shard_id] = _Doubt(count, self._monotonic() + pause)
        if count >= QUIET_DOUBTS and not count & (count - 1):
            text = f"shard {shard_id} does not move: {why} ({times(count)}); it is read again until it moves"
            self._reports.append(Interruption(DependencyException(text)))
