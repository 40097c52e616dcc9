"""Threads that do not keep a process alive.

The pools of the standard library are joined when the interpreter exits, so one hung call in user code would undo a
shutdown that promised to be bounded. The threads here are daemons and end by themselves when idle.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any, ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

IDLE_SECONDS = 60.0
"""A thread without work ends after this long, as in Java's cached pools."""


class DaemonPool(Executor):
    """Runs calls on up to ``most_threads`` daemon threads, made when needed.

    The number of waiting calls has no bound of its own: the worker keeps at most a few calls per lease under way.
    """

    def __init__(self, name: str, most_threads: int) -> None:
        self._name = name
        self._most_threads = most_threads
        self._changed = threading.Condition()
        self._calls: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._threads: set[threading.Thread] = set()
        self._parked: list[threading.Lock] = []
        self._closed = False
        self._numbers = itertools.count(1)

    def submit(
        self, fn: Callable[Arguments, Result], /, *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Future[Result]:
        """Run a call on a thread of the pool. Raises ``RuntimeError`` after ``shutdown``."""
        future: Future[Result] = Future()
        with self._changed:
            if self._closed:
                raise RuntimeError(f"pool {self._name} is shut down")
            self._calls.append((future, partial(fn, *args, **kwargs)))
            if self._parked:
                self._parked.pop().release()
            elif len(self._threads) < self._most_threads:
                self._add_thread()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept nothing more; with ``wait``, return when the last running call did."""
        with self._changed:
            self._closed = True
            waiting = list(self._calls) if cancel_futures else []
            if cancel_futures:
                self._calls.clear()
            while self._parked:
                self._parked.pop().release()
        for future, _ in waiting:
            future.cancel()
        if wait:
            self.join(None)

    def join(self, timeout_seconds: float | None) -> bool:
        """After ``shutdown``: wait for the threads to end; whether they all did in time."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._threads, timeout_seconds)

    def _add_thread(self) -> None:
        thread = threading.Thread(target=self._work, name=f"{self._name}-{next(self._numbers)}", daemon=True)
        self._threads.add(thread)
        thread.start()

    def _work(self) -> None:
        bell = threading.Lock()  # held while nobody rings: far cheaper to wait for than a condition
        bell.acquire()
        while True:
            found = self._next_call(bell)
            if found is None:
                return
            _run(*found)
            del found

    def _next_call(self, bell: threading.Lock) -> tuple[Future[Any], Callable[[], Any]] | None:
        """The next call; ``None`` once this thread has left the pool."""
        while True:
            with self._changed:
                if self._calls:
                    return self._calls.popleft()
                if self._closed:
                    self._leave()
                    return None
                self._parked.append(bell)
            if not bell.acquire(timeout=IDLE_SECONDS):
                with self._changed:
                    if bell in self._parked:
                        self._parked.remove(bell)
                        self._leave()
                        return None
                    bell.acquire()  # rung just after the time ran out

    def _leave(self) -> None:
        self._threads.discard(threading.current_thread())
        self._changed.notify_all()


def _run(future: Future[Any], call: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = call()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)
