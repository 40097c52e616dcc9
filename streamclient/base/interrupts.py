"""Signals that raise exceptions in the main thread, and signals that are held back for a pool of processes.

The interpreter swallows an exception in some places, for example in a ``__del__``. If a signal comes at such a place,
its exception is raised again later.
"""

from __future__ import annotations

import _thread
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else []))
"""The signals on which a command ends in an orderly way."""

AGAIN_SECONDS = 0.02
"""The seconds until an exception that the interpreter swallowed is raised again. By then the code in which it was
swallowed, usually a callback, has ended."""

MOST_TRIES = 50
"""The largest number of tries to start the thread that raises the exception again, while the system refuses threads.
The main thread waits during these tries, at most a second. If all tries fail, Python prints the exception, and the
program continues."""


class RaisedBySignal:
    """A signal handler. While it is installed, the signal raises an exception in the main thread.

    ``error`` makes the exception; if it returns ``None``, the signal raises nothing. With ``once``, signals that come
    after a raised exception are ignored. Only for use in the main thread.

    A handler may run anywhere, even where the interpreter swallows exceptions: in a ``__del__``, or in the callback of
    a weak reference. Each import runs several such callbacks. An exception in such code only reaches
    ``sys.unraisablehook``, and the program continues as if the signal had not come. So this class raises the exception
    again until it propagates.
    """

    def __init__(self, number: int, error: Callable[[], BaseException | None], *, once: bool) -> None:
        self._number, self._error, self._once = number, error, once
        self._raised: BaseException | None = None
        self._handler_before: Any = None
        self._hook_before: Callable[[Any], object] = sys.__unraisablehook__

    def install(self) -> None:
        """Handle the signal from now on."""
        self._hook_before, sys.unraisablehook = sys.unraisablehook, self._unraisable
        self._handler_before = signal.signal(self._number, self.came)

    def remove(self) -> None:
        """Restore the earlier handler, unless other code has installed another handler meanwhile."""
        if signal.getsignal(self._number) == self.came:
            signal.signal(self._number, self._handler_before)
        if sys.unraisablehook == self._unraisable:
            sys.unraisablehook = self._hook_before
        self._raised = None

    @property
    def has_raised(self) -> bool:
        """Whether a signal has raised an exception that the interpreter did not swallow."""
        return self._raised is not None

    def came(self, number: int, frame: FrameType | None) -> None:
        """Raise the exception; the system calls this method when the signal comes."""
        if self._once and self.has_raised:
            return
        error = self._error()
        if error is not None:
            self._raised = error
            raise error

    def _unraisable(self, unraisable: Any) -> None:
        if unraisable.exc_value is not None and unraisable.exc_value is self._raised:
            self._raised = None
            # A Thread object would take locks, which the code that the signal interrupted may hold.
            for _ in range(MOST_TRIES):
                try:
                    _thread.start_new_thread(self._come_again, ())
                    return
                except RuntimeError:  # the system refuses a thread at the moment
                    time.sleep(AGAIN_SECONDS)
            self._hook_before(unraisable)
        else:
            self._hook_before(unraisable)

    def _come_again(self) -> None:
        time.sleep(AGAIN_SECONDS)
        main = threading.main_thread().ident
        if main is not None and signal.getsignal(self._number) == self.came:
            if hasattr(signal, "pthread_kill"):
                signal.pthread_kill(main, self._number)
            else:  # Windows: Python's handlers run in the main thread, whichever thread raises the signal
                signal.raise_signal(self._number)


# --- processes of a pool ---------------------------------------------------------------------------------------------


@contextmanager
def ending_signals_held_back() -> Iterator[None]:
    """Hold back ``ENDING_SIGNALS`` until the block ends, also in processes that are started in the block.

    If a signal ended the program while it starts a process, the new process would get only part of its instructions.
    Ctrl-C also reaches every process of a terminal, and each process would end with a traceback. Blocking the signals
    in one thread is not enough: another thread may get a signal, and Python then calls the handler in the main thread.
    So handlers that only note the signals replace the program's handlers until the block ends.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    came: list[int] = []
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING_SIGNALS)
    handlers = _handle(lambda number, frame: came.append(number))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for number in came:
            signal.raise_signal(number)


def _handle(handler: Callable[[int, FrameType | None], object]) -> dict[int, Any]:
    """Install ``handler`` for all ending signals that are not ignored; return the former handlers.

    In any other thread than the main thread, do nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        return {}
    handled = [each for each in ENDING_SIGNALS if signal.getsignal(each) not in (None, signal.SIG_IGN)]
    return {each: signal.signal(each, handler) for each in handled}


def ignore_ending_signals() -> None:
    """Ignore ``ENDING_SIGNALS`` in this process of a pool, and leave them to the process that started the pool.

    The starting process ends this process. If a process of a pool ended on a signal, the pool would break while tasks
    are still being passed to it, and Python would print a traceback.
    """
    for number in ENDING_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING_SIGNALS)
