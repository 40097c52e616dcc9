"""The line between threads that read and one consumer. The delivery that was ready first is taken first.

Laws: a delivery is claimed before it leaves the line, and it is held as ``out`` before it is claimed. So an exception
at any point, even one that a signal raises, loses no delivery. A wait that is cancelled has taken nothing.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar


class InLine(Protocol):
    """A delivery in the line. The consumer claims it, unless its owner takes it back first."""

    @property
    def taken_at(self) -> float:
        """The time of the claim, in monotonic seconds."""

    def claim(self) -> bool:
        """Claim the delivery for the consumer; return ``False`` if its owner has taken it back."""


Waiting = TypeVar("Waiting", bound=InLine)


class Line(Generic[Waiting]):
    """Deliveries that wait for one consumer. Thread-safe; ``take`` and ``sleep`` are for the consumer alone."""

    def __init__(self) -> None:
        self.out: Waiting | None = None
        """The delivery that the consumer has taken; ``None`` once it is settled."""
        self.last_taken_at: float = 0.0
        """The time when the last delivery was taken, in monotonic seconds."""
        self.has_ended: bool = False
        """Whether no further delivery will come."""
        self._lock = threading.Lock()
        self._waiting: deque[Waiting] = deque()
        self._wake: Callable[[], object] | None = None
        """A function that wakes the consumer; set while the consumer sleeps."""

    def put(self, delivery: Waiting) -> None:
        """Add a delivery at the end of the line, and wake the consumer if it sleeps."""
        with self._lock:
            self._waiting.append(delivery)
        self.ring()

    def end(self) -> None:
        """Record that no further delivery will come, and wake the consumer if it sleeps."""
        self.has_ended = True
        self.ring()

    def ring(self) -> None:
        """Wake the consumer if it sleeps."""
        with self._lock:
            wake, self._wake = self._wake, None
        if wake is not None:
            wake()

    def take(self) -> Waiting | None:
        """Take the first delivery that can still be claimed; return ``None`` if none waits."""
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

        Return ``False``, without a later call, if a delivery already waits or the line has ended.
        """
        with self._lock:
            if self._waiting or self.has_ended:
                return False
            self._wake = wake
            return True

    def drop(self, delivery: Waiting) -> bool:
        """Remove a delivery that will never be claimed; return whether it waited here."""
        with self._lock:
            if delivery not in self._waiting:
                return False
            self._waiting.remove(delivery)
            return True

    def drain(self) -> list[Waiting]:
        """Remove and return all deliveries that wait."""
        with self._lock:
            waiting = list(self._waiting)
            self._waiting.clear()
            return waiting
