"""The repetition of failed reads: a bounded number of times, within a bounded time, and until an event is set."""

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
"""The factor by which the first pause is longer after throttling, because throttling lasts longer than a lost
connection. The Python SDK's factor is 2.5, with a longer first pause."""


@checks.explains_names
@frozen(kw_only=True)
class ReadRetry:
    """The number of repetitions of one failed read, and the pauses before them.

    A read is repeated only after throttling, transient refusals and network errors. The pause doubles from
    ``shortest_pause_millis`` to ``longest_pause_millis``, and each pause is shortened at random by up to a quarter. The
    repetitions end after ``retries``, or when the next repetition would begin later than ``total_millis`` after the
    first attempt.
    """

    retries: int = field(default=10, validator=checks.not_negative)
    """The largest number of repetitions. With 0, a read is tried once. The Java stream client has the same default."""
    shortest_pause_millis: int = field(default=50, validator=checks.not_negative)
    longest_pause_millis: int = field(default=1_000, validator=checks.not_negative)
    total_millis: int = field(default=30_000, validator=checks.not_negative)
    """The longest time, in milliseconds, from the start of the first attempt to the start of the last attempt. By
    default an attempt takes at most twice the client's ``socket_timeout``."""

    def pause_seconds(self, failures: int, kind: ErrorKind, dice: random.Random) -> float:
        """Return the pause after ``failures`` consecutive failures; ``kind`` is the kind of the last failure."""
        factor = _THROTTLED_FACTOR if kind is ErrorKind.THROTTLED else 1
        pause = doubling_millis(failures, self.shortest_pause_millis * factor, self.longest_pause_millis)
        return with_jitter(pause, dice) / 1_000


class Repeater:
    """A caller of read functions, which repeats a failed read within the bounds of a ``ReadRetry``. Thread-safe."""

    def __init__(
        self,
        retry: ReadRetry,
        stop: Event | None = None,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        dice: random.Random | None = None,
    ) -> None:
        """Make a repeater with the bounds of ``retry``.

        Setting ``stop`` ends every pause immediately. The call then raises the last error of its read.
        """
        self._retry = retry
        self._stop = Event() if stop is None else stop
        self._monotonic = monotonic
        self._dice = random.Random() if dice is None else dice

    def call(self, name: str, read: Callable[[], _T]) -> _T:
        """Call ``read``, repeat the call after failures, and return its result. The log shows ``name`` for the call.

        ``read`` must raise only errors of this package.
        """
        latest = self._monotonic() + self._retry.total_millis / 1_000
        for failures in range(1, self._retry.retries + 2):
            try:
                return read()
            except DependencyException as error:
                pause = self._retry.pause_seconds(failures, error.kind, self._dice)
                is_last = not error.retriable or failures > self._retry.retries
                if is_last or self._monotonic() + pause > latest or self._stop.wait(pause):
                    raise
                _log.debug("%s failed %s times, repeating it after %.3f s: %s", name, failures, pause, error)
        raise AssertionError("unreachable: the last attempt returns or raises")
