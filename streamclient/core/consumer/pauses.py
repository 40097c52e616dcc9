"""How long one shard pauses, after failures and while nothing comes, and what it remembers for that."""

from __future__ import annotations

import random
from collections import deque
from math import sqrt

from streamclient.base.backoff import doubling_millis, with_jitter
from streamclient.base.position import Position
from streamclient.config import ClientConfig, FailurePolicy
from streamclient.core.consumer.consumer_events import ShardPage
from streamclient.core.consumer.page import Span

REQUEST_WORTH_SECONDS = 0.02
"""How long one record may wait to save one request. Java's fixed pause has the same length."""

REMEMBERED_GAPS = 5
"""Gaps between arrivals that have to agree before they count: a single short one makes reading eager again."""


class ArrivalRhythm:
    """Learns how far apart records arrive, and derives the pause that costs least.

    Reading every ``d`` seconds costs ``1/d`` requests a second and lets each record wait ``d/2`` on average. If records
    come ``gap`` seconds apart and a request is worth ``w`` seconds of waiting, the sum ``w/d + d/(2 gap)`` is smallest
    at ``d = sqrt(2 w gap)``. The gap is the shortest of the last few, or the present silence if that is longer already:
    a burst is followed by eager reading, a long silence by ever longer pauses.

    With the worth of 20 ms, a record each second is looked for every 0.2 s, and after a minute of silence the pause is
    1.5 s. Times are monotonic seconds; they start when a read first finds nothing, so slow processing is no gap.

    Example:
        >>> rhythm = ArrivalRhythm()
        >>> rhythm.nothing_came(100.0)
        >>> [round(rhythm.pause_seconds(now, 0.02, 5.0), 2) for now in (100.0, 101.0, 110.0, 160.0, 4_000.0)]
        [0.02, 0.2, 0.63, 1.55, 5.0]
    """

    def __init__(self) -> None:
        self._gaps: deque[float] = deque(maxlen=REMEMBERED_GAPS)
        self._waits_since: float | None = None

    def records_came(self, now: float) -> None:
        """A read had records."""
        self._gaps.append(0.0 if self._waits_since is None else now - self._waits_since)
        self._waits_since = None

    def nothing_came(self, now: float) -> None:
        """A read had none."""
        if self._waits_since is None:
            self._waits_since = now

    def pause_seconds(self, now: float, shortest_seconds: float, longest_seconds: float) -> float:
        """How long to wait now, within bounds."""
        silence = 0.0 if self._waits_since is None else now - self._waits_since
        learned = min(self._gaps) if len(self._gaps) == REMEMBERED_GAPS else 0.0
        wanted = sqrt(2 * REQUEST_WORTH_SECONDS * max(silence, learned))
        return max(shortest_seconds, min(longest_seconds, wanted))


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
        return self.next_restart_seconds()

    def next_restart_seconds(self, more_failures: int = 0) -> float:
        """What ``restart_pause`` will be, if so many more failures come before."""
        fruitless = self.failures + more_failures + max(0, self._marked_restarts - FIRST_MARKED_RESTART_IS_FREE)
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
