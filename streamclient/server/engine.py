"""The local Tablestore without its network: requests in, answers out, one at a time.

Laws:

- One lock: requests take effect one after another, and a stream's order of records is that order.
- A request is validated before it meets any state; what it refuses changes nothing.
- Whatever a request changed is committed to the storage before it is answered. If that fails, memory and storage
  may differ, so from then on the engine refuses everything with an error that says so.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

from streamclient.errors import CodecError
from streamclient.records import KeyValue
from streamclient.server import lineage
from streamclient.server.actions import (
    batch_get_row,
    batch_write_row,
    compute_split_points_by_size,
    create_table,
    delete_row,
    delete_table,
    describe_stream,
    describe_table,
    get_range,
    get_row,
    get_shard_iterator,
    get_stream_record,
    list_stream,
    list_table,
    put_row,
    update_row,
    update_table,
)
from streamclient.server.clock import Clock
from streamclient.server.errors import ServiceError, invalid, unsupported
from streamclient.server.limits import DEFAULT_LIMITS, Limits
from streamclient.server.lineage import ShardView
from streamclient.server.loading import restore
from streamclient.server.state import ServerState
from streamclient.server.storage import Storage
from streamclient.server.tunnels import actions as tunnels
from streamclient.server.validation import batch_get_row as validate_batch_get_row
from streamclient.server.validation import batch_write_row as validate_batch_write_row
from streamclient.server.validation import compute_split_points_by_size as validate_compute_split_points_by_size
from streamclient.server.validation import create_table as validate_create_table
from streamclient.server.validation import delete_row as validate_delete_row
from streamclient.server.validation import delete_table as validate_delete_table
from streamclient.server.validation import describe_stream as validate_describe_stream
from streamclient.server.validation import describe_table as validate_describe_table
from streamclient.server.validation import get_range as validate_get_range
from streamclient.server.validation import get_row as validate_get_row
from streamclient.server.validation import get_shard_iterator as validate_get_shard_iterator
from streamclient.server.validation import get_stream_record as validate_get_stream_record
from streamclient.server.validation import list_stream as validate_list_stream
from streamclient.server.validation import list_table as validate_list_table
from streamclient.server.validation import put_row as validate_put_row
from streamclient.server.validation import update_row as validate_update_row
from streamclient.server.validation import update_table as validate_update_table
from streamclient.wire import schema

__all__ = ["OPERATIONS", "Engine", "ShardView"]

logger = logging.getLogger(__name__)

_MESSAGES = {**schema.OPERATIONS, **schema.TUNNEL_OPERATIONS}

_Validate = Callable[[Any, Limits], Any]
_Act = Callable[[ServerState, Any], Any]


def _as_it_is(message: Any, limits: Limits) -> Any:
    """Tunnel requests are few fields each, judged where they are used."""
    return message


OPERATIONS: Mapping[str, tuple[_Validate, _Act]] = MappingProxyType(
    {
        "BatchGetRow": (validate_batch_get_row.validate, batch_get_row.act),
        "BatchWriteRow": (validate_batch_write_row.validate, batch_write_row.act),
        "ComputeSplitPointsBySize": (validate_compute_split_points_by_size.validate, compute_split_points_by_size.act),
        "CreateTable": (validate_create_table.validate, create_table.act),
        "DeleteRow": (validate_delete_row.validate, delete_row.act),
        "DeleteTable": (validate_delete_table.validate, delete_table.act),
        "DescribeStream": (validate_describe_stream.validate, describe_stream.act),
        "DescribeTable": (validate_describe_table.validate, describe_table.act),
        "GetRange": (validate_get_range.validate, get_range.act),
        "GetRow": (validate_get_row.validate, get_row.act),
        "GetShardIterator": (validate_get_shard_iterator.validate, get_shard_iterator.act),
        "GetStreamRecord": (validate_get_stream_record.validate, get_stream_record.act),
        "ListStream": (validate_list_stream.validate, list_stream.act),
        "ListTable": (validate_list_table.validate, list_table.act),
        "PutRow": (validate_put_row.validate, put_row.act),
        "UpdateRow": (validate_update_row.validate, update_row.act),
        "UpdateTable": (validate_update_table.validate, update_table.act),
        "tunnel/checkpoint": (_as_it_is, tunnels.checkpoint),
        "tunnel/connect": (_as_it_is, tunnels.connect),
        "tunnel/create": (_as_it_is, tunnels.create),
        "tunnel/delete": (_as_it_is, tunnels.delete),
        "tunnel/describe": (_as_it_is, tunnels.describe),
        "tunnel/getcheckpoint": (_as_it_is, tunnels.get_checkpoint),
        "tunnel/getrpo": (_as_it_is, tunnels.get_rpo),
        "tunnel/getrpobyoffset": (_as_it_is, tunnels.get_rpo),
        "tunnel/heartbeat": (_as_it_is, tunnels.heartbeat),
        "tunnel/list": (_as_it_is, tunnels.list_tunnels),
        "tunnel/readrecords": (_as_it_is, tunnels.read_records),
        "tunnel/schedule": (_as_it_is, tunnels.schedule),
        "tunnel/shutdown": (_as_it_is, tunnels.shutdown),
    }
)
"""Every operation that this server has: how to validate it, and what it does."""


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
        handlers = OPERATIONS.get(operation)
        if handlers is None:
            raise unsupported(f"the operation {operation}")
        validate, act = handlers
        try:
            message = schema.parse(_MESSAGES[operation].request, body)
        except CodecError as error:
            raise invalid(f"Cannot deserialize the request data: {error}.") from error
        request = validate(message, self._state.limits)
        with self._transaction() as state:
            answer = act(state, request)
        return answer if isinstance(answer, bytes) else bytes(answer.SerializeToString())

    @contextmanager
    def _transaction(self) -> Iterator[ServerState]:
        """The state, under the lock; what was changed is committed in any case, as memory already has it."""
        with self._lock:
            if self._stopped_because is not None:
                raise ServiceError(500, "OTSInternalServerError", self._stopped_because)
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
            return lineage.view_shards(state, table)

    def split_shard(
        self, table: str, shard_id: str | None = None, at: Sequence[KeyValue] | None = None
    ) -> tuple[str, str]:
        """Close an open shard and open two in its place; the ids of the lower and the upper one.

        Without ``shard_id`` the shard with the most rows is split, without ``at`` at the median of its rows. ``at``
        is a key or its leading columns: the first place that belongs to the upper child.
        """
        with self._transaction() as state:
            return lineage.split_shard(state, table, shard_id, at)

    def merge_shards(self, table: str, shard_a: str, shard_b: str) -> str:
        """Close two open shards whose ranges adjoin and open one in their place; its id."""
        with self._transaction() as state:
            return lineage.merge_shards(state, table, shard_a, shard_b)

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
            return lineage.trim(state, table, shard_id, before_micros, keep_last)

    def expire_iterators(self, table: str) -> None:
        """Make every iterator handed out so far answer ``OTSTrimmedDataAccess``; new ones work."""
        with self._transaction() as state:
            state.expire_iterators(lineage.stream_of(state, table))

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
