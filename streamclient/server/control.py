"""Control of a running server beyond the protocol: shards, time, faults, counters.

The Python methods of ``LocalTablestore`` and the admin HTTP surface are both this class.
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
"""The largest single step of the clock, in seconds. A century is longer than every retention, and keeps microseconds
within 64 bits."""


class Control:
    """Control of one running server. Thread-safe.

    Methods that name a table raise ``ServiceError`` like the service (``OTSObjectNotExist`` for an unknown table), and
    ``OTSParameterInvalid`` for shards that cannot be split or merged in the requested way.
    """

    def __init__(self, engine: Engine, service: Service) -> None:
        self._engine = engine
        self._service = service

    def shards(self, table: str) -> Sequence[ShardView]:
        """Return the listed shards: closed shards, parents first, then open shards in key order."""
        return self._engine.shards(table)

    def spans(self, table: str) -> Sequence[ShardSpan]:
        """Return the listed shards with their encoded key ranges and times, parents before their children."""
        return self._engine.spans(table)

    def tables(self) -> Sequence[TableView]:
        """Return all tables, by name."""
        return self._engine.tables()

    def rows(self, table: str, after: bytes | None = None, most: int = 100) -> Sequence[RowView]:
        """Return at most ``most`` rows in the order of their keys, after the encoded key ``after``."""
        return self._engine.rows(table, after, most)

    def changes(self, table: str, after: Mapping[str, int] | None = None, most: int = 100) -> ChangesView:
        """Return the newest records of a table's stream, at most ``most``, oldest first.

        ``after`` is the ``positions`` of an earlier answer: only later records are returned. The call is not counted as
        a request, and meets no fault.
        """
        return self._engine.changes(table, after, most)

    def tunnels(self) -> Sequence[TunnelView]:
        """Return all tunnels with their channels."""
        return self._engine.tunnels()

    def split(
        self, table: str, shard_id: str | None = None, at: KeyPart | Sequence[KeyPart] | None = None
    ) -> tuple[str, str]:
        """Close an open shard and open two children; return their ids.

        Without ``shard_id``, split the open shard with most rows; without ``at``, at its median key. ``at`` is the key
        at which the second child begins: the leading key values, or one value without a list.
        """
        key = None if at is None else (at,) if isinstance(at, (int, str, bytes)) else tuple(at)
        return self._engine.split_shard(table, shard_id=shard_id, at=key)

    def merge(self, table: str, shard_a: str, shard_b: str) -> str:
        """Close two adjacent open shards and open one child; return its id."""
        return self._engine.merge_shards(table, shard_a, shard_b)

    def trim(
        self,
        table: str,
        *,
        shard_id: str | None = None,
        before_micros: int | None = None,
        keep_last: int | None = None,
    ) -> int:
        """Delete records as if their retention were over; return their number.

        By default delete all records; with ``before_micros``, records written earlier; with ``keep_last``, all but the
        newest ``keep_last`` of each shard.
        """
        return self._engine.trim(table, shard_id=shard_id, before_micros=before_micros, keep_last=keep_last)

    def expire_iterators(self, table: str) -> None:
        """Make all earlier iterators fail with ``OTSTrimmedDataAccess``. The records stay readable."""
        self._engine.expire_iterators(table)

    def advance_clock(self, seconds: float) -> None:
        """Move the server's clock forward: retention and time to live take effect without waiting.

        With a data directory the clock keeps the step after a restart, even if the process was killed.

        Raises:
            ValueError: ``seconds`` is negative, not finite, above ``MAX_ADVANCE_SECONDS``, or leads past the year 2261.
        """
        if not 0 <= seconds <= MAX_ADVANCE_SECONDS:  # This also refuses NaN, for which no comparison holds.
            raise ValueError(f"seconds must be from 0 to {MAX_ADVANCE_SECONDS}, not {checks.shown(seconds)}")
        self._engine.advance_clock(seconds)

    def add_fault(self, rule: FaultRule) -> int:
        """Add a fault rule after the present rules; return its id."""
        return self._service.faults.add(rule)

    def remove_fault(self, fault_id: int) -> bool:
        """Remove a fault rule; return whether it existed."""
        return self._service.faults.remove(fault_id)

    def clear_faults(self) -> int:
        """Remove all fault rules; return their number."""
        return self._service.faults.clear()

    def faults(self) -> Sequence[FaultStatus]:
        """Return the fault rules with their counters, in the order in which they are consulted."""
        return self._service.faults.rules()

    def requests(self) -> Sequence[RequestCount]:
        """Return the counters of authenticated requests by operation and table."""
        return self._service.counters.counts()

    def observe(self, observer: Observer) -> None:
        """Call ``observer`` for each authenticated request from now on, executed or refused; see ``Exchange``."""
        self._service.observers = (*self._service.observers, observer)

    def unobserve(self, observer: Observer) -> None:
        """Stop calling ``observer``. Do nothing if it is not being called."""
        self._service.observers = tuple(other for other in self._service.observers if other != observer)

    @property
    def now_micros(self) -> int:
        """The server's time, with all steps of ``advance_clock``."""
        return self._engine.now_micros

    @property
    def advanced_seconds(self) -> float:
        """The total number of seconds by which ``advance_clock`` moved the clock."""
        return self._engine.advanced_seconds

    def reset_requests(self) -> None:
        """Set all request counters to zero."""
        self._service.counters.reset()

    def clear(self) -> None:
        """Delete all tables with their streams and tunnels, all faults, observers and counts.

        The clock stays unchanged.
        """
        self._engine.drop_tables()
        self._service.faults.clear()
        self._service.observers = ()
        self._service.counters.reset()
