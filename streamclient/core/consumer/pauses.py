"""The pauses of one shard, after failures and while no record comes, and the counters from which they follow.

``streamclient.core.consumer.reading_pace`` decides how often a shard without news is read.
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
"""First pause after a failed read, as in the Java client; the calls below have already made their own quick retries."""

LONGEST_READ_PAUSE_MILLIS = 20_000
"""Longest pause after failed reads: short enough to go on soon after an outage, long enough to spare the
service during it."""

SHORTEST_STORE_PAUSE_MILLIS = 500
LONGEST_STORE_PAUSE_MILLIS = 60_000
"""Pauses after a failure of a parking store. It is called only after another failure, so its pauses may be long."""

MOST_EAGER_READS = 64
"""Number of consecutive empty pages up to which a hint of more records causes an immediate read. The hint promises
nothing, so the ordinary pauses come back after this number. Without a hint, a position that moved over no record is
taken for one: the service skips. With the hint that nothing more waits it is not, since the end of a tunnel's channel
moves with time."""

LARGE_PAGE_RECORDS = 100
LARGE_PAGE_BYTES = 1 << 16
"""The least records, and the least bytes, of a page after which the next read begins at once: beside the work on
them one more read costs little."""

MOST_SMALL_PAGES = 64
"""The most smaller pages that are followed by ordinary pauses before one is followed at once again, as a trial: with
pauses of 15 ms that is a second."""

LEAST_IDLE_SHARE = 0.25
"""The least pause after a page that nothing follows, as a share of the shortest interval: reads that take longer than
their interval leave the service and this process some room."""

POLL_SPREAD = 0.05
"""The largest share of its interval by which a shard is polled sooner, by chance, so that shards that began together do
not stay together."""

FIRST_MARKED_RESTART_IS_FREE = 1


def _is_large(page: ShardPage) -> bool:
    return len(page.records) >= LARGE_PAGE_RECORDS or page.body_bytes >= LARGE_PAGE_BYTES


class FollowUps:
    """Whether the next read begins at once after a page with records.

    The service hints at more after each such page, also after the last one. At the end of a stream with traffic each
    page would so cost two reads. After a large page the next read begins at once. After a small one it does unless such
    reads found nothing: then twice as many small pages as before pass until the next trial.
    """

    def __init__(self) -> None:
        self._is_trial = False
        self._small_pages = self._passed = 0

    def read_succeeded(self, page: ShardPage) -> None:
        """Record that a read returned ``page``."""
        if self._is_trial:
            self._is_trial = False
            self._small_pages = 0 if page.records else min(max(1, 2 * self._small_pages), MOST_SMALL_PAGES)

    def will_follow(self, page: ShardPage) -> bool:
        """Return what ``is_due`` will answer, so that nothing is read ahead that would grow old during a pause."""
        return _is_large(page) or self._passed >= self._small_pages

    def is_due(self, page: ShardPage) -> bool:
        """Return whether the next read begins at once after ``page``, which has records and may have followers."""
        if not self.will_follow(page):
            self._passed += 1
            return False
        self._is_trial, self._passed = not _is_large(page), 0
        return True


class ConsumerBackoff:
    """Counters of one consumer, and the pauses that follow from them. All pauses are in seconds."""

    def __init__(self, config: ClientConfig, dice: random.Random, pace: ShardPace) -> None:
        self._config = config
        self._dice = dice
        self.pace = pace
        self.follow_ups = FollowUps()
        self.failures = 0
        self.read_failures = 0
        self.store_failures = 0
        self._marked_restarts = 0
        self._empty_pages = 0
        self._accepted_records = 0
        self._hurdle = 0
        self._read_at = 0.0
        self.poll_interval = 0.0
        """The longest time between two polls of the shard, as it was last decided; 0.0 before that."""

    def read_begins(self, now: float) -> None:
        """Record that a read is requested."""
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
        """Record that a read failed."""
        self.read_failures += 1
        self.pace.rest()

    def read_pause(self) -> float:
        """Return the pause before the next read, unless the user's retry strategy decides."""
        millis = doubling_millis(self.read_failures, SHORTEST_READ_PAUSE_MILLIS, LONGEST_READ_PAUSE_MILLIS)
        return with_jitter(millis, self._dice) / 1_000

    def retry_pause(self, span: Span) -> float | None:
        """Return the pause before records that just failed are delivered again, or ``None`` for no further try.

        A retry strategy of the user decides instead, if there is one.
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

        Failures are forgotten only after the position of the last failure: a restarted processor first repeats the
        records before it, and that success proves nothing.
        """
        self._marked_restarts = 0
        self._accepted_records += records
        if self._accepted_records > self._hurdle:
            self.failures = 0

    def processor_failed(self) -> None:
        """Count a processor that raised, or did not do its duty."""
        self.failures += 1

    def restart_marked(self) -> None:
        """Count a processor that asked to be replaced."""
        self._marked_restarts += 1

    def restart_pause(self) -> float:
        """Return the pause before a new processor; the count of accepted records starts at zero again."""
        if self.failures:
            self._hurdle = self._accepted_records
        self._accepted_records = 0
        return self.next_restart_seconds()

    def next_restart_seconds(self, more_failures: int = 0) -> float:
        """Return the value of the next ``restart_pause``, if ``more_failures`` failures come before it."""
        fruitless = self.failures + more_failures + max(0, self._marked_restarts - FIRST_MARKED_RESTART_IS_FREE)
        shortest, longest = (
            self._config.backoff.restart_backoff_min_millis,
            self._config.backoff.restart_backoff_max_millis,
        )
        return max(doubling_millis(fruitless, shortest, longest), self._config.worker_idle_time_millis) / 1_000

    def may_follow(self, page: ShardPage, read_from: Position) -> bool:
        """Return whether records may follow an empty page, by the service's hint, else by the position that moved."""
        moved = page.next_position != read_from and read_from.is_iterator
        return moved if page.may_more_record is None else page.may_more_record

    def caught_up_pause(self, page: ShardPage, read_from: Position, now: float) -> float:
        """Return the pause after a page that no further record seems to follow."""
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
