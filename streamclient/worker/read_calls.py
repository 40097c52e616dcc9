"""The threads and the prefetch memory that the reads of all shards of a worker share."""

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
"""The interval, in reads, at which a thread does the oldest read instead of the most urgent read. So urgent shards
never starve the other shards."""

PATIENT_SECONDS = 0.05
"""The time for which a *patient* read, which is not urgent, waits for a busy thread before another thread is requested.
In this time a thread does dozens of reads of idle shards. Each read costs less when fewer threads contend for the
interpreter."""


class ReadQueue:
    """The queue in which the reads of all shards of a worker wait for the threads of a pool. Thread-safe.

    The pool gets one task per read. As soon as a thread runs a task, the task does the most urgent read. A *patient*
    read gets no task while a thread is at work: the first thread that becomes free does the read. Once a patient read
    has waited long enough, ``hurry`` requests more threads, so that no read waits for the slow read of another shard.
    """

    def __init__(self, pool: Executor) -> None:
        self.pool: Executor = once(pool)
        self._lock = threading.Lock()
        self._waiting: dict[int, Callable[[], object]] = {}
        """The waiting reads by number, in the order of arrival."""
        self._by_loss: list[tuple[float, int]] = []
        self._patient: deque[tuple[float, int]] = deque()
        """The deadlines and numbers of patient reads that wait for a thread at work. Some of these reads may already be
        done."""
        self._coming = 0
        """The number of tasks in the pool that no thread has begun. Each task will do at least one waiting read."""
        self._at_work = 0
        self._numbers = itertools.count()
        self._turns = itertools.count(1)

    @property
    def has_waiting(self) -> bool:
        """Whether any read waits for a thread."""
        return bool(self._waiting)

    def submit(self, loss_micros: float, call: Callable[[], object], patient_until: float | None = None) -> None:
        """Queue a read. Among all waiting reads, a read with a smaller ``loss_micros`` is more urgent.

        Without ``patient_until``, request a thread for the read. Otherwise, while threads are at work, leave the read
        to the first thread that becomes free before ``patient_until``. If the pool refuses the task, forget the read
        and raise the pool's error.
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
                    return  # a thread at work has already taken this read
            raise

    def hurry(self, now: float) -> bool:
        """Request more threads if a patient read has waited long enough; return whether any read is unfinished.

        Each call requests as many threads as are at work already, but at least one. If all reads are slow, a few calls
        start all of them. If only one read hangs, one more thread does the other reads.
        """
        wanted = 0
        with self._lock:
            while self._patient and self._patient[0][1] not in self._waiting:
                self._patient.popleft()
            if self._patient and self._patient[0][0] <= now:
                wanted = min(len(self._waiting) - self._coming, max(1, self._at_work))
                self._coming += wanted
            is_busy = bool(self._waiting or self._at_work)
        with suppress(Exception):  # the next call of ``hurry`` requests the threads again
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
        """Do waiting reads in this thread, one after the other, but leave one read to each task that has not begun."""
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
        """Return the read to do now; ``None`` if no work is left for this thread. The caller holds the lock."""
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
    """The access of one stream's owner to the worker's ``ReadQueue``. Owner thread only.

    While a patient read is under way, the owner checks the queue regularly. In the turn of such a check, the owner also
    processes pages that have arrived without waking it.
    """

    def __init__(self, queue: ReadQueue, loop: OwnerLoop) -> None:
        self._queue = queue
        self._loop = loop
        self._is_looking = False

    def submit(self, loss_micros: float, call: Callable[[], object], *, is_patient: bool = False) -> None:
        """Queue a read. A patient read may wait ``PATIENT_SECONDS`` for a busy thread before it gets another thread."""
        until = self._loop.now() + PATIENT_SECONDS if is_patient else None
        self._loop.start(self._queue.pool, partial(self._queue.submit, loss_micros, call, until))
        if not is_patient:
            return
        if not self._is_looking:
            self._is_looking = True
            self._loop.call_later(PATIENT_SECONDS, self._look)

    def is_last(self) -> bool:
        """Return whether no other read waits, so that the caller's read is the last. Usable from any thread."""
        return not self._queue.has_waiting

    def _look(self) -> None:
        self._is_looking = self._queue.hurry(self._loop.now())
        if self._is_looking:
            self._loop.call_later(PATIENT_SECONDS, self._look)


class Claim:
    """A reservation of bytes for one page, which ``PrefetchBudget`` grants immediately or later."""

    def __init__(self, budget: PrefetchBudget, size_bytes: int, granted: Callable[[Claim], object]) -> None:
        self._budget = budget
        self.size_bytes = size_bytes
        self.granted = granted
        self.is_granted = False
        self.is_over = False

    def settle(self, size_bytes: int) -> None:
        """Record that the page has come, with the size ``size_bytes``."""
        self._budget.settle(self, size_bytes)

    def release(self) -> None:
        """Give the granted bytes back, or withdraw a claim that is not granted. A second call is harmless."""
        self._budget.release(self)


class PrefetchBudget:
    """A limit for the bytes of all pages read ahead. The shard with the fewest bytes gets bytes first. Thread-safe.

    The size of a page is known only when the page has come. Until then the shard reserves the size of its largest page
    so far. So the limit may be exceeded if a page is larger than all earlier pages of its shard.
    """

    def __init__(self, total_bytes: int) -> None:
        self._total_bytes = total_bytes
        self._lock = threading.Lock()
        self._used_bytes = 0
        self._queue: list[tuple[int, int, Claim]] = []
        self._numbers = itertools.count()

    @property
    def used_bytes(self) -> int:
        """The number of bytes that are reserved now."""
        return self._used_bytes

    def claim(self, size_bytes: int, own_bytes: int, granted: Callable[[Claim], object]) -> Claim:
        """Request ``size_bytes`` for the next page of a shard that has reserved ``own_bytes`` already.

        The returned claim says whether the bytes are granted immediately. If they are not, a thread that
        gives bytes back later calls ``granted``, once. If the claim is released first, ``granted`` is not called.

        The request with the smallest ``own_bytes`` comes first; among equal requests, the oldest. A page larger than
        the whole budget is granted when no other bytes are reserved.
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
        """Replace the reserved size of ``claim`` by ``size_bytes``, the size of the page that has come."""
        with self._lock:
            if claim.is_granted and not claim.is_over:
                self._used_bytes += size_bytes - claim.size_bytes
                claim.size_bytes = size_bytes
            served = self._serve() if self._queue else ()
        _announce(served)

    def release(self, claim: Claim) -> None:
        """Give the bytes of ``claim`` back, or withdraw the claim if it is not granted. A second call is harmless."""
        with self._lock:
            if claim.is_granted and not claim.is_over:
                self._used_bytes -= claim.size_bytes
            claim.is_over = True
            served = self._serve() if self._queue else ()
        _announce(served)

    def _serve(self) -> list[Claim]:
        """Grant the first claims of the queue, as many as the limit allows, and return these claims."""
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
    """Call ``granted`` of each claim. The caller does not hold the lock, because ``granted`` may request bytes."""
    for claim in served:
        claim.granted(claim)
