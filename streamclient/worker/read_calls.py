"""The shared resources of all shards' reads: threads for the most urgent reads first, and bytes for reading ahead."""

from __future__ import annotations

import heapq
import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from contextlib import suppress
from functools import partial

from streamclient.base.pools import once, start_call
from streamclient.worker.owner_loop import OwnerLoop

FAIR_TURN = 4
"""One read in this many is the read that has waited longest. So shards with a large lag never starve the others."""

PATIENT_SECONDS = 0.05
"""Time for which a patient read is left to the threads at work. A thread does some dozens of reads of idle shards in
that time, and the fewer threads contend for the interpreter, the less each read costs."""


class ReadQueue:
    """Orders the reads of all shards of a worker before they go to a pool. Thread-safe.

    The pool gets one task per read, and a task that has a thread does the read that is most urgent then. A *patient*
    read gets no task while a thread is at work: the first thread that is free does it. ``hurry`` requests more threads
    once a read has been patient for long enough, so that no read waits for the slow read of another shard.
    """

    def __init__(self, pool: Executor) -> None:
        self.pool: Executor = once(pool)
        self._lock = threading.Lock()
        self._waiting: dict[int, Callable[[], object]] = {}
        """Waiting reads, in the order of arrival."""
        self._by_loss: list[tuple[float, int]] = []
        self._patient: deque[tuple[float, int]] = deque()
        """The deadlines of patient reads that wait for a thread at work. As in ``_by_loss``, some of these reads may
        already be done."""
        self._coming = 0
        """The number of tasks that no thread has begun. For the same number of waiting reads, a thread is coming."""
        self._at_work = 0
        self._numbers = itertools.count()
        self._turns = itertools.count(1)

    @property
    def has_waiting(self) -> bool:
        """Whether some read has not begun."""
        return bool(self._waiting)

    def submit(self, loss_micros: float, call: Callable[[], object], patient_until: float | None = None) -> None:
        """Queue a read.

        Its own thread does it; a patient read is left to any thread that is free before ``patient_until``. If the pool
        refuses, its error is raised and the read is forgotten.
        """
        with self._lock:
            number = next(self._numbers)
            self._waiting[number] = call
            heapq.heappush(self._by_loss, (loss_micros, number))
            if patient_until is not None:
                self._patient.append((patient_until, number))
                if self._at_work or self._coming:
                    return
            self._coming += 1
        try:
            self._send_for(1)
        except Exception:
            with self._lock:
                if self._waiting.pop(number, None) is None:
                    return  # a thread at work has taken it
            raise

    def hurry(self, now: float) -> bool:
        """Request more threads if a read was patient for long enough; return whether any read is unfinished.

        Each call requests as many threads as are at work already, at least one. If reads are slow, few such steps start
        all of them; if one read hangs, the next thread does the rest.
        """
        wanted = 0
        with self._lock:
            while self._patient and self._patient[0][1] not in self._waiting:
                self._patient.popleft()
            if self._patient and self._patient[0][0] <= now:
                wanted = min(len(self._waiting) - self._coming, max(1, self._at_work))
                self._coming += wanted
            is_busy = bool(self._waiting or self._at_work)
        with suppress(Exception):  # the next call requests them again
            self._send_for(wanted)
        return is_busy

    def _send_for(self, threads: int) -> None:
        for sent in range(threads):
            try:
                start_call(self.pool, self._work)
            except Exception:
                with self._lock:
                    self._coming -= threads - sent
                raise

    def _work(self) -> None:
        """Do one read in a thread, and then the reads for which no other thread comes."""
        with self._lock:
            self._coming -= 1
            self._at_work += 1
            call = self._next()
        while call is not None:
            try:
                call()
            except BaseException:
                with self._lock:
                    self._at_work -= 1
                raise
            with self._lock:
                call = self._next()

    def _next(self) -> Callable[[], object] | None:
        """Return the read to do now; ``None`` if no work is left for this thread. The lock is held."""
        if len(self._waiting) <= self._coming:
            self._at_work -= 1
            return None
        if next(self._turns) % FAIR_TURN == 0:
            call = self._waiting.pop(next(iter(self._waiting)))
            if len(self._by_loss) > 2 * len(self._waiting):
                self._by_loss = [entry for entry in self._by_loss if entry[1] in self._waiting]
                heapq.heapify(self._by_loss)
            return call
        while True:
            number = heapq.heappop(self._by_loss)[1]
            if number in self._waiting:
                return self._waiting.pop(number)


class OwnerReads:
    """The reads of one owner's shards, on their way to the queue. Owner thread only.

    While a patient read is under way, the owner looks at the queue regularly, and processes answers that did not wake
    the owner.
    """

    def __init__(self, queue: ReadQueue, loop: OwnerLoop) -> None:
        self._queue = queue
        self._loop = loop
        self._is_looking = False

    def submit(self, loss_micros: float, call: Callable[[], object], *, is_patient: bool = False) -> None:
        """Run a read as soon as a thread is free for it."""
        until = self._loop.now() + PATIENT_SECONDS if is_patient else None
        self._loop.start(self._queue.pool, partial(self._queue.submit, loss_micros, call, until))
        if not is_patient:
            return
        if not self._is_looking:
            self._is_looking = True
            self._loop.call_later(PATIENT_SECONDS, self._look)

    def is_last(self) -> bool:
        """Return whether no further read waits for a thread that has finished one. Usable from any thread."""
        return not self._queue.has_waiting

    def _look(self) -> None:
        self._is_looking = self._queue.hurry(self._loop.now())
        if self._is_looking:
            self._loop.call_later(PATIENT_SECONDS, self._look)


class Claim:
    """Bytes set aside for one page: requested, then granted, then given back once. Made by ``PrefetchBudget``."""

    def __init__(self, budget: PrefetchBudget, size_bytes: int, granted: Callable[[Claim], object]) -> None:
        self._budget = budget
        self.size_bytes = size_bytes
        self.granted = granted
        self.is_granted = False
        self.is_over = False

    def settle(self, size_bytes: int) -> None:
        """Record that the page has come with this size."""
        self._budget.settle(self, size_bytes)

    def release(self) -> None:
        """Give the bytes back, or withdraw the request. Repeating it is harmless."""
        self._budget.release(self)


class PrefetchBudget:
    """A bound for the sum of bytes set aside, granted first to the shard that has least. Thread-safe.

    The size of a page is known only when it has come. Until then its shard sets aside the size of the largest page that
    it has seen. So the sum may be exceeded by the excess of a page over all pages before it in its shard.
    """

    def __init__(self, total_bytes: int) -> None:
        self._total_bytes = total_bytes
        self._lock = threading.Lock()
        self._used_bytes = 0
        self._queue: list[tuple[int, int, Claim]] = []
        self._numbers = itertools.count()

    @property
    def used_bytes(self) -> int:
        """Bytes that are set aside now."""
        return self._used_bytes

    def claim(self, size_bytes: int, own_bytes: int, granted: Callable[[Claim], object]) -> Claim:
        """Request bytes.

        The returned claim says whether they are granted at once. If not, ``granted`` is called once, in a thread that
        gives bytes back, unless the claim is released first.

        The request with the smallest ``own_bytes`` comes first; among equals, the oldest. A page larger than the whole
        budget is granted when nothing else is set aside.
        """
        claim = Claim(self, size_bytes, granted)
        with self._lock:
            if not self._queue and self._has_room(size_bytes):
                self._grant(claim)
                return claim
            heapq.heappush(self._queue, (own_bytes, next(self._numbers), claim))
            served = self._serve()
        _announce(other for other in served if other is not claim)
        return claim

    def settle(self, claim: Claim, size_bytes: int) -> None:
        """Settle a claim; see ``Claim``."""
        with self._lock:
            if claim.is_granted and not claim.is_over:
                self._used_bytes += size_bytes - claim.size_bytes
                claim.size_bytes = size_bytes
            served = self._serve() if self._queue else ()
        _announce(served)

    def release(self, claim: Claim) -> None:
        """Release a claim; see ``Claim``."""
        with self._lock:
            if claim.is_granted and not claim.is_over:
                self._used_bytes -= claim.size_bytes
            claim.is_over = True
            served = self._serve() if self._queue else ()
        _announce(served)

    def _serve(self) -> list[Claim]:
        """Grant the first claims of the queue while they have room; return the granted claims, to be announced."""
        served = []
        while self._queue:
            first = self._queue[0][2]
            if not first.is_over:
                if not self._has_room(first.size_bytes):
                    break
                self._grant(first)
                served.append(first)
            heapq.heappop(self._queue)
        return served

    def _has_room(self, size_bytes: int) -> bool:
        return not self._used_bytes or self._used_bytes + size_bytes <= self._total_bytes

    def _grant(self, claim: Claim) -> None:
        self._used_bytes += claim.size_bytes
        claim.is_granted = True


def _announce(served: Iterable[Claim]) -> None:
    """Announce grants outside the lock, because a receiver may request bytes again."""
    for claim in served:
        claim.granted(claim)
