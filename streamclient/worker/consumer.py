"""Runs one shard: reads, delivers, restarts, ends. Every method is called in the owner thread.

What may follow what stands in ``core.lifecycle``; here each phase starts its one piece of work, in the fetch pool or in
the user's executor, and each answer becomes the next outcome. ``Delivery`` takes a page through the processor.
"""

from __future__ import annotations

import logging
from functools import partial

from streamclient.core.events import CheckpointOutcome, ConsumerEnd, StartConsumer
from streamclient.core.lifecycle import Outcome, Phase, stronger
from streamclient.core.position import Position
from streamclient.errors import TrimmedDataException
from streamclient.model import (
    CheckpointPosition,
    PendingCheckpoint,
    ShardInfo,
    ShutdownReason,
    TrimmedDataPolicy,
    TrimmedRange,
)
from streamclient.reasons import Cause, Reason, text_of
from streamclient.records import SequenceInfo, readable_position
from streamclient.stream.api import RecordPage
from streamclient.worker.checkpointer import CheckpointTicket
from streamclient.worker.consumer_state import READ_NAME, ConsumerState, Surroundings, described, times
from streamclient.worker.cut import PendingCut
from streamclient.worker.delivery import Delivery, PageEnds
from streamclient.worker.parking_desk import ParkingDesk
from streamclient.worker.positions import further
from streamclient.worker.session import ProcessorSession, ShutdownMarker
from streamclient.worker.trimming import first_record_left
from streamclient.worker.usercode import UserCall

_log = logging.getLogger(__name__)


class ShardConsumer(ConsumerState):
    """One tenancy of one shard, from ``StartConsumer`` to ``ConsumerStopped``."""

    def __init__(self, start: StartConsumer, around: Surroundings) -> None:
        super().__init__(start, around)
        self._desk = _desk(self.shard_info, around)
        self._delivery: Delivery | None = None
        self._cut: PendingCut | None = None
        self._accepts_loss = False
        self._is_past_loss = False

    # --- what the coordinator asks -------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start the first processor."""
        self.move(Outcome.BEGAN)
        self._start()

    def stop(self, reason: ShutdownReason) -> None:
        """End as soon as no user code runs; a stronger reason replaces a weaker one."""
        self.stop_reason = stronger(self.stop_reason, reason)
        if reason is ShutdownReason.ZOMBIE and self._session is not None:
            self._session.checkpointer.close("this worker no longer holds the lease")
        self._stop_if_idle()

    def abandon(self) -> None:
        """The worker ends without waiting for user code that still runs; it can store nothing any more.

        A call that no thread has begun never will.
        """
        if self._call is not None:
            self._call.cancel()
        if self._fetcher is not None:
            self._fetcher.discard()
        if self._session is not None:
            self._session.checkpointer.close("the worker ended before the processor did")

    def checkpoint_requested(self) -> None:
        """A checkpoint is on its way; exactly one ``checkpoint_answered`` follows."""
        self._open_requests += 1

    def checkpoint_answered(self, ticket: CheckpointTicket, outcome: CheckpointOutcome) -> None:
        """A checkpoint was stored or prepared, or not."""
        self._open_requests -= 1
        if outcome is CheckpointOutcome.STORED:
            self._pending = ticket.pending
            if ticket.pending is None:
                self._has_stored(ticket)
        if self._call is None and not self._open_requests:
            if self._phase is Phase.STARTING:
                self._begin_reading()
            elif self._phase is Phase.CLOSING:
                self._after_shutdown()

    def accept_loss(self) -> TrimmedRange | None:
        """Go on at the oldest record that is left, if the shard stopped for lost records; what is given up.

        If its ``shutdown`` still runs, the next processor starts when that has returned.
        """
        lost = self._lost
        if lost is None:
            return None
        _log.warning("shard %s: the loss is accepted, reading goes on at the oldest record: %s", self.shard_id, lost)
        self._give_up_lost_records()
        self._halt_reason = None
        if self._phase is Phase.HALTED:
            self._start_due()
        return lost

    # --- starting ------------------------------------------------------------------------------------------------

    @property
    def _initial(self) -> str:
        """Where a new processor starts."""
        return CheckpointPosition.TRIM_HORIZON if self._accepts_loss else self._stored

    def _start(self) -> None:
        around, initial, pending = self.around, self._initial, self._pending
        checkpointer = self.new_checkpointer(initial)
        marker = ShutdownMarker(lambda reason: around.loop.post(partial(self._marked, session, reason)))
        session = ProcessorSession(
            self.shard_info, initial, around.make_processor, checkpointer, marker, pending=pending
        )
        if pending is not None:
            checkpointer.offer(pending.value, further(self._progress, records=pending.records))
        self._session = session
        self._cut = None
        self._is_past_loss = self._accepts_loss
        self._halt_reason = None
        self._fetcher = self.new_fetcher(Position(initial))
        self.call_user_code("initialize", session.initialize, self._initialized)

    def _initialized(self, error: BaseException | None) -> None:
        if error is not None:
            self.backoff.processor_failed()
            self.report_failure("initialize", error)
            if self.session.processor is None:
                self._abandon_session(Outcome.NOT_MADE)
            else:
                self._close(Outcome.FAILED, ShutdownReason.PROCESS_RESTART)
        elif self.stop_reason is not None:
            self._close(Outcome.STOPPED, self.stop_reason)
        elif not self._open_requests:
            self._begin_reading()

    def _begin_reading(self) -> None:
        """``initialize`` returned, and every checkpoint that it asked for was answered."""
        if self.stop_reason is not None:
            self._close(Outcome.STOPPED, self.stop_reason)
            return
        offered = self.session.pending
        if offered is not None:
            self._settle_pending(offered)
        self.move(Outcome.INITIALIZED)
        self._read()

    def _settle_pending(self, offered: PendingCheckpoint) -> None:
        """Read behind what an earlier processor prepared, if it is stored now, or else up to it once more."""
        if self._stored == offered.value:
            self.fetcher.position = Position(offered.value)
            self.session.checkpointer.permit(offered.value, self._progress)
        else:
            self.session.checkpointer.withdraw(offered.value)
        self._cut = None if self._accepts_loss else PendingCut.of(self._pending)

    def _abandon_session(self, outcome: Outcome) -> None:
        """There is no processor to close."""
        self.session.checkpointer.close("its processor was never made")
        self._session = None
        self.move(outcome)
        self._pause_before_start()

    # --- reading -------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        visit = self._visit
        self.fetcher.fetch(partial(self._page_came, visit), partial(self._page_failed, visit))

    def _page_came(self, visit: int, page: RecordPage) -> None:
        if visit != self._visit:
            return
        now = self.around.loop.now()
        self.backoff.read_succeeded(page, now)
        self.around.facts.reads.succeeded(now)
        self.moves()
        if self._cut is not None:
            page, self._cut = self._cut.apply(page)
        if page.records:
            self._backlog.came(page.records[0].sequence_info.timestamp_micros, now)
            self.around.facts.saw(page.records[-1].sequence_info.timestamp_micros, now)
        ended = page.next_position.is_shard_end
        if page.records or (self.around.config.deliver_empty_batches and not ended):
            self.fetcher.read_ahead(page)
            ends = PageEnds(self._page_done, self._page_stopped, self._page_refused, self._given_up)
            self._delivery = Delivery(page, self, self._desk, ends)
            self._delivery.begin()
        elif ended:
            self._end_reached(page)
        else:
            self._caught_up(page)

    def _caught_up(self, page: RecordPage) -> None:
        """Nothing waits behind this page, whose records, if any, are dealt with."""
        now = self.around.loop.now()
        pause = self.backoff.caught_up_pause(page, self.fetcher.position, now)
        self.fetcher.advance(page)
        self._backlog.caught_up(self.around.facts.service_micros(now), now)
        self.session.checkpointer.permit(page.next_position.text)
        self.around.instruments.caught_up(self.shard_id)
        self.move(Outcome.CAUGHT_UP)
        self.pause(pause, self._read_due)

    def _page_failed(self, visit: int, error: Exception) -> None:
        if visit != self._visit:
            return
        if isinstance(error, TrimmedDataException) and self.fetcher.position.is_iterator:
            self._look_for_first_record_left(visit)
        else:
            self._read_failed(visit, error)

    def _read_failed(self, visit: int, error: Exception) -> None:
        if visit != self._visit:
            return
        self.backoff.read_failed()
        count = self.backoff.read_failures
        self.around.facts.reads.failed(error, self.around.loop.now())
        reason = Reason(Cause.READING_FAILED, READ_NAME, f"{times(count)}: {described(error)}")
        self.say(reason)
        # One outage strikes all shards, again and again; the statuses tell of each.
        kind = ("reading", type(error), getattr(error, "code", None))
        self.around.outages.log(logging.WARNING, kind, "shard %s: %s", self.shard_id, text_of(reason))
        self.decide_on_retry(error, count - 1, self.backoff.read_pause, self._read_decided)

    def _read_decided(self, pause: float | None) -> None:
        if self.stop_reason is not None:
            self._close(Outcome.STOPPED, self.stop_reason)
        elif pause is None:
            self.backoff.processor_failed()
            self._close(Outcome.FAILED, ShutdownReason.PROCESS_RESTART)
        else:
            self.move(Outcome.READ_FAILED)
            self.pause(pause, self._read_due)

    def _read_due(self) -> None:
        self.move(Outcome.READ_DUE)
        self._read()

    def _end_reached(self, page: RecordPage) -> None:
        now = self.around.loop.now()
        self.fetcher.advance(page)
        self._backlog.caught_up(self.around.facts.service_micros(now), now)
        self.session.checkpointer.permit(CheckpointPosition.SHARD_END)
        self._close(Outcome.END_REACHED, ShutdownReason.TERMINATE)

    # --- lost records --------------------------------------------------------------------------------------------

    def _look_for_first_record_left(self, visit: int) -> None:
        around = self.around
        self.say(Reason(Cause.FINDING_LOSS))

        def look() -> None:
            try:
                first = first_record_left(around.stream_api, self.shard_info.stream_id, self.shard_id)
            except Exception as error:
                around.loop.post(partial(self._read_failed, visit, error))
            else:
                around.loop.post(partial(self._data_lost, visit, first))

        around.fetch_pool.submit(look)

    def _data_lost(self, visit: int, first_left: SequenceInfo | None) -> None:
        if visit != self._visit:
            return
        lost = TrimmedRange(
            shard_id=self.shard_id,
            position=self.fetcher.position.text,
            last_processed_micros=self.session.checkpointer.progress.record_micros or None,
            last_processed=self._last_processed,
            first_left=first_left,
        )
        policy = self.around.config.trimmed_data_policy
        _log.error("shard %s: %s (policy %s)", self.shard_id, lost, policy.value)
        if policy is TrimmedDataPolicy.RESTART_AT_OLDEST:
            self._give_up_lost_records()
            self._is_past_loss = True
            self.fetcher.restart_at_oldest()
            self.move(Outcome.READ_FAILED)
            self.pause(0.0, self._read_due)
        else:
            self._lost = lost
            how = f"call worker.accept_loss({self.shard_id!r}), or set trimmed_data_policy to RESTART_AT_OLDEST"
            self._halt(Outcome.DATA_LOST, Reason(Cause.LOSS, lost.position, f"{lost}; to go on there, {how}"))

    def _give_up_lost_records(self) -> None:
        """Until a checkpoint from behind the loss is stored, new processors start at the oldest record, too."""
        self._accepts_loss = True
        self._lost = self._cut = None
        self._backlog.forget()

    # --- the end of a page ---------------------------------------------------------------------------------------

    def _page_done(self, page: RecordPage) -> None:
        self._delivery = None
        self.around.instruments.page_done(self.shard_id, page.body_bytes)
        if page.records:
            last = page.records[-1].sequence_info
            self._last_processed = last
            self._backlog.dealt_with(last.timestamp_micros, self.around.loop.now())
        if page.next_position.is_shard_end:
            self._end_reached(page)
        elif self.stop_reason is not None:
            self._close(Outcome.STOPPED, self.stop_reason)
        elif page.may_more_record is False or not page.records:
            self._caught_up(page)
        else:
            self.fetcher.advance(page)
            self.move(Outcome.ACCEPTED)
            self._read()

    def _page_stopped(self) -> None:
        self._delivery = None
        self._close(Outcome.STOPPED, self.stop_reason or ShutdownReason.PROCESS_RESTART)

    def _page_refused(self) -> None:
        self._delivery = None
        if self.stop_reason is ShutdownReason.PROCESS_RESTART:
            self.stop_reason = None  # it marked itself and raised: that is one failure, and no free restart
        self._close(Outcome.FAILED, ShutdownReason.PROCESS_RESTART)

    def _given_up(self, reason: Reason) -> None:
        self._delivery = None
        _log.error("shard %s: %s", self.shard_id, text_of(reason))
        self._halt(Outcome.GIVEN_UP, reason)

    def _halt(self, outcome: Outcome, reason: Reason) -> None:
        """Close the processor, and start no other before somebody has decided."""
        self._halt_reason = reason
        self.say(reason)
        self._close(outcome, ShutdownReason.PROCESS_RESTART)

    # --- stopping ------------------------------------------------------------------------------------------------

    def _has_stored(self, ticket: CheckpointTicket) -> None:
        self._stored = ticket.value
        self._progress = ticket.progress or self._progress
        self._accepts_loss = self._accepts_loss and not self._is_past_loss
        if ticket.value == CheckpointPosition.SHARD_END:
            self._finished_by_user()

    def _marked(self, session: ProcessorSession, reason: ShutdownReason) -> None:
        """The processor asked for its own end; a mark of one that is already replaced means nothing."""
        if session is self._session and self._phase is not Phase.CLOSING:
            self.stop_reason = stronger(self.stop_reason, reason)
            self._stop_if_idle()

    def _finished_by_user(self) -> None:
        """SHARD_END is stored: nothing of this shard may be read any more, whether its end was reached or not."""
        if self._session is not None:
            at_end = self.fetcher.position.is_shard_end
            at_end |= self._delivery is not None and self._delivery.page.next_position.is_shard_end
            at_end |= self._session.pending is not None and self._session.pending.value == CheckpointPosition.SHARD_END
            if not at_end:
                _log.warning("shard %s: SHARD_END was checkpointed; what is left unread is skipped", self.shard_id)
                self._session.checkpointer.permit(CheckpointPosition.SHARD_END)
        self.stop_reason = stronger(self.stop_reason, ShutdownReason.TERMINATE)
        self._stop_if_idle()

    def _stop_if_idle(self) -> None:
        """Follow a stop request, unless user code runs: then its return does."""
        if self.stop_reason is None or self._phase is Phase.ENDED:
            return
        if self._phase in (Phase.BACKING_OFF, Phase.HALTED):
            self.move(Outcome.STOPPED)
            self._end()
        elif self._phase in (Phase.READING, Phase.WAITING) and self._call is None:
            self._delivery = None
            self._close(Outcome.STOPPED, self.stop_reason)
        elif self._phase is not Phase.CLOSING and self._call is not None and self._call.cancel():
            self._call_taken_back(self._call)

    def _call_taken_back(self, call: UserCall) -> None:
        self._call = None
        if self._phase is Phase.STARTING:
            self._abandon_session(Outcome.NOT_MADE)
            self._stop_if_idle()
            return
        if self._delivery is not None:
            self._delivery.taken_back()
        self._page_stopped()

    # --- closing -------------------------------------------------------------------------------------------------

    def _close(self, outcome: Outcome, reason: ShutdownReason) -> None:
        """Call ``shutdown`` with the strongest reason there is."""
        self.fetcher.discard()
        self.move(outcome)
        closing = self._closing = stronger(self.stop_reason, reason) or reason
        self.call_user_code("shutdown", partial(self.session.shutdown, closing), self._shut_down)

    def _shut_down(self, error: BaseException | None) -> None:
        self._close_error = ""
        if error is not None:
            self._close_error = f"shutdown raised {described(error)}"
            self.report_failure("shutdown", error)
        self.session.checkpointer.close("its processor was shut down")
        if not self._open_requests:
            self._after_shutdown()

    def _after_shutdown(self) -> None:
        """``shutdown`` returned and no checkpoint is under way: decide what follows."""
        self._session = None
        if self._is_final:
            self.move(Outcome.CLOSED)
            self._end()
        elif self._halt_reason is not None:
            self.say(self._halt_reason)  # again: shutdown may have raised
            self.stop_reason = None
            self.move(Outcome.CLOSED_TO_HALT)
        else:
            self._prepare_restart()
            self.move(Outcome.CLOSED_TO_RESTART)
            self._pause_before_start()

    def _prepare_restart(self) -> None:
        if self.stop_reason is ShutdownReason.PROCESS_RESTART:
            self.backoff.restart_marked()
            self.say(self._reason or Reason(Cause.RESTART_MARKED))
        elif self._closing is ShutdownReason.TERMINATE:
            self.backoff.processor_failed()
            self.around.instruments.end_not_stored()
            reason = Reason(Cause.END_NOT_STORED, detail=self._close_error)
            self.say(reason)
            where = readable_position(self._stored)
            _log.error("shard %s: %s; it is delivered again from %s", self.shard_id, text_of(reason), where)
        self.stop_reason = None

    def _pause_before_start(self) -> None:
        self.pause(self.backoff.restart_pause(), self._start_due)

    def _start_due(self) -> None:
        self.around.instruments.restarted()
        self.move(Outcome.START_DUE)
        self._start()

    def _end(self) -> None:
        end = ConsumerEnd.STOPPED
        if self.stop_reason is not ShutdownReason.ZOMBIE:
            if self._is_finished:
                end = ConsumerEnd.SHARD_END
            elif self.stop_reason is ShutdownReason.PROCESS_DONE:
                end = ConsumerEnd.DONE
        self.moves()
        self.around.ended(self.own_info, end)


def _desk(shard: ShardInfo, around: Surroundings) -> ParkingDesk | None:
    policy = around.config.failure_policy
    return None if policy.parking is None else ParkingDesk(policy, policy.parking, shard, around.wall_micros)
