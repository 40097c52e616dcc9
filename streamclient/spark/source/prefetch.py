"""Shards between two batches: pages read ahead while Spark works, pages that are read again, and the pace of reads."""

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
"""The pauses, in milliseconds, before a shard whose page cannot be true is read again. A list of shards may lag by a
second."""

MOST_DOUBTS = 6
"""The number of consecutive pages that cannot be true after which a query that must end fails. They take half a minute
in all."""


@define
class ShardSeen:
    """The planner's knowledge of a shard beyond its offset, for pauses and for the reported lag."""

    read_up_micros: int
    """The time when the shard was last caught up; before that, the time when it was first seen."""
    pace: ShardPace
    caught_up_count: int | None = None
    """The number of records that had been read when the shard was last caught up; ``None`` if it never was."""
    until: float = 0.0
    """The time, by the monotonic clock, when the shard may be read again."""
    empty_pages: int = 0

    def page_came(self, record_count: int, now: float) -> None:
        """Record that a page was read."""
        if record_count:
            self.empty_pages = 0
            self.pace.records_came(now)
        else:
            self.empty_pages += 1
            self.pace.nothing_came(now)


@define(eq=False)
class PagesAhead:
    """Requests pages of the next batch while Spark works on the present one.

    The object keeps only pages that others follow: the last page of a shard will have grown by the time it is needed.
    """

    summary: Callable[[str, str, int], PageSummary]
    pool: Executor
    _pages: dict[tuple[str, str, int], PageSummary] = field(init=False, factory=dict)
    _walks: dict[str, Future[None]] = field(init=False, factory=dict)
    _is_over: Event = field(init=False, factory=Event)

    def start(self, iterators: Mapping[str, str], sizes: Mapping[str, Sequence[int]]) -> None:
        """Request pages of ``sizes`` from ``iterators`` on, by shard, and forget the earlier pages."""
        self.stop()
        is_over, pages = Event(), dict[tuple[str, str, int], PageSummary]()
        self._is_over, self._pages = is_over, pages
        self._walks = {}
        with suppress(NoThreadError):  # without a thread, each page is read when it is needed
            for shard, at in iterators.items():
                self._walks[shard] = self.pool.submit(self._walk, pages, is_over, shard, at, sizes[shard])

    def stop(self) -> None:
        """Request no more pages. A running read goes on."""
        self._is_over.set()

    def page(self, shard: str, iterator: str, size: int) -> PageSummary:
        """Return a page, read ahead or now. The call first waits until no thread reads ahead in this shard.

        Raises:
            StreamClientError: the page cannot be read now. Errors of an earlier read are ignored, as their cause may be
            over.
        """
        walk = self._walks.pop(shard, None)
        if walk is not None:
            wait([walk])
        page = self._pages.get((shard, iterator, size))
        return self.summary(shard, iterator, size) if page is None else page

    def forget(self, shard: str) -> None:
        """Forget the pages of a shard, because one of its pages is in doubt."""
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
    """Counts the consecutive pages of each shard that cannot be true, and decides the pause before the next read."""

    counts: dict[str, int] = field(init=False, factory=dict)
    """The counts by shard, for shards whose last page was in doubt."""

    def forget(self, shard: str) -> None:
        """End the count of a shard, because a page of it can be true."""
        self.counts.pop(shard, None)

    def add(self, shard: str, why: str, *, ends_by_itself: bool) -> float:
        """Count a doubtful page; return the seconds to wait before it is read again. Log at each doubling of the count.

        Raises:
            StreamClientException: there were too many such pages for a query that ``ends_by_itself``.
        """
        count = self.counts[shard] = self.counts.get(shard, 0) + 1
        text = f"shard {shard} does not move: {why} ({times(count)}); the service is at fault"
        if count > 1 and not count & (count - 1):
            _log.warning("%s", text)
        if ends_by_itself and count > MOST_DOUBTS:
            raise StreamClientException(f"{text}, and the query cannot read up to the present; start it again later")
        return doubling_millis(count, SHORTEST_DOUBT_MILLIS, LONGEST_DOUBT_MILLIS) / 1_000
