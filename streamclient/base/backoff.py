"""How long to wait before trying again: arithmetic, and the two default strategies.

Nothing here sleeps. Callers ask for a number and set a timer, so that no thread is blocked by a pause.
"""

from __future__ import annotations

import random

from streamclient.base import checks
from streamclient.config import ClientConfig
from streamclient.errors import ConfigurationError, DependencyException, ErrorKind
from streamclient.interfaces import IRetryStrategy, RetryableAction

LARGEST_EXPONENT = 62
"""Doubling stops here: 2 to the 62nd milliseconds is far above any cap, and larger powers only cost time."""

DEFAULT_RETRIES = 10
"""Retries of one action, as in the Java client: eleven attempts, 5.5 s of pauses."""

DEFAULT_STEP_MILLIS = 100
DEFAULT_LONGEST_MILLIS = 1_000

LONGEST_STRATEGY_MILLIS = 86_400_000
"""Longest pause that a user's retry strategy may ask for, a day; a larger number is a mistake in its unit."""

RETRY_SHARE = 0.05
"""Share of the lease duration before a failed call about leases is repeated, doubling up to the renewal interval: one
second of the default twenty, so that several tries fit into what is left of a lease."""

MOST_DOUBLINGS = 16

JITTER_SHARE = 0.25
"""Pauses are shortened by up to a quarter, so that shards which failed together do not come back together."""


def doubling_millis(failures: int, shortest_millis: int, longest_millis: int) -> int:
    """Pause after the n-th failure in a row: the shortest after the first, doubling up to the longest.

    Zero failures need no pause.
    """
    if failures <= 0:
        return 0
    return min(longest_millis, shortest_millis << min(failures - 1, LARGEST_EXPONENT))


def lease_pause_seconds(failures: int, config: ClientConfig) -> float:
    """Pause of calls about leases after that many failures in a row: none after the first, then doubling."""
    if failures <= 1:
        return 0.0
    longest = config.renewer_interval_millis / 1_000
    shortest = config.lease_duration_millis / 1_000 * RETRY_SHARE
    return min(shortest * 2.0 ** min(failures - 2, MOST_DOUBLINGS), longest)


def with_jitter(millis: int, dice: random.Random) -> float:
    """The pause, shortened at random by at most ``JITTER_SHARE``; never longer than given."""
    return millis * (1.0 - JITTER_SHARE * dice.random())


def decision_of(strategy: IRetryStrategy, action: RetryableAction, error: Exception, retries: int) -> float | None:
    """What a user's strategy says: the pause before a retry, in seconds, or ``None`` for no retry.

    It is user code, which may take its time and raise: never call this in an owner thread.

    Raises:
        ConfigurationError: it answers with something that is no pause.
    """
    if not checks.done("should_retry", strategy.should_retry(action, error, retries)):
        return None
    millis: object = checks.done("backoff_millis", strategy.backoff_millis(action, error, retries))
    if isinstance(millis, bool) or not isinstance(millis, int | float) or not 0 <= millis <= LONGEST_STRATEGY_MILLIS:
        raise ConfigurationError(f"backoff_millis must return 0 to {LONGEST_STRATEGY_MILLIS} ms, not {millis!r}")
    return millis / 1_000


class LeaseRetryStrategy(IRetryStrategy):
    """Default for reads of the status table (Java: ``LeaseManagerRetryStrategy``).

    Up to ten retries, with pauses of 100 ms more each time, at most 1 s. Conditional writes are not repeated by it: an
    uncertain one is read back first.
    """

    def should_retry(self, action: RetryableAction, error: Exception, retries: int) -> bool:
        """Whether the service may answer differently next time, and fewer than ten retries were made."""
        return (
            isinstance(error, DependencyException)
            and error.kind is not ErrorKind.PERMANENT
            and retries < DEFAULT_RETRIES
        )

    def backoff_millis(self, action: RetryableAction, error: Exception, retries: int) -> int:
        """min(100 * (retries + 1), 1000)."""
        return min(DEFAULT_STEP_MILLIS * (retries + 1), DEFAULT_LONGEST_MILLIS)
