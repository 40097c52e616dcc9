"""``LocalTablestore``: a private Tablestore in this process, for as long as a ``with`` block."""

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
"""The logger of clients made by ``client()``. Its level is WARNING, because at the SDK's own initial level the SDK
renders every request as text, even if no handler uses it."""


@checks.explains_names
class LocalTablestore:
    """A local Tablestore: real HTTP, the real protocol, one instance, one key pair.

    Use it as a context manager, or call ``start`` and ``stop``. Several may exist in one process. Data is kept in
    memory; with ``data_dir`` it is kept in that directory, and survives even ``kill -9``. All methods are thread-safe;
    control methods need a running server.
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
        """Store the settings; nothing happens before ``start``.

        ``tables`` are made with streams when the server starts: ``{"orders": {"id": str}}`` is a table with one key
        column; the types of key columns are int, str and bytes. If a data directory already has a table, that table
        stays unchanged. Port 0 means any free port; ``clock`` is for tests that depend on time.

        ``allowed_hosts`` are further names by which clients address the server, in addition to ``host``. IP addresses,
        ``localhost`` and names below ``localhost`` are always allowed. ``allow_public_secret`` permits listening beyond
        this machine with the default secret, which is published.

        The first ``tunnel_init_calls`` calls about a new tunnel find it in the stage ``InitBaseDataAndStreamShard``,
        without channels, which also happens at the service. By default a new tunnel has its channels from the
        beginning. If a tunnel lags beyond the retention, it expires by default. With ``tunnels_skip_lost_log`` it goes
        on with the records that are left, as tunnels of the service may do.
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
        """``http://HOST:PORT``, the form in which SDKs take it. Only available while the server runs."""
        port = self._running(self._server).port
        host = f"[{self._host}]" if ":" in self._host else self._host or "127.0.0.1"
        return f"http://{host}:{port}"

    @property
    def instance(self) -> str:
        """The instance name that clients must give."""
        return self._credentials.instance

    @property
    def access_key_id(self) -> str:
        """The key id that clients must give."""
        return self._credentials.access_key_id

    @property
    def access_key_secret(self) -> str:
        """The secret with which clients must sign. It is also the bearer token of the admin surface."""
        return self._credentials.access_key_secret

    def start(self) -> LocalTablestore:
        """Open the data, bind the port, and return once requests are answered.

        Raises:
            OSError: the address cannot be bound.
            ValueError: the port's number is invalid, or the secret is too public for the host.
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
        """Refuse the use of the parent's server in a forked child. The child may call that server over HTTP.

        Raises:
            ForkedError: this process is such a child.
        """
        if self._birthplace is not None:
            self._birthplace.require("the local Tablestore", "use its endpoint there, and stop it in the parent")

    def stop(self) -> None:
        """Close connections, clients made by ``client()``, the port and the data.

        Do nothing if the server is not running. A child that was forked while the server ran has no server, and leaves
        the parent's untouched.
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

        The server closes its connections when it stops.
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

        If the table exists with the same key, it stays unchanged. The table is made in this process, not over HTTP, as
        ``put`` does with a row.

        Raises:
            ConfigurationError: such a table is impossible, or the table exists with another key.
        """
        self._running_tables.create(new_tables({name: key}))

    def put(self, table: str, /, **columns: ColumnValue) -> None:
        """Put a row: ``put("orders", id="a", amount=12)`` replaces the row with this key, or makes a new row.

        The table may have been made in any way; its key columns are looked up. An AUTO_INCREMENT column may be left
        out. The row is written in this process: no fault delays or fails it, and ``requests`` does not count it.

        Raises:
            ConfigurationError: the table does not exist, a key column is missing or of another type, or the service
                takes no such column.
            ServiceError: a transaction holds the row, or the server refuses for another reason that may pass.
        """
        self._running_tables.put(table, columns)

    def update(self, table: str, /, *, remove: Sequence[str] = (), **columns: ColumnValue) -> None:
        """Update a row: set the attribute columns of ``columns`` and remove the columns ``remove``, all versions.

        ``columns`` also contains the key. Errors as in ``put``. An update that changes nothing is refused.
        """
        self._running_tables.update(table, columns, remove)

    def delete(self, table: str, /, **key: KeyValue) -> None:
        """Delete a row: ``delete("orders", id="a")``. The row may be absent. Errors as in ``put``."""
        self._running_tables.delete(table, key)

    @property
    def _running_tables(self) -> LocalTables:
        self._require_here()
        return self._running(self._tables)

    @property
    def control(self) -> Control:
        """The control of the server beyond the protocol. Only available while the server runs."""
        self._require_here()
        return self._running(self._control)

    def _running(self, part: _Part | None) -> _Part:
        """Return a part of the server, if the server is running."""
        if part is None:
            raise RuntimeError("the local Tablestore is not running; use it in a with block or call start()")
        return part

    def shards(self, table: str) -> Sequence[ShardView]:
        """See ``Control.shards``."""
        return self.control.shards(table)

    def split(
        self, table: str, shard_id: str | None = None, at: KeyPart | Sequence[KeyPart] | None = None
    ) -> tuple[str, str]:
        """See ``Control.split``."""
        return self.control.split(table, shard_id, at)

    def merge(self, table: str, shard_a: str, shard_b: str) -> str:
        """See ``Control.merge``."""
        return self.control.merge(table, shard_a, shard_b)

    def trim(
        self,
        table: str,
        *,
        shard_id: str | None = None,
        before_micros: int | None = None,
        keep_last: int | None = None,
    ) -> int:
        """See ``Control.trim``."""
        return self.control.trim(table, shard_id=shard_id, before_micros=before_micros, keep_last=keep_last)

    def expire_iterators(self, table: str) -> None:
        """See ``Control.expire_iterators``."""
        self.control.expire_iterators(table)

    def advance_clock(self, seconds: float) -> None:
        """See ``Control.advance_clock``."""
        self.control.advance_clock(seconds)

    def add_fault(self, rule: FaultRule) -> int:
        """See ``Control.add_fault``."""
        return self.control.add_fault(rule)

    def remove_fault(self, fault_id: int) -> bool:
        """See ``Control.remove_fault``."""
        return self.control.remove_fault(fault_id)

    def clear_faults(self) -> int:
        """See ``Control.clear_faults``."""
        return self.control.clear_faults()

    def faults(self) -> Sequence[FaultStatus]:
        """See ``Control.faults``."""
        return self.control.faults()

    def requests(self) -> Sequence[RequestCount]:
        """See ``Control.requests``."""
        return self.control.requests()

    def observe(self, observer: Observer) -> None:
        """See ``Control.observe``. Observers are forgotten when the server stops."""
        self.control.observe(observer)

    def reset_requests(self) -> None:
        """See ``Control.reset_requests``."""
        self.control.reset_requests()

    def clear(self) -> None:
        """See ``Control.clear``."""
        self.control.clear()
