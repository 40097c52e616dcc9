"""How long one shard pauses, and what it remembers for that."""

from __future__ import annotations

import random

from streamclient.config import ClientConfig
from streamclient.core.position import Position
from streamclient.core.retry import doubling_millis, with_jitter
from streamclient.interfaces import RetryableAction
from streamclient.stream.api import RecordPage

SHORTEST_READ_PAUSE_MILLIS = 100
"""First pause after a failed read, as in the Java client; the calls below have made their own quick retries already."""

LONGEST_READ_PAUSE_MILLIS = 20_000
"""Longest pause after failed reads: soon enough after an outage, and no load during one."""

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
        self._redeliveries = 0
        self._marked_restarts = 0
        self._empty_pages = 0
        self._accepted_records = 0
        self._hurdle = 0

    def read_succeeded(self) -> None:
        """A page came."""
        self.read_failures = 0

    def read_failed(self, error: Exception) -> float | None:
        """Pause before the next read; ``None`` if the user's retry strategy gives up."""
        self.read_failures += 1
        strategy = self._config.task_retry_strategy
        if strategy is None:
            millis = doubling_millis(self.read_failures, SHORTEST_READ_PAUSE_MILLIS, LONGEST_READ_PAUSE_MILLIS)
            return with_jitter(millis, self._dice) / 1_000
        retries = self.read_failures - 1
        if not strategy.should_retry(RetryableAction.TASK_PROCESS, error, retries):
            return None
        return strategy.backoff_millis(RetryableAction.TASK_PROCESS, error, retries) / 1_000

    def batch_failed(self, error: Exception) -> float | None:
        """Pause before the same batch is delivered again; ``None`` to restart, which is the rule without a strategy."""
        self.failures += 1
        strategy = self._config.task_retry_strategy
        if strategy is None or not strategy.should_retry(RetryableAction.TASK_PROCESS, error, self._redeliveries):
            return None
        millis = strategy.backoff_millis(RetryableAction.TASK_PROCESS, error, self._redeliveries)
        self._redeliveries += 1
        return millis / 1_000

    def accepted(self, page: RecordPage) -> None:
        """A batch was processed.

        Failures are forgotten only beyond the place of the last failure: a restarted processor first repeats what
        came before it, and that success says nothing.
        """
        self._redeliveries = 0
        self._marked_restarts = 0
        self._accepted_records += len(page.records)
        if page.records:
            self._empty_pages = 0
        if self._accepted_records > self._hurdle:
            self.failures = 0

    def processor_failed(self) -> None:
        """A processor failed in another way than by a batch."""
        self.failures += 1

    def restart_marked(self) -> None:
        """A processor asked to be replaced."""
        self._marked_restarts += 1

    def restart_pause(self) -> float:
        """Pause before a new processor; the next one starts counting its records from zero."""
        if self.failures:
            self._hurdle = self._accepted_records
        self._accepted_records = 0
        self._redeliveries = 0
        fruitless = self.failures + max(0, self._marked_restarts - FIRST_MARKED_RESTART_IS_FREE)
        shortest, longest = self._config.restart_backoff_min_millis, self._config.restart_backoff_max_millis
        return max(doubling_millis(fruitless, shortest, longest), self._config.worker_idle_time_millis) / 1_000

    def caught_up_pause(self, page: RecordPage, read_from: Position) -> float:
        """Pause after a page behind which nothing seems to wait."""
        if page.records:
            return self._config.worker_idle_time_millis / 1_000
        self._empty_pages += 1
        moved = page.next_position != read_from and read_from.is_iterator
        if (page.may_more_record or moved) and self._empty_pages <= MOST_EAGER_READS:
            return 0.0
        quiet = self._empty_pages
        return doubling_millis(quiet, self._config.worker_idle_time_millis, self._longest_idle_millis) / 1_000

    @property
    def _longest_idle_millis(self) -> int:
        return max(self._config.max_idle_poll_interval_millis, self._config.worker_idle_time_millis)
