"""Control of a running server beyond the Tablestore protocol: shards, time, faults, counters.

The methods of ``LocalTablestore`` and the admin surface over HTTP both use the class ``Control``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from streamclient.base import checks
from streamclient.server.counters import RequestCount
from streamclient.server.fault_rules import FaultRule, FaultStatus
from streamclient.server.observing import Observer

if TYPE_CHECKING:
    from streamclient.server.engine import Engine, ShardView
    from streamclient.server.http_service import Service
    from streamclient.server.table_views import ChangesView, RowView, ShardSpan, TableView, TunnelView

KeyPart = int | str | bytes

MAX_ADVANCE_SECONDS = 100 * 365 * 86400
"""The largest single step of the clock, in seconds: a century. It is longer than every retention, and the moved time
still fits into 64 bits as microseconds."""


class Control:
    """The methods that control one running server. Thread-safe.

    Methods that take a table raise ``ServiceError``: ``OTSObjectNotExist`` for an unknown table, and
    ``OTSParameterInvalid`` if shards cannot be split or merged in the requested way.
    """

    def __init__(self, engine: Engine, service: Service) -> None:
        self._engine = engine
        self._service = service

    def shards(self, table: str) -> Sequence[ShardView]:
        """Return those shards of a table's stream that DescribeStream lists.

        Closed shards come first, parents before their children. Open shards come after them, in key order.
        """
        return self._engine.shards(table)

    def spans(self, table: str) -> Sequence[ShardSpan]:
        """Return the shards that DescribeStream lists, with their encoded key ranges.

        Each shard also has the times when it opened and closed. Parents come before their children.
        """
        return self._engine.spans(table)

    def tables(self) -> Sequence[TableView]:
        """Return all tables, ordered by name."""
        return self._engine.tables()

    def rows(self, table: str, after: bytes | None = None, most: int = 100) -> Sequence[RowView]:
        """Return at most ``most`` rows of a table after the encoded key ``after``, in the order of their keys."""
        return self._engine.rows(table, after, most)

    def changes(self, table: str, after: Mapping[str, int] | None = None, most: int = 100) -> ChangesView:
        """Return the newest records of a table's stream, at most ``most``, oldest first.

        If ``after`` is the value ``positions`` of an earlier result, return only records that were written after that
        result. The call does not count as a request, and no fault rule applies to it.
        """
        return self._engine.changes(table, after, most)

    def tunnels(self) -> Sequence[TunnelView]:
        """Return all tunnels with their channels."""
        return self._engine.tunnels()

    def split(
        self, table: str, shard_id: str | None = None, at: KeyPart | Sequence[KeyPart] | None = None
    ) -> tuple[str, str]:
        """Close an open shard and open two children; return the ids of the lower and the upper child.

        ``at`` is the first key of the upper child: a list of leading key values, or one value. Without ``at``, split at
        the median of the shard's rows. Without ``shard_id``, split the shard that contains ``at``. Without both, split
        the shard with the most rows.
        """
        key = None if at is None else (at,) if isinstance(at, (int, str, bytes)) else tuple(at)
        return self._engine.split_shard(table, shard_id=shard_id, at=key)

    def merge(self, table: str, shard_a: str, shard_b: str) -> str:
        """Close two open shards with adjoining ranges, and open one child; return the child's id."""
        return self._engine.merge_shards(table, shard_a, shard_b)

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
        return self._engine.trim(table, shard_id=shard_id, before_micros=before_micros, keep_last=keep_last)

    def expire_iterators(self, table: str) -> None:
        """Make all existing iterators of a table's stream fail with ``OTSTrimmedDataAccess``.

        The records stay readable with new iterators.
        """
        self._engine.expire_iterators(table)

    def advance_clock(self, seconds: float) -> None:
        """Move the server's clock forward, so that retention and time to live take effect without waiting.

        With a data directory, the step outlasts a restart of the server, even if the process was killed.

        Raises:
            ValueError: ``seconds`` is negative, not finite, above ``MAX_ADVANCE_SECONDS``, or moves the clock past
                the year 2261.
        """
        if not 0 <= seconds <= MAX_ADVANCE_SECONDS:  # This also refuses NaN, for which no comparison holds.
            raise ValueError(f"seconds must be from 0 to {MAX_ADVANCE_SECONDS}, not {checks.shown(seconds)}")
        self._engine.advance_clock(seconds)

    def add_fault(self, rule: FaultRule) -> int:
        """Add a fault rule after the existing rules; return its id."""
        return self._service.faults.add(rule)

    def remove_fault(self, fault_id: int) -> bool:
        """Remove a fault rule; return whether the rule existed."""
        return self._service.faults.remove(fault_id)

    def clear_faults(self) -> int:
        """Remove all fault rules; return the number of removed rules."""
        return self._service.faults.clear()

    def faults(self) -> Sequence[FaultStatus]:
        """Return the fault rules with their counters, in the order in which the server consults them."""
        return self._service.faults.rules()

    def requests(self) -> Sequence[RequestCount]:
        """Return the counters of authenticated requests, by operation and table."""
        return self._service.counters.counts()

    def observe(self, observer: Observer) -> None:
        """Call ``observer`` with an ``Exchange`` for each authenticated request from now on, executed or refused."""
        self._service.observers = (*self._service.observers, observer)

    def unobserve(self, observer: Observer) -> None:
        """Stop calling ``observer``. Do nothing if the server does not call it."""
        self._service.observers = tuple(other for other in self._service.observers if other != observer)

    @property
    def now_micros(self) -> int:
        """The server's time in microseconds since 1970, including all steps of ``advance_clock``."""
        return self._engine.now_micros

    @property
    def advanced_seconds(self) -> float:
        """The total number of seconds by which ``advance_clock`` moved the clock."""
        return self._engine.advanced_seconds

    def reset_requests(self) -> None:
        """Set all request counters to zero."""
        self._service.counters.reset()

    def clear(self) -> None:
        """Delete all tables with their streams and tunnels, all fault rules, observers and request counts.

        The clock stays unchanged.
        """
        self._engine.drop_tables()
        self._service.faults.clear()
        self._service.observers = ()
        self._service.counters.reset()
