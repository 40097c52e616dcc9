"""The engine of the local Tablestore: it executes serialized requests, one at a time, without a network.

Laws:

- Requests take effect one after another, under one lock. So a stream's records have the order of the requests.
- The engine validates a request before it reads or changes any state. A refused request changes nothing.
- The engine commits the changes of a request to the storage before it answers the request. If the commit fails, memory
  and storage may differ. From then on the engine refuses every request, and each refusal names the error of the commit.
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
    """The serialized answer to a request, with the numbers for the request counters."""

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
        tunnel find the tunnel in its first stage, without channels. If the stream drops records that a tunnel still
        needs, the tunnel expires. With ``tunnels_skip_lost_log``, the tunnel skips the dropped records instead.
        """
        self._lock = threading.RLock()
        self._storage = storage
        self._stopped: Callable[[], ServiceError] | None = None
        """The function that makes the error with which the engine refuses every request, after the engine was closed
        or a commit failed. ``None`` while the engine serves requests."""
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
            ServiceError: the engine refuses the request, as the service would.
        """
        return self.answer(operation, body).body

    def answer(self, operation: str, body: bytes, message: Any = None) -> EngineAnswer:
        """Execute a serialized request; return the serialized answer with the numbers for the request counters.

        If the caller has parsed the request already, ``message`` is the parsed request.

        Raises:
            ServiceError: the engine refuses the request, as the service would.
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
        """Execute a validated request and commit its changes.

        This method does the same as ``_transaction``, without the cost of a generator for each request.
        """
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
        """Yield the state under the lock, and commit the changes of the state at the end of the block.

        If the block fails, commit nevertheless, because the state in memory already has the changes.
        """
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
        """Return the shards of a table's stream that DescribeStream lists; see ``Control.shards`` for their order."""
        with self._transaction() as state:
            return shard_ancestry.view_shards(state, table)

    def spans(self, table: str) -> list[ShardSpan]:
        """Return the shards that DescribeStream lists, parents before children.

        Each shard has its encoded key range, and the times when it opened and closed.
        """
        with self._transaction() as state:
            return table_views.view_spans(state, table)

    def tables(self) -> list[TableView]:
        """Return all tables, ordered by name."""
        with self._transaction() as state:
            return table_views.view_tables(state)

    def rows(self, table: str, after: bytes | None, most: int) -> list[RowView]:
        """Return at most ``most`` rows of a table after the encoded key ``after``, in the order of their keys."""
        with self._transaction() as state:
            return table_views.view_rows(state, table, after, most)

    def changes(self, table: str, after: Mapping[str, int] | None, most: int) -> ChangesView:
        """Return the newest records of a table's stream, at most ``most``, oldest first.

        ``after`` maps shard ids to positions. For these shards, the method returns only the records from the position
        on. It decodes the records outside the lock.
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
        """The present time of the server's clock, in microseconds since 1970."""
        return self._state.clock.now_micros()

    @property
    def advanced_seconds(self) -> float:
        """The total number of seconds by which ``advance_clock`` moved the clock."""
        return self._state.clock.offset_micros / MICROS_PER_SECOND

    def split_shard(
        self, table: str, shard_id: str | None = None, at: Sequence[KeyValue] | None = None
    ) -> tuple[str, str]:
        """Close an open shard and open two children in its place; return the ids of the lower and the upper child.

        ``at`` is the first key of the upper child: a whole key, or its leading columns. Without ``at``, split at the
        median of the shard's rows. Without ``shard_id``, split the shard that contains ``at``. Without both, split the
        shard with the most rows.
        """
        with self._transaction() as state:
            return shard_ancestry.split_shard(state, table, shard_id, at)

    def merge_shards(self, table: str, shard_a: str, shard_b: str) -> str:
        """Close two open shards with adjoining ranges and open one child in their place; return the child's id."""
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
        """Delete records of one shard or of all shards, as if their retention were over.

        By default, delete all records. With ``before_micros``, delete only records before that time. With
        ``keep_last``, keep the newest ``keep_last`` records of each shard, even if they are before ``before_micros``.
        Return the number of deleted records.
        """
        with self._transaction() as state:
            return shard_ancestry.trim(state, table, shard_id, before_micros, keep_last)

    def expire_iterators(self, table: str) -> None:
        """Make all existing iterators of a table's stream fail with ``OTSTrimmedDataAccess``. New iterators work."""
        with self._transaction() as state:
            state.expire_iterators(shard_ancestry.stream_of(state, table))

    def advance_clock(self, seconds: float) -> None:
        """Move the clock forward by ``seconds``, and delete the data that have expired after this step.

        The storage keeps the step, so that a restarted server uses the moved clock.
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
        """Release the storage, and refuse every later request. Closing twice is allowed."""
        with self._lock:
            self._stopped = refusals.CLOSED
            self._storage.close()
