"""Pages between two batches: those of the next one, read ahead while Spark works, and those that are read again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future, wait
from contextlib import suppress
from threading import Event

from attrs import define, field

from streamclient.base import logs
from streamclient.base.backoff import doubling_millis
from streamclient.errors import NoThreadError, StreamClientException
from streamclient.wire.page_parts import PageSummary

_log = logs.logger(__name__)

SHORTEST_DOUBT_MILLIS, LONGEST_DOUBT_MILLIS = 500, 20_000
"""Pauses before a shard is read again whose page cannot be true: a list of shards may be a second behind the pages."""

MOST_DOUBTS = 6
"""So many pages in a row that cannot be true are waited for, half a minute in all, by a query that has to end."""


@define(eq=False)
class PagesAhead:
    """Asks for pages of the next batch while Spark works on the present one.

    Kept is what has more behind it: the last page of a shard will be a larger one by the time that it is needed.
    """

    summary: Callable[[str, str, int], PageSummary]
    pool: Executor
    _pages: dict[tuple[str, str, int], PageSummary] = field(init=False, factory=dict)
    _walks: dict[str, Future[None]] = field(init=False, factory=dict)
    _is_over: Event = field(init=False, factory=Event)

    def start(self, places: Mapping[str, str], sizes: Mapping[str, Sequence[int]]) -> None:
        """Ask from these iterators on, by shard, for pages of these sizes, and forget the pages before."""
        self.stop()
        is_over, pages = Event(), dict[tuple[str, str, int], PageSummary]()
        self._is_over, self._pages = is_over, pages
        self._walks = {}
        with suppress(NoThreadError):  # without a thread nothing is read ahead, and each page when it is needed
            for shard, at in places.items():
                self._walks[shard] = self.pool.submit(self._walk, pages, is_over, shard, at, sizes[shard])

    def stop(self) -> None:
        """Ask for no more. A read that is under way goes on."""
        self._is_over.set()

    def page(self, shard: str, iterator: str, size: int) -> PageSummary:
        """A page, whether or not it was asked for before. Waits until its shard is no longer asked ahead.

        Raises:
            StreamClientError: it cannot be read now. What an earlier read met is not said: it may be over.
        """
        walk = self._walks.pop(shard, None)
        if walk is not None:
            wait([walk])
        found = self._pages.get((shard, iterator, size))
        return self.summary(shard, iterator, size) if found is None else found

    def forget(self, shard: str) -> None:
        """Ask for the pages of a shard again, as what was read of it is in doubt."""
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
    """Pages that cannot be true, by shard: how many in a row, and how long to wait before the next one."""

    counts: dict[str, int] = field(init=False, factory=dict)
    """By shard, of those whose last page was in doubt."""

    def forget(self, shard: str) -> None:
        """A page of the shard can be true."""
        self.counts.pop(shard, None)

    def add(self, shard: str, why: str, *, ends_by_itself: bool) -> float:
        """Seconds to wait before the page is asked for again, and a line in the log now and then.

        Raises:
            StreamClientException: there were too many for a query that ``ends_by_itself``.
        """
        count = self.counts[shard] = self.counts.get(shard, 0) + 1
        text = f"shard {shard} does not move: {why} ({count} times); the service is at fault"
        if count > 1 and not count & (count - 1):
            _log.warning("%s", text)
        if ends_by_itself and count > MOST_DOUBTS:
            raise StreamClientException(f"{text}, and the query cannot read up to the present; start it again later")
        return doubling_millis(count, SHORTEST_DOUBT_MILLIS, LONGEST_DOUBT_MILLIS) / 1_000
