"""Loops over batches of changes in one thread, and handlers of batches or records; see ``streamclient.changes``."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TypeVar

from streamclient.base import checks
from streamclient.errors import ConfigurationError, StreamClientException
from streamclient.loops.consumption import BY_HAND, Consumption, LoopMark
from streamclient.records import StreamRecord
from streamclient.worker.handlers.batches import Batch, Key, RecordProcessorFactory
from streamclient.worker.handlers.handler_processor import processor_maker
from streamclient.worker.keyed.keyed_factory import KeyedProcessorFactory
from streamclient.worker.keyed.keyed_settings import primary_key
from streamclient.worker.running import EndedBySigterm, wait_awake

Self = TypeVar("Self", bound="Loop")


class LoopBase:
    """The base class of loops in a thread and of loops in an event loop."""

    def __init__(self, consumption: Consumption) -> None:
        """Make the loop of ``consumption``. Programs call ``streamclient.changes`` or ``streamclient.aio.changes``."""
        self._consumption = consumption
        weakref.finalize(self, consumption.drop).atexit = False

    def require_turns(self) -> None:
        """Require ``commit="turn"`` for ``each``, because the handler of ``each`` gets no batch that it could commit.

        Raises:
            ConfigurationError: ``commit`` is explicit.
        """
        if self._consumption.commit != "turn":
            raise ConfigurationError(
                'commit="explicit" does not go with each(), which stores positions itself; use run() or a loop'
            )


class Loop(LoopBase, Iterator[Batch]):
    """A loop over batches in one thread. A program that calls ``run`` or ``each`` needs no loop statement.

    ``run`` calls a handler for each batch, and ``each`` calls a handler for each record.

    ``streamclient.Changes`` adds the worker.
    """

    _thread: threading.Thread | None = None

    def __iter__(self) -> Iterator[Batch]:
        """Begin a loop. If an earlier loop over this object left a batch, that batch comes first.

        The iterator belongs to one ``for`` statement. The statement drops the iterator at its end, which shows that the
        loop is over.
        """
        self._consumption.begin_again()
        return LoopIterator(self)

    def __next__(self) -> Batch:
        """Settle the previous batch, because the loop's body has ended, and wait for the next batch.

        Raises:
            StopIteration: the object was closed, or the worker was shut down.
            WorkerFailedError: the worker failed.
            StreamClientException: another thread iterates this object, or ``run`` or ``each`` was called.
            ForkedError: this process is a forked child of the process that made the object.
        """
        return self._turn(BY_HAND)

    def _turn(self, mark: LoopMark) -> Batch:
        """Return the next batch for the loop that ``mark`` belongs to."""
        me, inside = threading.get_ident(), self._consumption.inside
        try:
            inside.add(me)
            return self._next(mark)
        finally:
            inside.discard(me)

    def _next(self, mark: LoopMark) -> Batch:
        """Do the work of ``_turn``."""
        consumption = self._consumption
        self._enter()
        consumption.turn_begins(mark)
        delivery = consumption.turn() or consumption.take()
        while delivery is None:
            if consumption.line.has_ended:
                consumption.end_sigterm(None)
                consumption.raise_failure()
                raise StopIteration
            bell = threading.Event()
            if consumption.line.sleep(bell.set):
                wait_awake(bell)
            delivery = consumption.take()
        return delivery.batch()

    def run(self, handler: Callable[[Batch], None] | RecordProcessorFactory, *, concurrency: int = 32) -> None:
        """Call a function or processors for each batch until ``close()``. Many shards are handled at the same time.

        The method works like ``Worker.run`` in this thread. A batch is committed when the handler returns. If commits
        are explicit, the handler commits the batch itself. An exception of the handler concerns only the shard of the
        batch: ``ClientConfig.failure_policy`` decides the next step.

        Args:
            handler: a function that takes one batch, or any factory that ``Worker`` takes.
            concurrency: the largest number of calls at the same time; further shards wait until a call has ended.

        Raises:
            ConfigurationError: an argument is invalid; no worker was started.
            WorkerFailedError: the worker failed.
            StreamClientException: the object was already used or closed.
        """
        checks.positive.require("concurrency", concurrency)
        self._consumption.run(processor_maker("handler", handler, self._consumption.commit), concurrency)

    def each(self, handler: Callable[[StreamRecord], object], *, concurrency: int = 16, key: Key | None = None) -> None:
        """Give each record to ``handler`` until ``close()``. The records of one key are handled in order.

        The method works like ``run`` with a ``KeyedProcessorFactory``: a position is stored once all records before it
        are done.

        Args:
            handler: a function that does the work for one record, called in one of ``concurrency`` threads.
            concurrency: the largest number of records that are processed at the same time, over all shards.
            key: returns the key within which records stay in order; by default the primary key.

        Raises:
            ConfigurationError: an argument is invalid, or commits are explicit; no worker was started.
            WorkerFailedError: the worker failed.
            StreamClientException: the object was already used or closed.
        """
        self.require_turns()
        checks.positive.require("concurrency", concurrency)
        factory = KeyedProcessorFactory(handler, threads=concurrency, key=key or primary_key)
        self._consumption.run(factory.create_processor, concurrency)

    def close(self) -> None:
        """Stop the worker, and return when its leases are handed over.

        Usable from any thread; a second call is harmless. The call takes at most about as long as ``Worker.shutdown``.

        If another thread runs the loop, the loop ends after the present iteration. If the loop's own thread calls
        ``close``, or if ``break`` or an exception has ended the loop, the present batch is given back. Its position is
        stored only if the batch was already committed.

        In two cases, the call only asks for the end, and returns immediately: if a function of ``run`` or ``each``
        calls ``close``, or if a signal handler calls it while this thread waits for a batch or takes one. In the second
        case, the loop ends after the body of a batch that it has already taken.
        """
        self._close(None)

    def __enter__(self: Self) -> Self:  # noqa: PYI019
        """Do nothing; the worker begins when the loop begins."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the object; raise the error that made the worker fail, unless the block itself raises."""
        self._close(error)
        if error is None:
            self._consumption.raise_failure()

    def _enter(self) -> None:
        """Start the worker at the first call; refuse later calls from any other thread."""
        consumption, thread = self._consumption, threading.current_thread()
        consumption.require_here()
        if self._thread is None and not consumption.ended.is_set():
            try:
                consumption.begin(thread.is_alive, EndedBySigterm(consumption.config.end_on_sigterm))
            except StreamClientException:
                if not consumption.end_unbegun():
                    raise
            else:
                self._thread = thread
        elif self._thread is not None and self._thread is not thread:
            raise StreamClientException(
                f"thread {thread.name} takes a batch, but these changes are iterated in thread {self._thread.name}; "
                "call changes() in each thread that takes batches"
            )

    def _close(self, error: BaseException | None) -> None:
        consumption, me = self._consumption, threading.get_ident()
        consumption.require_here()
        if me in consumption.inside:  # a signal handler
            consumption.stop_soon()
            return
        try:
            consumption.inside.add(me)
            self._end(error)
        finally:
            consumption.inside.discard(me)

    def _end(self, error: BaseException | None) -> None:
        """Do the work of ``_close``, which is not under way in this thread."""
        consumption, thread = self._consumption, self._thread
        is_here = thread is None or thread is threading.current_thread() or not thread.is_alive()
        if is_here:
            consumption.defer_sigterm()
        consumption.stop()
        if is_here:
            consumption.leave()
        else:
            consumption.leave_if_over()
        consumption.wait()
        if is_here:
            consumption.end_sigterm(error)


class LoopIterator(Iterator[Batch]):
    """The iterator of one ``for`` statement.

    Python deletes the iterator when the statement ends, even after ``break`` or an error.
    """

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._mark = LoopMark()

    def __next__(self) -> Batch:
        """Return the next batch. Errors are the same as in ``Loop.__next__``."""
        return self._loop._turn(self._mark)

    def __del__(self) -> None:
        self._mark.is_over = True
