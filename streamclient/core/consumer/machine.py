"""The state machine of one shard's consumer, from ``StartConsumer`` to ``Ended``.

The machine classifies each event as an outcome. ``TRANSITIONS`` gives the next phase for the outcome, and each phase
begins with one piece of work, from ``_BEGINNINGS``. Only that work returns the commands for a call, a read or a pause.
The machine itself reads no clock, starts no thread and makes no call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from streamclient.base.position import Position, ReadTrail
from streamclient.base.reasons import Cause, Reason, text_of
from streamclient.core.consumer import consumer_events
from streamclient.core.consumer.consumer_events import ConsumerCommand, ConsumerEvent, Told
from streamclient.core.consumer.consumer_positions import further
from streamclient.core.consumer.page import PendingCut
from streamclient.core.consumer.page_answers import PageReader
from streamclient.core.consumer.transitions import Outcome, Phase, stronger
from streamclient.core.events import CheckpointOutcome, ConsumerEnd, Severity
from streamclient.model import CheckpointPosition, PendingCheckpoint, ShutdownReason
from streamclient.records import readable_position


class ConsumerMachine(PageReader):
    """One consumer of one shard. One thread calls ``handle``; use the other public members only for reading."""

    def handle(self, event: ConsumerEvent, now: float) -> Sequence[ConsumerCommand]:
        """Process one event, known at ``now`` (monotonic seconds), and return the commands to carry out, in order."""
        self._now = now
        commands: list[ConsumerCommand] = []
        self._commands, self._tell = commands, commands.append
        _HANDLERS[type(event)](self, event)
        return commands

    def _call_returned(self, event: consumer_events.CallReturned) -> None:
        self.is_calling = False
        if self.is_asking:
            self._strategy_answered(event)
        else:
            _RETURNS[self.phase](self, event)
        self._tell_withdrawn_orders()

    # --- starting ------------------------------------------------------------------------------------------------

    def _began(self, event: consumer_events.Began) -> None:
        self._follow(Outcome.BEGAN)

    def _start_due(self) -> None:
        self._tell(consumer_events.Tell(Told.RESTARTED))
        self._follow(Outcome.START_DUE)

    def _begin_starting(self) -> None:
        is_stored_lost = self._accepts_loss and self._is_position_lost
        initial, pending = CheckpointPosition.TRIM_HORIZON if is_stored_lost else self.stored, self._pending
        self._processors += 1
        self._has_processor = True
        self._offered, self._cut = pending, None
        self._follows_loss = self._accepts_loss
        self.halt_reason = None
        self.position, self._dealt_with, self.trail = Position(initial), self._progress, ReadTrail()
        lost_after = self.stored if self._accepts_loss else None
        self._tell(consumer_events.NewProcessor(self._processors, initial, self._progress, pending, lost_after))
        if pending is not None:
            progress = further(self._progress, records=pending.records)
            self._tell(consumer_events.Offer(pending.value, progress, pending.last))
        self._call(consumer_events.Initialize())

    def _initialized(self, event: consumer_events.CallReturned) -> None:
        if event.error is not None:
            self.backoff.processor_failed()
            self._report_failure("initialize", event.error)
            if event.value:
                self._close(Outcome.FAILED, ShutdownReason.PROCESS_RESTART)
            else:
                self._abandon_processor()
        elif self.stop_reason is not None:
            self._close(Outcome.STOPPED, self.stop_reason)
        elif not self.open_requests:
            self._begin_first_read()

    def _begin_first_read(self) -> None:
        """Begin to read, because ``initialize`` has returned, and every checkpoint that it requested was answered."""
        if self.stop_reason is not None:
            self._close(Outcome.STOPPED, self.stop_reason)
            return
        if self._offered is not None:
            self._settle_offer(self._offered)
        self._follow(Outcome.INITIALIZED)

    def _settle_offer(self, offered: PendingCheckpoint) -> None:
        """Begin to read at the checkpoint that an earlier processor prepared, if that checkpoint is stored now.

        Otherwise, read the records before the prepared checkpoint once more.
        """
        if self.stored == offered.value:
            self.position, self._dealt_with = Position(offered.value), self._progress
            self._tell(consumer_events.Permit(offered.value, self._progress, offered.last))
        else:
            self._tell(consumer_events.Withdraw(offered.value))
        self._cut = PendingCut.of(self._pending, self.position.text)
        if self._cut is not None and self._accepts_loss:
            self._cut = self._cut.without_lost()

    def _abandon_processor(self) -> None:
        """Go on without a call of ``shutdown``, because the processor was never made."""
        self._tell(consumer_events.CloseCheckpoints("its processor was never made"))
        self._has_processor = False
        self._follow(Outcome.NOT_MADE)
        self._stop_if_idle()

    def _loss_accepted(self, event: consumer_events.LossAccepted) -> None:
        """Go on at the oldest record of the shard.

        The next processor starts when a running ``shutdown`` has returned.
        """
        if self.lost is None:
            return
        self._log(Severity.WARNING, f"the loss is accepted, reading goes on at the oldest record: {self.lost}")
        self._give_up_lost_records()
        self.halt_reason = None
        if self.phase is Phase.HALTED:
            self._start_due()

    def _orders_given(self, event: consumer_events.OrdersGiven) -> None:
        """Replace the operators' orders. Go on immediately if a new order may end the present halt or pause."""
        new, halt, delivery = self._orders.give(event.orders), self.halt_reason, self._delivery
        self._tell_withdrawn_orders()
        if self.stop_reason is not None:
            return
        if self.phase is Phase.WAITING and delivery is not None and delivery.is_named:
            self._proceed()
        elif new and halt is not None:
            if self.lost is None and (not halt.record_id or self._orders.names(halt.record_id)):
                self.halt_reason = None
                if self._parked is not None:
                    self._parked.forget_share()
                if self.phase is Phase.HALTED:
                    self._start_due()
        elif new and self.phase is Phase.BACKING_OFF and self._processors:
            self._start_due()

    # --- time ----------------------------------------------------------------------------------------------------

    def _time_came(self, event: consumer_events.TimeCame) -> None:
        if event.visit != self.visit:
            return
        if self.phase is Phase.BACKING_OFF:
            self._start_due()
        elif self._delivery is None:
            self._follow(Outcome.READ_DUE)
        elif self._delivery.must_store and self._delivery.order is None:
            self._follow(Outcome.STORE_DUE)
        else:
            self._proceed()  # orders may have changed since the failed call

    # --- checkpoints ---------------------------------------------------------------------------------------------

    def _checkpoint_asked(self, event: consumer_events.CheckpointAsked) -> None:
        self.open_requests += 1

    def _checkpoint_answered(self, event: consumer_events.CheckpointAnswered) -> None:
        self.open_requests -= 1
        if event.outcome is CheckpointOutcome.STORED:
            if event.pending is not None:
                self._pending = event.pending
            else:
                if self._pending is not None and not self._pending.survives(event.value, self.stored):
                    self._pending = None
                self._has_stored(event)
        if not self.is_calling and not self.open_requests:
            if self.phase is Phase.STARTING:
                self._begin_first_read()
            elif self.phase is Phase.CLOSING:
                self._closed()

    def _has_stored(self, event: consumer_events.CheckpointAnswered) -> None:
        self.stored = event.value
        self._progress = event.progress or self._progress
        self._accepts_loss = self._accepts_loss and not self._follows_loss
        self._tell_ended_orders()
        if self.is_finished:
            self._finished_by_user()

    def _finished_by_user(self) -> None:
        """Stop reading for good, because SHARD_END is stored, whether or not the shard's end was reached."""
        if self._has_processor:
            at_end = self.position.is_shard_end
            at_end |= self._delivery is not None and self._delivery.page.next_position.is_shard_end
            at_end |= self._offered is not None and self._offered.value == CheckpointPosition.SHARD_END
            if not at_end:
                self._log(Severity.WARNING, "SHARD_END was checkpointed; the unread rest is skipped")
                self._tell(consumer_events.Permit(CheckpointPosition.SHARD_END))
        self.stop_reason = stronger(self.stop_reason, ShutdownReason.TERMINATE)
        self._stop_if_idle()

    # --- stopping ------------------------------------------------------------------------------------------------

    def _stop_asked(self, event: consumer_events.StopAsked) -> None:
        """End the consumer as soon as no user code runs. If a stop was requested already, keep the stronger reason."""
        self.stop_reason = stronger(self.stop_reason, event.reason)
        if event.reason is ShutdownReason.ZOMBIE and self._has_processor:
            self._tell(consumer_events.CloseCheckpoints("this worker no longer holds the lease"))
        self._stop_if_idle()

    def _marked(self, event: consumer_events.Marked) -> None:
        is_present = self._has_processor and event.processor == self._processors
        if is_present and self.phase is not Phase.CLOSING:
            self.stop_reason = stronger(self.stop_reason, event.reason)
            self._stop_if_idle()

    def _stop_if_idle(self) -> None:
        """Obey a request to stop, unless user code runs. In that case the request is obeyed when the call returns."""
        if self.stop_reason is None or self.phase is Phase.ENDED:
            return
        if self.phase in (Phase.BACKING_OFF, Phase.HALTED):
            self._follow(Outcome.STOPPED)
        elif self.phase in (Phase.READING, Phase.WAITING) and not self.is_calling:
            self._page_stopped()
        elif self.phase is not Phase.CLOSING and self.is_calling:
            self._tell(consumer_events.TakeBack())

    def _call_taken_back(self, event: consumer_events.CallTakenBack) -> None:
        self.is_calling = self.is_asking = False
        if self.phase is Phase.STARTING:
            self._abandon_processor()
        else:
            self._retract()
            self._page_stopped()

    # --- closing -------------------------------------------------------------------------------------------------

    def _begin_closing(self) -> None:
        self._ending = None
        self._tell(consumer_events.DropReading())
        self._call(consumer_events.ShutDown(self.closing or ShutdownReason.PROCESS_RESTART))

    def _shut_down(self, event: consumer_events.CallReturned) -> None:
        self._close_error = ""
        if event.error is not None:
            self._close_error = f"shutdown raised {event.error.text}"
            self._report_failure("shutdown", event.error)
        self._tell(consumer_events.CloseCheckpoints("its processor was shut down"))
        if not self.open_requests:
            self._closed()

    def _closed(self) -> None:
        """Decide how to go on after ``shutdown`` has returned and all requested checkpoints were answered."""
        self._has_processor = False
        if self.is_final:
            self._follow(Outcome.CLOSED)
        elif self.halt_reason is not None:
            self._follow(Outcome.CLOSED_TO_HALT)
        else:
            self._prepare_restart()
            self._follow(Outcome.CLOSED_TO_RESTART)

    def _prepare_restart(self) -> None:
        if self.stop_reason is ShutdownReason.PROCESS_RESTART:
            self.backoff.restart_marked()
            self.reason = self.reason or Reason(Cause.RESTART_MARKED)
        elif self.closing is ShutdownReason.TERMINATE:
            self.backoff.processor_failed()
            self._tell(consumer_events.Tell(Told.END_NOT_STORED))
            self.reason = Reason(Cause.END_NOT_STORED, detail=self._close_error)
            where = readable_position(self.stored)
            self._log(Severity.ERROR, f"{text_of(self.reason)}; its records are delivered again from {where}")
        self.stop_reason = None

    def _begin_backing_off(self) -> None:
        self._begin_pause(self.backoff.restart_pause())

    def _begin_halt(self) -> None:
        self.reason = self.halt_reason  # set again, because shutdown may have raised and replaced it
        self.stop_reason = None

    def _begin_end(self) -> None:
        end = ConsumerEnd.STOPPED
        if self.stop_reason is not ShutdownReason.ZOMBIE:
            if self.is_finished:
                end = ConsumerEnd.SHARD_END
            elif self.stop_reason is ShutdownReason.PROCESS_DONE:
                end = ConsumerEnd.DONE
        self.reason = None
        self._tell(consumer_events.Ended(end))


_BEGINNINGS: Mapping[Phase, Callable[[ConsumerMachine], None]] = {
    Phase.STARTING: ConsumerMachine._begin_starting,
    Phase.READING: ConsumerMachine._begin_reading,
    Phase.WAITING: ConsumerMachine._begin_waiting,
    Phase.DELIVERING: ConsumerMachine._begin_delivering,
    Phase.PARKING: ConsumerMachine._begin_parking,
    Phase.CLOSING: ConsumerMachine._begin_closing,
    Phase.BACKING_OFF: ConsumerMachine._begin_backing_off,
    Phase.HALTED: ConsumerMachine._begin_halt,
    Phase.ENDED: ConsumerMachine._begin_end,
}
"""The method that starts the work of each phase."""

ConsumerMachine._beginnings = _BEGINNINGS

_RETURNS: Mapping[Phase, Callable[[ConsumerMachine, consumer_events.CallReturned], None]] = {
    Phase.STARTING: ConsumerMachine._initialized,
    Phase.DELIVERING: ConsumerMachine._processed,
    Phase.PARKING: ConsumerMachine._store_answered,
    Phase.CLOSING: ConsumerMachine._shut_down,
}
"""The method that processes the return of a call, for each phase that makes calls."""

_HANDLERS: dict[type, Callable[[ConsumerMachine, Any], None]] = {
    consumer_events.Began: ConsumerMachine._began,
    consumer_events.StopAsked: ConsumerMachine._stop_asked,
    consumer_events.Marked: ConsumerMachine._marked,
    consumer_events.LossAccepted: ConsumerMachine._loss_accepted,
    consumer_events.OrdersGiven: ConsumerMachine._orders_given,
    consumer_events.EndJudged: ConsumerMachine._end_judged,
    consumer_events.CheckpointAsked: ConsumerMachine._checkpoint_asked,
    consumer_events.CheckpointAnswered: ConsumerMachine._checkpoint_answered,
    consumer_events.PageRead: ConsumerMachine._page_read,
    consumer_events.ReadFailed: ConsumerMachine._read_failed,
    consumer_events.FirstLeftFound: ConsumerMachine._first_left_found,
    consumer_events.FirstLeftUnknown: ConsumerMachine._first_left_unknown,
    consumer_events.CallReturned: ConsumerMachine._call_returned,
    consumer_events.CallTakenBack: ConsumerMachine._call_taken_back,
    consumer_events.TimeCame: ConsumerMachine._time_came,
}
"""The method that processes each class of event."""
