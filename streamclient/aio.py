"""Changes in an event loop, with ``async for``, with coroutines as handlers, or with async processors."""

from collections.abc import Sequence
from typing import Any

from streamclient._changes import WithWorker, consumption_of
from streamclient.base import checks
from streamclient.config import ClientConfig
from streamclient.loops.aio.async_iterating import AsyncLoop
from streamclient.model import InitialPosition
from streamclient.tunnel.tunnel_config import TunnelWorkerConfig
from streamclient.worker.handlers.batches import AsyncBatch, AsyncRecordProcessor, Commit

__all__ = ["AsyncBatch", "AsyncChanges", "AsyncRecordProcessor", "changes"]


class AsyncChanges(WithWorker, AsyncLoop):
    """The changes of tables or of a tunnel, batch by batch, in an event loop; made by ``streamclient.aio.changes``.

    The object works like ``streamclient.Changes``, with ``async for`` and ``await``. Use an object in one way: iterate
    it in one event loop, by one task at a time, or await ``run`` once, or await ``each`` once. The worker reads, renews
    leases and stores checkpoints in its own threads, so a body that blocks the event loop costs no lease.

    Cancellation loses no records. If a wait for a batch is cancelled, no batch is taken. If a body is cancelled, its
    batch is not committed. SIGTERM ends the loop after its present body, unless the program handles that signal. If the
    program drops the object, or closes the event loop, the worker stops within a second.
    """


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
    config: ClientConfig | TunnelWorkerConfig | None = None,
) -> AsyncChanges:
    """Return the changes of one or more tables, to be iterated in an event loop or given to coroutines.

    Arguments and errors are the same as in ``streamclient.changes``. This call sends no request, and needs no running
    event loop.
    """
    return AsyncChanges(
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
