"""Threads that do not keep a process alive, and the rules for threads that the system refuses.

When the interpreter exits, it waits for the pools of the standard library. So one call in user code that hangs would
delay the end without limit. The threads of this module are daemons, and each of them ends after an idle time.

The system may refuse a thread, because a user or a container has reached a limit. A call is then either queued or
refused, never both. ``DaemonPool`` queues the call if one of its threads will run it later; otherwise it raises
``NoThreadError``. ``once`` applies the same rule to other executors. The executors of the standard library keep a
call in their queue although they have refused it.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any, ParamSpec, TypeVar

from streamclient.base.processes import Birthplace
from streamclient.errors import NoThreadError

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

IDLE_SECONDS = 60.0
"""The seconds after which a thread without work ends, as in Java's cached pools."""


def start_thread(target: Callable[[], object], name: str, *, daemon: bool = True) -> threading.Thread:
    """Start a new thread that runs ``target``.

    Raises:
        NoThreadError: the system refused the thread; ``target`` will never run.
    """
    thread = threading.Thread(target=target, name=name, daemon=daemon)
    try:
        thread.start()
    except RuntimeError as error:
        raise NoThreadError.of(name, error) from error
    return thread


class DaemonPool(Executor):
    """A pool that runs calls on up to ``most_threads`` daemon threads, which it starts when calls need them.

    The pool does not limit the number of waiting calls: a worker has at most a few unfinished calls per lease.
    """

    def __init__(self, name: str, most_threads: int) -> None:
        self._name = name
        self._title = f"pool {name}"
        self._most_threads = most_threads
        self._lock = threading.RLock()
        """The lock for the pool's state. The condition ``_changed`` has the same lock. Methods take the lock
        directly, because taking it through the condition costs three times as much."""
        self._changed = threading.Condition(self._lock)
        self._calls: deque[tuple[Future[Any] | None, Callable[[], Any]]] = deque()
        self._threads: set[threading.Thread] = set()
        self._parked: list[threading.Lock] = []
        self._closed = False
        self._numbers = itertools.count(1)
        self._birthplace = Birthplace()
        self.is_short = False
        """Whether calls wait because the system refused a thread for them; see ``grow``. Any thread may read it."""

    def submit(
        self, fn: Callable[Arguments, Result], /, *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Future[Result]:
        """Run a call on a thread of the pool.

        Raises:
            NoThreadError: the pool has no thread, and the system refused one; the call will never run.
            ForkedError: the pool was made before a fork, by the parent of this process.
            RuntimeError: the pool was shut down.
        """
        future: Future[Result] = Future()
        self._put(future, partial(fn, *args, **kwargs))
        return future

    def start(self, call: Callable[[], object]) -> None:
        """Run a call whose result and error no code reads. This method raises the same errors as ``submit``."""
        self._put(None, call)

    def _put(self, future: Future[Any] | None, call: Callable[[], Any]) -> None:
        self._birthplace.require(self._title)
        with self._lock:
            if self._closed:
                raise RuntimeError(f"{self._title} is shut down")
            self._calls.append((future, call))
            if self._parked:
                self._parked.pop().release()
            elif len(self._threads) < self._most_threads:
                try:
                    self._add_thread()
                except NoThreadError:
                    if not self._threads:
                        self._calls.pop()
                        raise
                    self.is_short = True

    @property
    def is_inside(self) -> bool:
        """Whether the calling thread is a thread of this pool."""
        return threading.current_thread() in self._threads

    def grow(self) -> bool:
        """Start missing threads for waiting calls; return whether the system allowed all of these threads."""
        with self._lock:
            while self.is_short and self._calls and len(self._threads) < self._most_threads:
                try:
                    self._add_thread()
                except NoThreadError:
                    return False
                if len(self._threads) >= len(self._calls):
                    break
            self.is_short = False
            return True

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept no more calls. With ``wait``, return only when the last running call has returned."""
        self._birthplace.require(self._title)
        with self._lock:
            self._closed = True
            waiting = list(self._calls) if cancel_futures else []
            if cancel_futures:
                self._calls.clear()
            while self._parked:
                self._parked.pop().release()
        for future, _ in waiting:
            if future is not None:
                future.cancel()
        if wait:
            self.join(None)

    def join(self, timeout_seconds: float | None) -> bool:
        """Wait after ``shutdown`` for all threads to end; return whether they ended within ``timeout_seconds``."""
        self._birthplace.require(self._title)
        with self._lock:
            return self._changed.wait_for(lambda: not self._threads, timeout_seconds)

    def _add_thread(self) -> None:
        """Add a thread. The caller holds the lock, so the thread is counted before it looks for its first call."""
        thread = threading.Thread(target=self._work, name=f"{self._name}-{next(self._numbers)}", daemon=True)
        self._threads.add(thread)
        try:
            thread.start()
        except RuntimeError as error:
            self._threads.discard(thread)
            raise NoThreadError.of(self._title, error) from error

    def _work(self) -> None:
        bell = threading.Lock()  # locked until a call arrives; waiting for a lock is cheaper than for a condition
        bell.acquire()
        while True:
            next_call = self._next_call(bell)
            if next_call is None:
                return
            run_call(*next_call)
            del next_call

    def _next_call(self, bell: threading.Lock) -> tuple[Future[Any] | None, Callable[[], Any]] | None:
        """Wait for the next call; return its future, if any, and its function.

        Return ``None`` once this thread has left the pool, because the pool was shut down or the thread was idle for
        ``IDLE_SECONDS``. ``bell`` is a lock of this thread. It is locked while the thread waits; another thread
        releases it when a call comes.
        """
        while True:
            with self._lock:
                if self._calls:
                    return self._calls.popleft()
                self.is_short = False
                if self._closed:
                    self._leave()
                    return None
                self._parked.append(bell)
            if not bell.acquire(timeout=IDLE_SECONDS):
                with self._lock:
                    if bell in self._parked:
                        self._parked.remove(bell)
                        self._leave()
                        return None
                    bell.acquire()  # a call came just after the time ran out

    def _leave(self) -> None:
        self._threads.discard(threading.current_thread())
        self._changed.notify_all()


def run_call(future: Future[Any] | None, call: Callable[[], Any]) -> None:
    """Run ``call``, and pass its result or its error to ``future``, if any. Do nothing if ``future`` was cancelled."""
    if future is not None and not future.set_running_or_notify_cancel():
        return
    try:
        result = call()
    except BaseException as error:
        if future is not None:
            future.set_exception(error)
    else:
        if future is not None:
            future.set_result(result)


def start_call(pool: Executor, call: Callable[[], object]) -> None:
    """Run ``call`` in ``pool``. No code reads the result or the error, so a ``DaemonPool`` makes no future."""
    if isinstance(pool, DaemonPool):
        pool.start(call)
    else:
        pool.submit(call)


def once(executor: Executor) -> Executor:
    """Wrap an executor so that a refused call never runs."""
    return executor if isinstance(executor, DaemonPool | _OnceExecutor) else _OnceExecutor(executor)


class _OnceExecutor(Executor):
    """An executor that passes calls to another executor, and never runs a call that the other executor refused.

    The standard library's executors queue a call before they start its thread. If the thread is refused, the call stays
    queued and runs later, although its caller was told that it would not run.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def submit(
        self, fn: Callable[Arguments, Result], /, *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Future[Result]:
        """Run a call in the other executor. If this method raises, the call never runs."""
        call = _OnceCall(partial(fn, *args, **kwargs))
        try:
            return self._executor.submit(call)
        except Exception:
            if call.refuse():
                raise
            return call.future  # a busy thread became free and has begun the call meanwhile


class _OnceCall:
    """A call that either begins in a thread or is refused, never both."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._first = threading.Lock()
        self.future: Future[Any] = Future()

    def refuse(self) -> bool:
        """Prevent the call from running. Return ``False`` if the call has already begun."""
        return self._first.acquire(blocking=False)

    def __call__(self) -> Any:
        """Run the call, unless it was refused."""
        if not self._first.acquire(blocking=False):
            return None
        self.future.set_running_or_notify_cancel()
        try:
            result = self._call()
        except BaseException as error:
            self.future.set_exception(error)
            raise
        self.future.set_result(result)
        return result
