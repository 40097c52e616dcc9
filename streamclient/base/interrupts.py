"""A signal that becomes an exception in the main thread, which no code can swallow."""

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
"""The signals that end a command in order."""

AGAIN_SECONDS = 0.02
"""The seconds until a swallowed exception is raised again. By then the code that swallowed it, usually a callback, has
ended."""

MOST_TRIES = 50
"""The largest number of times that a thread for raising the exception again is requested, while the system refuses
threads. All tries together take a second, for which the main thread waits. If the exception is lost after all, Python
reports it in the main thread."""


class RaisedBySignal:
    """A signal handler. While it is installed, the signal raises an exception in the main thread.

    With ``once``, further signals change nothing. ``error`` makes the exception; if it returns ``None``, the signal
    raises nothing. Only for use in the main thread.

    A handler may run anywhere, even where the interpreter swallows exceptions: in a ``__del__``, or in the callback of
    a weak reference. Each import runs several such callbacks. An exception that is raised there only reaches
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
        """Whether an exception was raised and not swallowed."""
        return self._raised is not None

    def came(self, number: int, frame: FrameType | None) -> None:
        """Handle the signal."""
        if self._once and self.has_raised:
            return
        error = self._error()
        if error is not None:
            self._raised = error
            raise error

    def _unraisable(self, unraisable: Any) -> None:
        if unraisable.exc_value is not None and unraisable.exc_value is self._raised:
            self._raised = None
            # Do not use a Thread object: this may interrupt any code, and a Thread takes locks that the code may hold.
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
            else:  # Windows, where Python's handlers run in the main thread, wherever the signal is raised
                signal.raise_signal(self._number)


# --- processes of a pool ---------------------------------------------------------------------------------------------


@contextmanager
def ending_signals_held_back() -> Iterator[None]:
    """Hold ``ENDING_SIGNALS`` back until the block ends. Processes that are started in the block inherit this state.

    If the program ended while it starts a process, that process would have only half of its instructions. Ctrl-C also
    reaches every process of a terminal, and each would end with a traceback. Blocking the signals is not enough:
    another thread may get a signal, and Python then calls the handler in the main thread.
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
    """Install a handler for the ending signals that are not ignored; return the previous handlers. Main thread only."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    handled = [each for each in ENDING_SIGNALS if signal.getsignal(each) not in (None, signal.SIG_IGN)]
    return {each: signal.signal(each, handler) for each in handled}


def leave_ending_signals() -> None:
    """Leave ``ENDING_SIGNALS`` to the process that started this process and will end it.

    If a process of a pool ended on a signal, the pool would break while tasks are still being passed to it, and Python
    would print a traceback.
    """
    for number in ENDING_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING_SIGNALS)
