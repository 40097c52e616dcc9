"""What all shards of a worker may have read ahead, in bytes as the service sent them."""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable


class Claim:
    """Bytes set aside for one page: asked for, then granted, then given back once. Made by ``PrefetchBudget``."""

    def __init__(self, budget: PrefetchBudget, size_bytes: int, granted: Callable[[Claim], object]) -> None:
        self._budget = budget
        self.size_bytes = size_bytes
        self.granted = granted
        self.is_granted = False
        self.is_over = False

    def settle(self, size_bytes: int) -> None:
        """The page has come and is so large."""
        self._budget.settle(self, size_bytes)

    def release(self) -> None:
        """Give the bytes back, or take the question back. Again does no harm."""
        self._budget.release(self)


class PrefetchBudget:
    """A sum that bounds what is set aside, granted to whoever has least. Thread-safe.

    The size of a page is known only when it has come. Until then its shard sets aside as much as the largest page it
    has seen, so the sum may be exceeded by what a page is larger than all before it in its shard.
    """

    def __init__(self, total_bytes: int) -> None:
        self._total_bytes = total_bytes
        self._lock = threading.Lock()
        self._used_bytes = 0
        self._queue: list[tuple[int, int, Claim]] = []
        self._numbers = itertools.count()

    @property
    def used_bytes(self) -> int:
        """What is set aside now."""
        return self._used_bytes

    def claim(self, size_bytes: int, own_bytes: int, granted: Callable[[Claim], object]) -> Claim:
        """Ask for bytes; ``granted`` is called once, here or in a thread that gives bytes back, unless released before.

        Whoever has the smallest ``own_bytes`` comes first, among equals whoever asked first. A page larger than the
        whole budget is granted when nothing else is set aside.
        """
        claim = Claim(self, size_bytes, granted)
        with self._lock:
            heapq.heappush(self._queue, (own_bytes, next(self._numbers), claim))
            served = self._serve()
        _announce(served)
        return claim

    def settle(self, claim: Claim, size_bytes: int) -> None:
        """See ``Claim``."""
        with self._lock:
            if claim.is_granted and not claim.is_over:
                self._used_bytes += size_bytes - claim.size_bytes
                claim.size_bytes = size_bytes
            served = self._serve()
        _announce(served)

    def release(self, claim: Claim) -> None:
        """See ``Claim``."""
        with self._lock:
            if claim.is_granted and not claim.is_over:
                self._used_bytes -= claim.size_bytes
            claim.is_over = True
            served = self._serve()
        _announce(served)

    def _serve(self) -> list[Claim]:
        """Grant from the front of the queue while there is room; whom to tell."""
        served = []
        while self._queue:
            first = self._queue[0][2]
            if not first.is_over:
                if self._used_bytes and self._used_bytes + first.size_bytes > self._total_bytes:
                    break
                self._used_bytes += first.size_bytes
                first.is_granted = True
                served.append(first)
            heapq.heappop(self._queue)
        return served


def _announce(served: list[Claim]) -> None:
    """Outside the lock: whoever is told may ask again."""
    for claim in served:
        claim.granted(claim)
