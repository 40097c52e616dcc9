"""The local Tablestore without its network: requests in, answers out, one at a time.

Laws:

- One lock: requests take effect one after another, and the records of a stream have the order of the requests.
- A request is validated before it reads or changes any state; a refused request changes nothing.
- The changes of a request are committed to the storage before it is answered. If the commit fails, memory and storage
  may differ. From then on the engine refuses every request, and the error states this reason.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from attrs import frozen

from streamclient.base import logs
from streamclient.base.times import MICROS_PER_SECOND
from streamclient.errors import CodecError
from streamclient.records import KeyValue
from streamclient.server import refusals, shard_ancestry, table_views
from streamclient.server.capacity import Units
from streamclient.server.loading import restore
from streamclient.server.operation import Counted, ServedOperation
from streamclient.server.operations import OPERATIONS
from streamclient.server.server_clock import Clock
from streamclient.server.server_errors import ServiceError
from streamclient.server.server_limits import DEFAULT_LIMITS, MESSAGE_FIELDS, Limits
from streamclient.server.server_state import ServerState
from streamclient.server.shard_ancestry import ShardView
from streamclient.server.storage import Storage
from streamclient.server.table_views import ChangesView, RowView, ShardSpan, TableView, TunnelView
from streamclient.server.work import begin_request
from streamclient.wire import bounded, schema

__all__ = ["OPERATIONS", "Engine", "ShardView"]

logger = logs.logger(__name__)


@frozen
class EngineAnswer:
    """The serialized answer to a request, and the numbers that the counters need of it."""

    body: bytes
    rows_read: int
    """The number of rows or stream records in the answer."""
    units: Units
    """The capacity units that the answer states."""


def _serialized(answer: Any) -> bytes:
    return answer if isinstance(answer, bytes) else bytes(answer.SerializeToString())


class Engine:
    """All tables and streams of one instance. Safe to use from any thread."""

    def __init__(
        self,
        *,
        clock: Clock,
        storage: Storage,
        limits: Limits = DEFAULT_LIMITS,
        stream_enabling_millis: int = 0,
        tunnel_init_calls: int = 0,
        tunnels_skip_lost_log: bool = False,
        instance_name: str = "",
    ) -> None:
        """Load the content of the storage.

        A new stream reports ENABLING for ``stream_enabling_millis``. The first ``tunnel_init_calls`` calls about a new
        tunnel find it in its first stage, without channels. If the stream drops records that a tunnel still needs, the
        tunnel expires; with ``tunnels_skip_lost_log`` it skips these records instead.
        """
        self._lock = threading.RLock()
        self._storage = storage
        self._stopped: Callable[[], ServiceError] | None = None
        """Makes the error with which every request is refused once the engine serves nothing any more; ``None`` before
        that."""
        self._state = ServerState(
            clock=clock,
            storage=storage,
            limits=limits,
            stream_enabling_millis=stream_enabling_millis,
            tunnel_init_calls=tunnel_init_calls,
            tunnels_skip_lost_log=tunnels_skip_lost_log,
            instance_name=instance_name,
        )
        restore(self._state, storage.load())

    def execute(self, operation: str, body: bytes) -> bytes:
        """Execute a serialized request; return the serialized answer.

        Raises:
            ServiceError: the request is refused, as the service would refuse it.
        """
        return self.answer(operation, body).body

    def answer(self, operation: str, body: bytes, message: Any = None) -> EngineAnswer:
        """Execute a request as ``execute`` does; return the answer and the numbers that the counters need.

        ``message`` is the parsed request, if it was already parsed.

        Raises:
            ServiceError: the request is refused, as the service would refuse it.
        """
        known = OPERATIONS.get(operation)
        if known is None:
            raise refusals.OPERATION(operation=operation)
        begin_request()
        try:
            if message is None:
                message = bounded.read(known.messages.request, body, MESSAGE_FIELDS)
            message = schema.complete(message)
        except CodecError as error:
            raise refusals.MESSAGE(error=error) from error
        request = known.validate(message, self._state.limits)
        with self._lock:
            answer = self._carried_out(known, request)
        if isinstance(answer, Counted):
            return EngineAnswer(_serialized(answer.answer), answer.rows_read, answer.units)
        return EngineAnswer(_serialized(answer), known.rows_read(answer), known.units(answer))

    def _carried_out(self, known: ServedOperation, request: Any) -> Any:
        """Execute a request as within ``_transaction``, but without the cost of a generator for each request."""
        self._require_service()
        try:
            return known.act(self._state, request)
        finally:
            self._commit()

    def _require_service(self) -> None:
        if self._stopped is not None:
            raise self._stopped()

    @contextmanager
    def _transaction(self) -> Iterator[ServerState]:
        """Yield the state under the lock. Commit its changes in any case, because the memory has them already."""
        with self._lock:
            self._require_service()
            try:
                yield self._state
            finally:
                self._commit()

    def _commit(self) -> None:
        try:
            self._state.commit()
        except Exception as error:
            self._stopped = partial(refusals.STORAGE_FAILED_BEFORE, error=error)
            logger.exception("the storage failed to commit; refusing all requests from now on")
            raise refusals.STORAGE_FAILED(error=error) from error

    def shards(self, table: str) -> list[ShardView]:
        """Return the listed shards of a table's stream, parents before their children."""
        with self._transaction() as state:
            return shard_ancestry.view_shards(state, table)

    def spans(self, table: str) -> list[ShardSpan]:
        """Return the listed shards with their key ranges and times, parents before their children."""
        with self._transaction() as state:
            return table_views.view_spans(state, table)

    def tables(self) -> list[TableView]:
        """Return all tables, by name."""
        with self._transaction() as state:
            return table_views.view_tables(state)

    def rows(self, table: str, after: bytes | None, most: int) -> list[RowView]:
        """Return at most ``most`` rows after the encoded key ``after``, in the order of their keys."""
        with self._transaction() as state:
            return table_views.view_rows(state, table, after, most)

    def changes(self, table: str, after: Mapping[str, int] | None, most: int) -> ChangesView:
        """Return the newest ``most`` records after the positions ``after``.

        The records are decoded outside the lock.
        """
        with self._transaction() as state:
            found = table_views.find_changes(state, table, after, most)
        return found.decoded()

    def tunnels(self) -> list[TunnelView]:
        """Return all tunnels with their channels."""
        with self._transaction() as state:
            return table_views.view_tunnels(state)

    @property
    def now_micros(self) -> int:
        """The present time of the clock."""
        return self._state.clock.now_micros()

    @property
    def advanced_seconds(self) -> float:
        """The seconds by which the clock was moved forward."""
        return self._state.clock.offset_micros / MICROS_PER_SECOND

    def split_shard(
        self, table: str, shard_id: str | None = None, at: Sequence[KeyValue] | None = None
    ) -> tuple[str, str]:
        """Close an open shard and open two children in its place; return the ids of the lower and the upper child.

        Without ``shard_id``, split the shard with the most rows; without ``at``, at the median of its rows. ``at`` is a
        key or its leading columns: the first key of the upper child.
        """
        with self._transaction() as state:
            return shard_ancestry.split_shard(state, table, shard_id, at)

    def merge_shards(self, table: str, shard_a: str, shard_b: str) -> str:
        """Close two open shards with adjoining ranges and open one child in their place; return its id."""
        with self._transaction() as state:
            return shard_ancestry.merge_shards(state, table, shard_a, shard_b)

    def trim(
        self,
        table: str,
        *,
        shard_id: str | None = None,
        before_micros: int | None = None,
        keep_last: int | None = None,
    ) -> int:
        """Delete records of one shard or of all shards, as if their retention were over; return their number.

        Delete the records before ``before_micros``, or all but the newest ``keep_last`` of each shard; by default, all.
        """
        with self._transaction() as state:
            return shard_ancestry.trim(state, table, shard_id, before_micros, keep_last)

    def expire_iterators(self, table: str) -> None:
        """Make all earlier iterators answer ``OTSTrimmedDataAccess``; new iterators work."""
        with self._transaction() as state:
            state.expire_iterators(shard_ancestry.stream_of(state, table))

    def advance_clock(self, seconds: float) -> None:
        """Move the clock forward, and delete the data that expires by this.

        The step survives the end of the process.
        """
        with self._transaction() as state:
            state.clock.advance(seconds)
            state.forget_all_expired()

    def drop_tables(self) -> None:
        """Delete all tables with their rows, streams and tunnels."""
        with self._transaction() as state:
            for table in list(state.tables.values()):
                state.drop_table(table)

    def close(self) -> None:
        """Release the storage. Closing twice is allowed; every request afterwards is refused."""
        with self._lock:
            self._stopped = refusals.CLOSED
            self._storage.close()
