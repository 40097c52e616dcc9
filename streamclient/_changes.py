"""``changes``: the function that makes a loop over the changes of tables or of a tunnel.

The package ``streamclient.loops`` makes loops over tables only. This module adds loops over tunnels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from attrs import evolve

from streamclient.base import checks
from streamclient.base.pools import DaemonPool
from streamclient.base.processes import unique_name
from streamclient.config import ClientConfig
from streamclient.errors import ConfigurationError, StreamClientException
from streamclient.loops.consumption import Consumption
from streamclient.loops.iterating import Loop, LoopBase
from streamclient.loops.line_receiver import LineReceivers
from streamclient.loops.loop_options import consumption_of_tables, settings_of_loop
from streamclient.model import InitialPosition
from streamclient.tablestore.instance import Connection
from streamclient.tunnel.tunnel_client import TunnelClient
from streamclient.tunnel.tunnel_config import TunnelWorkerConfig
from streamclient.tunnel.tunnel_model import TunnelInfo
from streamclient.tunnel.tunnel_worker import TunnelWorker
from streamclient.worker.handlers.batches import Commit
from streamclient.worker.worker import Worker


class WithWorker(LoopBase):
    """A loop over changes, with access to its worker: ``worker`` for tables, ``tunnel_worker`` for a tunnel."""

    @property
    def worker(self) -> Worker:
        """The worker that reads the tables, for its statuses and for calls such as ``pause``. Usable from any thread.

        Raises:
            StreamClientException: the loop reads a tunnel; use ``tunnel_worker``.
        """
        worker = self._consumption.worker
        if not isinstance(worker, Worker):
            raise StreamClientException("the changes of a tunnel have a tunnel_worker, not a worker")
        return worker

    @property
    def tunnel_worker(self) -> TunnelWorker:
        """The worker that reads the tunnel.

        If the loop has not begun yet, the first use of this property looks the tunnel up in the service.

        Raises:
            ConfigurationError: the tunnel does not exist.
            StreamClientException: the loop reads tables; use ``worker``.
        """
        worker = self._consumption.worker
        if not isinstance(worker, TunnelWorker):
            raise StreamClientException("the changes of tables have a worker, not a tunnel_worker")
        return worker


class Changes(WithWorker, Loop):
    """The changes of tables or of a tunnel, batch by batch; ``streamclient.changes`` makes this object.

    Use an object in one way: iterate it in one thread, or call ``run`` once, or call ``each`` once. If the object is
    used as a context manager, the end of the block closes the object.

    When the body has ended for a batch and the loop asks for the next batch, the worker commits the finished batch. The
    loop does not wait until the commit is stored. With ``commit="explicit"``, the program calls ``batch.commit()``,
    which commits the batch and all earlier batches of its shard. If the body is left by ``break``, ``return`` or an
    exception, its batch is not committed, and the next loop over the same object begins with that batch. A shard gives
    one batch at a time, so the records of a shard come in order.

    A loop ends after ``close()`` or ``worker.shutdown()``. While the program's main thread is in a loop, SIGTERM raises
    ``SystemExit(143)`` in that thread; see ``ClientConfig.end_on_sigterm``. If the program drops the object, or if the
    thread of the loop ends, the worker stops within a second.
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
) -> Changes:
    """Return the changes of one or more tables, to be iterated or given to functions. This call sends no request.

    All processes with the same ``group`` share the shards of the tables; each process needs its own ``worker`` name.

    Args:
        table: name of the data table, or a sequence of several names. With ``tunnel``, ``table`` may be left out.
        group: name of the consuming application; required unless ``tunnel`` is given.
        tunnel: name or id of a tunnel, given instead of ``group``. A tunnel with base data delivers the present rows
            first and the changes afterwards. The service keeps the positions, so ``status_table``, ``initial_position``
            and ``max_records`` do not apply.
        commit: when positions are stored: with ``"turn"`` when the body or the handler of a batch ends, with
            ``"explicit"`` only when the program calls ``batch.commit()``.
        client: a ``tablestore.OTSClient``; by default a client for the instance that the environment variables name.
        status_table: name of the table that stores the leases; by default ``<table>_<group>``. Required for several
            tables.
        worker: name of this worker, which no other running worker may have; by default a new name.
        initial_position: start of shards without a stored position: ``"oldest"``, ``"latest"`` or an
            ``InitialPosition``.
        max_records: the largest number of records in a batch.
        config: settings of the worker, used unchanged; by default the worker has few threads, whatever the number of
            shards. With ``tunnel``, a ``TunnelWorkerConfig`` is accepted too; if ``worker`` is given, it replaces the
            ``client_tag`` of that config.

    Raises:
        ConfigurationError: an argument or an environment variable is invalid; nothing was started.
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


def consumption_of(
    table: str | Sequence[str] | None,
    *,
    group: str | None,
    tunnel: str | None,
    commit: Commit,
    client: Any,
    status_table: str | None,
    worker: str | None,
    initial_position: InitialPosition | str,
    max_records: int,
    config: ClientConfig | TunnelWorkerConfig | None,
) -> Consumption:
    """Return the ``Consumption`` for the options of ``changes``: a worker and its line of batches.

    Raises:
        ConfigurationError: an option is invalid; nothing was started.
    """
    if tunnel is None:
        if isinstance(config, TunnelWorkerConfig):
            raise ConfigurationError("config must be a ClientConfig: a TunnelWorkerConfig goes with tunnel=...")
        return consumption_of_tables(
            table,
            group=group,
            commit=commit,
            client=client,
            status_table=status_table,
            worker=worker,
            initial_position=initial_position,
            max_records=max_records,
            config=config,
        )
    given = None
    if isinstance(config, TunnelWorkerConfig):
        given, config = config, config.client_config
    settings = settings_of_loop(commit, client, worker, config)
    left_out = {
        "group": group is None,
        "status_table": status_table is None,
        "initial_position": initial_position == "oldest",
        "max_records": max_records == 1_000,
    }
    of_table = _table_of_tunnel(table, tunnel, left_out)
    tunnels = TunnelClient(client or Connection.of_environment().quiet_client())
    if given is None:
        of_worker = TunnelWorkerConfig(client_tag=worker or unique_name(), client_config=settings)
    else:
        of_worker = given if worker is None else evolve(given, client_tag=worker)
    if of_worker.process_records_executor is not None:
        raise ConfigurationError("process_records_executor must be left out of config: the loop has its own executor")
    made = partial(_tunnel_worker, of_worker, tunnels, (tunnel, of_table))
    return Consumption(of_worker.client_tag, made, settings, commit)


def _table_of_tunnel(table: object, tunnel: str, is_left_out: Mapping[str, bool]) -> str | None:
    """Return ``table``, after checking that the options of ``changes`` suit the tunnel ``tunnel``.

    The keys of ``is_left_out`` are the names of the options that may not be given for a tunnel. Each value is true if
    the caller left this option out.

    Raises:
        ConfigurationError: ``tunnel`` or ``table`` is not a valid name, or the caller gave one of these options.
    """
    checks.identifier.require("tunnel", tunnel)
    if table is not None and not isinstance(table, str):
        given = checks.shown(table)
        raise ConfigurationError(f"table must be the name of the tunnel's table, or left out, not {given}")
    refused = [name for name, is_so in is_left_out.items() if not is_so]
    if refused:
        raise ConfigurationError(f"{refused[0]} does not go with tunnel={tunnel!r}: the tunnel has its own")
    return table


def _tunnel_worker(
    settings: TunnelWorkerConfig,
    client: TunnelClient,
    names: tuple[str, str | None],
    receivers: LineReceivers,
    threads: DaemonPool,
) -> TunnelWorker:
    info = _tunnel_named(client, *names)
    settings = evolve(settings, process_records_executor=threads)
    return TunnelWorker(info.tunnel_id, client, receivers, settings, table_name=info.table_name)


def _tunnel_named(client: TunnelClient, tunnel: str, table: str | None) -> TunnelInfo:
    """Return the tunnel with the name or id ``tunnel``.

    Raises:
        ConfigurationError: no tunnel or more than one tunnel has this name or id.
    """
    known = client.list_tunnel(table)
    found = [each for each in known if tunnel in (each.tunnel_id, each.tunnel_name)]
    if len(found) == 1:
        return found[0]
    where = f"table {table!r}" if table else "the instance"
    if found:
        tables = ", ".join(sorted(each.table_name for each in found))
        raise ConfigurationError(
            f"tables {tables} have a tunnel {tunnel!r}; name the table with table=, or give the tunnel's id"
        )
    names = ", ".join(sorted(each.tunnel_name for each in known)) or "no tunnels"
    raise ConfigurationError(f"{where} has no tunnel with the name or id {tunnel!r}; it has {names}")
