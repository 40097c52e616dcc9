"""One page on its way through the processor and, where records fail, into the parking store. Owner thread.

``core.failures`` says which records come next and what follows from a failure; here each step starts its one call, and
``_proceed`` looks at what is left and takes the next step, whatever the last one was.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial

from attrs import frozen

from streamclient.core.failures import PagePlan, Span, Verdict, verdict
from streamclient.core.lifecycle import Outcome
from streamclient.errors import ApplicationException, ShutdownException
from streamclient.model import ParkedKey, ParkedRecord
from streamclient.parking.frames import key_text
from streamclient.reasons import Cause, Reason
from streamclient.records import readable_position
from streamclient.stream.api import RecordPage
from streamclient.worker.consumer_state import ConsumerState, described, times
from streamclient.worker.parking_desk import BEHIND_PARKED, Failure, ParkingDesk
from streamclient.worker.positions import further

_log = logging.getLogger(__name__)


@frozen
class PageEnds:
    """How a page may end; exactly one of them is called, once, unless the page is dropped."""

    done: Callable[[RecordPage], None]
    """Every record was accepted or is safely parked."""
    stopped: Callable[[], None]
    """Somebody asked for an end while a call ran, and records are left."""
    failed: Callable[[], None]
    """A new processor shall try."""
    given_up: Callable[[Reason], None]
    """The shard shall stop, for this reason."""


class Delivery:
    """A page between reading and the next one. ``begin`` starts it; drop it to end it early."""

    def __init__(self, page: RecordPage, consumer: ConsumerState, desk: ParkingDesk | None, ends: PageEnds) -> None:
        self.page = page
        self._consumer = consumer
        self._desk = desk
        self._ends = ends
        self._plan = PagePlan.of(range(len(page.records)))
        self._is_permitted = False
        self._progress = further(
            consumer.session.checkpointer.progress,
            records=len(page.records),
            size_bytes=page.body_bytes,
            record_micros=page.records[-1].sequence_info.timestamp_micros if page.records else 0,
        )

    def begin(self) -> None:
        """Take the first step."""
        self._proceed()

    def taken_back(self) -> None:
        """The call under way never ran, and never will."""
        self._retract()

    def _proceed(self) -> None:
        """Ask the store, fill it, deliver, or end."""
        now = self._consumer.around.loop.now()
        left = self._plan.indices
        if self._desk is not None and self._desk.must_ask((self.page.records[index] for index in left), now):
            self._ask()
            return
        behind = self._behind_parked(left)
        if behind:
            self._park(behind, BEHIND_PARKED)
        elif self._plan.is_done:
            self._permit()
            self._ends.done(self.page)
        else:
            self._deliver(self._plan.next)

    def _go_on(self) -> None:
        """A step succeeded: the next one, unless somebody wants an end and something is left."""
        if self._consumer.stop_reason is not None and not self._plan.is_done:
            self._ends.stopped()
        else:
            self._proceed()

    # --- the processor -------------------------------------------------------------------------------------------

    def _deliver(self, span: Span) -> None:
        consumer = self._consumer
        is_whole = len(span.indices) == len(self.page.records)
        records = self.page.records if is_whole else tuple(self.page.records[index] for index in span.indices)
        if self._plan.is_last:
            self._permit()
        if span.attempts:
            consumer.around.instruments.redelivered()
        consumer.move(Outcome.DELIVERY_DUE)
        consumer.call_user_code("process_records", partial(consumer.session.process, records), self._returned)

    def _returned(self, error: BaseException | None) -> None:
        if error is not None:
            self._raised(error)
            return
        count = len(self._plan.next.indices)
        self._consumer.moves()
        self._consumer.backoff.accepted(count)
        self._consumer.around.instruments.accepted(self._consumer.shard_id, count)
        if self._desk is not None:
            self._desk.share.accepted(count)
        self._plan = self._plan.accepted()
        self._go_on()

    def _raised(self, error: BaseException) -> None:
        consumer = self._consumer
        self._retract()
        self._plan = self._plan.failed()
        span = self._plan.next
        consumer.backoff.processor_failed()
        consumer.report_failure(self._described(span), error, logging.WARNING if span.is_cut else logging.ERROR)
        # A lost lease, or a destination that knows a later owner, is no fault of any record.
        if consumer.stop_reason is not None or isinstance(error, ShutdownException):
            self._ends.failed()
            return
        consumer.decide_on_retry(
            _as_application_error(consumer.shard_id, error),
            span.tries - 1,
            partial(consumer.backoff.retry_pause, span),
            partial(self._decided, span, error),
        )

    def _decided(self, span: Span, error: BaseException, pause: float | None) -> None:
        consumer = self._consumer
        if consumer.stop_reason is not None:
            self._ends.failed()
            return
        following = verdict(span, consumer.around.config.failure_policy, pause is not None)
        if following is Verdict.RETRY and pause is not None:
            consumer.move(Outcome.REFUSED_FOR_NOW)
            consumer.pause(pause, self._proceed)
        elif following is Verdict.CUT:
            self._plan = self._plan.cut()
            self._proceed()
        elif following is Verdict.PARK:
            self._park(span.indices, Failure.of(error, span.attempts))
        elif following is Verdict.STOP:
            self._ends.given_up(self._stop_reason(span, error))
        else:
            self._ends.failed()

    def _permit(self) -> None:
        """Nothing is left behind the records that are delivered now, if any, so the page's end may be stored."""
        if not self._is_permitted:
            self._is_permitted = True
            self._consumer.session.checkpointer.permit(self.page.next_position.text, self._progress)

    def _retract(self) -> None:
        if self._is_permitted:
            self._is_permitted = False
            self._consumer.session.checkpointer.retract()

    # --- the parking store ---------------------------------------------------------------------------------------

    def _ask(self) -> None:
        desk, answers = self._the_desk, list[Sequence[ParkedKey]]()

        def asked(error: BaseException | None) -> None:
            if error is not None:
                self._store_failed("asking for parked keys", error)
                return
            self._store_worked()
            desk.answered(answers[0], self._consumer.around.loop.now())
            self._go_on()

        self._consumer.move(Outcome.STORE_DUE)
        self._consumer.call_user_code("parked_keys", lambda: answers.append(desk.ask()), asked)

    def _park(self, indices: Sequence[int], failure: Failure) -> None:
        desk, consumer, parked = self._the_desk, self._consumer, list[ParkedRecord]()
        if not desk.share.allows(len(indices)):
            self._ends.given_up(self._share_reason(indices, failure))
            return
        position = consumer.fetcher.position.text

        def stored(error: BaseException | None) -> None:
            if error is not None:
                self._store_failed(f"parking {_count(indices)}", error, partial(self._park, indices, failure))
                return
            self._store_worked()
            desk.stored(parked)
            self._consumer.around.instruments.parked(len(parked))
            more = f", and {len(parked) - 1} more" if len(parked) > 1 else ""
            _log.warning("shard %s: parked %s%s: %s", consumer.shard_id, parked[0].record, more, failure.error)
            self._plan = self._plan.without(indices)
            self._go_on()

        consumer.move(Outcome.STORE_DUE)
        consumer.call_user_code(
            "park", lambda: parked.extend(desk.park(self.page.records, indices, position, failure)), stored
        )

    def _store_failed(self, what: str, error: BaseException, again: Callable[[], None] | None = None) -> None:
        """Nothing goes on before the store works, so that nothing is skipped."""
        consumer = self._consumer
        if consumer.stop_reason is not None:
            self._ends.stopped()
            return
        pause = consumer.backoff.store_failed()
        count = consumer.backoff.store_failures
        consumer.say(Reason(Cause.PARKING_FAILED, what, f"{times(count)}: {what}: {described(error)}"))
        consumer.around.outages.log(
            logging.ERROR,
            ("parking", type(error)),
            "shard %s: the parking store failed: %s: %s",
            consumer.shard_id,
            what,
            described(error),
        )
        consumer.move(Outcome.REFUSED_FOR_NOW)
        consumer.pause(pause, again or self._proceed)

    def _store_worked(self) -> None:
        self._consumer.backoff.store_failures = 0
        self._consumer.moves()

    def _behind_parked(self, indices: Sequence[int]) -> tuple[int, ...]:
        desk = self._desk
        if desk is None or not desk.knows_keys:
            return ()
        return tuple(index for index in indices if desk.is_behind_parked(self.page.records[index]))

    @property
    def _the_desk(self) -> ParkingDesk:
        if self._desk is None:
            raise ValueError(f"{self._consumer!r} has no parking store")
        return self._desk

    # --- texts ---------------------------------------------------------------------------------------------------

    def _described(self, span: Span) -> str:
        if not span.is_cut:
            return "process_records"
        return f"process_records, narrowed down to {len(span.indices)} of {len(self.page.records)} records"

    def _named(self, indices: Sequence[int]) -> str:
        """The first of these records, by key, place and position."""
        if not indices:
            return "an empty batch"
        record = self.page.records[indices[0]]
        more = "" if len(indices) == 1 else f" and {len(indices) - 1} more"
        return (
            f"record {key_text(record.primary_key)} ({record.sequence_info}), number {indices[0]} behind position "
            f"{readable_position(self._consumer.fetcher.position.text)}{more}"
        )

    def _stop_reason(self, span: Span, error: BaseException) -> Reason:
        detail = f"after {span.attempts} failed calls: {described(error)}"
        return Reason(Cause.FAILING_RECORD, self._named(span.indices), detail)

    def _share_reason(self, indices: Sequence[int], failure: Failure) -> Reason:
        policy, record = self._consumer.around.config.failure_policy, self._named(indices)
        detail = (
            f"{self._the_desk.share.count} of its last {policy.share_window_records} records are parked, and "
            f"most_parked_share={policy.most_parked_share} allows {policy.most_parked}; the next one would be "
            f"{record}: {failure.error}"
        )
        return Reason(Cause.PARKED_SHARE, record, detail)


def _count(indices: Sequence[int]) -> str:
    return "one record" if len(indices) == 1 else f"{len(indices)} records"


def _as_application_error(shard_id: str, error: BaseException) -> ApplicationException:
    wrapped = ApplicationException(f"process_records of shard {shard_id} raised {described(error)}")
    wrapped.__cause__ = error
    return wrapped
