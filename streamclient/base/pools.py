"""Threads that do not keep a process alive, and what follows when the system refuses one.

The pools of the standard library are joined when the interpreter exits, so one hung call in user code would undo a
shutdown that promised to be bounded. The threads here are daemons and end by themselves when idle.

The system refuses a thread where a limit is reached, of a user or of a container. A call is then either queued or
refused, never both: ``DaemonPool`` queues it if it has a thread that will come to it, and raises ``NoThreadError`` if
it has none. ``once`` gives executors of others that law; those of the standard library keep the calls that they refuse.
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
"""A thread without work ends after this long, as in Java's cached pools."""


def start_thread(target: Callable[[], object], name: str, *, daemon: bool = True) -> threading.Thread:
    """Start a thread of its own that runs ``target``.

    Raises:
        NoThreadError: the system refused it; ``target`` will never run.
    """
    thread = threading.Thread(target=target, name=name, daemon=daemon)
    try:
        thread.start()
    except RuntimeError as error:
        raise NoThreadError.of(name, error) from error
    return thread


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
        self._birthplace = Birthplace()
        self.is_short = False
        """Whether calls wait because the system refused a thread for them; see ``grow``. Any thread."""

    def submit(
        self, fn: Callable[Arguments, Result], /, *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Future[Result]:
        """Run a call on a thread of the pool.

        Raises:
            NoThreadError: the pool has no thread, and the system refused one; the call will never run.
            ForkedError: the pool was made before a fork, by the parent.
            RuntimeError: after ``shutdown``.
        """
        self._birthplace.require(f"pool {self._name}")
        future: Future[Result] = Future()
        with self._changed:
            if self._closed:
                raise RuntimeError(f"pool {self._name} is shut down")
            self._calls.append((future, partial(fn, *args, **kwargs)))
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
        return future

    def grow(self) -> bool:
        """Start the threads that waiting calls lack, as many as the system allows; whether none is lacking any more."""
        with self._changed:
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
        """Accept nothing more; with ``wait``, return when the last running call did."""
        self._birthplace.require(f"pool {self._name}")
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
        self._birthplace.require(f"pool {self._name}")
        with self._changed:
            return self._changed.wait_for(lambda: not self._threads, timeout_seconds)

    def _add_thread(self) -> None:
        """The lock is held, so a thread counts before it looks for its first call."""
        thread = threading.Thread(target=self._work, name=f"{self._name}-{next(self._numbers)}", daemon=True)
        self._threads.add(thread)
        try:
            thread.start()
        except RuntimeError as error:
            self._threads.discard(thread)
            raise NoThreadError.of(f"pool {self._name}", error) from error

    def _work(self) -> None:
        bell = threading.Lock()  # held while nobody rings: far cheaper to wait for than a condition
        bell.acquire()
        while True:
            found = self._next_call(bell)
            if found is None:
                return
            run_call(*found)
            del found

    def _next_call(self, bell: threading.Lock) -> tuple[Future[Any], Callable[[], Any]] | None:
        """The next call; ``None`` once this thread has left the pool."""
        while True:
            with self._changed:
                if self._calls:
                    return self._calls.popleft()
                self.is_short = False
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


def run_call(future: Future[Any], call: Callable[[], Any]) -> None:
    """Run a call, unless it was cancelled, and let its future have the result or the error."""
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = call()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)


def once(executor: Executor) -> Executor:
    """The same executor, of whose calls none runs that it refused."""
    return executor if isinstance(executor, DaemonPool | _OnceExecutor) else _OnceExecutor(executor)


class _OnceExecutor(Executor):
    """An executor of others.

    The standard library's queue a call before they start its thread, and keep it there when that is refused: it runs
    later, after its caller was told that it does not.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def submit(
        self, fn: Callable[Arguments, Result], /, *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Future[Result]:
        """Run a call; if this raises, it never does."""
        call = _OnceCall(partial(fn, *args, **kwargs))
        try:
            return self._executor.submit(call)
        except Exception:
            if call.refuse():
                raise
            return call.future  # a thread that was busy has begun it meanwhile


class _OnceCall:
    """One call: begun by a thread, or refused."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._first = threading.Lock()
        self.future: Future[Any] = Future()

    def refuse(self) -> bool:
        """Have it never run; whether it had not begun."""
        return self._first.acquire(blocking=False)

    def __call__(self) -> Any:
        """Run it, unless it was refused."""
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
