"""A signal as an exception in the main thread, which nothing swallows."""

from __future__ import annotations

import _thread
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

AGAIN_SECONDS = 0.02
"""Until an exception that was swallowed is raised again: what swallowed it, a callback mostly, is over by then."""

MOST_TRIES = 50
"""How often the thread that raises it again is asked for, if the system refuses threads: for a second. The main thread
waits meanwhile, and is told of the exception by Python if it is lost after all."""


class RaisedBySignal:
    """While installed, a signal raises an exception in the main thread; with ``once``, further ones change nothing.

    A handler may run anywhere, also where the interpreter lets nothing out: in a ``__del__``, or in the callback of a
    weak reference, of which each import runs several. What is raised there goes to ``sys.unraisablehook`` and no
    further; the program would go on as if the signal had not come. Here it is raised again, until it gets out.

    ``error`` makes the exception; ``None`` leaves that signal without one. Main thread only.
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
        """Let what was there before handle it, unless somebody else has taken it over."""
        if signal.getsignal(self._number) == self.came:
            signal.signal(self._number, self._handler_before)
        if sys.unraisablehook == self._unraisable:
            sys.unraisablehook = self._hook_before
        self._raised = None

    @property
    def has_raised(self) -> bool:
        """Whether an exception was raised, and not swallowed."""
        return self._raised is not None

    def came(self, number: int, frame: FrameType | None) -> None:
        """The handler."""
        if self._once and self.has_raised:
            return
        error = self._error()
        if error is not None:
            self._raised = error
            raise error

    def _unraisable(self, unraisable: Any) -> None:
        if unraisable.exc_value is not None and unraisable.exc_value is self._raised:
            self._raised = None
            # Bare, as this may stand in the middle of anything: a Thread takes locks that may be held right here.
            for _ in range(MOST_TRIES):
                try:
                    _thread.start_new_thread(self._come_again, ())
                    return
                except RuntimeError:  # the system refuses a thread just now
                    time.sleep(AGAIN_SECONDS)
            self._hook_before(unraisable)
        else:
            self._hook_before(unraisable)

    def _come_again(self) -> None:
        time.sleep(AGAIN_SECONDS)
        main = threading.main_thread().ident
        if main is not None and signal.getsignal(self._number) == self.came:
            signal.pthread_kill(main, self._number)
