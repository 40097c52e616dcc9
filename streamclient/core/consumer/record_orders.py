"""Operators' orders to take records out of a shard, and the way in which one consumer obeys them.

Laws:

* a record is taken out only if a standing order names it. If two orders name it, the later order counts;
* an order moves no checkpoint: a page ends at the same position, with or without the records that are taken out;
* an order is obeyed once a stored checkpoint is after all records that it names. Until then the order stands. So if a
  reader begins at an earlier checkpoint, it takes the same records out again;
* if an order leaves the row before it is obeyed, it was withdrawn. No further record is taken out because of it, and
  records that were taken out stay out.

The ids of a shard's records sort like the records, so a comparison of ids shows which records are before a position.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from attrs import define, field

from streamclient.model import RecordOrder
from streamclient.records import StreamRecord


@define
class _StandingOrder:
    order: RecordOrder
    last_id: str
    """The id of the last record that the order names."""
    taken: set[str] = field(factory=set)
    """The ids of the records that this consumer took out. If the consumer reads such a record again, it takes the
    record out again."""
    passed_at: int | None = None
    """The shard's progress, in records, at a position after all records of the order; ``None`` until that is known. A
    new processor counts from the stored progress on, so it reaches this number at the same record."""
    is_told: bool = False
    """Whether the consumer has reported that the order ended."""
    is_logged: bool = False


class RecordOrders:
    """The standing orders of one shard.

    Args:
        record_id: returns the id of a record; the ids of a shard sort in the order of its records.
    """

    def __init__(self, orders: Iterable[RecordOrder], record_id: Callable[[StreamRecord], str]) -> None:
        self.record_id = record_id
        self._standing: dict[str, _StandingOrder] = {}
        self._by_record: dict[str, _StandingOrder] = {}
        self._withdrawn: list[_StandingOrder] = []
        self.are_any = False
        """Whether any order stands, or was withdrawn since the orders were given last. Most shards never have orders,
        and for them a check of this value saves many calls per page."""
        self.give(orders)

    def give(self, orders: Iterable[RecordOrder]) -> tuple[RecordOrder, ...]:
        """Replace the standing orders, and return the new orders.

        Orders that stood already keep their state.
        """
        known = self._standing
        self._standing = {
            order.request_id: known.get(order.request_id) or _StandingOrder(order, max(order.record_ids, default=""))
            for order in orders
        }
        self._withdrawn += [
            standing for key, standing in known.items() if key not in self._standing and not standing.is_told
        ]
        self._by_record = {
            record_id: standing for standing in self._standing.values() for record_id in standing.order.record_ids
        }
        self.are_any = bool(self._standing or self._withdrawn)
        return tuple(standing.order for key, standing in self._standing.items() if key not in known)

    def names(self, record_id: str) -> bool:
        """Return whether a standing order names the record."""
        return record_id in self._by_record

    def named_in(self, records: Sequence[StreamRecord], indices: Sequence[int]) -> Mapping[int, RecordOrder]:
        """Return the orders for the records at ``indices``, by index. Records without an order are left out."""
        if not self._by_record or not indices:
            return {}

        def id_at(index: int) -> str:
            return self.record_id(records[index])

        start = bisect_left(indices, min(self._by_record), key=id_at)
        end = bisect_right(indices, max(self._by_record), key=id_at)
        found = ((index, self._by_record.get(id_at(index))) for index in indices[start:end])
        return {index: standing.order for index, standing in found if standing is not None}

    def took(self, order: RecordOrder, records: Iterable[StreamRecord]) -> None:
        """Record that ``records`` were taken out because of ``order``. The order may have been withdrawn meanwhile."""
        for standing in (*self._standing.values(), *self._withdrawn):
            if standing.order.request_id == order.request_id:
                standing.taken.update(map(self.record_id, records))

    def withdrawn(self) -> Iterator[tuple[RecordOrder, int]]:
        """Yield each withdrawn order once, with the number of its records that this consumer took out."""
        while self._withdrawn:
            standing = self._withdrawn.pop(0)
            yield standing.order, len(standing.taken)

    def logged(self) -> Iterator[RecordOrder]:
        """Yield, for the log, each standing order once: after this consumer has taken a record out because of it."""
        for standing in self._standing.values():
            if standing.taken and not standing.is_logged:
                standing.is_logged = True
                yield standing.order

    # --- the end of an order -------------------------------------------------------------------------------------

    def page_came(self, records: Sequence[StreamRecord], before: int) -> None:
        """Record which orders have all their records before a new page.

        ``records`` are the records of the page, at least one. ``before`` is the number of the shard's records before
        the page.
        """
        if self._standing:
            first = self.record_id(records[0])
            self._pass(before, lambda standing: standing.last_id < first)

    def page_done(self, records: Sequence[StreamRecord], until: int) -> None:
        """Record which orders have all their records before the end of a page that is done.

        ``records`` are the records of the page. ``until`` is the number of the shard's records before the end of the
        page.
        """
        if self._standing and records:
            last = self.record_id(records[-1])
            self._pass(until, lambda standing: standing.last_id <= last)

    def nothing_follows(self, until: int) -> None:
        """Record that the shard has no record after its first ``until`` records.

        So no record that an order names can still come.
        """
        self._pass(until, lambda standing: True)

    def ended(self, stored: int, *, is_finished: bool) -> Iterator[tuple[RecordOrder, int]]:
        """Yield each order that is obeyed now, with the number of its records that this consumer took out.

        The stored checkpoint is after the first ``stored`` records of the shard. ``is_finished`` says that this
        checkpoint is the end of the shard. No order is yielded twice.
        """
        for standing in self._standing.values():
            is_passed = standing.passed_at is not None and standing.passed_at <= stored
            if (is_passed or is_finished) and not standing.is_told:
                standing.is_told = True
                yield standing.order, len(standing.taken)

    def _pass(self, records: int, is_before: Callable[[_StandingOrder], bool]) -> None:
        for standing in self._standing.values():
            if standing.passed_at is None and is_before(standing):
                standing.passed_at = records
