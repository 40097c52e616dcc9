"""The local Tablestore without its network: requests in, answers out, one at a time.

Laws:

- One lock: requests take effect one after another, and a stream's order of records is that order.
- A request is validated before it meets any state; what it refuses changes nothing.
- Whatever a request changed is committed to the storage before it is answered. If that fails, memory and storage
  may differ, so from then on the engine refuses everything with an error that says so.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from attrs import frozen

from streamclient.base import logs
from streamclient.errors import CodecError
from streamclient.records import KeyValue
from streamclient.server import shard_ancestry
from streamclient.server.loading import restore
from streamclient.server.operation import Counted, ServedOperation
from streamclient.server.operations import OPERATIONS
from streamclient.server.server_clock import Clock
from streamclient.server.server_errors import ServiceError, invalid
from streamclient.server.server_limits import DEFAULT_LIMITS, MESSAGE_FIELDS, Limits
from streamclient.server.server_state import ServerState
from streamclient.server.shard_ancestry import ShardView
from streamclient.server.storage import Storage
from streamclient.server.work import begin_request
from streamclient.wire import bounded, schema

__all__ = ["OPERATIONS", "Engine", "ShardView"]

logger = logs.logger(__name__)


@frozen
class EngineAnswer:
    """The serialized answer to a request, and how many rows or stream records it holds."""

    body: bytes
    rows_read: int


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
        instance_name: str = "",
    ) -> None:
        """Load what the storage holds. ``stream_enabling_millis``: how long a new stream reports to be ENABLING."""
        self._lock = threading.RLock()
        self._storage = storage
        self._stopped_because: str | None = None
        self._state = ServerState(
            clock=clock,
            storage=storage,
            limits=limits,
            stream_enabling_millis=stream_enabling_millis,
            instance_name=instance_name,
        )
        restore(self._state, storage.load())

    def execute(self, operation: str, body: bytes) -> bytes:
        """Carry out one request given in its serialized form; the serialized answer.

        Raises:
            ServiceError: the request is refused, as the service would refuse it.
        """
        return self.answer(operation, body).body

    def answer(self, operation: str, body: bytes, message: Any = None) -> EngineAnswer:
        """As ``execute``, with how many rows the answer holds. ``message`` is the request, if it was parsed already.

        Raises:
            ServiceError: the request is refused, as the service would refuse it.
        """
        known = OPERATIONS.get(operation)
        if known is None:
            raise invalid(f"Unsupported operation: {operation}.")
        begin_request()
        try:
            if message is None:
                message = bounded.read(known.messages.request, body, MESSAGE_FIELDS)
            message = schema.complete(message)
        except CodecError as error:
            raise invalid(f"Cannot deserialize the request data: {error}.") from error
        request = known.validate(message, self._state.limits)
        with self._lock:
            answer = self._carried_out(known, request)
        if isinstance(answer, Counted):
            return EngineAnswer(_serialized(answer.answer), answer.rows_read)
        return EngineAnswer(_serialized(answer), known.rows_read(answer))

    def _carried_out(self, known: ServedOperation, request: Any) -> Any:
        """As ``_transaction`` has it, without the cost of a generator for each request."""
        self._require_service()
        try:
            return known.act(self._state, request)
        finally:
            self._commit()

    def _require_service(self) -> None:
        if self._stopped_because is not None:
            raise ServiceError(500, "OTSInternalServerError", self._stopped_because)

    @contextmanager
    def _transaction(self) -> Iterator[ServerState]:
        """The state, under the lock; what was changed is committed in any case, as memory already has it."""
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
            self._stopped_because = f"The storage failed earlier: {error}; restart the server."
            logger.exception("the storage did not take a commit; refusing all requests from now on")
            raise ServiceError(500, "OTSInternalServerError", f"The storage failed: {error}.") from error

    def shards(self, table: str) -> list[ShardView]:
        """The listed shards of a table's stream, parents before their children."""
        with self._transaction() as state:
            return shard_ancestry.view_shards(state, table)

    def split_shard(
        self, table: str, shard_id: str | None = None, at: Sequence[KeyValue] | None = None
    ) -> tuple[str, str]:
        """Close an open shard and open two in its place; the ids of the lower and the upper one.

        Without ``shard_id`` the shard with the most rows is split, without ``at`` at the median of its rows. ``at``
        is a key or its leading columns: the first place that belongs to the upper child.
        """
        with self._transaction() as state:
            return shard_ancestry.split_shard(state, table, shard_id, at)

    def merge_shards(self, table: str, shard_a: str, shard_b: str) -> str:
        """Close two open shards whose ranges adjoin and open one in their place; its id."""
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
        """Forget records as if their retention were over; how many were forgotten.

        Of one shard or of all: those before a time, or all but the last so many of each shard, or without both, all.
        """
        with self._transaction() as state:
            return shard_ancestry.trim(state, table, shard_id, before_micros, keep_last)

    def expire_iterators(self, table: str) -> None:
        """Make every iterator handed out so far answer ``OTSTrimmedDataAccess``; new ones work."""
        with self._transaction() as state:
            state.expire_iterators(shard_ancestry.stream_of(state, table))

    def advance_clock(self, seconds: float) -> None:
        """Move the clock forward, and let go of what that ends. It survives the end of the process."""
        with self._transaction() as state:
            state.clock.advance(seconds)
            state.forget_all_expired()

    def close(self) -> None:
        """Release the storage. Closing twice is allowed; every request afterwards is refused."""
        with self._lock:
            self._stopped_because = "The server was closed."
            self._storage.close()
