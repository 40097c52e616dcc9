"""Which records of a page to deliver next when some of them fail: from a failed page down to the record at fault.

Laws, whatever fails and how often:

* records are delivered in the order of the page, and one is accepted or taken out exactly once;
* while one record is at fault and the others are not, a page of n costs at most 2 log2(n) calls more than its retries;
* a single record is taken out only after it failed on its own.

A page is a row of spans, in order; the first one is next. A span that fails is delivered again as often as the policy
says if it is the whole page or a single record, and is otherwise cut in two at once. If the first half then passes,
the second must hold what failed, so it is cut without being tried; a second half of one record is still tried.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Sequence
from enum import Enum

from attrs import frozen

from streamclient.base.position import Position
from streamclient.config import FailurePolicy
from streamclient.core.consumer.consumer_events import ShardPage
from streamclient.core.consumer.consumer_positions import further
from streamclient.core.consumer.parked import BEHIND_PARKED, Failure, ParkedKeys
from streamclient.core.values import evolve
from streamclient.model import OnFailure, PendingCheckpoint, Progress
from streamclient.records import SequenceInfo, StreamRecord, place_of


@frozen
class Span:
    """Records of a page that are delivered together."""

    indices: Sequence[int]
    """Their places in the page, ascending, a range while they stand in a row; none only in a batch that was empty from
    the beginning."""
    attempts: int = 0
    """Calls that failed with all of these records in the batch."""
    tries: int = 0
    """Calls that failed with exactly this span."""
    is_cut: bool = False
    """Whether it is part of a span that failed, and nothing else."""
    is_rest: bool = False
    """Whether it is the second half of a span that failed, and nothing of the first half has failed so far."""


@frozen
class PagePlan:
    """What is left to do with a page; done when no span is left."""

    spans: tuple[Span, ...]

    @classmethod
    def of(cls, indices: Iterable[int]) -> PagePlan:
        """All of these records, first as one batch."""
        return cls((Span(indices if isinstance(indices, range) else tuple(indices)),))

    @property
    def is_done(self) -> bool:
        """Whether every record was accepted or taken out."""
        return not self.spans

    @property
    def next(self) -> Span:
        """What to deliver now; there must be something left."""
        return self.spans[0]

    @property
    def is_last(self) -> bool:
        """Whether nothing is left behind the next span."""
        return len(self.spans) == 1

    @property
    def indices(self) -> Sequence[int]:
        """Everything that is left, in order."""
        if len(self.spans) == 1:
            return self.spans[0].indices
        return tuple(index for span in self.spans for index in span.indices)

    def accepted(self) -> PagePlan:
        """The next span passed."""
        following = self.spans[1:]
        if not following or not following[0].is_rest:
            return PagePlan(following)
        blamed = evolve(following[0], is_rest=False)
        spans = (blamed, *following[1:])
        return PagePlan(spans) if len(blamed.indices) == 1 else PagePlan(spans).cut()

    def failed(self) -> PagePlan:
        """The next span raised; what follows from that is said by ``remedy``."""
        first, *others = self.spans
        raised = evolve(first, attempts=first.attempts + 1, tries=first.tries + 1)
        return PagePlan((raised, *_no_rest(others)))

    def cut(self) -> PagePlan:
        """Deliver the two halves of the next span one after the other."""
        first, *others = self.spans
        middle = (len(first.indices) + 1) // 2
        halves = (
            Span(first.indices[:middle], first.attempts, is_cut=True),
            Span(first.indices[middle:], first.attempts, is_cut=True, is_rest=True),
        )
        return PagePlan((*halves, *others))

    def without(self, indices: Collection[int]) -> PagePlan:
        """Take records out, wherever they are; a batch that was empty from the beginning goes with them."""
        if not indices and all(span.indices for span in self.spans):
            return self
        taken = frozenset(indices)
        spans = (evolve(span, indices=_kept(span.indices, taken)) for span in self.spans)
        return PagePlan(tuple(span for span in spans if span.indices))


def _kept(indices: Sequence[int], taken: frozenset[int]) -> tuple[int, ...]:
    return tuple(index for index in indices if index not in taken)


def _no_rest(spans: list[Span]) -> list[Span]:
    """Something failed before them, so nothing is known of the first one any more."""
    return [evolve(spans[0], is_rest=False), *spans[1:]] if spans and spans[0].is_rest else spans


class Remedy(Enum):
    """What follows when a span raised."""

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
    """What follows, now that the span raised once more; ``may_retry`` is whether retries of it are left."""
    is_single = len(span.indices) <= 1
    cuts = policy.bisect and policy.then is not OnFailure.RESTART and not is_single
    if may_retry and (is_single or not span.is_cut):
        return Remedy.RETRY
    return Remedy.CUT if cuts else _FINALLY[policy.then]


class Work(Enum):
    """What a page asks for next."""

    ASK = "ask the parking store"
    PARK = "park records"
    DELIVER = "deliver records"
    NOTHING = "nothing is left of it"


class PageInWork:
    """One page on its way through the processor and, where records fail, into the parking store."""

    def __init__(self, page: ShardPage, position: Position, before: Progress, parked: ParkedKeys | None) -> None:
        """``before`` is what was processed before this page, which was read at ``position``."""
        self.page = page
        self.position = position.text
        self.plan = PagePlan.of(range(len(page.records)))
        self.is_permitted = False
        """Whether the position behind it may be stored."""
        self.last = place_of(page.records, -1) if page.records else None
        """Where its last record stands."""
        self.progress = further(
            before,
            records=len(page.records),
            size_bytes=page.body_bytes,
            record_micros=0 if self.last is None else self.last.timestamp_micros,
        )
        """What was processed once it is."""
        self.work = Work.NOTHING
        """What was chosen last."""
        self.failure = BEHIND_PARKED
        """Why records are parked."""
        self._to_park: Sequence[int] = ()
        self._parked = parked

    def choose(self, now: float) -> Work:
        """What is next, whatever the last step was."""
        self.work = Work.NOTHING if self.plan.is_done else Work.DELIVER
        if self._parked is not None:
            left = self.plan.indices
            if self._parked.must_ask(self.page.records, left, now):
                self.work = Work.ASK
            elif behind := self._parked.behind_parked(self.page.records, left):
                self.park(behind, BEHIND_PARKED)
        return self.work

    def park(self, indices: Sequence[int], failure: Failure) -> None:
        """These records are to be parked, and why."""
        self.work, self._to_park, self.failure = Work.PARK, indices, failure

    @property
    def must_store(self) -> bool:
        """Whether the parking store has to be asked or given something before anything else."""
        return self.work in (Work.ASK, Work.PARK)

    @property
    def to_park(self) -> Sequence[int]:
        """Places of the records that are to be parked now."""
        return self._to_park

    @property
    def next_records(self) -> Sequence[StreamRecord]:
        """What is to be delivered now; no record is made where they are all of the page, or stand in a row."""
        records, indices = self.page.records, self.plan.next.indices
        if len(indices) == len(records):
            return records
        first, last = indices[0], indices[-1]
        is_in_a_row = last - first + 1 == len(indices)
        return records[first : last + 1] if is_in_a_row else tuple(records[index] for index in indices)


@frozen
class PendingCut:
    """Repeating exactly the batch that a sink prepared: where the batches after a start have to end."""

    records_left: int
    """So many records on, if none of them has left the stream."""
    end: Position
    """The prepared position."""
    start: str = ""
    """Where reading began."""
    last: SequenceInfo | None = None
    """The last record before it; if nobody has stored that, the place is found by counting."""
    first: SequenceInfo | None = None
    """The first record that was read since the start."""
    is_loss_accepted: bool = False
    """Whether it goes on without those that have left the stream."""

    @classmethod
    def of(cls, pending: PendingCheckpoint | None, start: str) -> PendingCut | None:
        """The cut that a prepared checkpoint asks for; none if no record lies before it."""
        if pending is None or pending.records <= 0:
            return None
        return cls(pending.records, Position(pending.value), start, pending.last)

    def without_lost(self) -> PendingCut | None:
        """The same if records were lost, and that is accepted; none if the place can only be found by counting."""
        return None if self.last is None else evolve(self, is_loss_accepted=True)

    def lacks_records(self, page: ShardPage) -> bool:
        """Whether the batch ends in this page, and has fewer records than were prepared."""
        count = self._count_in(page)
        return not self.is_loss_accepted and count < self.records_left and self._is_over(page, count)

    def first_left(self, page: ShardPage) -> SequenceInfo | None:
        """The oldest record that was there, this page included."""
        return self.first or (place_of(page.records, 0) if page.records else None)

    def apply(self, page: ShardPage) -> tuple[ShardPage, PendingCut | None]:
        """The page, cut if it reaches the place, and what is left of the cut behind it.

        The stream may have cut its pages otherwise before, and may hold more records by now; reading goes on at the
        prepared position. A page behind the place, as all before it are lost, stays as it is.
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
    """The last records of a page alone."""
    size_bytes = int(page.body_bytes * len(records) / len(page.records))
    return PartOfPage(records, page.next_position, page.may_more_record, size_bytes)


@frozen
class PartOfPage:
    """A page that was cut."""

    records: Sequence[StreamRecord]
    next_position: Position
    may_more_record: bool | None
    body_bytes: int
