"""The options of ``changes``, checked, and the worker that they describe."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, get_args

from attrs import evolve

from streamclient.base import checks
from streamclient.base.pools import DaemonPool
from streamclient.base.processes import unique_name
from streamclient.config import ClientConfig, StreamConfig
from streamclient.errors import ConfigurationError
from streamclient.loops.consumption import Consumption
from streamclient.loops.line_receiver import LineReceivers
from streamclient.model import InitialPosition
from streamclient.tablestore.instance import Connection
from streamclient.tunnel.tunnel_client import TunnelClient
from streamclient.tunnel.tunnel_config import TunnelWorkerConfig
from streamclient.tunnel.tunnel_model import TunnelInfo
from streamclient.tunnel.tunnel_worker import TunnelWorker
from streamclient.worker.handlers.batches import Commit
from streamclient.worker.worker import Worker

READ_THREADS, CALL_THREADS = 8, 2
"""Threads of the default settings, for reads, and for heartbeats and other calls about leases. With them a worker has
fewer than 20 threads, however many shards it reads."""

_TABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,254}")

_commit = checks.Check('"turn" or "explicit"', lambda value: value in get_args(Commit))
_tables = checks.Check(
    "the name of a table, or a sequence of different names",
    lambda value: checks.identifier.fits(value) or _are_names(value),
)


def _are_names(value: object) -> bool:
    if not isinstance(value, Sequence) or isinstance(value, str | bytes) or not value:
        return False
    return all(map(checks.identifier.fits, value)) and len({*value}) == len(value)


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
    config: ClientConfig | None,
) -> Consumption:
    """Return the consumption that the options of ``changes`` describe.

    Raises:
        ConfigurationError: an option cannot work; nothing has happened yet.
    """
    _commit.require("commit", commit)
    checks.optional(checks.identifier).require("worker", worker)
    checks.optional(checks.instance(ClientConfig)).require("config", config)
    if client is not None:
        checks.client.require("client", client)
    name = worker or unique_name()
    settings = config or ClientConfig(read_threads=READ_THREADS, renew_thread_pool_size=CALL_THREADS)
    if tunnel is not None:
        left_out = {
            "group": group is None,
            "status_table": status_table is None,
            "initial_position": initial_position == "oldest",
            "max_records": max_records == 1_000,
        }
        of_table = _table_of_tunnel(table, tunnel, left_out)
        tunnels = TunnelClient(client or Connection.of_environment().quiet_client())
        of_worker = TunnelWorkerConfig(client_tag=name, client_config=settings)
        made = partial(_tunnel_worker, of_worker, tunnels, (tunnel, of_table))
        return Consumption(name, made, settings, commit)
    tables = _tables_of(table)
    status_table = _status_table(tables, group, status_table)
    client = client or Connection.of_environment().quiet_client()
    streams = [
        StreamConfig(
            client=client,
            data_table_name=each,
            status_table_name=status_table,
            initial_position=initial_position,
            max_records=max_records,
        )
        for each in tables
    ]
    consumption = Consumption(name, partial(_worker, name, settings, streams), settings, commit)
    _ = consumption.worker  # made here, so that a wrong setting is found here
    return consumption


def _tables_of(given: str | Sequence[str] | None) -> Sequence[str]:
    _tables.require("table", given)
    return [given] if isinstance(given, str) else list(given or ())


def _status_table(tables: Sequence[str], group: str | None, given: str | None) -> str:
    checks.identifier.require("group", group)
    if given is not None:
        checks.identifier.require("status_table", given)
        return given
    if len(tables) > 1:
        raise ConfigurationError(
            f"status_table must be given for several tables ({', '.join(tables)}), which share it; a new name, such as "
            f"{group}_status, makes a new table"
        )
    derived = f"{tables[0]}_{group}"
    if not _TABLE_NAME.fullmatch(derived):
        raise ConfigurationError(
            f"group={group!r} makes the status table {derived!r}, but the name of a table has at most 255 letters, "
            "digits and underscores, and does not begin with a digit: choose another group, or give status_table="
        )
    return derived


def _worker(
    name: str,
    config: ClientConfig,
    streams: Sequence[StreamConfig],
    receivers: LineReceivers,
    threads: DaemonPool,
) -> Worker:
    return Worker(name, config, streams, receivers, threads)


# --- tunnels -------------------------------------------------------------------------------------------------------


def _table_of_tunnel(table: object, tunnel: str, is_left_out: Mapping[str, bool]) -> str | None:
    """Return the table that is given; refuse the options of a group."""
    checks.identifier.require("tunnel", tunnel)
    if table is not None and not isinstance(table, str):
        given = checks.shown(table)
        raise ConfigurationError(f"table must be the name of the tunnel's table, or left out, not {given}")
    refused = [name for name, is_so in is_left_out.items() if not is_so]
    if refused:
        raise ConfigurationError(f"{refused[0]} does not go with tunnel={tunnel!r}: the tunnel itself has it")
    return table


def _tunnel_worker(
    settings: TunnelWorkerConfig,
    client: TunnelClient,
    names: tuple[str, str | None],
    receivers: LineReceivers,
    threads: DaemonPool,
) -> TunnelWorker:
    info = _tunnel_named(client, *names)
    receivers.table_name = info.table_name
    return TunnelWorker(info.tunnel_id, client, receivers, evolve(settings, process_records_executor=threads))


def _tunnel_named(client: TunnelClient, tunnel: str, table: str | None) -> TunnelInfo:
    """Return the tunnel with this name or id.

    Raises:
        ConfigurationError: it does not exist, or there are several.
    """
    known = client.list_tunnel(table)
    found = [each for each in known if tunnel in (each.tunnel_id, each.tunnel_name)]
    if len(found) == 1:
        return found[0]
    where = f"table {table!r}" if table else "the instance"
    if found:
        tables = ", ".join(sorted(each.table_name for each in found))
        raise ConfigurationError(f"tables {tables} have a tunnel {tunnel!r}; name one with table=, or give the id")
    names = ", ".join(sorted(each.tunnel_name for each in known)) or "no tunnels"
    raise ConfigurationError(f"{where} has no tunnel with the name or id {tunnel!r}; it has {names}")
