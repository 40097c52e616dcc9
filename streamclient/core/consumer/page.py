"""The order of delivery within a page whose records fail: from the failed page down to the failing record.

Laws, which hold with any number of failures:

* records are delivered in the order of the page, and each is accepted or taken out exactly once;
* while exactly one record fails, a page of n records costs at most 2 log2(n) calls more than its retries;
* a record is taken out only after it failed on its own, or because an operator's order names it.

A *span* is a part of a page that is delivered as one batch. A page is a sequence of spans, and the first span is
delivered next. If a failed span is the whole page or a single record, it is delivered again as often as the policy
says. Any other failed span is cut in two immediately. If the first half then passes, the failing record is in the
second half, so that half is cut without being tried. A second half that is a single record is still tried.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import Enum

from attrs import frozen

from streamclient.base.position import Position
from streamclient.base.reasons import Raised
from streamclient.config import FailurePolicy
from streamclient.core.consumer.consumer_events import ShardPage
from streamclient.core.consumer.consumer_positions import further
from streamclient.core.consumer.parked import AFTER_PARKED, Failure, ParkedKeys
from streamclient.core.consumer.record_orders import RecordOrders
from streamclient.core.values import evolve
from streamclient.errors import ApplicationException
from streamclient.model import OnFailure, PendingCheckpoint, Progress, RecordOrder
from streamclient.records import SequenceInfo, StreamRecord, place_of


@frozen
class Span:
    """Records of a page that are delivered together, in one call of ``process_records``."""

    indices: Sequence[int]
    """The indices of the records within the page, ascending, as a range or a tuple. Only a page without records has a
    span without indices."""
    attempts: int = 0
    """The number of failed calls whose batch contained all of these records."""
    tries: int = 0
    """The number of failed calls whose batch was exactly this span."""
    is_cut: bool = False
    """Whether this span was cut out of a larger span that failed."""
    is_rest: bool = False
    """Whether this span is the second half of a failed span, and no part of the first half has failed so far."""


@frozen
class PagePlan:
    """The spans of a page that are left to deliver. The plan is done when no span is left."""

    spans: tuple[Span, ...]

    @classmethod
    def of(cls, indices: Iterable[int]) -> PagePlan:
        """Return the plan that delivers the records at ``indices``, first as one batch."""
        return cls((Span(indices if isinstance(indices, range) else tuple(indices)),))

    @property
    def is_done(self) -> bool:
        """Whether every record of the page was accepted or taken out."""
        return not self.spans

    @property
    def next(self) -> Span:
        """The span to deliver now. The plan must not be done."""
        return self.spans[0]

    @property
    def is_last(self) -> bool:
        """Whether the next span is the last span of the plan."""
        return len(self.spans) == 1

    @property
    def indices(self) -> Sequence[int]:
        """The indices, within the page, of all records that are left to deliver, in order."""
        if len(self.spans) == 1:
            return self.spans[0].indices
        return tuple(index for span in self.spans for index in span.indices)

    def accepted(self) -> PagePlan:
        """Return the plan after the processor has accepted the next span."""
        following = self.spans[1:]
        if not following or not following[0].is_rest:
            return PagePlan(following)
        blamed = evolve(following[0], is_rest=False)
        spans = (blamed, *following[1:])
        return PagePlan(spans) if len(blamed.indices) == 1 else PagePlan(spans).cut()

    def failed(self) -> PagePlan:
        """Return the plan after the delivery of the next span failed. ``remedy`` decides how to go on."""
        first, *others = self.spans
        raised = evolve(first, attempts=first.attempts + 1, tries=first.tries + 1)
        return PagePlan((raised, *_no_rest(others)))

    def cut(self) -> PagePlan:
        """Return the plan that delivers the two halves of the next span one after the other."""
        first, *others = self.spans
        middle = (len(first.indices) + 1) // 2
        halves = (
            Span(first.indices[:middle], first.attempts, is_cut=True),
            Span(first.indices[middle:], first.attempts, is_cut=True, is_rest=True),
        )
        return PagePlan((*halves, *others))

    def without(self, indices: Collection[int]) -> PagePlan:
        """Return the plan without the records at ``indices``.

        Spans without records are removed, too, even the span of a page that had no records.
        """
        if not indices and all(span.indices for span in self.spans):
            return self
        taken = frozenset(indices)
        spans = (evolve(span, indices=_kept(span.indices, taken)) for span in self.spans)
        return PagePlan(tuple(span for span in spans if span.indices))


def _kept(indices: Sequence[int], taken: frozenset[int]) -> tuple[int, ...]:
    return tuple(index for index in indices if index not in taken)


def _no_rest(spans: list[Span]) -> list[Span]:
    """Return ``spans``; if the first one is the second half of a failed span, clear its ``is_rest``.

    A part of the first half has just failed. So the second half is tried as it is, and not cut beforehand.
    """
    return [evolve(spans[0], is_rest=False), *spans[1:]] if spans and spans[0].is_rest else spans


class Remedy(Enum):
    """The reaction to a span whose delivery raised an error."""

    RETRY = "retry"
    CUT = "cut"
    PARK = "park"
    STOP = "stop"
    RESTART = "restart"


_FINALLY = {
    OnFailure.PARK: Remedy.PARK,
    OnFailure.STOP_SHARD: Remedy.STOP,
    OnFailure.RESTART: Remedy.RESTART,
}


def remedy(span: Span, policy: FailurePolicy, may_retry: bool) -> Remedy:
    """Return the reaction to a span whose delivery raised; ``may_retry`` says whether the span has retries left.

    A span without indices has no record that could be parked, so a new processor starts instead.
    """
    is_single = len(span.indices) <= 1
    cuts = policy.bisect and policy.then is not OnFailure.RESTART and not is_single
    if may_retry and (is_single or not span.is_cut):
        return Remedy.RETRY
    if not span.indices and policy.then is OnFailure.PARK:
        return Remedy.RESTART
    return Remedy.CUT if cuts else _FINALLY[policy.then]


class Work(Enum):
    """The next step in the work on a page."""

    ASK = "ask the parking store"
    PARK = "park records"
    DELIVER = "deliver records"
    NOTHING = "nothing is left of it"


class PageInWork:
    """One page on its way through the processor and, if records fail, into the parking store."""

    def __init__(
        self,
        page: ShardPage,
        position: Position,
        before: Progress,
        parked: ParkedKeys | None,
        orders: RecordOrders,
    ) -> None:
        """Make the plan for the page that was read at ``position``; ``before`` is the progress before this page."""
        count = len(page.records)
        self.page = page
        self.position = position.text
        self.plan = PagePlan.of(range(count))
        self.is_permitted = False
        """Whether the processor was permitted to store the position after the page."""
        self.last = place_of(page.records, -1) if count else None
        """The position of the page's last record; ``None`` if the page has no record."""
        self.progress = further(
            before,
            records=count,
            size_bytes=page.body_bytes,
            record_micros=0 if self.last is None else self.last.timestamp_micros,
        )
        """The progress of the shard up to the end of the page."""
        self.work = Work.NOTHING
        """The step that ``choose`` returned last."""
        self.failure = AFTER_PARKED
        """The reason why the records of ``to_park`` are parked."""
        self.order: RecordOrder | None = None
        """The operator's order because of which records are parked; ``None`` without an order."""
        self._to_park: Sequence[int] = ()
        self._parked = parked
        self._orders = orders

    def choose(self, now: float) -> Work:
        """Choose and return the next step. Before that, take out the records that operators' orders drop."""
        records = self.page.records
        if self._parked is not None and self._parked.must_ask(records, self.plan.indices, now):
            self.work = Work.ASK
            return self.work
        to_park: Mapping[int, RecordOrder] = {}
        if self._orders.are_any:
            ordered = self._orders.named_in(records, self.plan.indices)
            self._drop([index for index, order in ordered.items() if order.is_skip], ordered)
            to_park = {index: order for index, order in ordered.items() if not order.is_skip}
        self.work = Work.NOTHING if self.plan.is_done else Work.DELIVER
        if to_park:
            first = next(iter(to_park.values()))
            self.park([index for index, order in to_park.items() if order is first], failure_of(first), first)
        elif self._parked is not None and (following := self._parked.after_parked(records, self.plan.indices)):
            self.park(following, AFTER_PARKED)
        return self.work

    def park(self, indices: Sequence[int], failure: Failure, order: RecordOrder | None = None) -> None:
        """Record that the records at ``indices`` are to be parked, because of ``failure`` or of an operator's order."""
        self.work, self._to_park, self.failure, self.order = Work.PARK, indices, failure, order

    def _drop(self, indices: Sequence[int], ordered: Mapping[int, RecordOrder]) -> None:
        for index in indices:
            self._orders.took(ordered[index], [self.page.records[index]])
        self.plan = self.plan.without(indices)

    @property
    def is_named(self) -> bool:
        """Whether an order names a record that is left, or records are being parked because of an order."""
        is_parking = self.work is Work.PARK and self.order is not None
        return is_parking or bool(self._orders.named_in(self.page.records, self.plan.indices))

    @property
    def must_store(self) -> bool:
        """Whether the parking store must answer before the consumer does anything else."""
        return self.work in (Work.ASK, Work.PARK)

    @property
    def to_park(self) -> Sequence[int]:
        """The indices, within the page, of the records to park now."""
        return self._to_park

    @property
    def next_records(self) -> Sequence[StreamRecord]:
        """The records to deliver now.

        If they are consecutive, they are a slice of the page, so that no record objects are made.
        """
        records, indices = self.page.records, self.plan.next.indices
        if len(indices) == len(records):
            return records
        first, last = indices[0], indices[-1]
        is_in_a_row = last - first + 1 == len(indices)
        return records[first : last + 1] if is_in_a_row else tuple(records[index] for index in indices)


def failure_of(order: RecordOrder) -> Failure:
    """Return the reason for parking records that an order names."""
    why = f": {order.reason}" if order.reason else ""
    return Failure(f"parked by order of {order.by}{why}", "", 0)


def described(span: Span, page: ShardPage) -> str:
    """Return a text that names the call of ``process_records`` for a span, for statuses and logs."""
    if not span.is_cut:
        return "process_records"
    return f"process_records, narrowed down to {len(span.indices)} of {len(page.records)} records"


def counted(records: Sequence[object]) -> str:
    """Return a text with the number of records; ``records`` may also be their indices or ids."""
    return "one record" if len(records) == 1 else f"{len(records)} records"


def application_error(shard_id: str, raised: Raised) -> ApplicationException:
    """Return the exception that a user's retry strategy is given after ``process_records`` raised."""
    wrapped = ApplicationException(f"process_records of shard {shard_id} raised {raised.text}")
    wrapped.__cause__ = raised.error
    return wrapped


@frozen
class PendingCut:
    """The end of a batch for which an earlier processor prepared a checkpoint.

    The repeated batch must end there, too.
    """

    records_left: int
    """The number of records from the beginning of the next page to ``end``, if none of these records has left the
    stream."""
    end: Position
    """The position that the prepared checkpoint stores: the end of the batch."""
    start: str = ""
    """The position at which reading of the batch began."""
    last: SequenceInfo | None = None
    """The last record before the end. If it is ``None``, the end is found by counting records."""
    first: SequenceInfo | None = None
    """The oldest record that was read since the reading of the batch began; ``None`` if no record was read yet."""
    is_loss_accepted: bool = False
    """Whether the batch may go on without the records that have left the stream."""

    @classmethod
    def of(cls, pending: PendingCheckpoint | None, start: str) -> PendingCut | None:
        """Return the cut for a prepared checkpoint; ``None`` without a checkpoint, or if its batch is empty."""
        if pending is None or pending.records <= 0:
            return None
        return cls(pending.records, Position(pending.value), start, pending.last)

    def without_lost(self) -> PendingCut | None:
        """Return the cut with which the batch goes on without the lost records.

        Return ``None`` if the end of the batch is found only by counting records: some of them are lost.
        """
        return None if self.last is None else evolve(self, is_loss_accepted=True)

    def lacks_records(self, page: ShardPage) -> bool:
        """Return whether the repeated batch ends in ``page``, but has fewer records than the prepared batch had."""
        count = self._count_in(page)
        return not self.is_loss_accepted and count < self.records_left and self._is_over(page, count)

    def first_left(self, page: ShardPage) -> SequenceInfo | None:
        """Return the oldest record read since the reading of the batch began. This record may be in ``page``."""
        return self.first or (place_of(page.records, 0) if page.records else None)

    def apply(self, page: ShardPage) -> tuple[ShardPage, PendingCut | None]:
        """Cut ``page`` at the end of the batch, if ``page`` contains it; return the page and the cut for later pages.

        When the batch is repeated, the service may divide the records into different pages, and there may be more
        records. After a cut, reading goes on at the prepared position. If all records before the end are lost, the
        page begins after the end and stays whole.
        """
        count = self._count_in(page)
        if not self._is_over(page, count):
            return page, evolve(self, records_left=self.records_left - count, first=self.first_left(page))
        if not count:
            return page, None
        part = PartOfPage(
            page.records[:count],
            self.end,
            None if self.end.is_shard_end else True,
            int(page.body_bytes * count / len(page.records)),
        )
        return part, None

    def _count_in(self, page: ShardPage) -> int:
        records = page.records
        if self.last is None:
            return min(len(records), self.records_left)
        return bisect_right(range(len(records)), self.last, key=lambda index: place_of(records, index))

    def _is_over(self, page: ShardPage, count: int) -> bool:
        if page.next_position.is_shard_end or count < len(page.records):
            return True
        return count > 0 and (
            count == self.records_left if self.last is None else place_of(page.records, -1) == self.last
        )


def part_of(page: ShardPage, records: Sequence[StreamRecord]) -> ShardPage:
    """Return ``page`` reduced to ``records``, which must be its last records."""
    size_bytes = int(page.body_bytes * len(records) / len(page.records))
    return PartOfPage(records, page.next_position, page.may_more_record, size_bytes)


@frozen
class PartOfPage:
    """A page that consists of some of the records of another page."""

    records: Sequence[StreamRecord]
    next_position: Position
    may_more_record: bool | None
    body_bytes: int
