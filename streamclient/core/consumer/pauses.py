"""The pauses of one shard's consumer after failures and while no record comes, and the counters that decide them.

``streamclient.core.consumer.reading_pace`` decides how often a shard without new records is read.
"""

from __future__ import annotations

import random

from streamclient.base.backoff import doubling_millis, with_jitter
from streamclient.base.position import Position
from streamclient.config import ClientConfig, FailurePolicy
from streamclient.core.consumer.consumer_events import ShardPage
from streamclient.core.consumer.page import Span
from streamclient.core.consumer.reading_pace import ShardPace

SHORTEST_READ_PAUSE_MILLIS = 100
"""The first pause after a failed read, the same as in the Java client. A read counts as failed only after its quick
retries have failed, too."""

LONGEST_READ_PAUSE_MILLIS = 20_000
"""The longest pause after failed reads. The pause is short enough for reading to go on soon after an outage, and long
enough to spare the service meanwhile."""

SHORTEST_STORE_PAUSE_MILLIS = 500
LONGEST_STORE_PAUSE_MILLIS = 60_000
"""The longest pause after failures of a parking store. The pause may be long, because the store is mostly called only
after a record has failed."""

MOST_EAGER_READS = 64
"""The number of consecutive empty pages up to which a hint of more records causes an immediate read. The hint is not a
promise, so after this number the ordinary pauses return. If the service gives no hint, an empty page whose position
moved counts as a hint, because the service skips a part of the shard. If the service says that no record waits, a moved
position is not a hint: at the end of a tunnel's channel, the position moves with time even without records."""

LARGE_PAGE_RECORDS = 100
LARGE_PAGE_BYTES = 1 << 16
"""A page is large if it has at least this many bytes, or at least ``LARGE_PAGE_RECORDS`` records. After a large page
the next read begins immediately: compared with the work on the page, one more read costs little. A full page counts as
large, however few records it has, because more records probably wait."""

MOST_SMALL_PAGES = 64
"""The largest number of consecutive small pages that are followed by ordinary pauses. After the next small page, a read
begins immediately, as a trial. With pauses of 15 ms, the trials are a second apart."""

LEAST_IDLE_SHARE = 0.25
"""The shortest pause after a page that no record follows, as a share of the shortest interval. If reads take longer
than their interval, this pause leaves the service and this process some room."""

POLL_SPREAD = 0.05
"""A shard is polled early by at most this share of its interval. The share is random, so shards whose polls began
together are soon polled at different times."""

FIRST_MARKED_RESTART_IS_FREE = 1


class FollowUps:
    """Decides whether the next read begins immediately after a page with records.

    The service hints at more records after each such page, even after the last page. If the hint were always followed,
    each page at the end of a stream with traffic would cost two reads. After a large page the next read begins
    immediately. After a small page, an immediate read is a trial. If the trial finds records, the next small page is
    followed by a trial, too. If it finds no record, twice as many small pages as before must pass until the next trial.

    Args:
        full_page_records: the largest number of records that a read returns. A page with as many records counts as
            large. ``None`` if the service decides the number by itself.
    """

    def __init__(self, full_page_records: int | None = None) -> None:
        self._large_page_records = min(LARGE_PAGE_RECORDS, full_page_records or LARGE_PAGE_RECORDS)
        self._is_trial = False
        self._small_pages = self._passed = 0

    def read_succeeded(self, page: ShardPage) -> None:
        """Record that a read returned ``page``."""
        if self._is_trial:
            self._is_trial = False
            self._small_pages = 0 if page.records else min(max(1, 2 * self._small_pages), MOST_SMALL_PAGES)

    def will_follow(self, page: ShardPage) -> bool:
        """Return the value that ``is_due`` will return for ``page``.

        If the value is ``False``, no page is read ahead, because it would be out of date after the pause.
        """
        return self._is_large(page) or self._passed >= self._small_pages

    def is_due(self, page: ShardPage) -> bool:
        """Return whether the next read begins immediately. ``page`` has records, and more may wait after it."""
        is_large = self._is_large(page)
        if not is_large and self._passed < self._small_pages:
            self._passed += 1
            return False
        self._is_trial, self._passed = not is_large, 0
        return True

    def _is_large(self, page: ShardPage) -> bool:
        return len(page.records) >= self._large_page_records or page.body_bytes >= LARGE_PAGE_BYTES


class ConsumerBackoff:
    """Counters of one consumer, and the pauses that follow from them. All pauses are in seconds.

    Args:
        full_page_records: as for ``FollowUps``.
        moves_when_idle: whether the position of a shard moves with time even if no record is written, as in a tunnel's
            channel.
    """

    def __init__(
        self,
        config: ClientConfig,
        dice: random.Random,
        pace: ShardPace,
        full_page_records: int | None = None,
        *,
        moves_when_idle: bool = False,
    ) -> None:
        self._config = config
        self._moves_when_idle = moves_when_idle
        self._dice = dice
        self.pace = pace
        self.follow_ups = FollowUps(full_page_records)
        self.failures = 0
        self.read_failures = 0
        self.store_failures = 0
        self._marked_restarts = 0
        self._empty_pages = 0
        self._accepted_records = 0
        self._hurdle = 0
        self._read_at = 0.0
        self.poll_interval = 0.0
        """The longest time between two polls of the shard, as it was decided last; 0.0 before the first decision."""

    def read_begins(self, now: float) -> None:
        """Record that a read of the shard begins."""
        self._read_at = now

    def read_succeeded(self, page: ShardPage, now: float) -> None:
        """Record that a read returned ``page``."""
        self.read_failures = 0
        self.follow_ups.read_succeeded(page)
        if page.records:
            self._empty_pages = 0
            self.pace.records_came(now)
        else:
            self.pace.nothing_came(now)

    def read_failed(self) -> None:
        """Record that a read of the shard failed."""
        self.read_failures += 1
        self.pace.rest()

    def read_pause(self) -> float:
        """Return the ordinary pause after ``read_failures`` failed reads. A user's retry strategy may overrule it."""
        millis = doubling_millis(self.read_failures, SHORTEST_READ_PAUSE_MILLIS, LONGEST_READ_PAUSE_MILLIS)
        return with_jitter(millis, self._dice) / 1_000

    def retry_pause(self, span: Span) -> float | None:
        """Return the pause before records that have just failed are delivered again; ``None`` for no further try.

        If the user has a retry strategy, this pause is used only when the strategy fails.
        """
        policy = self._config.failure_policy
        return None if span.tries > policy.retries else retry_pause_millis(span, policy) / 1_000

    def store_failed(self) -> float:
        """Count a failure of the parking store, and return the pause before it is called again."""
        self.store_failures += 1
        millis = doubling_millis(self.store_failures, SHORTEST_STORE_PAUSE_MILLIS, LONGEST_STORE_PAUSE_MILLIS)
        return with_jitter(millis, self._dice) / 1_000

    def accepted(self, records: int) -> None:
        """Record that ``records`` records were processed.

        The failures are forgotten only when records after the position of the last failure are processed. A new
        processor first repeats the records before that position, and their success proves nothing.
        """
        self._marked_restarts = 0
        self._accepted_records += records
        if self._accepted_records > self._hurdle:
            self.failures = 0

    def processor_failed(self) -> None:
        """Count a failure: a processor raised, or did not store the end of its shard."""
        self.failures += 1

    def restart_marked(self) -> None:
        """Count a request of a processor to be replaced."""
        self._marked_restarts += 1

    def restart_pause(self) -> float:
        """Return the pause before a new processor starts, and count accepted records from zero again."""
        if self.failures:
            self._hurdle = self._accepted_records
        self._accepted_records = 0
        return self.next_restart_seconds()

    def next_restart_seconds(self, more_failures: int = 0) -> float:
        """Return the pause that ``restart_pause`` will return after ``more_failures`` further failures."""
        fruitless = self.failures + more_failures + max(0, self._marked_restarts - FIRST_MARKED_RESTART_IS_FREE)
        shortest, longest = (
            self._config.backoff.restart_backoff_min_millis,
            self._config.backoff.restart_backoff_max_millis,
        )
        return max(doubling_millis(fruitless, shortest, longest), self._config.worker_idle_time_millis) / 1_000

    def may_follow(self, page: ShardPage, read_from: Position) -> bool:
        """Return whether records may follow an empty page.

        The service's hint decides. Without a hint, records may follow if the position has moved.
        """
        moved = page.next_position != read_from and read_from.is_iterator
        return moved if page.may_more_record is None else page.may_more_record

    def is_read_up(self, page: ShardPage, read_from: Position) -> bool:
        """Return whether a page shows that no record waits. Call ``caught_up_pause`` for the page first.

        The page is empty, or its hint says that no record follows. An empty page of a stream proves that only if the
        position has not moved. The service also returns empty pages when it skips a part of the shard, and each of them
        moves the position. Neither their number nor the hint proves anything. At the end of an open shard, the service
        returns the position unchanged, so an idle shard counts as read up at its next read.

        The position of a tunnel's channel moves even when no record waits. So there the hint decides. A hint of more
        records counts for the first ``MOST_EAGER_READS`` consecutive empty pages.
        """
        if page.records:
            return True
        if self._moves_when_idle:
            return page.may_more_record is not True or self._empty_pages > MOST_EAGER_READS
        return page.next_position == read_from

    def caught_up_pause(self, page: ShardPage, read_from: Position, now: float) -> float:
        """Return the pause after a page that no record seems to follow."""
        self._empty_pages += not page.records
        if not page.records and self.may_follow(page, read_from) and self._empty_pages <= MOST_EAGER_READS:
            return 0.0
        self.poll_interval = self.pace.interval(now)
        spread = 1.0 - POLL_SPREAD * self._dice.random()
        least = LEAST_IDLE_SHARE * self._config.worker_idle_time_millis / 1_000
        return max(least, self.poll_interval * spread - (now - self._read_at))


def retry_pause_millis(span: Span, policy: FailurePolicy) -> int:
    """Return the pause before a span that just raised is delivered again."""
    return doubling_millis(span.tries, policy.first_pause_millis, policy.longest_pause_millis)
