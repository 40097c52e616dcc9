"""Runs one shard: reads, delivers, restarts, ends. Every method is called in the owner thread.

What may follow what stands in ``core.lifecycle``; here each phase starts its one piece of work, in the fetch pool or in
the user's executor, and each answer becomes the next outcome.
"""

from __future__ import annotations

import logging
from functools import partial

from streamclient.core.events import CheckpointOutcome, ConsumerEnd
from streamclient.core.lifecycle import Outcome, Phase, stronger
from streamclient.core.position import Position
from streamclient.errors import ApplicationException, TrimmedDataException
from streamclient.model import CheckpointPosition, ShutdownReason, TrimmedDataPolicy
from streamclient.stream.api import RecordPage
from streamclient.worker.checkpointer import RecordProcessorCheckpointer
from streamclient.worker.consumer_state import ConsumerState, described, times
from streamclient.worker.fetcher import DataFetcher
from streamclient.worker.session import ProcessorSession, ShutdownMarker
from streamclient.worker.usercode import UserCall

_log = logging.getLogger(__name__)

END_NOT_STORED = "shard ended but the processor did not checkpoint SHARD_END"


class ShardConsumer(ConsumerState):
    """One tenancy of one shard, from ``StartConsumer`` to ``ConsumerStopped``."""

    # --- what the coordinator asks -------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start the first processor."""
        self._move(Outcome.BEGAN)
        self._start()

    def stop(self, reason: ShutdownReason) -> None:
        """End as soon as no user code runs; a stronger reason replaces a weaker one."""
        self._stop = stronger(self._stop, reason)
        if reason is ShutdownReason.ZOMBIE and self._session is not None:
            self._session.checkpointer.close("this worker no longer holds the lease")
        self._stop_if_idle()

    def abandon(self) -> None:
        """The worker ends without waiting for user code that still runs; it can store nothing any more.

        A call that no thread has begun never will.
        """
        if self._call is not None:
            self._call.cancel()
        if self._session is not None:
            self._session.checkpointer.close("the worker ended before the processor did")

    def checkpoint_requested(self) -> None:
        """A checkpoint is on its way; exactly one ``checkpoint_answered`` follows."""
        self._open_requests += 1

    def checkpoint_answered(self, value: str, outcome: CheckpointOutcome) -> None:
        """A checkpoint was stored, or not."""
        self._open_requests -= 1
        if outcome is CheckpointOutcome.STORED:
            self._stored = value
            if value == CheckpointPosition.SHARD_END:
                self._finished_by_user()
        if self._phase is Phase.CLOSING and self._call is None and not self._open_requests:
            self._after_shutdown()

    # --- starting ------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        around, initial = self._around, self._stored
        session = ProcessorSession(
            self.shard_info,
            initial,
            around.make_processor,
            RecordProcessorCheckpointer(
                self.shard_id,
                initial,
                partial(around.send_checkpoint, self.shard_info),
                around.wait,
                around.config.checkpoint_timeout_millis,
            ),
            ShutdownMarker(lambda reason: around.loop.post(partial(self._marked, session, reason))),
        )
        self._session = session
        stream_id = self.shard_info.stream_id
        self._fetcher = DataFetcher(around.stream_api, stream_id, self.shard_id, Position(initial), around.max_records)
        self._run_user_code("initialize", session.initialize, self._initialized)

    def _initialized(self, error: BaseException | None) -> None:
        if error is not None:
            self._backoff.processor_failed()
            self._report_failure("initialize", error)
            if self._the_session.processor is None:
                self._abandon_session(Outcome.NOT_MADE)
            else:
                self._close(Outcome.FAILED, ShutdownReason.PROCESS_RESTART)
        elif self._stop is not None:
            self._close(Outcome.STOPPED, self._stop)
        else:
            self._move(Outcome.INITIALIZED)
            self._read()

    def _abandon_session(self, outcome: Outcome) -> None:
        """There is no processor to close."""
        self._the_session.checkpointer.close("its processor was never made")
        self._session = None
        self._move(outcome)
        self._pause_before_start()

    # --- reading -------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        visit, fetcher, loop = self._visit, self._the_fetcher, self._around.loop

        def work() -> None:
            try:
                page = fetcher.read()
            except Exception as error:
                loop.post(partial(self._page_failed, visit, error))
            else:
                loop.post(partial(self._page_came, visit, page))

        self._around.fetch_pool.submit(work)

    def _page_came(self, visit: int, page: RecordPage) -> None:
        if visit != self._visit:
            return
        self._backoff.read_succeeded()
        self._reason = ""
        ended = page.next_position.is_shard_end
        if page.records or (self._around.config.deliver_empty_batches and not ended):
            self._move(Outcome.PAGE_READ)
            self._deliver(page)
        elif ended:
            self._end_reached(page)
        else:
            self._caught_up(page)

    def _caught_up(self, page: RecordPage) -> None:
        """Nothing waits behind this page, whose records, if any, are accepted."""
        pause = self._backoff.caught_up_pause(page, self._the_fetcher.position)
        self._the_fetcher.advance(page)
        self._the_session.checkpointer.permit(page.next_position.text)
        self._move(Outcome.CAUGHT_UP)
        self._pause(pause, self._read_due)

    def _page_failed(self, visit: int, error: Exception) -> None:
        if visit != self._visit:
            return
        if isinstance(error, TrimmedDataException) and self._the_fetcher.position.is_iterator:
            self._data_lost(error)
            return
        pause = self._backoff.read_failed(error)
        count = self._backoff.read_failures
        self._reason = f"reading failed {times(count)}: {described(error)}"
        # Each doubling is news; in between, the status tells.
        level = logging.WARNING if count & (count - 1) == 0 else logging.DEBUG
        _log.log(level, "shard %s: %s", self.shard_id, self._reason)
        if pause is None:
            self._backoff.processor_failed()
            self._close(Outcome.FAILED, ShutdownReason.PROCESS_RESTART)
        else:
            self._move(Outcome.READ_FAILED)
            self._pause(pause, self._read_due)

    def _data_lost(self, error: TrimmedDataException) -> None:
        position = self._the_fetcher.position
        policy = self._around.config.trimmed_data_policy
        loss = f"records behind position {position} are past the stream's retention and lost"
        _log.error("shard %s: %s (policy %s): %s", self.shard_id, loss, policy.value, error)
        if policy is TrimmedDataPolicy.RESTART_AT_OLDEST:
            self._the_fetcher.restart_at_oldest()
            self._move(Outcome.READ_FAILED)
            self._pause(0.0, self._read_due)
        else:
            self._parked_because = f"{loss}; set trimmed_data_policy to RESTART_AT_OLDEST to accept the loss"
            self._close(Outcome.DATA_LOST, ShutdownReason.PROCESS_RESTART)

    def _read_due(self) -> None:
        self._move(Outcome.READ_DUE)
        self._read()

    def _end_reached(self, page: RecordPage) -> None:
        self._the_fetcher.advance(page)
        self._the_session.checkpointer.permit(CheckpointPosition.SHARD_END)
        self._close(Outcome.END_REACHED, ShutdownReason.TERMINATE)

    # --- delivering ----------------------------------------------------------------------------------------------

    def _deliver(self, page: RecordPage) -> None:
        self._batch = page
        self._the_session.checkpointer.permit(page.next_position.text)
        self._run_user_code(
            "process_records", partial(self._the_session.process, page.records), partial(self._processed, page)
        )

    def _processed(self, page: RecordPage, error: BaseException | None) -> None:
        if error is not None:
            self._batch_failed(page, error)
            return
        self._batch = None
        self._reason = ""
        self._backoff.accepted(page)
        if page.next_position.is_shard_end:
            self._end_reached(page)
        elif self._stop is not None:
            self._close(Outcome.STOPPED, self._stop)
        elif page.may_more_record is False or not page.records:
            self._caught_up(page)
        else:
            self._the_fetcher.advance(page)
            self._move(Outcome.ACCEPTED)
            self._read()

    def _batch_failed(self, page: RecordPage, error: BaseException) -> None:
        self._the_session.checkpointer.retract()
        pause = self._backoff.batch_failed(_as_application_error(self.shard_id, error))
        self._report_failure("process_records", error)
        if pause is not None and self._stop is None:
            self._move(Outcome.REFUSED_FOR_NOW)
            self._pause(pause, partial(self._redelivery_due, page))
        else:
            self._batch = None
            self._close(Outcome.FAILED, ShutdownReason.PROCESS_RESTART)

    def _redelivery_due(self, page: RecordPage) -> None:
        self._move(Outcome.REDELIVERY_DUE)
        self._deliver(page)

    # --- closing -------------------------------------------------------------------------------------------------

    def _marked(self, session: ProcessorSession, reason: ShutdownReason) -> None:
        """The processor asked for its own end; a mark of one that is already replaced means nothing."""
        if session is self._session and self._phase is not Phase.CLOSING:
            self._stop = stronger(self._stop, reason)
            self._stop_if_idle()

    def _finished_by_user(self) -> None:
        """SHARD_END is stored: nothing of this shard may be read any more, whether its end was reached or not."""
        if self._session is not None:
            at_end = self._the_fetcher.position.is_shard_end
            at_end |= self._batch is not None and self._batch.next_position.is_shard_end
            if not at_end:
                _log.warning("shard %s: SHARD_END was checkpointed; what is left unread is skipped", self.shard_id)
                self._session.checkpointer.permit(CheckpointPosition.SHARD_END)
        self._stop = stronger(self._stop, ShutdownReason.TERMINATE)
        self._stop_if_idle()

    def _stop_if_idle(self) -> None:
        """Follow a stop request, unless user code runs: then its return does."""
        if self._stop is None or self._phase is Phase.ENDED:
            return
        if self._phase in (Phase.BACKING_OFF, Phase.PARKED):
            self._move(Outcome.STOPPED)
            self._end()
        elif self._phase in (Phase.READING, Phase.PAUSED):
            self._batch = None
            self._close(Outcome.STOPPED, self._stop)
        elif self._phase is not Phase.CLOSING and self._call is not None and self._call.cancel():
            self._call_taken_back(self._call)

    def _call_taken_back(self, call: UserCall) -> None:
        self._around.user_code.forget(call)
        self._call = None
        if self._phase is Phase.STARTING:
            self._abandon_session(Outcome.NOT_MADE)
            self._stop_if_idle()
        else:
            self._the_session.checkpointer.retract()
            self._batch = None
            self._close(Outcome.STOPPED, self._stop or ShutdownReason.PROCESS_RESTART)

    def _close(self, outcome: Outcome, reason: ShutdownReason) -> None:
        """Call ``shutdown`` with the strongest reason there is."""
        self._move(outcome)
        closing = self._closing = stronger(self._stop, reason) or reason
        self._run_user_code("shutdown", partial(self._the_session.shutdown, closing), self._shut_down)

    def _shut_down(self, error: BaseException | None) -> None:
        self._close_error = ""
        if error is not None:
            self._close_error = f" (shutdown raised {described(error)})"
            self._report_failure("shutdown", error)
        self._the_session.checkpointer.close("its processor was shut down")
        if not self._open_requests:
            self._after_shutdown()

    def _after_shutdown(self) -> None:
        """``shutdown`` returned and no checkpoint is under way: decide what follows."""
        self._session = None
        if self._is_final:
            self._move(Outcome.CLOSED)
            self._end()
        elif self._parked_because:
            self._reason = self._parked_because
            self._move(Outcome.CLOSED_TO_PARK)
        else:
            self._prepare_restart()
            self._move(Outcome.CLOSED_TO_RESTART)
            self._pause_before_start()

    @property
    def _is_final(self) -> bool:
        return self._is_finished or self._stop in (
            ShutdownReason.ZOMBIE,
            ShutdownReason.STOLEN,
            ShutdownReason.PROCESS_DONE,
        )

    @property
    def _is_finished(self) -> bool:
        return self._stored == CheckpointPosition.SHARD_END

    def _prepare_restart(self) -> None:
        if self._stop is ShutdownReason.PROCESS_RESTART:
            self._backoff.restart_marked()
        elif self._closing is ShutdownReason.TERMINATE:
            self._backoff.processor_failed()
            self._reason = END_NOT_STORED + self._close_error
            _log.error("shard %s: %s; it is delivered again from %s", self.shard_id, self._reason, self._stored)
        self._stop = None

    def _pause_before_start(self) -> None:
        self._pause(self._backoff.restart_pause(), self._start_due)

    def _start_due(self) -> None:
        self._move(Outcome.START_DUE)
        self._start()

    def _end(self) -> None:
        end = ConsumerEnd.STOPPED
        if self._stop is not ShutdownReason.ZOMBIE:
            if self._is_finished:
                end = ConsumerEnd.SHARD_END
            elif self._stop is ShutdownReason.PROCESS_DONE:
                end = ConsumerEnd.DONE
        self._reason = ""
        self._around.ended(self.shard_info, end)


def _as_application_error(shard_id: str, error: BaseException) -> ApplicationException:
    wrapped = ApplicationException(f"process_records of shard {shard_id} raised {described(error)}")
    wrapped.__cause__ = error
    return wrapped
