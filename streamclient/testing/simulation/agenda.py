"""Simulated time: an agenda of calls, one after the other."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

from attrs import define, field

Call = Callable[..., object]


@define(eq=False)
class Agenda:
    """A heap of calls by time. Two calls of the same moment happen in the order in which they were added."""

    now: float = 0.0
    """Seconds since the history began; true time, which no worker's clock shows."""
    _heap: list[tuple[float, int, Call, tuple[Any, ...]]] = field(factory=list)
    _asked: int = 0

    def after(self, seconds: float, call: Call, *arguments: Any) -> None:
        """Call later; with 0 seconds, after everything that is already due now."""
        self._asked += 1
        heapq.heappush(self._heap, (self.now + seconds, self._asked, call, arguments))

    def at(self, moment: float, call: Call, *arguments: Any) -> None:
        """Call at a moment, which must not have passed."""
        self._asked += 1
        heapq.heappush(self._heap, (max(moment, self.now), self._asked, call, arguments))

    def run_until(self, moment: float) -> None:
        """Run everything on the agenda up to a moment."""
        heap, pop = self._heap, heapq.heappop
        while heap and heap[0][0] <= moment:
            self.now, _, call, arguments = pop(heap)
            call(*arguments)
        self.now = moment
