"""The reading of a shard page by page. Pages go to the processor; records that fail go to the parking store.

Each step starts one call into user code. ``_proceed`` then looks at the records that are left and takes the next step.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import cast

from streamclient.base.position import Position, ReadTrail
from streamclient.base.reasons import Cause, Raised, Reason, failed_calls, text_of, times
from streamclient.core.consumer import consumer_events
from streamclient.core.consumer.consumer_events import ShardPage, Told
from streamclient.core.consumer.consumer_state import ConsumerState
from streamclient.core.consumer.page import (
    PageInWork,
    PendingCut,
    Remedy,
    Work,
    application_error,
    counted,
    described,
    part_of,
    remedy,
)
from streamclient.core.consumer.parked import Failure, ParkedKeys
from streamclient.core.consumer.transitions import Outcome, Phase
from streamclient.core.events import Severity
from streamclient.core.values import evolve
from streamclient.errors import DisorderError, ShutdownException, TrimmedDataException
from streamclient.model import CheckpointPosition, ParkedRecord, ShutdownReason, TrimmedDataPolicy, TrimmedRange
from streamclient.records import place_of, readable_position

QUIET_READS = 4
"""A warning is logged when this many consecutive pages seem wrong, and each time their number has doubled. Most such
pages are right at the next read: the page was incomplete, or the list of shards was a second too old."""

READ_NAME = "reading"
"""The name by which statuses and logs call a read."""


class PageReader(ConsumerState):
    """The part of a consumer that works between the start and the close of a processor."""

    # --- reading -------------------------------------------------------------------------------------------------

    def _begin_reading(self) -> None:
        self.backoff.read_begins(self._now)
        self._tell(consumer_events.Read(self.visit, self.position))

    def _begin_waiting(self) -> None:
        self._begin_pause(self._pause, is_idle=self.reason is None)

    def _page_read(self, event: consumer_events.PageRead) -> None:
        if event.visit != self.visit:
            return
        page, following = event.page, event.page.next_position
        count = len(page.records)
        judged = self.trail.judge(self.position.text, following.text, count, partial(place_of, page.records))
        if judged.taken:
            page = part_of(page, page.records[judged.taken :])
        if judged.why:
            self._page_not_believed(Cause.NO_PROGRESS, judged.why)
        elif following.is_shard_end:
            self._ending = page
            self._tell(consumer_events.ConfirmEnd(self.visit, event.read_at))
        elif judged.taken == count > 0:
            self._way_read(following, judged.is_way)
        else:
            self._page_believed(page)

    def _way_read(self, following: Position, is_way: bool) -> None:
        """Read on at ``following`` after a page whose records were all taken earlier. Keep the counts of failures.

        ``is_way`` says that the record taken last is in a later page. Otherwise this page ends with it.
        """
        if not is_way:
            self.trail.arrive()
            self._tell(consumer_events.Permit(following.text))
        self.position, self._pause = following, 0.0
        self._follow(Outcome.NOT_BELIEVED)

    def _end_judged(self, event: consumer_events.EndJudged) -> None:
        if event.visit == self.visit and self._ending is not None:
            page, self._ending = self._ending, None
            if event.is_shown and event.since_read:
                self._tell(consumer_events.DropReading())
                self._pause = 0.0
                self._follow(Outcome.NOT_BELIEVED)
            elif event.is_shown:
                self._page_believed(page)
            else:
                self._page_not_believed(Cause.END_NOT_SHOWN, event.detail)
        elif event.is_shown and self.waits_for_end and self.phase is Phase.WAITING:
            self._follow(Outcome.READ_DUE)

    def _page_not_believed(self, cause: Cause, why: str) -> None:
        """Drop a page, and read again after a pause. If it made no progress, ``trail`` chooses where to read."""
        if cause is Cause.NO_PROGRESS:
            self.position = Position(self.trail.turn(self.position.text))
        self.backoff.read_failed()
        count = self.backoff.read_failures
        self.reason = Reason(cause, detail=f"{why} ({times(count)})")
        if count >= QUIET_READS and not count & (count - 1):
            self._log(Severity.WARNING, text_of(self.reason))
        self._tell(consumer_events.DropReading())
        self._pause = self.backoff.read_pause()
        self._follow(Outcome.NOT_BELIEVED)

    def _page_believed(self, page: ShardPage) -> None:
        self.trail.arrive()
        self.backoff.read_succeeded(page, self._now)
        self.reason = None
        if self._cut is not None and self._cut.lacks_records(page) and not self._goes_on_without_lost(self._cut, page):
            return
        if self._cut is not None:
            page, self._cut = self._cut.apply(page)
        if page.records:
            self._orders.page_came(page.records, self._dealt_with.records)
            self._tell_ended_orders()
        is_end = page.next_position.is_shard_end
        if page.records or (self._config.deliver_empty_batches and not is_end):
            if self.backoff.follow_ups.will_follow(page):
                self._tell(consumer_events.ReadAhead(page))
            self._delivery = PageInWork(page, self.position, self._dealt_with, self._parked, self._orders)
            self._proceed()
        elif is_end:
            self._end_reached()
        else:
            self._caught_up(page)

    def _caught_up(self, page: ShardPage) -> None:
        """Pause after an empty page, or after a page that no record follows. The page's records are done."""
        self._pause = self.backoff.caught_up_pause(page, self.position, self._now)
        is_up = self.backoff.is_read_up(page, self.position)
        if is_up and not page.records:
            self._orders.nothing_follows(self._dealt_with.records)
            self._tell_ended_orders()
        self.position = page.next_position
        self._tell(consumer_events.Permit(page.next_position.text))
        self._tell_nothing_follows(is_up=is_up)
        self._follow(Outcome.CAUGHT_UP)

    def _end_reached(self) -> None:
        self._orders.nothing_follows(self._dealt_with.records)
        self.position = Position.SHARD_END
        self._tell(consumer_events.Permit(CheckpointPosition.SHARD_END))
        self._tell(consumer_events.Tell(Told.END_REACHED))
        self._close(Outcome.END_REACHED, ShutdownReason.TERMINATE)

    def _read_failed(self, event: consumer_events.ReadFailed) -> None:
        if event.visit != self.visit:
            return
        if event.error.is_a(TrimmedDataException) and self.trail.goes_back:
            self.position, self._pause = Position(self.trail.forget_way()), 0.0
            self._follow(Outcome.NOT_BELIEVED)
        elif event.error.is_a(TrimmedDataException) and self.position.is_iterator:
            self.reason = Reason(Cause.FINDING_LOSS)
            self._tell(consumer_events.FindFirstLeft(self.visit))
        else:
            self._reading_failed(event.error)

    def _first_left_unknown(self, event: consumer_events.FirstLeftUnknown) -> None:
        if event.visit == self.visit:
            self._reading_failed(event.error)

    def _reading_failed(self, error: Raised) -> None:
        if error.is_a(DisorderError):
            self._page_not_believed(Cause.NO_PROGRESS, error.text)
            return
        self.backoff.read_failed()
        count = self.backoff.read_failures
        self.reason = Reason(Cause.READING_FAILED, READ_NAME, f"{times(count)}: {error.text}")
        # One outage makes reads of all shards fail, so it is logged once for all shards. Each shard's status names it.
        self._tell(consumer_events.TellOutage(READ_NAME, error, f"shard {self.shard_id}: {text_of(self.reason)}"))
        self._ask_for_retry(cast(Exception, error.error), count - 1)

    def _decided_on_read(self, pause: float | None) -> None:
        if self.stop_reason is not None:
            self._close(Outcome.STOPPED, self.stop_reason)
        elif pause is None:
            self.backoff.processor_failed()
            self._close(Outcome.FAILED, ShutdownReason.PROCESS_RESTART)
        else:
            self._pause = pause
            self._follow(Outcome.READ_FAILED)

    # --- lost records --------------------------------------------------------------------------------------------

    def _first_left_found(self, event: consumer_events.FirstLeftFound) -> None:
        if event.visit != self.visit:
            return
        lost = TrimmedRange(
            shard_id=self.shard_id,
            position=self.position.text,
            last_processed_micros=self._dealt_with.record_micros or None,
            last_processed=self._last_processed,
            first_left=event.first_left,
            is_first_left_known=event.is_known,
        )
        self._is_position_lost = True
        if self._goes_on_after(lost, str(lost)):
            self.position, self._pause = Position.TRIM_HORIZON, 0.0
            self._follow(Outcome.READ_FAILED)

    def _goes_on_without_lost(self, cut: PendingCut, page: ShardPage) -> bool:
        """Report that records of a prepared batch are lost, and return whether the policy accepts the loss."""
        lost = TrimmedRange(
            shard_id=self.shard_id,
            position=cut.start,
            last_processed_micros=self._progress.record_micros or None,
            last_processed=None,
            first_left=cut.first_left(page),
        )
        self._is_position_lost = False  # no read failed, because reading began at the oldest record that is left
        return self._goes_on_after(lost, f"in a batch that was prepared up to {cut.end.text}, {lost}")

    def _goes_on_after(self, lost: TrimmedRange, text: str) -> bool:
        """Report a loss, and return whether the policy accepts it. If it does not, halt the shard."""
        policy = self._config.trimmed_data_policy
        self._log(Severity.ERROR, f"{text} (policy {policy.value})")
        if policy is TrimmedDataPolicy.RESTART_AT_OLDEST:
            self._give_up_lost_records()
            self._follows_loss, self.trail = True, ReadTrail()
            return True
        self.lost = lost
        how = f"call worker.accept_loss({self.shard_id!r}), or set trimmed_data_policy to RESTART_AT_OLDEST"
        self._halt(Outcome.DATA_LOST, Reason(Cause.LOSS, lost.position, f"{text}; to go on there, {how}"))
        return False

    def _give_up_lost_records(self) -> None:
        """Accept the loss. Until a checkpoint after the loss is stored, new processors start after the loss, too."""
        self._accepts_loss = True
        self.lost = None
        self._cut = None if self._cut is None else self._cut.without_lost()
        self._tell(consumer_events.Tell(Told.LOSS_GIVEN_UP))

    # --- steps of a page -----------------------------------------------------------------------------------------

    @property
    def _page_in_work(self) -> PageInWork:
        """The page that is being delivered or parked. There must be such a page."""
        if self._delivery is None:
            raise ValueError(f"{self!r} has no page")
        return self._delivery

    def _proceed(self) -> None:
        """Look at the records of the page that are left, and take the next step."""
        work = self._page_in_work.choose(self._now)
        self._log_orders()
        if work is Work.NOTHING:
            self._permit()
            self._page_done()
        elif work is Work.DELIVER:
            self._follow(Outcome.DELIVERY_DUE)
        elif work is Work.ASK or self._may_park():
            self._follow(Outcome.STORE_DUE)

    def _go_on(self) -> None:
        """Take the next step after a step that succeeded, unless a stop was requested and records are left."""
        if self.stop_reason is not None and not self._page_in_work.plan.is_done:
            self._page_stopped()
        else:
            self._proceed()

    def _page_done(self) -> None:
        delivery, self._delivery = self._page_in_work, None
        page, self._dealt_with = delivery.page, delivery.progress
        self._last_processed = delivery.last or self._last_processed
        if delivery.last is not None:
            self.trail.take(delivery.position, delivery.last)
        self._orders.page_done(page.records, delivery.progress.records)
        self._tell(consumer_events.PageDone(page, delivery.last))
        if page.next_position.is_shard_end:
            self._end_reached()
        elif self.stop_reason is not None:
            self._close(Outcome.STOPPED, self.stop_reason)
        elif page.may_more_record is False or not page.records:
            self._caught_up(page)
        else:
            is_due = self.backoff.follow_ups.is_due(page)
            self._pause = 0.0 if is_due else self.backoff.caught_up_pause(page, self.position, self._now)
            self.position = page.next_position
            self._follow(Outcome.ACCEPTED if is_due else Outcome.CAUGHT_UP)

    def _page_stopped(self) -> None:
        self._delivery = None
        self._close(Outcome.STOPPED, self.stop_reason or ShutdownReason.PROCESS_RESTART)

    def _page_refused(self) -> None:
        """Close the processor, so that a new processor gets the records of the page again."""
        self._delivery = None
        if self.stop_reason is ShutdownReason.PROCESS_RESTART:
            self.stop_reason = None  # the processor asked for a restart and raised: one failure
        self._close(Outcome.FAILED, ShutdownReason.PROCESS_RESTART)

    def _given_up(self, reason: Reason) -> None:
        self._delivery = None
        self._log(Severity.ERROR, text_of(reason))
        self._halt(Outcome.GIVEN_UP, reason)

    def _permit(self) -> None:
        """Permit the processor to store the end of the page. Every batch of the page but the last must be done."""
        delivery = self._page_in_work
        if not delivery.is_permitted:
            delivery.is_permitted = True
            self._tell(consumer_events.Permit(delivery.page.next_position.text, delivery.progress, delivery.last))

    def _retract(self) -> None:
        if self._delivery is not None and self._delivery.is_permitted:
            self._delivery.is_permitted = False
            self._tell(consumer_events.Retract())

    # --- the processor -------------------------------------------------------------------------------------------

    def _begin_delivering(self) -> None:
        delivery = self._page_in_work
        if delivery.plan.is_last:
            self._permit()
        if attempts := delivery.plan.next.attempts:
            self._tell(consumer_events.Tell(Told.REDELIVERED))
        self._call(consumer_events.ProcessRecords(delivery.next_records, attempts))

    def _processed(self, event: consumer_events.CallReturned) -> None:
        if event.error is not None:
            self._refused(event.error)
            return
        delivery = self._page_in_work
        count = len(delivery.plan.next.indices)
        self.reason = None
        self.backoff.accepted(count)
        self._tell(consumer_events.Tell(Told.ACCEPTED, count))
        if self._parked is not None:
            self._parked.share.accepted(count)
        delivery.plan = delivery.plan.accepted()
        self._go_on()

    def _refused(self, error: Raised) -> None:
        delivery = self._page_in_work
        self._retract()
        delivery.plan = delivery.plan.failed()
        span = delivery.plan.next
        self.backoff.processor_failed()
        severity = Severity.WARNING if span.is_cut else Severity.ERROR
        self._report_failure(described(span, delivery.page), error, severity)
        # No record is at fault if the lease is lost, or if a destination knows a later owner.
        if self.stop_reason is not None or error.is_a(ShutdownException):
            self._page_refused()
            return
        self._raised = error
        self._ask_for_retry(application_error(self.shard_id, error), span.tries - 1)

    def _decided_on_records(self, pause: float | None) -> None:
        error, self._raised = self._raised, None  # a kept traceback would keep frames of user code alive
        if self.stop_reason is not None:
            self._page_refused()
            return
        delivery = self._page_in_work
        span = delivery.plan.next
        following = remedy(span, self._config.failure_policy, pause is not None)
        if following is Remedy.RETRY and pause is not None:
            self._pause = pause
            self._follow(Outcome.REFUSED_FOR_NOW)
        elif following is Remedy.CUT:
            delivery.plan = delivery.plan.cut()
            self._proceed()
        elif error is None or following is Remedy.RESTART:
            self._page_refused()
        elif following is Remedy.STOP and delivery.is_named:
            self._proceed()  # an order about the record came during the call
        elif following is Remedy.PARK:
            delivery.park(span.indices, Failure(error.text, error.traceback, span.attempts))
            if self._may_park():
                self._follow(Outcome.STORE_DUE)
        else:
            named, detail = self._named(span.indices), f"after {failed_calls(span.attempts)}: {error.text}"
            self._given_up(Reason(Cause.FAILING_RECORD, named, detail, self._id_of(span.indices)))

    # --- retries -------------------------------------------------------------------------------------------------

    def _ask_for_retry(self, error: Exception, retries: int) -> None:
        """Ask the user's retry strategy by a command, as it may be slow. Without one, take the ordinary pause."""
        if self._config.task_retry_strategy is None:
            self._decided(self._ordinary_pause())
        else:
            self.is_asking = True
            self._call(consumer_events.AskStrategy(error, retries))

    def _strategy_answered(self, event: consumer_events.CallReturned) -> None:
        """Follow the strategy's answer. If the strategy failed, say so in ``reason``, and take the ordinary pause."""
        self.is_asking = False
        if event.error is None:
            self._decided(event.value)
            return
        text = f"the retry strategy failed, so the ordinary pause is taken: {event.error.text}"
        if self.reason is not None:
            self.reason = evolve(self.reason, detail=f"{self.reason.detail}; {text}")
        self._log(Severity.ERROR, text, event.error)
        self._decided(self._ordinary_pause())

    def _ordinary_pause(self) -> float | None:
        if self._delivery is None:
            return self.backoff.read_pause()
        return self.backoff.retry_pause(self._delivery.plan.next)

    def _decided(self, pause: float | None) -> None:
        if self._delivery is None:
            self._decided_on_read(pause)
        else:
            self._decided_on_records(pause)

    # --- the parking store ---------------------------------------------------------------------------------------

    @property
    def _keys(self) -> ParkedKeys:
        if self._parked is None:
            raise ValueError(f"{self!r} has no parking store")
        return self._parked

    def _may_park(self) -> bool:
        """Return whether an order, or the policy's share of parked records, permits parking. If not, halt the shard."""
        delivery = self._page_in_work
        if delivery.order is not None or (share := self._keys.share).allows(len(delivery.to_park)):
            return True
        policy, record = self._config.failure_policy, self._named(delivery.to_park)
        detail = (
            f"{share.count} of its last {policy.share_window_records} records are parked, and "
            f"most_parked_share={policy.most_parked_share} allows {policy.most_parked}; the next one would be "
            f"{record}: {delivery.failure.error}"
        )
        self._given_up(Reason(Cause.PARKED_SHARE, record, detail, self._id_of(delivery.to_park[:1])))
        return False

    def _begin_parking(self) -> None:
        delivery = self._page_in_work
        if delivery.work is Work.ASK:
            self._call(consumer_events.AskParkedKeys())
            return
        indices, records, keys = delivery.to_park, delivery.page.records, self._parked
        generations = None if keys is None else [keys.generation(records[index].primary_key) for index in indices]
        page, position, failure, order = delivery.page, delivery.position, delivery.failure, delivery.order
        self._call(consumer_events.Park(page, indices, generations, position, failure, order, self._tree()))

    def _store_answered(self, event: consumer_events.CallReturned) -> None:
        delivery = self._page_in_work
        if event.error is not None:
            self._store_failed(event.error)
            return
        self.backoff.store_failures = 0
        self.reason = None
        if delivery.work is Work.ASK:
            self._keys.answered(event.value, self._now)
        else:
            self._have_parked(event.value)
        self._go_on()

    def _have_parked(self, parked: Sequence[ParkedRecord]) -> None:
        delivery = self._page_in_work
        if self._parked is not None:
            self._parked.stored(parked, is_ordered=delivery.order is not None)
        self._tell(consumer_events.Tell(Told.PARKED, len(parked)))
        if delivery.order is not None:
            self._orders.took(delivery.order, [each.record for each in parked])
        else:
            more = f", and {len(parked) - 1} more" if len(parked) > 1 else ""
            self._log(Severity.WARNING, f"parked {parked[0].record}{more}: {delivery.failure.error}")
        delivery.plan = delivery.plan.without(delivery.to_park)

    def _store_failed(self, error: Raised) -> None:
        """Repeat the call of the parking store after a pause. Until the store works, the shard waits."""
        if self.stop_reason is not None:
            self._page_stopped()
            return
        self._pause = self.backoff.store_failed()
        delivery, count = self._page_in_work, self.backoff.store_failures
        what = "asking for parked keys" if delivery.work is Work.ASK else f"parking {counted(delivery.to_park)}"
        self.reason = Reason(Cause.PARKING_FAILED, what, f"{times(count)}: {what}: {error.text}")
        text = f"shard {self.shard_id}: the parking store failed: {what}: {error.text}"
        self._tell(consumer_events.TellOutage("parking", error, text))
        self._follow(Outcome.REFUSED_FOR_NOW)

    # --- texts ---------------------------------------------------------------------------------------------------

    def _id_of(self, indices: Sequence[int]) -> str:
        """Return the id of the record if ``indices`` has exactly one index; otherwise an empty text."""
        return self._orders.record_id(self._page_in_work.page.records[indices[0]]) if len(indices) == 1 else ""

    def _named(self, indices: Sequence[int]) -> str:
        """Return a text that names the first record of ``indices`` by its key, sequence and position."""
        if not indices:
            return "an empty batch"
        delivery = self._page_in_work
        record = delivery.page.records[indices[0]]
        more = "" if len(indices) == 1 else f" and {len(indices) - 1} more"
        return (
            f"record {self._key_text(record.primary_key)} ({record.sequence_info}), number {indices[0]} after "
            f"position {readable_position(delivery.position)}{more}"
        )
