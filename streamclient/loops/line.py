"""The line of deliveries that wait for one loop, which takes the oldest delivery first.

A delivery is a batch, or the end of a shard. The owner thread of the shard's stream puts the delivery in line, and may
take it back until the loop claims it. ``take`` stores a delivery as ``out``, claims it, and then removes it from the
line. So an exception at any point, even an exception of a signal handler, loses no delivery. A cancelled wait has taken
no delivery.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar


class InLine(Protocol):
    """A delivery in the line. The loop claims it, unless the owner thread takes it back first."""

    @property
    def taken_at(self) -> float:
        """The time at which the loop claimed the delivery, in seconds of the monotonic clock."""

    def claim(self) -> bool:
        """Claim the delivery for the loop; return ``False`` if the owner thread has taken the delivery back."""


Waiting = TypeVar("Waiting", bound=InLine)


class Line(Generic[Waiting]):
    """The deliveries that wait for one loop. Thread-safe, but only the loop may call ``take`` and ``sleep``."""

    def __init__(self) -> None:
        self.out: Waiting | None = None
        """The delivery that the loop has taken and not settled yet, if any."""
        self.last_taken_at: float = 0.0
        """The time at which the loop took its last delivery, in seconds of the monotonic clock."""
        self.has_ended: bool = False
        """Whether no further delivery will come."""
        self._lock = threading.Lock()
        self._waiting: deque[Waiting] = deque()
        self._wake: Callable[[], object] | None = None
        """The function that wakes the loop; ``None`` while the loop is awake."""

    def put(self, delivery: Waiting) -> None:
        """Add a delivery at the end of the line, and wake the loop if it sleeps."""
        with self._lock:
            self._waiting.append(delivery)
        self.ring()

    def end(self) -> None:
        """Record that no further delivery will come, and wake the loop if it sleeps."""
        self.has_ended = True
        self.ring()

    def ring(self) -> None:
        """Wake the loop if it sleeps."""
        with self._lock:
            wake, self._wake = self._wake, None
        if wake is not None:
            wake()

    def take(self) -> Waiting | None:
        """Take the first delivery that can still be claimed; return ``None`` if no such delivery waits."""
        with self._lock:
            while self._waiting:
                first = self.out = self._waiting[0]
                is_claimed = first.claim()
                self._waiting.popleft()
                if is_claimed:
                    self.last_taken_at = first.taken_at
                    return first
            self.out = None
            return None

    def sleep(self, wake: Callable[[], object]) -> bool:
        """Arrange that ``wake`` is called, in any thread, when a delivery comes or the line ends.

        Return ``False``, and never call ``wake``, if a delivery already waits or the line has ended.
        """
        with self._lock:
            if self._waiting or self.has_ended:
                return False
            self._wake = wake
            return True

    def drop(self, delivery: Waiting) -> bool:
        """Remove a delivery that will never be claimed; return whether the delivery was still in the line."""
        with self._lock:
            if delivery not in self._waiting:
                return False
            self._waiting.remove(delivery)
            return True

    def drain(self) -> list[Waiting]:
        """Empty the line; return the deliveries that waited."""
        with self._lock:
            waiting = list(self._waiting)
            self._waiting.clear()
            return waiting
