"""The pauses of one shard, after failures and while no record comes, and the counters from which they follow."""

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
"""The longest time in seconds for which one record may wait if that saves one request. The Java client's fixed pause
has the same length."""

REMEMBERED_GAPS = 5
"""The number of the latest gaps between arrivals of which the shortest counts: a single short gap makes reading
frequent again."""


class ArrivalRhythm:
    """Learns how far apart records arrive, and derives the cheapest pause.

    Reading every ``d`` seconds costs ``1/d`` requests a second and lets each record wait ``d/2`` on average. If records
    come ``gap`` seconds apart and a request is worth ``w`` seconds of waiting, the sum ``w/d + d/(2 gap)`` is smallest
    at ``d = sqrt(2 w gap)``. The gap is the shortest of the last few, or the present silence if that is longer: a burst
    is followed by eager reading, a long silence by ever longer pauses.

    With a worth of 20 ms, a stream with one record a second is read every 0.2 s, and after a minute of silence the
    pause is 1.5 s. Times are monotonic seconds. A gap starts when a read first finds nothing, so slow processing is not
    a gap.

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
        """Record that a read returned records."""
        self._gaps.append(0.0 if self._waits_since is None else now - self._waits_since)
        self._waits_since = None

    def nothing_came(self, now: float) -> None:
        """Record that a read returned no records."""
        if self._waits_since is None:
            self._waits_since = now

    def pause_seconds(self, now: float, shortest_seconds: float, longest_seconds: float) -> float:
        """Return how long to wait now, within the bounds."""
        silence = 0.0 if self._waits_since is None else now - self._waits_since
        learned = min(self._gaps) if len(self._gaps) == REMEMBERED_GAPS else 0.0
        wanted = sqrt(2 * REQUEST_WORTH_SECONDS * max(silence, learned))
        return max(shortest_seconds, min(longest_seconds, wanted))


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
nothing, so the ordinary pauses come back after this number."""

FIRST_MARKED_RESTART_IS_FREE = 1


class ConsumerBackoff:
    """Counters of one consumer, and the pauses that follow from them. All pauses are in seconds."""

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
        """Record that a read returned ``page``."""
        self.read_failures = 0
        if page.records:
            self._empty_pages = 0
            self._rhythm.records_came(now)
        else:
            self._rhythm.nothing_came(now)

    def read_failed(self) -> None:
        """Record that a read failed."""
        self.read_failures += 1

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

    def caught_up_pause(self, page: ShardPage, read_from: Position, now: float) -> float:
        """Return the pause after a page that no further record seems to follow."""
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
    """Return the pause before a span that just raised is delivered again."""
    return doubling_millis(span.tries, policy.first_pause_millis, policy.longest_pause_millis)
