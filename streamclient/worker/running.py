"""The ways in which a program runs a worker or daemon until its end: a ``with`` block, ``wait``, Ctrl-C and SIGTERM."""

from __future__ import annotations

import signal
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar, TypeVar

from streamclient.base import checks
from streamclient.base.interrupts import RaisedBySignal
from streamclient.base.probes import Lifecycle, Probed
from streamclient.base.processes import Birthplace
from streamclient.base.reasons import WorkerHealth

if TYPE_CHECKING:
    from streamclient.worker.owner_loop import OwnerLoop

Self = TypeVar("Self", bound="Running")

LOOK_SECONDS = 0.05
"""The interval at which ``wait`` calls its ``until``: too short for a person to notice, and long enough to cost
little."""

AWAKE_SECONDS = 0.2
"""The longest single wait of the main thread. A signal that the system gives to another thread, or that comes just
before a wait begins, does not interrupt the wait. The handler of such a signal runs only when the wait returns."""


def wait_awake(event: threading.Event, timeout: float | None = None) -> bool:
    """Wait for ``event``, and let signal handlers run meanwhile; return whether the event is set."""
    give_up_at = None if timeout is None else time.monotonic() + timeout
    while True:
        left = AWAKE_SECONDS if give_up_at is None else min(AWAKE_SECONDS, give_up_at - time.monotonic())
        if event.wait(max(0.0, left)):
            return True
        if left <= 0:
            return False


STUCK_SECONDS = 10.0
"""The time without a turn after which an owner thread counts as stuck. An idle owner makes a turn each second, and a
busy owner needs milliseconds for a turn."""

EXIT_CODE_OF_SIGTERM = 128 + signal.SIGTERM
"""The exit code of a program that SIGTERM has ended, as shells and container runtimes expect it."""


class EndedBySigterm:
    """A block of the main thread in which SIGTERM raises ``SystemExit(143)``, once. Further signals change nothing.

    The object does nothing in another thread, because other threads get no signals. It also does nothing if the program
    has its own handler or ignores the signal. Blocks may be left in any order. The block that was entered first and is
    not left yet handles the signal. In a forked child, all blocks count as left.
    """

    _inside: ClassVar[list[EndedBySigterm]] = []
    """The blocks that the main thread has entered, the oldest first."""

    def __init__(self, is_wanted: bool) -> None:
        self._is_wanted = is_wanted
        self._handler = RaisedBySignal(signal.SIGTERM, self._error, once=True)
        self._birthplace = Birthplace()
        self._is_installed = self._has_come = self._is_deferred = self._has_left = False

    def __enter__(self) -> EndedBySigterm:
        if self._is_wanted and threading.current_thread() is threading.main_thread():
            self._birthplace = Birthplace()
            self._inside.append(self)
            self._settle()
        return self

    def defer(self) -> None:
        """Record that the block is about to end.

        A signal that comes from now on raises only when the block has ended.
        """
        self._is_deferred = True

    def leave(self) -> None:
        """End the block without raising an error. Usable from any thread, and in a garbage collection.

        Only the main thread can restore a handler. If another thread has left the block, the main thread restores the
        handler when it next enters or leaves a block, or when it gets the signal. The signal is then passed on.
        """
        self._has_left = True
        if threading.current_thread() is threading.main_thread():
            self._settle()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.defer()
        has_raised = self._handler.has_raised
        self.leave()
        if self._has_come and not has_raised and error is None:
            raise SystemExit(EXIT_CODE_OF_SIGTERM)

    @property
    def _is_left(self) -> bool:
        return self._has_left or not self._birthplace.is_here

    def _error(self) -> SystemExit | None:
        if self._is_left:
            self._settle()
            signal.raise_signal(signal.SIGTERM)
            return None
        return self._noted()

    def _noted(self) -> SystemExit | None:
        """Note that SIGTERM has come; return the error to raise for it, if any."""
        self._has_come = True
        return None if self._is_deferred else SystemExit(EXIT_CODE_OF_SIGTERM)

    @classmethod
    def _settle(cls) -> None:
        """Forget the blocks that were left.

        If the program has no handler of its own, install the handler of the oldest remaining block.
        """
        left = [each for each in cls._inside if each._is_left]
        # A garbage collection at this point may leave another block, and call this method within this call.
        cls._inside[:] = [each for each in cls._inside if not each._is_left]
        for each in left:
            if each._is_installed:
                each._handler.remove()
        if cls._inside and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            oldest = cls._inside[0]
            oldest._handler.install()
            oldest._is_installed = True


_until = checks.function("without arguments")


class Running(Probed):
    """The common part of ``Worker``, ``TunnelWorker`` and ``TunnelDaemon``.

    As a context manager, the object runs in its own thread until the block is left. If the block is in the program's
    main thread, SIGTERM raises ``SystemExit(143)`` in the block, so that the block is left and the object ends in
    order; see ``ClientConfig.end_on_sigterm``.
    """

    def __init__(self, *, end_on_sigterm: bool) -> None:
        self._ended, self._stop = threading.Event(), threading.Event()
        self._ends_on_sigterm = end_on_sigterm
        self._sigterm = EndedBySigterm(end_on_sigterm)
        self._birthplace: Birthplace | None = None
        """The process in which this object runs or has run; ``None`` before the run."""

    def _require_here(self) -> None:
        """Refuse the use of this object in a forked child. A child has no threads, and may have locks that stay held.

        Raises:
            ForkedError: this process is a forked child of the process in which the object runs.
        """
        if self._birthplace is not None:
            self._birthplace.require(f"the {type(self).__name__}")

    @property
    def is_stopping(self) -> bool:
        """Whether the object was asked to end. Usable from any thread."""
        return self._stop.is_set()

    @property
    def liveness(self) -> WorkerHealth:
        """Whether every owner thread has made a turn within the last 10 s. If not, only a restart of the process helps.

        Usable from any thread. An outage of the service does not change this value. After this object has ended, the
        value is healthy, because a process that ends in order must not be killed.
        """
        self._require_here()
        loops = {} if self._ended.is_set() else self._owner_loops()
        still = {name: loop.still_seconds for name, loop in loops.items()}
        stuck = [
            f"the owner thread of {name} has made no turn for {s:.0f} s"
            for name, s in still.items()
            if s > STUCK_SECONDS
        ]
        return WorkerHealth(not stuck, "; ".join(stuck))

    def _lifecycle(self) -> Lifecycle:
        self._require_here()
        return Lifecycle(
            has_begun=self._birthplace is not None,
            is_stopping=self._stop.is_set(),
            has_ended=self._ended.is_set(),
            has_failed=self._has_failed(),
        )

    def wait(self, timeout: float | None = None, *, until: Callable[[], bool] | None = None) -> bool:
        """Wait until this object has ended or ``until`` returns true. Do not call ``wait`` in the object's own thread.

        If the object ends before ``until`` returns true, the wait ends as well.

        Args:
            timeout: the longest wait in seconds; ``None`` for no limit.
            until: the condition to wait for, for example ``event.is_set``; called in this thread about twenty times a
                second.

        Returns:
            Whether ``until`` has returned true; without ``until``, whether the object has ended.

        Raises:
            ConfigurationError: ``until`` is async or a generator.
            StreamClientError: the same error as from ``run``, if the object has failed and ``until`` has not returned
                true.
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
        """Run the object in a thread of its own.

        Raises:
            StreamClientException: the object has already run, or was shut down.
        """
        self._require_here()
        sigterm = EndedBySigterm(self._ends_on_sigterm).__enter__()
        try:
            self._begin_in_thread()
        except BaseException as error:
            try:
                if not isinstance(error, Exception):  # a signal, which may have come after the thread had begun
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
        """Shut the object down. If the object has failed, raise its error as ``run`` does.

        If the block itself raises an error, the error of the object is not raised.
        """
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
        """Start the thread in which the object runs."""

    @abstractmethod
    def _end_thread(self) -> None:
        """Shut the object down, and wait for its thread as long as a shutdown may take."""

    @abstractmethod
    def _owner_loops(self) -> Mapping[str, OwnerLoop]:
        """Return the loops of the present owner threads. The keys are the names of their streams or tunnels."""

    @abstractmethod
    def _has_failed(self) -> bool:
        """Return whether an error has ended the object or a part of it, such as one stream."""

    @abstractmethod
    def _raise_failure(self) -> None:
        """Raise the error that made this object fail, if there is an error."""
