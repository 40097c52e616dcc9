"""``LocalTablestore``: a private Tablestore server in this process, for the duration of a ``with`` block."""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from streamclient.base import checks
from streamclient.base.extras import require_extra
from streamclient.base.processes import Birthplace
from streamclient.records import ColumnValue, KeyValue
from streamclient.server.admin import Admin
from streamclient.server.auth import (
    DEFAULT_ACCESS_KEY_ID,
    DEFAULT_ACCESS_KEY_SECRET,
    DEFAULT_INSTANCE,
    Credentials,
    Doors,
    host_names,
    require_own_secret,
)
from streamclient.server.control import Control, KeyPart
from streamclient.server.counters import RequestCount
from streamclient.server.engine import Engine, ShardView
from streamclient.server.fault_rules import FaultRule, FaultStatus
from streamclient.server.http_server import HttpServer
from streamclient.server.http_service import Service
from streamclient.server.local_tables import KeyTypes, LocalTables, new_tables
from streamclient.server.observing import Observer
from streamclient.server.server_clock import Clock
from streamclient.server.storage import open_storage

if TYPE_CHECKING:
    import tablestore

_Part = TypeVar("_Part")

SDK_LOGGER_NAME = "streamclient.server.client"
"""The name of the logger of clients that ``LocalTablestore.client`` makes. The method sets the logger's level to
WARNING. At the default level, the SDK would format every request as text, even if no handler uses the text."""


@checks.explains_names
class LocalTablestore:
    """A local Tablestore server: real HTTP, the real protocol, one instance, one key pair.

    Use it as a context manager, or call ``start`` and ``stop``. Several servers may exist in one process. By default,
    the server keeps its data in memory. With ``data_dir``, the server keeps its data in that directory, where the data
    survive even ``kill -9``. All methods are thread-safe. Most methods need a running server.
    """

    def __init__(
        self,
        *,
        tables: Mapping[str, KeyTypes] | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        instance: str = DEFAULT_INSTANCE,
        access_key_id: str = DEFAULT_ACCESS_KEY_ID,
        access_key_secret: str = DEFAULT_ACCESS_KEY_SECRET,
        data_dir: str | os.PathLike[str] | None = None,
        clock: Clock | None = None,
        allowed_hosts: Sequence[str] = (),
        allow_public_secret: bool = False,
        tunnel_init_calls: int = 0,
        tunnels_skip_lost_log: bool = False,
    ) -> None:
        """Store the settings. Nothing else happens before ``start``.

        ``start`` creates ``tables``, each with a stream: ``{"orders": {"id": str}}`` is a table with one key column.
        The types of key columns are int, str and bytes. A table that exists in the data directory stays unchanged.
        Port 0 means any free port. ``clock`` is for tests that depend on time.

        ``allowed_hosts`` are names by which clients may address the server, in addition to ``host``. IP addresses,
        ``localhost`` and names below ``localhost`` are always allowed. With ``allow_public_secret``, the server may
        listen beyond this machine even with the default secret, which is published.

        The first ``tunnel_init_calls`` calls about a new tunnel find the tunnel in the stage
        ``InitBaseDataAndStreamShard``, without channels. Calls to the service can find a tunnel in this stage, too. By
        default, a new tunnel has its channels immediately. By default, a tunnel that lags beyond the retention expires.
        With ``tunnels_skip_lost_log``, such a tunnel goes on with the records that still exist, as tunnels of the
        service may do.
        """
        self._new_tables = new_tables(tables)
        self._host = checks.text.require("host", host)
        self._port = checks.port.require("port", port)
        checks.optional(checks.path).require("data_dir", data_dir)
        checks.optional(checks.instance(Clock)).require("clock", clock)
        host_names.require("allowed_hosts", allowed_hosts)
        checks.flag.require("allow_public_secret", allow_public_secret)
        self._tunnel_init_calls = checks.not_negative.require("tunnel_init_calls", tunnel_init_calls)
        self._tunnels_skip_lost_log = checks.flag.require("tunnels_skip_lost_log", tunnels_skip_lost_log)
        self._credentials = Credentials(instance, access_key_id, access_key_secret)
        self._data_dir = data_dir
        self._doors = Doors((host, *allowed_hosts))
        self._allows_public_secret = allow_public_secret
        self._clock = Clock() if clock is None else clock
        self._lock = threading.Lock()
        self._birthplace: Birthplace | None = None
        self._engine: Engine | None = None
        self._server: HttpServer | None = None
        self._control: Control | None = None
        self._tables: LocalTables | None = None
        self._clients: weakref.WeakSet[tablestore.OTSClient] = weakref.WeakSet()

    def __repr__(self) -> str:
        state = "stopped" if self._server is None else f"at {self.endpoint}"
        return f"<LocalTablestore {self.instance!r} {state}>"

    @property
    def endpoint(self) -> str:
        """The address for SDKs, in the form ``http://HOST:PORT``. Only available while the server runs."""
        port = self._running(self._server).port
        host = f"[{self._host}]" if ":" in self._host else self._host or "127.0.0.1"
        return f"http://{host}:{port}"

    @property
    def instance(self) -> str:
        """The instance name that clients must send."""
        return self._credentials.instance

    @property
    def access_key_id(self) -> str:
        """The access key id that clients must send."""
        return self._credentials.access_key_id

    @property
    def access_key_secret(self) -> str:
        """The secret with which clients must sign. It is also the bearer token of the admin surface."""
        return self._credentials.access_key_secret

    def start(self) -> LocalTablestore:
        """Open the data, bind the port, and return when the server answers requests.

        Raises:
            OSError: the address cannot be bound.
            ValueError: the port's number is invalid, or the host is not local and the secret is the public default.
            DataDirectoryError: the data directory is in use by another server, not usable, or damaged.
            ConfigurationError: a table of ``tables`` exists with another key, or the extra ``server`` is not installed.
            RuntimeError: the server is running already.
        """
        self._require_here()
        require_extra("server", "the local Tablestore")
        with self._lock:
            if self._server is not None:
                raise RuntimeError(f"{self!r} is already running")
            if not self._allows_public_secret:
                require_own_secret(self._host, self._port, self._credentials)
            engine = self._open_engine()
            try:
                tables = LocalTables(engine)
                tables.create(self._new_tables)
                service = Service(engine, self._credentials)
                control = Control(engine, service)
                admin = Admin(control, self.access_key_secret)
                server = HttpServer(service, admin, self._doors, host=self._host, port=self._port)
                server.start()
            except BaseException:
                engine.close()
                raise
            self._engine, self._tables, self._control, self._server = engine, tables, control, server
            self._birthplace = Birthplace()
        return self

    def _open_engine(self) -> Engine:
        storage = open_storage(None if self._data_dir is None else os.fspath(self._data_dir))
        try:
            return Engine(
                clock=self._clock,
                storage=storage,
                tunnel_init_calls=self._tunnel_init_calls,
                tunnels_skip_lost_log=self._tunnels_skip_lost_log,
                instance_name=self.instance,
            )
        except BaseException:
            storage.close()
            raise

    def _require_here(self) -> None:
        """Refuse the use of this object in a forked child, which may call its parent's server only over HTTP.

        Raises:
            ForkedError: this process was forked while the server ran.
        """
        if self._birthplace is not None:
            self._birthplace.require("the local Tablestore", "use its endpoint there, and stop it in the parent")

    def stop(self) -> None:
        """Close all connections, the clients made by ``client()``, the port and the data.

        Do nothing if the server is not running. In a child that was forked while the server ran, only forget the
        server; it keeps running in the parent.
        """
        if self._birthplace is not None and not self._birthplace.is_here:
            self._server = self._engine = self._tables = self._control = self._birthplace = None
            return
        with self._lock:
            server, engine = self._server, self._engine
            self._server = self._engine = self._tables = self._control = self._birthplace = None
            for client in list(self._clients):
                client.connection.pool.clear()
            self._clients.clear()
        try:
            if server is not None:
                server.stop()
        finally:
            if engine is not None:
                engine.close()

    def __enter__(self) -> LocalTablestore:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def client(self, **options: Any) -> tablestore.OTSClient:
        """Return a client of the official Python SDK for this server; ``options`` go to ``OTSClient`` unchanged.

        ``stop`` closes the client's connections.
        """
        import tablestore  # noqa: PLC0415 -- the SDK takes longer to import than the server to start

        logging.getLogger(SDK_LOGGER_NAME).setLevel(logging.WARNING)
        options.setdefault("logger_name", SDK_LOGGER_NAME)
        client = tablestore.OTSClient(
            self.endpoint, self.access_key_id, self.access_key_secret, self.instance, **options
        )
        self._clients.add(client)
        return client

    def create_table(self, name: str, key: KeyTypes) -> None:
        """Create a table with a stream: ``create_table("orders", {"id": str})``. The types are int, str and bytes.

        If the table exists with the same key, it stays unchanged. The method creates the table in this process, not
        over HTTP. So no fault delays or fails the call, and ``requests`` does not count it.

        Raises:
            ConfigurationError: the server refuses the name or the key, or the table exists with another key.
        """
        self._running_tables.create(new_tables({name: key}))

    def put(self, table: str, /, **columns: ColumnValue) -> None:
        """Put a row: ``put("orders", id="a", amount=12)`` replaces the row with this key, or makes a new row.

        The server generates the value of an AUTO_INCREMENT column that is missing in ``columns``. The method writes the
        row in this process, not over HTTP. So no fault delays or fails the call, and ``requests`` does not count it.

        Raises:
            ConfigurationError: the table does not exist, a key column is missing or has another type, or the server
                refuses a column.
            ServiceError: a transaction holds the row, or the server refuses the row for another temporary reason.
        """
        self._running_tables.put(table, columns)

    def update(self, table: str, /, *, remove: Sequence[str] = (), **columns: ColumnValue) -> None:
        """Update a row: set the attribute columns of ``columns``, and remove all versions of the columns ``remove``.

        ``columns`` also contains the key. The errors are the errors of ``put``. An update must set or remove at least
        one column.
        """
        self._running_tables.update(table, columns, remove)

    def delete(self, table: str, /, **key: KeyValue) -> None:
        """Delete a row: ``delete("orders", id="a")``. The row may be absent. The errors are the errors of ``put``."""
        self._running_tables.delete(table, key)

    @property
    def _running_tables(self) -> LocalTables:
        self._require_here()
        return self._running(self._tables)

    @property
    def control(self) -> Control:
        """The control of shards, time, faults and counters. Only available while the server runs."""
        self._require_here()
        return self._running(self._control)

    def _running(self, part: _Part | None) -> _Part:
        """Return ``part``, a part of the server; raise ``RuntimeError`` if the server is not running."""
        if part is None:
            raise RuntimeError("the local Tablestore is not running; use it in a with block or call start()")
        return part

    def shards(self, table: str) -> Sequence[ShardView]:
        """Return the shards of a table's stream, as ``Control.shards`` does."""
        return self.control.shards(table)

    def split(
        self, table: str, shard_id: str | None = None, at: KeyPart | Sequence[KeyPart] | None = None
    ) -> tuple[str, str]:
        """Split an open shard of a table's stream, as ``Control.split`` does."""
        return self.control.split(table, shard_id, at)

    def merge(self, table: str, shard_a: str, shard_b: str) -> str:
        """Merge two open shards of a table's stream, as ``Control.merge`` does."""
        return self.control.merge(table, shard_a, shard_b)

    def trim(
        self,
        table: str,
        *,
        shard_id: str | None = None,
        before_micros: int | None = None,
        keep_last: int | None = None,
    ) -> int:
        """Delete records of a table's stream, as ``Control.trim`` does."""
        return self.control.trim(table, shard_id=shard_id, before_micros=before_micros, keep_last=keep_last)

    def expire_iterators(self, table: str) -> None:
        """Invalidate all iterators of a table's stream, as ``Control.expire_iterators`` does."""
        self.control.expire_iterators(table)

    def advance_clock(self, seconds: float) -> None:
        """Move the server's clock forward, as ``Control.advance_clock`` does."""
        self.control.advance_clock(seconds)

    def add_fault(self, rule: FaultRule) -> int:
        """Add a fault rule and return its id, as ``Control.add_fault`` does."""
        return self.control.add_fault(rule)

    def remove_fault(self, fault_id: int) -> bool:
        """Remove a fault rule, as ``Control.remove_fault`` does."""
        return self.control.remove_fault(fault_id)

    def clear_faults(self) -> int:
        """Remove all fault rules and return their number, as ``Control.clear_faults`` does."""
        return self.control.clear_faults()

    def faults(self) -> Sequence[FaultStatus]:
        """Return the fault rules with their counters, as ``Control.faults`` does."""
        return self.control.faults()

    def requests(self) -> Sequence[RequestCount]:
        """Return the counters of requests, as ``Control.requests`` does."""
        return self.control.requests()

    def observe(self, observer: Observer) -> None:
        """Call ``observer`` for each later request, as ``Control.observe`` does. ``stop`` ends these calls."""
        self.control.observe(observer)

    def reset_requests(self) -> None:
        """Set the counters of requests to zero, as ``Control.reset_requests`` does."""
        self.control.reset_requests()

    def clear(self) -> None:
        """Delete all tables, fault rules, observers and request counts, as ``Control.clear`` does."""
        self.control.clear()
