"""How long to wait before an idle shard is read again."""

from __future__ import annotations

from collections import deque
from math import sqrt

REQUEST_WORTH_SECONDS = 0.02
"""How long one record may wait to save one request. Java's fixed pause has the same length."""

REMEMBERED_GAPS = 5
"""Gaps between arrivals that have to agree before they count: a single short one makes reading eager again."""


class ArrivalRhythm:
    """Learns how far apart records arrive, and derives the pause that costs least.

    Reading every ``d`` seconds costs ``1/d`` requests a second and lets each record wait ``d/2`` on average. If records
    come ``gap`` seconds apart and a request is worth ``w`` seconds of waiting, the sum ``w/d + d/(2 gap)`` is smallest
    at ``d = sqrt(2 w gap)``. The gap is the shortest of the last few, or the present silence if that is longer already:
    a burst is followed by eager reading, a long silence by ever longer pauses.

    With the worth of 20 ms, a record each second is looked for every 0.2 s, and after a minute of silence the pause is
    1.5 s. Times are monotonic seconds; they start when a read first finds nothing, so slow processing is no gap.

    Example:
        >>> rhythm = ArrivalRhythm()
        >>> rhythm.nothing_came(100.0)
        >>> [round(rhythm.pause_seconds(now, 0.02, 5.0), 2) for now in (100.0, 101.0, 110.0, 160.0, 4_000.0)]
        [0.02, 0.2, 0.63, 1.55, 5.0]
    """

    def __init__(self) -> None:
        self._gaps: deque[float] = deque(maxlen=REMEMBERED_GAPS)
        self._waits_since: float | None = None

    def records_came(self, now: float) -> None:
        """A read had records."""
        self._gaps.append(0.0 if self._waits_since is None else now - self._waits_since)
        self._waits_since = None

    def nothing_came(self, now: float) -> None:
        """A read had none."""
        if self._waits_since is None:
            self._waits_since = now

    def pause_seconds(self, now: float, shortest_seconds: float, longest_seconds: float) -> float:
        """How long to wait now, within bounds."""
        silence = 0.0 if self._waits_since is None else now - self._waits_since
        learned = min(self._gaps) if len(self._gaps) == REMEMBERED_GAPS else 0.0
        wanted = sqrt(2 * REQUEST_WORTH_SECONDS * max(silence, learned))
        return max(shortest_seconds, min(longest_seconds, wanted))
