"""One worker that a loop consumes: its beginning, the batches that are out, and its end.

A *consumption* holds no reference to the loop's object, so that the program can drop that. A thread of its own runs the
worker, and looks whether a loop is left that takes batches: with the object dropped, its thread ended or its event loop
closed, the worker stops and its leases are handed over.
"""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Protocol

from streamclient.base.pools import DaemonPool, start_thread
from streamclient.base.processes import Birthplace
from streamclient.config import ClientConfig
from streamclient.errors import StreamClientException
from streamclient.loops.line import Line
from streamclient.loops.line_receiver import HandedBatch, LineReceivers
from streamclient.worker.handing_over import ProcessorMaker, ReceiverFactory
from streamclient.worker.handlers.batches import Commit
from streamclient.worker.running import EXIT_CODE_OF_SIGTERM, EndedBySigterm, wait_awake
from streamclient.worker.worker import SHUTDOWN_GRACE_SECONDS

LOOK_SECONDS = 0.2
"""Interval at which the thread of a consumption looks whether a loop is left."""

USER_THREADS = 2
"""Threads for the little user code that a worker of a loop calls by itself: retry strategies and parking stores."""

ATEXIT_SECONDS = 5.0
"""The time at the end of the process for all workers of loops to hand their leases over."""


class ConsumingWorker(Protocol):
    """The part of a worker that a loop needs; a ``Worker`` has it, and so has a ``TunnelWorker``."""

    @property
    def is_stopping(self) -> bool:
        """Whether it was asked to end."""

    def use_processors(self, make: ProcessorMaker, executor: Executor | None = None) -> None:
        """Replace what makes the processors and, if given, what runs them; only before it runs."""

    def run(self) -> None:
        """Consume until it is shut down."""

    def shutdown(self, wait: bool = True) -> bool:
        """Ask it to end; return whether it has ended."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it has ended; return whether it has."""

    def __enter__(self) -> Any:
        """Run it in a thread of its own."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End it, and raise the error with which it failed."""


class NotedSigterm(EndedBySigterm):
    """While the main thread is inside, SIGTERM raises nothing, and every object of this kind has it noted.

    Once the loops of all of them are over, the signal ends the program again.
    """

    has_come = is_over = False

    def _noted(self) -> SystemExit | None:
        noted = [each for each in self._inside if isinstance(each, NotedSigterm) and not each.is_over]
        for each in noted:
            each.has_come = True
        return None if noted else SystemExit(EXIT_CODE_OF_SIGTERM)


class Consumption:
    """A worker with the line of its batches. Usable from any thread, except where a method says otherwise."""

    def __init__(
        self,
        name: str,
        make_worker: Callable[[LineReceivers, DaemonPool], ConsumingWorker],
        config: ClientConfig,
        commit: Commit,
    ) -> None:
        """``make_worker`` is called once, when the worker is needed first; ``name`` is that of its threads."""
        self.commit: Commit = commit
        self.config = config
        self.line: Line[HandedBatch] = Line[HandedBatch]()
        self.ended: threading.Event = threading.Event()
        """Set when the worker has ended, or will never begin."""
        self.failure: BaseException | None = None
        """The error with which the worker ended. It is complete when ``ended`` is set."""
        self._name = name
        self._make_worker = make_worker
        self._receivers = LineReceivers(self.line, commit)
        self._threads = DaemonPool(f"{name}-user", USER_THREADS)
        self._making, self._lock = threading.Lock(), threading.RLock()
        self._worker: ConsumingWorker | None = None
        self._birthplace = Birthplace()
        self._is_begun = self._is_dropped = self._begins_again = self._runs_functions = False
        self._is_alive: Callable[[], bool] = lambda: True
        self._sigterm = EndedBySigterm(False)
        self._when_ended: list[Callable[[], object]] = []

    # --- the worker ----------------------------------------------------------------------------------------------

    @property
    def worker(self) -> ConsumingWorker:
        """The worker; for a tunnel, its first use may ask the service for the tunnel.

        Raises:
            ConfigurationError: the tunnel does not exist.
        """
        with self._making:
            if self._worker is None:
                self._worker = self._make_worker(self._receivers, self._threads)
            return self._worker

    @property
    def is_begun(self) -> bool:
        """Whether the worker runs, or ran."""
        return self._is_begun

    @property
    def is_stopping(self) -> bool:
        """Whether the loop was closed, or the worker was shut down."""
        return self._receivers.is_stopped or (self._worker is not None and self._worker.is_stopping)

    @property
    def is_here(self) -> bool:
        """Whether this is the process where this was made, and not a child of it."""
        return self._birthplace.is_here

    def require_here(self) -> None:
        """Raise ``ForkedError`` in a child of the process where this was made."""
        self._birthplace.require("a loop over changes")

    def begin(
        self, is_alive: Callable[[], bool], sigterm: EndedBySigterm, receivers: ReceiverFactory | None = None
    ) -> None:
        """Run the worker in a thread of its own.

        Args:
            is_alive: returns whether the consumer can still take batches; called in that thread several times a second.
            sigterm: entered here, in the consumer's thread; if it is a ``NotedSigterm``, the signal stops the worker.
            receivers: take the batches instead of the line.

        Raises:
            StreamClientException: it was begun or closed before; or the system refused the thread.
        """
        self._begin_once()
        self._is_alive, self._sigterm = is_alive, sigterm.__enter__()
        try:
            start_thread(lambda: self._run(receivers), f"{self._name}-loop")
        except BaseException as error:
            self._has_ended(error)
            self.end_sigterm(error)
            raise

    def run(self, make: ProcessorMaker, threads: int) -> None:
        """Run the worker in the calling thread, with the processors that ``make`` makes in ``threads`` threads.

        Raises:
            WorkerFailedError: the worker failed.
            StreamClientException: it was begun or closed before.
        """
        self._begin_once()
        self._runs_functions = True
        pool = DaemonPool(f"{self._name}-handler", threads)
        try:
            self.worker.use_processors(make, pool)
            self.worker.run()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            self._has_ended(None)

    def stop(self) -> None:
        """Ask the worker to stop, and take nothing out of the line any more; return soon."""
        with self._lock:
            self._receivers.is_stopped = True
            if self._worker is not None:
                self._worker.shutdown(wait=False)
            if not self._is_begun:
                self.ended.set()
                self.line.end()
        self._drain()

    def drop(self) -> None:
        """Have the worker stopped soon. This locks nothing: a collection of garbage may call it anywhere."""
        self._is_dropped = True
        self._sigterm.leave()

    def give_up(self) -> None:
        """Ask the worker to stop, and leave the batch that is out."""
        self.stop()
        self.leave()

    def wait(self) -> bool:
        """Wait for the worker's end, as long as a shutdown may take; return whether it has ended.

        Within a handler of ``run`` it does not wait.
        """
        if self._runs_functions:
            return self.worker.shutdown()
        limit = self.config.shutdown_timeout_millis / 1_000 + 3 * SHUTDOWN_GRACE_SECONDS
        return wait_awake(self.ended, limit)

    def wakes_when_ended(self, wake: Callable[[], object]) -> bool:
        """Have ``wake`` called in another thread once the worker has ended; return ``False`` if it has ended."""
        with self._lock:
            if self.ended.is_set():
                return False
            self._when_ended.append(wake)
            return True

    def raise_failure(self) -> None:
        """Raise the error with which the worker ended, if there is one."""
        if self.failure is not None:
            raise self.failure

    def defer_sigterm(self) -> None:
        """Let a SIGTERM that comes from now on wait until ``end_sigterm``."""
        self._sigterm.defer()

    def end_sigterm(self, error: BaseException | None) -> None:
        """Handle SIGTERM no longer; raise ``SystemExit`` if it came while the loop ended without an error.

        Does nothing in a thread that gets no signals.
        """
        if threading.current_thread() is not threading.main_thread():
            return
        sigterm, self._sigterm = self._sigterm, EndedBySigterm(False)
        sigterm.__exit__(None if error is None else type(error), error, None)

    # --- the consumer's thread -----------------------------------------------------------------------------------

    def begin_again(self) -> None:
        """Let the next turn begin with the batch that is out, if any: an earlier loop left it."""
        self._begins_again = self.line.out is not None

    def turn(self) -> HandedBatch | None:
        """Settle the batch that is out, whose body ended; return it if a new loop begins with it."""
        delivery, begins_again, self._begins_again = self.line.out, self._begins_again, False
        if delivery is None:
            return None
        if begins_again and delivery.is_worth_repeating:
            return delivery
        if begins_again:
            delivery.leave()
        else:
            delivery.end_turn()
        self.line.out = None
        return None

    def take(self) -> HandedBatch | None:
        """Take the next batch out of the line; ``None`` if none waits, or none is taken any more."""
        if self.is_stopping:
            self._drain()
            return None
        return self.line.take()

    def leave(self) -> None:
        """Give the batch back that is out, if any. Usable from any thread once no loop takes batches any more."""
        with self._lock:
            delivery, self.line.out = self.line.out, None
        if delivery is not None:
            delivery.leave()

    # --- its own thread ------------------------------------------------------------------------------------------

    def _begin_once(self) -> None:
        self.require_here()
        with self._lock:
            if self._is_begun or self.is_stopping:
                raise StreamClientException(
                    "these changes were iterated, run or closed before, and that works once; call changes() again"
                )
            self._is_begun = True
            _open.add(self)

    def _run(self, receivers: ReceiverFactory | None) -> None:
        failure: BaseException | None = None
        try:
            with ExitStack() as stack:
                worker = self.worker
                if receivers is not None:
                    worker.use_processors(receivers)
                with self._lock:
                    is_wanted = not self._receivers.is_stopped
                    if is_wanted:
                        stack.enter_context(worker)
                if is_wanted:
                    self._watch(worker)
        except BaseException as error:
            failure = error
        self._has_ended(failure)

    def _watch(self, worker: ConsumingWorker) -> None:
        """Return once the worker has ended, or no loop is left."""
        while not worker.wait(LOOK_SECONDS):
            if self._is_dropped or not self._is_alive():
                self._sigterm.leave()
                self.give_up()
                return
            if isinstance(self._sigterm, NotedSigterm) and self._sigterm.has_come:
                self.stop()

    def _has_ended(self, failure: BaseException | None) -> None:
        if isinstance(self._sigterm, NotedSigterm):
            self._sigterm.is_over = True
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._drain()
        with self._lock:
            self.failure = failure
            self.ended.set()
            sleepers = list(self._when_ended)
        _open.discard(self)
        self.line.end()
        for wake in sleepers:
            wake()

    def _drain(self) -> None:
        """Empty the line. The owners take batches back by themselves, but not the end of a shard."""
        for delivery in self.line.drain():
            delivery.refuse_end()


_open: set[Consumption] = set()
"""The consumptions that run in this process."""


def _close_open() -> None:
    """Stop everything that runs, in a few seconds at most; leases that are not handed over then expire."""
    closing = [consumption for consumption in list(_open) if consumption.is_here]
    for consumption in closing:
        consumption.give_up()
    give_up_at = time.monotonic() + ATEXIT_SECONDS
    for consumption in closing:
        consumption.ended.wait(max(0.0, give_up_at - time.monotonic()))


# At the end of the process all finalizers run together, after what is registered later than the first of them. Those of
# kept connections must find no worker that opens new ones.
weakref.finalize(_close_open, _open.clear)
atexit.register(_close_open)
