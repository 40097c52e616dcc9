"""The worker of one loop over changes, from its start to its end, and the batch that the loop has taken.

A *consumption* holds no reference to the object that the program iterates, so Python can delete that object. The
consumption's own thread runs the worker, and checks regularly whether the loop can still take batches. The thread stops
the worker if the object was deleted, the loop's thread has ended, or the event loop is closed. The worker then hands
its leases over.
"""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import ExitStack
from contextvars import ContextVar
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
"""The interval, in seconds, at which a consumption's thread checks whether the loop can still take batches."""

USER_THREADS = 2
"""The number of threads for user code other than the body of a loop: retry strategies and parking stores."""

ATEXIT_SECONDS = 5.0
"""The longest time, in seconds, that an ending process waits for the workers of all loops to hand over their leases."""

RUNS: ContextVar[frozenset[Consumption]] = ContextVar("RUNS", default=frozenset())
"""The consumptions whose ``run`` or ``each`` made the present task, or the task that started the present task."""


class ConsumingWorker(Protocol):
    """The methods of a worker that a loop needs; ``Worker`` and ``TunnelWorker`` have these methods."""

    @property
    def is_stopping(self) -> bool:
        """Whether the worker was asked to end."""

    def use_processors(self, make: ProcessorMaker, executor: Executor | None = None) -> None:
        """Replace the maker of processors and, if ``executor`` is given, the executor that runs the processors' calls.

        Only for use before the worker runs.
        """

    def run(self) -> None:
        """Run the worker until it is shut down."""

    def shutdown(self, wait: bool = True) -> bool:
        """Ask the worker to end; return whether it has ended."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the worker's end, at most ``timeout`` seconds if given; return whether the worker has ended."""

    def __enter__(self) -> Any:
        """Run the worker in a thread of its own."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the worker, and raise the error with which it failed."""


class NotedSigterm(EndedBySigterm):
    """A ``with`` block of the main thread in which SIGTERM raises no exception, but sets ``has_come``.

    Once ``is_over`` is set for all such blocks, a further SIGTERM raises ``SystemExit``.
    """

    has_come = is_over = False

    def _noted(self) -> SystemExit | None:
        noted = [each for each in self._inside if isinstance(each, NotedSigterm) and not each.is_over]
        for each in noted:
            each.has_come = True
        return None if noted else SystemExit(EXIT_CODE_OF_SIGTERM)


class LoopMark:
    """A mark of one loop, which says whether the loop is over.

    At the end of a ``for`` statement, Python deletes the statement's iterator, which then sets ``is_over``. From then
    on, the body of the loop never runs again.
    """

    is_over: bool = False
    """Whether the loop is over. It is set without a lock, because a garbage collection may set it at any point."""


BY_HAND = LoopMark()
"""The mark of callers that take batches by ``next``, without a loop. Nothing shows when such a caller is done with its
last batch, so ``is_over`` stays ``False``."""


class Consumption:
    """A worker and the line of batches for its loop. Usable from any thread, except where a method says otherwise."""

    def __init__(
        self,
        name: str,
        make_worker: Callable[[LineReceivers, DaemonPool], ConsumingWorker],
        config: ClientConfig,
        commit: Commit,
    ) -> None:
        """Keep ``make_worker``, which is called once, when the worker is first needed.

        The threads' names begin with ``name``.
        """
        self.commit: Commit = commit
        self.config = config
        self.line: Line[HandedBatch] = Line[HandedBatch]()
        self.ended: threading.Event = threading.Event()
        """An event that is set when the worker has ended, or when it will never begin."""
        self.failure: BaseException | None = None
        """The error with which the worker ended; ``None`` without an error. Valid once ``ended`` is set."""
        self._name = name
        self._make_worker = make_worker
        self._receivers = LineReceivers(self.line, commit)
        self.inside: set[int] = self._receivers.inside
        """See ``LineReceivers.inside``."""
        self._threads = DaemonPool(f"{name}-user", USER_THREADS)
        self._making, self._lock = threading.Lock(), threading.RLock()
        self._worker: ConsumingWorker | None = None
        self._birthplace = Birthplace()
        self._is_begun = self._is_dropped = self._begins_again = False
        self._runner: int | None = None
        """The id of the thread that is in ``run``, or was; ``None`` before."""
        self._present_loop = BY_HAND
        self._is_alive: Callable[[], bool] = lambda: True
        self._sigterm = EndedBySigterm(False)
        self._when_ended: list[Callable[[], object]] = []

    # --- the worker ----------------------------------------------------------------------------------------------

    @property
    def worker(self) -> ConsumingWorker:
        """The worker. The first use of this property makes the worker, and may ask the service for the tunnel, if any.

        Raises:
            ConfigurationError: the tunnel does not exist.
        """
        with self._making:
            if self._worker is None:
                self._worker = self._make_worker(self._receivers, self._threads)
            return self._worker

    @property
    def is_begun(self) -> bool:
        """Whether the worker runs, or has run."""
        return self._is_begun

    @property
    def is_stopping(self) -> bool:
        """Whether the loop was closed, or the worker was shut down."""
        return self._receivers.is_stopped or (self._worker is not None and self._worker.is_stopping)

    @property
    def is_here(self) -> bool:
        """Whether this process made the object. A forked child of that process did not."""
        return self._birthplace.is_here

    def require_here(self) -> None:
        """Raise ``ForkedError`` in a forked child of the process that made the object."""
        self._birthplace.require("a loop over changes")

    def begin(
        self, is_alive: Callable[[], bool], sigterm: EndedBySigterm, receivers: ReceiverFactory | None = None
    ) -> None:
        """Run the worker in a new thread.

        Args:
            is_alive: returns whether the loop can still take batches; called in the new thread several times a second.
            sigterm: the context manager that handles SIGTERM; the calling thread enters it. With a ``NotedSigterm``,
                the signal stops the worker.
            receivers: makes the objects that receive the batches of each shard; by default they put batches in line.

        Raises:
            StreamClientException: the consumption has already begun or is closed, or the system refused the thread.
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
        """Run the worker in the calling thread. Processors, made by ``make``, run in at most ``threads`` other threads.

        Raises:
            WorkerFailedError: the worker failed.
            StreamClientException: the consumption has already begun or is closed.
        """
        self._begin_once(threading.get_ident())
        pool = DaemonPool(f"{self._name}-handler", threads)
        try:
            worker = self.worker
            worker.use_processors(make, pool)
            if not self._receivers.is_stopped:  # a signal handler may close the loop while the worker is made
                worker.run()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            self._has_ended(None)

    def stop(self) -> None:
        """Ask the worker to stop, and give the loop no further batch; do not wait for the worker's end."""
        with self._lock:
            self._receivers.is_stopped = True
            if self._worker is not None:
                self._worker.shutdown(wait=False)
            if not self._is_begun:
                self.ended.set()
                self.line.end()
        self._drain()

    def stop_soon(self) -> None:
        """Make the consumption's own thread call ``stop``.

        The method takes no lock, because a signal handler may call it at any point.
        """
        self._receivers.is_stopped = True

    def end_unbegun(self) -> bool:
        """End a consumption that was stopped before it began, for example by ``shutdown`` of its worker.

        Return ``False``, and do nothing, if the consumption has begun or is not stopped.
        """
        with self._lock:
            is_unbegun = self.is_stopping and not self._is_begun
            if is_unbegun:
                self.stop()
            return is_unbegun

    def drop(self) -> None:
        """Make the worker stop soon. The method takes no lock, because garbage collection may call it at any point."""
        self._is_dropped = True
        self._sigterm.leave()

    def give_up(self) -> None:
        """Ask the worker to stop, and give back the batch that the loop has taken, if any."""
        self.stop()
        self.leave()

    def wait(self) -> bool:
        """Wait for the worker's end, at most as long as a shutdown may take; return whether the worker has ended.

        If a handler of ``run`` calls this method, the call returns without waiting. The same holds for a signal handler
        in the thread of ``run``.
        """
        worker = self._worker
        if self._runner is not None and worker is not None:
            return self.ended.is_set() or worker.shutdown()
        if self._runner == threading.get_ident():
            return self.ended.is_set()
        limit = self.config.shutdown_timeout_millis / 1_000 + 3 * SHUTDOWN_GRACE_SECONDS
        return wait_awake(self.ended, limit)

    def wakes_when_ended(self, wake: Callable[[], object]) -> bool:
        """Arrange that another thread calls ``wake`` at the worker's end; return ``False`` if the worker has ended."""
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
        """Delay each SIGTERM from now on until ``end_sigterm``; until then, the signal raises no exception."""
        self._sigterm.defer()

    def end_sigterm(self, error: BaseException | None) -> None:
        """Stop handling SIGTERM; raise ``SystemExit`` if a SIGTERM was delayed and ``error`` is ``None``.

        In a thread other than the main thread, the method does nothing.
        """
        if threading.current_thread() is not threading.main_thread():
            return
        sigterm, self._sigterm = self._sigterm, EndedBySigterm(False)
        sigterm.__exit__(None if error is None else type(error), error, None)

    def leave_if_over(self) -> None:
        """Give back the batch that the loop has taken, if that loop is over. Usable from any thread, after ``stop``."""
        with self._lock:
            if not self._present_loop.is_over:
                return
            delivery, self.line.out = self.line.out, None
        if delivery is not None:
            delivery.leave()

    # --- the loop's thread ---------------------------------------------------------------------------------------

    def turn_begins(self, loop: LoopMark) -> None:
        """Record that ``loop`` asks for a batch.

        A loop that asks for a batch is not over, so ``leave_if_over`` takes no batch from it.
        """
        if self._present_loop is not loop:
            with self._lock:
                self._present_loop = loop

    def begin_again(self) -> None:
        """Let the loop begin with the batch that an earlier loop took and did not finish, if there is one."""
        self._begins_again = self.line.out is not None

    def turn(self) -> HandedBatch | None:
        """Settle the batch that the loop has taken, because the loop's body has ended.

        If a new loop has to begin with that batch, return the batch, and do not settle it.
        """
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
        """Take the next batch out of the line; return ``None`` if no batch waits, or if the consumption was stopped."""
        if self.is_stopping:
            self._drain()
            return None
        return self.line.take()

    def leave(self) -> None:
        """Give back the batch that the loop has taken, if any.

        Usable from any thread once no loop takes batches any more.
        """
        with self._lock:
            delivery, self.line.out = self.line.out, None
        if delivery is not None:
            delivery.leave()

    # --- the consumption's own thread ---------------------------------------------------------------------------------

    def _begin_once(self, runner: int | None = None) -> None:
        self.require_here()
        with self._lock:
            if self._is_begun or self.is_stopping:
                raise StreamClientException(
                    "these changes were already iterated, run, closed or shut down, which works only once; "
                    "call changes() again"
                )
            self._runner, self._is_begun = runner, True
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
        """Return once the worker has ended, or once no loop can take batches any more."""
        while not worker.wait(LOOK_SECONDS):
            if self._is_dropped or not self._is_alive():
                self._sigterm.leave()
                self.give_up()
                return
            if self._receivers.is_stopped and not worker.is_stopping:
                self.stop()
            if self.is_stopping:
                self.leave_if_over()
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
        """Empty the line. For each shard end that waited in the line, finish the worker's ``shutdown`` call.

        This method does not give waiting batches back, because the owner threads take them back.
        """
        for delivery in self.line.drain():
            delivery.refuse_end()


_open: set[Consumption] = set()
"""The consumptions that run in this process."""


def _close_open() -> None:
    """Stop all consumptions of this process, in a few seconds at most. Leases that are not handed over will expire."""
    closing = [consumption for consumption in list(_open) if consumption.is_here]
    for consumption in closing:
        consumption.give_up()
    give_up_at = time.monotonic() + ATEXIT_SECONDS
    for consumption in closing:
        consumption.ended.wait(max(0.0, give_up_at - time.monotonic()))


# The finalizer is made first, so that an ending process stops the workers before it runs any finalizer. Otherwise the
# workers could open new connections after the finalizers have closed the kept connections.
weakref.finalize(_close_open, _open.clear)
atexit.register(_close_open)
