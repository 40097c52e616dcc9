"""Deadlines: at most one moment per key. A heap gives the earliest moment without a search."""

from __future__ import annotations

import heapq

NEVER, FOR_EVER = float("-inf"), float("inf")
"""A moment before all other moments, and a moment after all other moments."""

SPARE_ENTRIES = 64
"""A heap is rebuilt when its outdated entries outnumber its valid entries by more than this number. So the cost of a
change grows with the logarithm of the number of keys, and a heap has at most about twice as many entries as keys."""


class Deadlines:
    """The moments at which keys are due. A key has at most one moment; a new moment replaces the old one."""

    def __init__(self) -> None:
        self._moments: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []
        """The moments with their keys, earliest first. Moments that were replaced stay until they reach the top."""

    def set(self, key: str, moment: float | None) -> None:
        """Make ``key`` due at ``moment``. With ``None``, the key is never due."""
        if self._moments.get(key) == moment:
            return
        if moment is None:
            del self._moments[key]
            return
        self._moments[key] = moment
        heapq.heappush(self._heap, (moment, key))
        if len(self._heap) > 2 * len(self._moments) + SPARE_ENTRIES:
            self._heap = [(moment, key) for key, moment in self._moments.items()]
            heapq.heapify(self._heap)

    @property
    def next(self) -> float | None:
        """The earliest moment at which a key is due; ``None`` if no key has a moment."""
        while self._heap:
            moment, key = self._heap[0]
            if self._moments.get(key) == moment:
                return moment
            heapq.heappop(self._heap)
        return None

    def take_due(self, now: float) -> list[str]:
        """Remove and return the keys whose moment has come, earliest first."""
        if not self._heap or self._heap[0][0] > now:
            return []
        due = []
        while (moment := self.next) is not None and moment <= now:
            _, key = heapq.heappop(self._heap)
            del self._moments[key]
            due.append(key)
        return due
