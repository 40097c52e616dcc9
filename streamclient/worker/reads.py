"""What the reads of all shards share: threads, given to whose unread records are deleted soonest, and bytes ahead."""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any, ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

FAIR_TURN = 4
"""Every fourth read is the one that has waited longest, so that shards far behind never starve those that are not."""


class ReadQueue:
    """Orders the reads of all shards of a worker in front of a pool. Thread-safe.

    The pool gets one task per read, and a task, once it has a thread, does the read that is most urgent by then. At
    most one read per shard waits, so looking at all of them costs little.
    """

    def __init__(self, pool: Executor) -> None:
        self._pool = pool
        self._lock = threading.Lock()
        self._waiting: dict[int, tuple[float, Callable[[], object]]] = {}
        self._numbers = itertools.count()
        self._turns = itertools.count(1)

    def submit(self, loss_micros: float, call: Callable[[], object]) -> Future[Any]:
        """Have a read done; the future is that of a thread, not of this read."""
        with self._lock:
            self._waiting[next(self._numbers)] = (loss_micros, call)
        return self._pool.submit(self._do_next)

    def _do_next(self) -> None:
        with self._lock:
            is_fair_turn = next(self._turns) % FAIR_TURN == 0
            oldest = next(iter(self._waiting))
            number = oldest if is_fair_turn else min(self._waiting, key=lambda each: (self._waiting[each][0], each))
            _, call = self._waiting.pop(number)
        call()


class ReadLane(Executor):
    """The queue as one shard sees it: a pool for its reads."""

    def __init__(self, queue: ReadQueue, loss_micros: Callable[[], float]) -> None:
        self._queue = queue
        self._loss_micros = loss_micros

    def submit(
        self, fn: Callable[Arguments, Result], /, *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Future[Result]:
        """Have a read of this shard done; nothing may be concluded from the future."""
        return self._queue.submit(self._loss_micros(), partial(fn, *args, **kwargs))


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
        """Ask for bytes.

        The claim says if they are granted at once. If not, ``granted`` is called once, in a thread that gives bytes
        back, unless the claim is released before.

        Whoever has the smallest ``own_bytes`` comes first, among equals whoever asked first. A page larger than the
        whole budget is granted when nothing else is set aside.
        """
        claim = Claim(self, size_bytes, granted)
        with self._lock:
            heapq.heappush(self._queue, (own_bytes, next(self._numbers), claim))
            served = self._serve()
        _announce(other for other in served if other is not claim)
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


def _announce(served: Iterable[Claim]) -> None:
    """Outside the lock: whoever is told may ask again."""
    for claim in served:
        claim.granted(claim)
