"""The options of loops over tables: their checks, and the worker that they describe."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import Any, get_args

from streamclient.base import checks
from streamclient.base.pools import DaemonPool
from streamclient.base.processes import unique_name
from streamclient.config import ClientConfig, StreamConfig
from streamclient.errors import ConfigurationError
from streamclient.loops.consumption import Consumption
from streamclient.loops.line_receiver import LineReceivers
from streamclient.model import InitialPosition
from streamclient.tablestore.instance import Connection
from streamclient.worker.handlers.batches import Commit
from streamclient.worker.worker import Worker

READ_THREADS, CALL_THREADS = 8, 2
"""The default numbers of threads: ``READ_THREADS`` for reads, and ``CALL_THREADS`` for heartbeats. Other calls about
leases have another pool of ``CALL_THREADS`` threads. So a worker has fewer than 20 threads, however many shards it
reads."""

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


def settings_of_loop(commit: Commit, client: Any, worker: str | None, config: ClientConfig | None) -> ClientConfig:
    """Check the options that loops over tables and tunnels share; return the settings of the worker.

    Raises:
        ConfigurationError: an option is invalid.
    """
    _commit.require("commit", commit)
    checks.optional(checks.identifier).require("worker", worker)
    checks.optional(checks.instance(ClientConfig)).require("config", config)
    if client is not None:
        checks.client.require("client", client)
    return config or ClientConfig(read_threads=READ_THREADS, renew_thread_pool_size=CALL_THREADS)


def consumption_of_tables(
    table: str | Sequence[str] | None,
    *,
    group: str | None,
    commit: Commit,
    client: Any,
    status_table: str | None,
    worker: str | None,
    initial_position: InitialPosition | str,
    max_records: int,
    config: ClientConfig | None,
) -> Consumption:
    """Return the consumption that the options of ``changes`` describe, for one or more tables.

    Raises:
        ConfigurationError: an option is invalid; nothing was started.
    """
    settings = settings_of_loop(commit, client, worker, config)
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
    name = worker or unique_name()
    consumption = Consumption(name, partial(_worker, name, settings, streams), settings, commit)
    _ = consumption.worker  # made here, so that an invalid setting raises an error now
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
    return status_table_of_group(tables[0], str(group))


def status_table_of_group(table: str, group: str) -> str:
    """Return the default name of the status table of the application ``group``, which reads ``table``.

    Raises:
        ConfigurationError: a table cannot have the resulting name.
    """
    derived = f"{table}_{group}"
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
