"""What a worker takes from the outside world: clocks, waits, dice, names, threads; injectable, so that tests own it."""

from __future__ import annotations

import random
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Executor

from attrs import field, frozen

from streamclient.pools import DaemonPool
from streamclient.worker.scheduling import Job, Schedule, start_schedule


def wall_micros() -> int:
    """Microseconds since 1970 by this machine's clock.

    Never compared with another machine's, except where somebody names a time: a pause ends by it.
    """
    return time.time_ns() // 1_000


def wait(event: threading.Event, seconds: float) -> bool:
    """Wait for an event; whether it is set."""
    return event.wait(seconds)


def new_identifier() -> str:
    """A name that no other acquisition has."""
    return str(uuid.uuid4())


@frozen(kw_only=True)
class Runtime:
    """Everything that is neither a decision nor a call to the service."""

    monotonic: Callable[[], float] = time.monotonic
    """Seconds that never step; every age and deadline is measured by it."""
    wall_micros: Callable[[], int] = wall_micros
    wait: Callable[[threading.Event, float], bool] = wait
    """How user threads wait for an answer; a simulated runtime lets time pass here."""
    new_identifier: Callable[[], str] = new_identifier
    dice: random.Random = field(factory=random.Random)
    make_pool: Callable[[str, int], Executor] = DaemonPool
    """Makes a pool from a name and its largest number of threads."""
    start_schedule: Callable[[Sequence[Job]], Schedule] = start_schedule


class Deadline:
    """One bound shared by all steps of a longer action, so that their sum is bounded."""

    def __init__(self, monotonic: Callable[[], float], seconds: float) -> None:
        self._monotonic = monotonic
        self._at = monotonic() + seconds

    @property
    def seconds_left(self) -> float:
        """What is left, never below zero."""
        return max(0.0, self._at - self._monotonic())

    @property
    def is_over(self) -> bool:
        """Whether nothing is left."""
        return self._monotonic() >= self._at
