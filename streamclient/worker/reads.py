"""Which shard reads next when threads are scarce: the one whose unread records are deleted soonest."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
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
