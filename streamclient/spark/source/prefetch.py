"""The planner's memory of shards between batches: pages that were read ahead, doubtful pages, and the pace of reads.

A page is *doubtful* if it must be wrong: it makes no progress, or it says that the shard has ended, although the list
of shards does not show the end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future, wait
from contextlib import suppress
from threading import Event

from attrs import define, field

from streamclient.base import logs
from streamclient.base.backoff import doubling_millis
from streamclient.base.reasons import times
from streamclient.core.consumer.reading_pace import ShardPace
from streamclient.errors import NoThreadError, StreamClientException
from streamclient.wire.page_parts import PageSummary

_log = logs.logger(__name__)

SHORTEST_DOUBT_MILLIS, LONGEST_DOUBT_MILLIS = 500, 20_000
"""The shortest and the longest pause, in milliseconds, before the planner repeats the read of a doubtful page. After
the pause, the list of shards, which lags by up to a second, may show the end of the shard that the page reported."""

MOST_DOUBTS = 6
"""The number of consecutive doubtful pages of a shard after which a query that ends at the present fails. The pauses
before the repeated reads take half a minute in all."""


MOST_EMPTY_PAGES = 10
"""The number of consecutive empty pages after which a batch reads no more of a shard. They do not show that the shard
is caught up, because the service also returns empty pages, each with another iterator, when it skips a part of the
shard. Only in a tunnel, whose tokens move with time, does a channel then count as caught up."""


@define
class ShardSeen:
    """The part of a shard's state that is not in offsets. It decides the pauses between reads, and the reported lag."""

    read_up_micros: int
    """The time, in microseconds, when the shard was last caught up. For a shard that never was, it is the time when the
    planner first saw the shard."""
    pace: ShardPace
    caught_up_count: int | None = None
    """The shard's ``ShardOffset.count`` when it was last caught up; ``None`` if it never was."""
    until: float = 0.0
    """The time, by the monotonic clock, from which the shard may be read again."""
    empty_pages: int = 0

    def page_came(self, record_count: int, now: float) -> None:
        """Note that a page with ``record_count`` records was read at the time ``now``."""
        if record_count:
            self.empty_pages = 0
            self.pace.records_came(now)
        else:
            self.empty_pages += 1
            self.pace.nothing_came(now)

    def batch_ends(self, caught_up_count: int | None, micros: int, now: float) -> None:
        """Note that a batch reads no more of the shard. ``micros`` and ``now`` are the present by both clocks.

        ``caught_up_count`` is the shard's ``ShardOffset.count`` if the shard is caught up, or else ``None``.
        """
        self.caught_up_count = caught_up_count
        self.read_up_micros = self.read_up_micros if caught_up_count is None else micros
        self.until = now + self.pace.interval(now)


@define(eq=False)
class PagesAhead:
    """Reads pages of the next batch while Spark works on the current one.

    It keeps a page only if further records follow. It drops the last page of a shard, because the page may have grown
    when the next batch needs it.
    """

    summary: Callable[[str, str, int], PageSummary]
    pool: Executor
    _pages: dict[tuple[str, str, int], PageSummary] = field(init=False, factory=dict)
    _walks: dict[str, Future[None]] = field(init=False, factory=dict)
    _is_over: Event = field(init=False, factory=Event)

    def start(self, iterators: Mapping[str, str], sizes: Mapping[str, Sequence[int]]) -> None:
        """Drop all pages, and begin to read ahead from ``iterators`` on. ``sizes`` has the page sizes by shard."""
        self.stop()
        is_over, pages = Event(), dict[tuple[str, str, int], PageSummary]()
        self._is_over, self._pages = is_over, pages
        self._walks = {}
        with suppress(NoThreadError):  # if no thread can start, ``page`` reads each page when it is called
            for shard, at in iterators.items():
                self._walks[shard] = self.pool.submit(self._walk, pages, is_over, shard, at, sizes[shard])

    def stop(self) -> None:
        """Stop reading ahead. A read that has begun goes on."""
        self._is_over.set()

    def page(self, shard: str, iterator: str, size: int) -> PageSummary:
        """Return the page at ``iterator`` if it was read ahead; otherwise read it now.

        If a thread is reading ahead in this shard, first wait for it.

        Raises:
            StreamClientError: the page cannot be read now. Errors of earlier reads ahead are ignored.
        """
        walk = self._walks.pop(shard, None)
        if walk is not None:
            wait([walk])
        page = self._pages.get((shard, iterator, size))
        return self.summary(shard, iterator, size) if page is None else page

    def forget(self, shard: str) -> None:
        """Drop the pages of ``shard`` that were read ahead, because one of them is doubtful."""
        self._pages = {key: page for key, page in self._pages.items() if key[0] != shard}

    def _walk(
        self,
        pages: dict[tuple[str, str, int], PageSummary],
        is_over: Event,
        shard: str,
        at: str | None,
        sizes: Sequence[int],
    ) -> None:
        for size in sizes:
            if at is None or is_over.is_set():
                return
            page = self.summary(shard, at, size)
            has_more = page.record_count >= size if page.may_more_record is None else page.may_more_record
            if not has_more:
                return
            pages[shard, at, size] = page
            at = page.next_shard_iterator


@define(eq=False)
class DoubtedPages:
    """Counts each shard's consecutive pages that must be wrong, and decides the pauses before repeated reads."""

    counts: dict[str, int] = field(init=False, factory=dict)
    """The number of consecutive doubtful pages of each shard. Shards whose last page was right are absent."""

    def forget(self, shard: str) -> None:
        """Reset the count of ``shard``, because its last page was not doubtful."""
        self.counts.pop(shard, None)

    def add(self, shard: str, why: str, *, ends_by_itself: bool) -> float:
        """Count a doubtful page of ``shard``; return the seconds to wait before the read is repeated.

        The reason ``why`` is logged each time the count has doubled.

        Raises:
            StreamClientException: the count is above ``MOST_DOUBTS``, and ``ends_by_itself`` says that the query ends
                at the present.
        """
        count = self.counts[shard] = self.counts.get(shard, 0) + 1
        text = f"shard {shard} does not move: {why} ({times(count)}); the service is at fault"
        if count > 1 and not count & (count - 1):
            _log.warning("%s", text)
        if ends_by_itself and count > MOST_DOUBTS:
            raise StreamClientException(f"{text}, and the query cannot read up to the present; start it again later")
        return doubling_millis(count, SHORTEST_DOUBT_MILLIS, LONGEST_DOUBT_MILLIS) / 1_000
