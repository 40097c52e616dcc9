"""How long one shard pauses, and what it remembers for that."""

from __future__ import annotations

import random

from streamclient.config import ClientConfig, FailurePolicy
from streamclient.core.consumer.events import ShardPage
from streamclient.core.consumer.page import Span
from streamclient.core.consumer.polling import ArrivalRhythm
from streamclient.core.position import Position
from streamclient.core.retry import doubling_millis, with_jitter

SHORTEST_READ_PAUSE_MILLIS = 100
"""First pause after a failed read, as in the Java client; the calls below have made their own quick retries already."""

LONGEST_READ_PAUSE_MILLIS = 20_000
"""Longest pause after failed reads: soon enough after an outage, and no load during one."""

SHORTEST_STORE_PAUSE_MILLIS = 500
LONGEST_STORE_PAUSE_MILLIS = 60_000
"""Pauses after a parking store failed: it is called only when something else went wrong already, so it may rest."""

MOST_EAGER_READS = 64
"""Empty pages in a row that are followed by another read at once because the service hints at more. The hint promises
nothing, so the ordinary pauses come back after this many."""

FIRST_MARKED_RESTART_IS_FREE = 1


class ConsumerBackoff:
    """Counters of one consumer and the pauses that follow from them. All pauses are seconds."""

    def __init__(self, config: ClientConfig, dice: random.Random) -> None:
        self._config = config
        self._dice = dice
        self.failures = 0
        self.read_failures = 0
        self.store_failures = 0
        self._marked_restarts = 0
        self._empty_pages = 0
        self._accepted_records = 0
        self._hurdle = 0
        self._rhythm = ArrivalRhythm()

    def read_succeeded(self, page: ShardPage, now: float) -> None:
        """A page came."""
        self.read_failures = 0
        if page.records:
            self._empty_pages = 0
            self._rhythm.records_came(now)
        else:
            self._rhythm.nothing_came(now)

    def read_failed(self) -> None:
        """A read failed."""
        self.read_failures += 1

    def read_pause(self) -> float:
        """Pause before the next read, unless a strategy of the user's decides."""
        millis = doubling_millis(self.read_failures, SHORTEST_READ_PAUSE_MILLIS, LONGEST_READ_PAUSE_MILLIS)
        return with_jitter(millis, self._dice) / 1_000

    def retry_pause(self, span: Span) -> float | None:
        """Pause before records that have just failed are delivered again, unless a strategy of the user's decides.

        ``None`` if that was the last time.
        """
        policy = self._config.failure_policy
        return None if span.tries > policy.retries else retry_pause_millis(span, policy) / 1_000

    def store_failed(self) -> float:
        """Pause before the parking store is called again."""
        self.store_failures += 1
        millis = doubling_millis(self.store_failures, SHORTEST_STORE_PAUSE_MILLIS, LONGEST_STORE_PAUSE_MILLIS)
        return with_jitter(millis, self._dice) / 1_000

    def accepted(self, records: int) -> None:
        """So many records were processed.

        Failures are forgotten only beyond the place of the last failure: a restarted processor first repeats what
        came before it, and that success says nothing.
        """
        self._marked_restarts = 0
        self._accepted_records += records
        if self._accepted_records > self._hurdle:
            self.failures = 0

    def processor_failed(self) -> None:
        """A processor raised, or did not do what it has to."""
        self.failures += 1

    def restart_marked(self) -> None:
        """A processor asked to be replaced."""
        self._marked_restarts += 1

    def restart_pause(self) -> float:
        """Pause before a new processor; the next one starts counting its records from zero."""
        if self.failures:
            self._hurdle = self._accepted_records
        self._accepted_records = 0
        return self.next_restart_seconds

    @property
    def next_restart_seconds(self) -> float:
        """What ``restart_pause`` will be, unless something else fails before."""
        fruitless = self.failures + max(0, self._marked_restarts - FIRST_MARKED_RESTART_IS_FREE)
        shortest, longest = self._config.restart_backoff_min_millis, self._config.restart_backoff_max_millis
        return max(doubling_millis(fruitless, shortest, longest), self._config.worker_idle_time_millis) / 1_000

    def caught_up_pause(self, page: ShardPage, read_from: Position, now: float) -> float:
        """Pause after a page behind which nothing seems to wait."""
        self._empty_pages += not page.records
        moved = page.next_position != read_from and read_from.is_iterator
        if not page.records and (page.may_more_record or moved) and self._empty_pages <= MOST_EAGER_READS:
            return 0.0
        shortest, longest = self._config.worker_idle_time_millis, self._longest_idle_millis
        return self._rhythm.pause_seconds(now, shortest / 1_000, longest / 1_000)

    @property
    def _longest_idle_millis(self) -> int:
        return max(self._config.max_idle_poll_interval_millis, self._config.worker_idle_time_millis)


def retry_pause_millis(span: Span, policy: FailurePolicy) -> int:
    """Pause before a span that has just raised is delivered again."""
    return doubling_millis(span.tries, policy.first_pause_millis, policy.longest_pause_millis)
