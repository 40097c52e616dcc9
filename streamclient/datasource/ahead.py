"""Reading ahead: the pages of the next batch, asked for while Spark works on the present one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future, wait
from threading import Event

from attrs import define, field

from streamclient.wire.pages import PageSummary


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
        self._walks = {
            shard: self.pool.submit(self._walk, pages, is_over, shard, at, sizes[shard]) for shard, at in places.items()
        }

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
