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

from collections import deque
from collections.abc import Collection, Iterable
from enum import Enum

from attrs import evolve, frozen

from streamclient.config import FailurePolicy
from streamclient.core.retry import doubling_millis
from streamclient.model import OnFailure


@frozen
class Span:
    """Records of a page that are delivered together."""

    indices: tuple[int, ...]
    """Their places in the page, ascending; none only in a batch that was empty from the beginning."""
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
        return cls((Span(tuple(indices)),))

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
    def indices(self) -> tuple[int, ...]:
        """Everything that is left, in order."""
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
        """The next span raised; what follows from that is said by ``verdict``."""
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
        """Take records out, wherever they are."""
        taken = frozenset(indices)
        spans = (evolve(span, indices=_kept(span.indices, taken)) for span in self.spans)
        return PagePlan(tuple(span for span in spans if span.indices))


def _kept(indices: tuple[int, ...], taken: frozenset[int]) -> tuple[int, ...]:
    return tuple(index for index in indices if index not in taken)


def _no_rest(spans: list[Span]) -> list[Span]:
    """Something failed before them, so nothing is known of the first one any more."""
    return [evolve(spans[0], is_rest=False), *spans[1:]] if spans and spans[0].is_rest else spans


class Verdict(Enum):
    """What follows when a span raised."""

    RETRY = "retry"
    CUT = "cut"
    PARK = "park"
    STOP = "stop"
    RESTART = "restart"


_FINALLY = {
    OnFailure.PARK: Verdict.PARK,
    OnFailure.STOP_SHARD: Verdict.STOP,
    OnFailure.RESTART: Verdict.RESTART,
}


def verdict(span: Span, policy: FailurePolicy, may_retry: bool) -> Verdict:
    """What follows, now that the span raised once more; ``may_retry`` is whether retries of it are left."""
    is_single = len(span.indices) <= 1
    cuts = policy.bisect and policy.then is not OnFailure.RESTART and not is_single
    if may_retry and (is_single or not span.is_cut):
        return Verdict.RETRY
    return Verdict.CUT if cuts else _FINALLY[policy.then]


def retry_pause_millis(span: Span, policy: FailurePolicy) -> int:
    """Pause before a span that has just raised is delivered again."""
    return doubling_millis(span.tries, policy.first_pause_millis, policy.longest_pause_millis)


class ParkedShare:
    """How many of the latest records of a shard were parked, against the policy's limit."""

    def __init__(self, policy: FailurePolicy) -> None:
        self._window = policy.share_window_records
        self._most = policy.most_parked
        self._seen = 0
        self._parked: deque[int] = deque()

    def accepted(self, records: int) -> None:
        """So many records passed."""
        self._seen += records
        self._forget()

    def parked(self, records: int) -> None:
        """So many records were parked."""
        self._parked.extend(range(self._seen, self._seen + records))
        self._seen += records
        self._forget()

    def allows(self, records: int) -> bool:
        """Whether so many more may be parked now."""
        return len(self._parked) + records <= self._most

    @property
    def count(self) -> int:
        """How many of the latest records are parked."""
        return len(self._parked)

    def _forget(self) -> None:
        while self._parked and self._parked[0] < self._seen - self._window:
            self._parked.popleft()
