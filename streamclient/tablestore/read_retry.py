"""Repeating stream reads: bounded in number and in time, and stopped at once when asked."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from threading import Event
from typing import TypeVar

from attrs import field, frozen

from streamclient.base import checks, logs
from streamclient.base.backoff import doubling_millis, with_jitter
from streamclient.errors import DependencyException, ErrorKind

_log = logs.logger(__name__)
_T = TypeVar("_T")

_THROTTLED_FACTOR = 4
"""Throttling passes more slowly than a lost connection; the Python SDK waits 2.5 times as long, starting higher."""


@checks.explains_names
@frozen(kw_only=True)
class ReadRetry:
    """How often and how patiently one stream read is repeated.

    Only throttling, passing refusals and network errors are repeated; the pause doubles from ``shortest_pause_millis``
    to ``longest_pause_millis`` and is shortened at random by up to a quarter. Whichever bound comes first ends it:
    ``retries``, or a next pause that would end after ``total_millis`` since the first attempt.
    """

    retries: int = field(default=10, validator=checks.not_negative)
    """As the Java stream client; 0 tries once."""
    shortest_pause_millis: int = field(default=50, validator=checks.not_negative)
    longest_pause_millis: int = field(default=1_000, validator=checks.not_negative)
    total_millis: int = field(default=30_000, validator=checks.not_negative)
    """No attempt begins later than this after the first one; one attempt takes at most twice the client's socket
    time-out."""

    def pause_seconds(self, failures: int, kind: ErrorKind, dice: random.Random) -> float:
        """Pause after the n-th failure in a row."""
        factor = _THROTTLED_FACTOR if kind is ErrorKind.THROTTLED else 1
        pause = doubling_millis(failures, self.shortest_pause_millis * factor, self.longest_pause_millis)
        return with_jitter(pause, dice) / 1_000


class Repeater:
    """Calls a read until it succeeds, fails for good, or a bound is reached. Thread-safe."""

    def __init__(
        self,
        retry: ReadRetry,
        stop: Event | None = None,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        dice: random.Random | None = None,
    ) -> None:
        """Setting ``stop`` ends every pause at once, and the read with the error that it was waiting to get over."""
        self._retry = retry
        self._stop = Event() if stop is None else stop
        self._monotonic = monotonic
        self._dice = random.Random() if dice is None else dice

    def call(self, name: str, read: Callable[[], _T]) -> _T:
        """The result of ``read``, which raises errors of this package only; ``name`` is for the log."""
        latest = self._monotonic() + self._retry.total_millis / 1_000
        for failures in range(1, self._retry.retries + 2):
            try:
                return read()
            except DependencyException as error:
                pause = self._retry.pause_seconds(failures, error.kind, self._dice)
                worthless = not error.retriable or failures > self._retry.retries
                if worthless or self._monotonic() + pause > latest or self._stop.wait(pause):
                    raise
                _log.debug("%s failed %s times, repeating it after %.3f s: %s", name, failures, pause, error)
        raise AssertionError("unreachable: the last attempt returns or raises")
