"""Pauses before retries: the length of each pause, and the default retry strategy.

Nothing in this module sleeps. Callers get a number and set a timer, so no pause blocks a thread.
"""

from __future__ import annotations

import random

from streamclient.base import checks
from streamclient.config import ClientConfig
from streamclient.errors import ConfigurationError, DependencyException, ErrorKind
from streamclient.interfaces import IRetryStrategy, RetryableAction

LARGEST_EXPONENT = 62
"""The largest number of times that ``doubling_millis`` doubles a pause. After 62 doublings, a pause is longer than
any limit that a caller gives, so further doublings would only cost time."""

DEFAULT_RETRIES = 10
"""The largest number of retries of one action, as in the Java client. The first try and ten retries make eleven tries,
with pauses of 5.5 s in total."""

DEFAULT_STEP_MILLIS = 100
DEFAULT_LONGEST_MILLIS = 1_000

LONGEST_STRATEGY_MILLIS = 86_400_000
"""The longest pause that a user's retry strategy may return: one day. A larger number probably has the wrong unit."""

RETRY_SHARE = 0.05
"""The shortest pause before a failed call about leases is repeated, as a share of the lease duration. Further pauses
double, up to the renewal interval. With the default lease duration of twenty seconds, the shortest pause is one second,
so that several tries fit into the time before the lease expires."""

MOST_DOUBLINGS = 16

JITTER_SHARE = 0.25
"""The largest share of a pause that ``with_jitter`` removes. Without this jitter, shards that failed together would
also retry together."""


def doubling_millis(failures: int, shortest_millis: int, longest_millis: int) -> int:
    """Return the pause after ``failures`` failures in a row, in milliseconds.

    The first failure leads to a pause of ``shortest_millis``. Each further failure doubles the pause, up to
    ``longest_millis``. Without failures the pause is 0.
    """
    if failures <= 0:
        return 0
    return min(longest_millis, shortest_millis << min(failures - 1, LARGEST_EXPONENT))


def lease_pause_seconds(failures: int, config: ClientConfig) -> float:
    """Return the seconds to wait before calls about leases are repeated, after ``failures`` failures in a row.

    The first failure leads to no pause, and the second failure to the shortest pause. Each further failure doubles the
    pause, up to the renewal interval.
    """
    if failures <= 1:
        return 0.0
    longest = config.renewer_interval_millis / 1_000
    shortest = config.lease_duration_millis / 1_000 * RETRY_SHARE
    return min(shortest * 2.0 ** min(failures - 2, MOST_DOUBLINGS), longest)


def with_jitter(millis: int, dice: random.Random) -> float:
    """Return ``millis``, shortened by a random share of at most ``JITTER_SHARE``."""
    return millis * (1.0 - JITTER_SHARE * dice.random())


def decision_of(strategy: IRetryStrategy, action: RetryableAction, error: Exception, retries: int) -> float | None:
    """Ask a user's ``strategy``; return the pause before the retry, in seconds, or ``None`` for no retry.

    The strategy is user code, which may take long and may raise. So an owner thread must not call this function.

    Raises:
        ConfigurationError: a method of the strategy returned a value of the wrong type, or a pause out of range.
    """
    if not checks.done("should_retry", strategy.should_retry(action, error, retries)):
        return None
    millis: object = checks.done("backoff_millis", strategy.backoff_millis(action, error, retries))
    if isinstance(millis, bool) or not isinstance(millis, int | float) or not 0 <= millis <= LONGEST_STRATEGY_MILLIS:
        raise ConfigurationError(f"backoff_millis must return 0 to {LONGEST_STRATEGY_MILLIS} ms, not {millis!r}")
    return millis / 1_000


class LeaseRetryStrategy(IRetryStrategy):
    """The default strategy for reads of the status table (Java: ``LeaseManagerRetryStrategy``).

    It makes up to ten retries. Each pause is 100 ms longer than the previous pause, and at most 1 s. The strategy is
    not used for conditional writes: after an uncertain write, the worker reads the row first.
    """

    def should_retry(self, action: RetryableAction, error: Exception, retries: int) -> bool:
        """Return whether another try may help: the error is not permanent, and fewer than ten retries were made."""
        return (
            isinstance(error, DependencyException)
            and error.kind is not ErrorKind.PERMANENT
            and retries < DEFAULT_RETRIES
        )

    def backoff_millis(self, action: RetryableAction, error: Exception, retries: int) -> int:
        """Return the pause in milliseconds: min(100 * (retries + 1), 1000)."""
        return min(DEFAULT_STEP_MILLIS * (retries + 1), DEFAULT_LONGEST_MILLIS)
