"""How a program lets something run until it ends: a ``with`` block, waiting for it, Ctrl-C and SIGTERM."""

from __future__ import annotations

import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import TypeVar

from streamclient.base import checks
from streamclient.base.interrupts import RaisedBySignal
from streamclient.base.processes import Birthplace

Self = TypeVar("Self", bound="Running")

LOOK_SECONDS = 0.05
"""Between two looks of ``wait`` at what else may have happened: little for a person, and no load."""

AWAKE_SECONDS = 0.2
"""A signal that the system gives to another thread, or that comes just before a wait begins, does not interrupt the
main thread's wait; its handler runs when the wait returns. So no wait there is longer than this."""


def wait_awake(event: threading.Event, timeout: float | None = None) -> bool:
    """Wait for an event, and for signals; whether the event is set."""
    give_up_at = None if timeout is None else time.monotonic() + timeout
    while True:
        left = AWAKE_SECONDS if give_up_at is None else min(AWAKE_SECONDS, give_up_at - time.monotonic())
        if event.wait(max(0.0, left)):
            return True
        if left <= 0:
            return False


EXIT_CODE_OF_SIGTERM = 128 + signal.SIGTERM
"""With which a program ends that SIGTERM asked to end: what shells and container runtimes make of that signal."""


class EndedBySigterm:
    """While the main thread is inside, SIGTERM raises ``SystemExit(143)`` there, once; further ones change nothing.

    Nothing is changed in other threads, which get no signals, nor where the program has a handler of its own or ignores
    the signal.
    """

    def __init__(self, is_wanted: bool) -> None:
        self._is_wanted = is_wanted
        self._handler = RaisedBySignal(signal.SIGTERM, self._error, once=True)
        self._is_installed = self._has_come = self._is_deferred = False

    def __enter__(self) -> EndedBySigterm:
        is_main = threading.current_thread() is threading.main_thread()
        if self._is_wanted and is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            self._handler.install()
            self._is_installed = True
        return self

    def defer(self) -> None:
        """The block is about to end anyway: if the signal comes now, that is raised when the block has ended."""
        self._is_deferred = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.defer()
        has_raised = self._handler.has_raised
        if self._is_installed:
            self._handler.remove()
        if self._has_come and not has_raised and error is None:
            raise SystemExit(EXIT_CODE_OF_SIGTERM)

    def _error(self) -> SystemExit | None:
        self._has_come = True
        return None if self._is_deferred else SystemExit(EXIT_CODE_OF_SIGTERM)


_until = checks.function("without arguments")


class Running(ABC):
    """What ``Worker``, ``TunnelWorker`` and ``TunnelDaemon`` have in common.

    As a context manager it runs in a thread of its own until the block is left. SIGTERM meanwhile, if the block is in
    the program's main thread, raises ``SystemExit(143)`` in the block, so that it is left and everything ends in order;
    see ``ClientConfig.end_on_sigterm``.
    """

    def __init__(self, *, end_on_sigterm: bool) -> None:
        self._ended = threading.Event()
        self._ends_on_sigterm = end_on_sigterm
        self._sigterm = EndedBySigterm(end_on_sigterm)
        self._birthplace: Birthplace | None = None
        """Where it runs; ``None`` before it does."""

    def _require_here(self) -> None:
        """Refuse to touch in a child what runs in its parent: no thread of it is here, and locks may be held for ever.

        Raises:
            ForkedError: it is such a child.
        """
        if self._birthplace is not None:
            self._birthplace.require(f"the {type(self).__name__}")

    def wait(self, timeout: float | None = None, *, until: Callable[[], bool] | None = None) -> bool:
        """Wait, in a thread that does not run it, until it has ended or something else has happened.

        So whoever waits for something that a worker should do is woken if the worker dies before.

        Args:
            timeout: most seconds to wait; ``None`` for no limit.
            until: what else to wait for, for example ``event.is_set``; called in this thread some twenty times a
                second.

        Returns:
            Whether it came: what ``until`` asks for, or without it the end. ``False`` after the time-out, or if it was
            shut down before.

        Raises:
            ConfigurationError: ``until`` is async or a generator.
            StreamClientError: as ``run``, if it has failed and what ``until`` asks for has not come.
        """
        checks.optional(_until).require("until", until)
        self._require_here()
        if until is None:
            has_come = wait_awake(self._ended, timeout)
        else:
            has_come = self._wait_until(until, None if timeout is None else time.monotonic() + timeout)
        if self._ended.is_set() and (until is None or not has_come):
            self._raise_failure()
        return has_come

    def _wait_until(self, until: Callable[[], bool], give_up_at: float | None) -> bool:
        while not checks.done("until", until()):
            left = LOOK_SECONDS if give_up_at is None else min(LOOK_SECONDS, give_up_at - time.monotonic())
            if left <= 0 or self._ended.wait(left):
                return bool(checks.done("until", until()))
        return True

    def __enter__(self: Self) -> Self:  # noqa: PYI019  # typing.Self came with Python 3.11
        """Run in a thread of its own.

        Raises:
            StreamClientException: it was run or shut down before.
        """
        self._require_here()
        sigterm = EndedBySigterm(self._ends_on_sigterm).__enter__()
        try:
            self._begin_in_thread()
        except BaseException as error:
            try:
                if not isinstance(error, Exception):  # a signal, which may have come when it already ran
                    sigterm.defer()
                    self._end_thread()
            finally:
                sigterm.__exit__(type(error), error, error.__traceback__)
            raise
        self._sigterm = sigterm
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Shut down; raise what made it fail, as ``run`` does, unless the block raises something itself."""
        self._require_here()
        self._sigterm.defer()
        try:
            self._end_thread()
        finally:
            self._sigterm.__exit__(kind, error, trace)
        if error is None:
            self._raise_failure()

    @abstractmethod
    def _begin_in_thread(self) -> None:
        """Start the thread."""

    @abstractmethod
    def _end_thread(self) -> None:
        """Shut down, and wait for the thread as long as a shutdown may take."""

    @abstractmethod
    def _raise_failure(self) -> None:
        """Raise what made it fail, if anything did."""
