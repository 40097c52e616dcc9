"""``streamclient.changes``: the changes of tables as batches of a plain loop, or for functions."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, TypeVar

from streamclient.base import checks
from streamclient.config import ClientConfig
from streamclient.errors import ConfigurationError, StreamClientException
from streamclient.loops.consumption import Consumption
from streamclient.loops.loop_options import consumption_of
from streamclient.model import InitialPosition
from streamclient.records import StreamRecord
from streamclient.tunnel.tunnel_worker import TunnelWorker
from streamclient.worker.handlers.batches import Batch, Commit, Key, RecordProcessorFactory
from streamclient.worker.handlers.handler_processor import processor_maker
from streamclient.worker.keyed.keyed_factory import KeyedProcessorFactory
from streamclient.worker.keyed.keyed_settings import primary_key
from streamclient.worker.running import EndedBySigterm, wait_awake
from streamclient.worker.worker import Worker

Self = TypeVar("Self", bound="Changes")


class ChangesBase:
    """The common part of loops in threads and loops in event loops."""

    def __init__(self, consumption: Consumption) -> None:
        """``streamclient.changes`` and ``streamclient.aio.changes`` make these objects."""
        self._consumption = consumption
        weakref.finalize(self, consumption.drop).atexit = False

    @property
    def worker(self) -> Worker:
        """The worker: its statuses and health, ``pause``, ``accept_loss``. Usable from any thread.

        Raises:
            StreamClientException: these are the changes of a tunnel; see ``tunnel_worker``.
        """
        worker = self._consumption.worker
        if not isinstance(worker, Worker):
            raise StreamClientException("the changes of a tunnel have a tunnel_worker, not a worker")
        return worker

    @property
    def tunnel_worker(self) -> TunnelWorker:
        """The worker of a tunnel. Its first use, if before the loop, asks the service for the tunnel.

        Raises:
            ConfigurationError: the tunnel does not exist.
            StreamClientException: these are the changes of tables; see ``worker``.
        """
        worker = self._consumption.worker
        if not isinstance(worker, TunnelWorker):
            raise StreamClientException("the changes of tables have a worker, not a tunnel_worker")
        return worker

    def require_turns(self) -> None:
        """Refuse explicit commits for ``each``, which gives out no batches.

        Raises:
            ConfigurationError: ``commit`` is explicit.
        """
        if self._consumption.commit != "turn":
            raise ConfigurationError(
                'commit="explicit" does not go with each, which stores positions by itself; use run or a loop'
            )


class Changes(ChangesBase, Iterator[Batch]):
    """The changes of tables, batch by batch; ``streamclient.changes`` makes it.

    Iterate it, in one thread, or call ``run`` or ``each``; one of them, and once. As a context manager it is closed at
    the end of the block.

    In a loop, the next turn commits the batch whose body ended, without waiting for the answer. With
    ``commit="explicit"`` the next turn stores nothing, and ``batch.commit()`` stores everything up to its batch. A
    batch whose body did not end, by ``break``, ``return`` or an exception, is left: nothing of it is stored, and a loop
    over the same object begins with it again. A shard gives one batch at a time, so its records come in order.

    A loop ends after ``close()`` or ``worker.shutdown()``. While the program's main thread is in a loop, SIGTERM raises
    ``SystemExit(143)`` there; see ``ClientConfig.end_on_sigterm``. An object that is dropped, or whose thread has
    ended, stops its worker within a second.
    """

    _thread: threading.Thread | None = None

    def __iter__(self: Self) -> Self:  # noqa: PYI019  # typing.Self came with Python 3.11
        """Begin a loop: first comes the batch that an earlier loop over this object left, if any."""
        self._consumption.begin_again()
        return self

    def __next__(self) -> Batch:
        """Settle the batch that is out, and wait for the next one.

        Raises:
            StopIteration: the object was closed, or the worker was shut down.
            WorkerFailedError: the worker failed.
            StreamClientException: another thread has begun, or the object was used up by ``run`` or ``each``.
            ForkedError: this is a child of the process where the object was made.
        """
        consumption = self._consumption
        self._enter()
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
        """Give the batches to a function or to processors, many shards at a time, until ``close()``.

        As ``Worker.run`` in this thread. A batch whose handler returns is committed, unless commits are explicit. An
        exception of the handler concerns its shard alone: ``ClientConfig.failure_policy`` decides.

        Args:
            handler: a function of one batch, or what ``Worker`` takes as its factory.
            concurrency: most calls at once; further shards wait for their turn.

        Raises:
            ConfigurationError: an argument cannot work; nothing has happened yet.
            WorkerFailedError: the worker failed.
            StreamClientException: the object was used or closed before.
        """
        checks.positive.require("concurrency", concurrency)
        self._consumption.run(processor_maker("handler", handler, self._consumption.commit), concurrency)

    def each(self, handler: Callable[[StreamRecord], object], *, concurrency: int = 16, key: Key | None = None) -> None:
        """Give the records one by one to a function, those of one key in order, until ``close()``.

        As ``KeyedProcessorFactory`` in ``run``: positions are stored once all records before them are done.

        Args:
            handler: does the work for one record, in one of ``concurrency`` threads.
            concurrency: most records under way at once, over all shards.
            key: returns the key within which records stay in order; by default the primary key.

        Raises:
            ConfigurationError: an argument cannot work, or commits are explicit; nothing has happened yet.
            WorkerFailedError: the worker failed.
            StreamClientException: the object was used or closed before.
        """
        self.require_turns()
        checks.positive.require("concurrency", concurrency)
        factory = KeyedProcessorFactory(handler, threads=concurrency, key=key or primary_key)
        self._consumption.run(factory.create_processor, concurrency)

    def close(self) -> None:
        """Stop the worker, and return when its leases are handed over.

        Usable from any thread; a second call is harmless. A loop in another thread ends after its present body. In the
        loop's own thread the batch that is out is left, so nothing of it is stored unless it was committed. The call
        takes at most about as long as ``Worker.shutdown``.
        """
        self._close(None)

    def __enter__(self: Self) -> Self:  # noqa: PYI019
        """Do nothing; the worker begins with the loop."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close; raise the error that made the worker fail, unless the block itself raises."""
        self._close(error)
        if error is None:
            self._consumption.raise_failure()

    def _enter(self) -> None:
        """Begin with the first call; refuse other threads."""
        consumption, thread = self._consumption, threading.current_thread()
        consumption.require_here()
        if self._thread is None and not consumption.ended.is_set():
            consumption.begin(thread.is_alive, EndedBySigterm(consumption.config.end_on_sigterm))
            self._thread = thread
        elif self._thread is not None and self._thread is not thread:
            raise StreamClientException(
                f"thread {thread.name} takes a batch, but these changes are iterated in thread {self._thread.name}; "
                "call changes() in each thread that needs some"
            )

    def _close(self, error: BaseException | None) -> None:
        consumption = self._consumption
        consumption.require_here()
        thread = self._thread
        is_here = thread is None or thread is threading.current_thread() or not thread.is_alive()
        if is_here:
            consumption.defer_sigterm()
        consumption.stop()
        if is_here:
            consumption.leave()
        consumption.wait()
        if is_here:
            consumption.end_sigterm(error)


@checks.explains_names
def changes(
    table: str | Sequence[str] | None = None,
    *,
    group: str | None = None,
    tunnel: str | None = None,
    commit: Commit = "turn",
    client: Any = None,
    status_table: str | None = None,
    worker: str | None = None,
    initial_position: InitialPosition | str = "oldest",
    max_records: int = 1_000,
    config: ClientConfig | None = None,
) -> Changes:
    """Return the changes of one or more tables, to be iterated or given to functions. This calls no service.

    All processes with the same ``group`` share the shards of the tables; each process needs its own ``worker`` name.

    Args:
        table: name of the data table, or names of several. With ``tunnel`` it may be left out.
        group: name of the consuming application; needed without ``tunnel``.
        tunnel: name or id of a tunnel, in place of a group: first come the rows of today, if the tunnel has them, then
            what changes. The service keeps the positions, so ``status_table``, ``initial_position`` and ``max_records``
            do not apply.
        commit: when positions are stored: ``"turn"`` when a batch's body or handler ends, or ``"explicit"`` only by
            ``batch.commit()``.
        client: a ``tablestore.OTSClient``; by default one for the instance in the environment, as for every command.
        status_table: table of the leases; by default ``<table>_<group>``. To be given for several tables.
        worker: name of this worker, unique among all that run; by default a new one.
        initial_position: start of shards without a stored position: ``"oldest"``, ``"latest"`` or an
            ``InitialPosition``.
        max_records: most records of a batch.
        config: settings of the worker, taken as they are; by default few threads, whatever the number of shards.

    Raises:
        ConfigurationError: an argument, or a variable of the environment, cannot work; nothing has happened yet.
    """
    return Changes(
        consumption_of(
            table,
            group=group,
            tunnel=tunnel,
            commit=commit,
            client=client,
            status_table=status_table,
            worker=worker,
            initial_position=initial_position,
            max_records=max_records,
            config=config,
        )
    )
