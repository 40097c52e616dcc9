"""Pauses before retries: arithmetic, and the two default strategies.

Nothing in this module sleeps. Callers get a number and set a timer, so no pause blocks a thread.
"""

from __future__ import annotations

import random

from streamclient.base import checks
from streamclient.config import ClientConfig
from streamclient.errors import ConfigurationError, DependencyException, ErrorKind
from streamclient.interfaces import IRetryStrategy, RetryableAction

LARGEST_EXPONENT = 62
"""The exponent at which doubling stops: 2 to the 62nd milliseconds is far above any longest pause, and larger powers
only cost time."""

DEFAULT_RETRIES = 10
"""The number of retries of one action, as in the Java client: eleven attempts, with 5.5 s of pauses."""

DEFAULT_STEP_MILLIS = 100
DEFAULT_LONGEST_MILLIS = 1_000

LONGEST_STRATEGY_MILLIS = 86_400_000
"""The longest pause that a user's retry strategy may return: a day. A larger number is a mistake in its unit."""

RETRY_SHARE = 0.05
"""The first pause after failed calls about leases, as a share of the lease duration. Later pauses double up to the
renewal interval. With the default lease of twenty seconds the first pause is one second, so that several tries fit into
the rest of a lease."""

MOST_DOUBLINGS = 16

JITTER_SHARE = 0.25
"""The largest share by which a pause is shortened, so that shards that failed together do not retry together."""


def doubling_millis(failures: int, shortest_millis: int, longest_millis: int) -> int:
    """Return the pause after ``failures`` failures in a row: the shortest after the first, doubling up to the longest.

    Zero failures need no pause.
    """
    if failures <= 0:
        return 0
    return min(longest_millis, shortest_millis << min(failures - 1, LARGEST_EXPONENT))


def lease_pause_seconds(failures: int, config: ClientConfig) -> float:
    """Return the pause of calls about leases after ``failures`` failures in a row.

    The first failure has no pause; then the pause doubles.
    """
    if failures <= 1:
        return 0.0
    longest = config.renewer_interval_millis / 1_000
    shortest = config.lease_duration_millis / 1_000 * RETRY_SHARE
    return min(shortest * 2.0 ** min(failures - 2, MOST_DOUBLINGS), longest)


def with_jitter(millis: int, dice: random.Random) -> float:
    """Return ``millis``, shortened at random by at most ``JITTER_SHARE``. The pause is never longer than ``millis``."""
    return millis * (1.0 - JITTER_SHARE * dice.random())


def decision_of(strategy: IRetryStrategy, action: RetryableAction, error: Exception, retries: int) -> float | None:
    """Ask a user's strategy: return the pause before a retry, in seconds, or ``None`` for no retry.

    The strategy is user code, which may take long and may raise. So never call this function in an owner thread.

    Raises:
        ConfigurationError: the strategy's answer is not a pause.
    """
    if not checks.done("should_retry", strategy.should_retry(action, error, retries)):
        return None
    millis: object = checks.done("backoff_millis", strategy.backoff_millis(action, error, retries))
    if isinstance(millis, bool) or not isinstance(millis, int | float) or not 0 <= millis <= LONGEST_STRATEGY_MILLIS:
        raise ConfigurationError(f"backoff_millis must return 0 to {LONGEST_STRATEGY_MILLIS} ms, not {millis!r}")
    return millis / 1_000


class LeaseRetryStrategy(IRetryStrategy):
    """The default strategy for reads of the status table (Java: ``LeaseManagerRetryStrategy``).

    It makes up to ten retries. Each pause is 100 ms longer than the previous pause, and at most 1 s. The strategy does
    not repeat conditional writes: after an uncertain write, the row is read first.
    """

    def should_retry(self, action: RetryableAction, error: Exception, retries: int) -> bool:
        """Return whether the service may answer differently next time, and fewer than ten retries were made."""
        return (
            isinstance(error, DependencyException)
            and error.kind is not ErrorKind.PERMANENT
            and retries < DEFAULT_RETRIES
        )

    def backoff_millis(self, action: RetryableAction, error: Exception, retries: int) -> int:
        """Return the pause in milliseconds: min(100 * (retries + 1), 1000)."""
        return min(DEFAULT_STEP_MILLIS * (retries + 1), DEFAULT_LONGEST_MILLIS)
