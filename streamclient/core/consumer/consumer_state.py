"""The state of one shard's consumer, and the few operations that all its phases share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Any, ClassVar

from streamclient.base.position import Position, ReadTrail
from streamclient.base.reasons import Cause, Raised, Reason, times
from streamclient.config import ClientConfig
from streamclient.core.consumer import consumer_events
from streamclient.core.consumer.consumer_events import ConsumerCommand, ShardPage, Told
from streamclient.core.consumer.consumer_positions import NO_PROGRESS
from streamclient.core.consumer.page import PageInWork, PendingCut, counted
from streamclient.core.consumer.parked import ParkedKeys
from streamclient.core.consumer.pauses import ConsumerBackoff
from streamclient.core.consumer.reading_pace import TablePace, WorkerPace
from streamclient.core.consumer.record_orders import RecordOrders
from streamclient.core.consumer.transitions import Outcome, Phase, next_phase, stronger
from streamclient.core.events import Severity, StartConsumer
from streamclient.core.shard_tree import ShardTree
from streamclient.model import CheckpointPosition, PendingCheckpoint, ShutdownReason, TrimmedRange
from streamclient.records import SequenceInfo, StreamRecord

ENDING_REASONS = (ShutdownReason.ZOMBIE, ShutdownReason.STOLEN, ShutdownReason.PAUSED, ShutdownReason.PROCESS_DONE)
"""The reasons for ``shutdown`` after which the consumer ends, whatever checkpoint is stored. After any other reason,
the consumer ends only if SHARD_END is stored."""

POLLED = frozenset({Phase.READING, Phase.WAITING})
"""The phases in which a shard may wait for records. In all other phases it is not polled."""


class ConsumerState:
    """The fields of a consumer, and the operations that all its phases share.

    Args:
        record_id: returns the id of a record; the ids of a shard sort in the order of its records.
        key_text: returns a primary key as readable text.
        table_pace: the pace that the consumers of the table in this worker share; by default no other consumer shares
            it.
        full_page_records: the largest number of records that a read returns; ``None`` if the service decides.
        tree: returns the shards of the stream that are known now.
        moves_when_idle: as for ``ConsumerBackoff``.
    """

    _beginnings: ClassVar[Mapping[Phase, Callable[[Any], None]]]
    """The function that starts the work of each phase."""
    trail: ReadTrail
    """The last record that was read for the present processor. The next page must begin after that record. Each
    processor has its own trail."""
    _ending: ShardPage | None = None
    """The page that reports the shard's end, until the end is confirmed or refuted."""
    _close_error: str = ""
    """A text about the error that the last ``shutdown`` raised; empty if ``shutdown`` returned."""

    def __init__(
        self,
        start: StartConsumer,
        config: ClientConfig,
        dice: Random,
        *,
        record_id: Callable[[StreamRecord], str],
        key_text: Callable[[Any], str],
        table_pace: TablePace | None = None,
        full_page_records: int | None = None,
        moves_when_idle: bool = False,
        tree: Callable[[], ShardTree] = ShardTree,
    ) -> None:
        policy = config.failure_policy
        self.shard_id = start.shard_info.shard_id
        pace = (table_pace or WorkerPace(config).table()).shard()
        self.backoff = ConsumerBackoff(config, dice, pace, full_page_records, moves_when_idle=moves_when_idle)
        self.phase = Phase.BACKING_OFF
        self.visit = 0
        """The number of times that the phase has changed. Each request carries this number, so that an answer to a
        request from an earlier phase is ignored."""
        self.stop_reason: ShutdownReason | None = None
        """The reason why the consumer was asked to end; ``None`` if it was not asked."""
        self.closing: ShutdownReason | None = None
        """The reason with which the processor's ``shutdown`` is called; ``None`` before the first close."""
        self.stored = start.checkpoint
        self.position = Position(start.checkpoint)
        """The position of the next page to process. Neither a checkpoint nor reading ahead moves it."""
        self.lost: TrimmedRange | None = None
        """The lost records, while the consumer waits until their loss is accepted; ``None`` without a loss."""
        self.reason: Reason | None = None
        """The reason why the shard makes no progress, if this consumer knows one; otherwise ``None``."""
        self.halt_reason: Reason | None = None
        self.resume_at: float | None = None
        """The time at which the present pause ends, in monotonic seconds; ``None`` without a pause."""
        self.open_requests = 0
        """The number of checkpoints that were requested and not answered yet."""
        self.is_calling = False
        """Whether a call into user code is in progress."""
        self.is_asking = False
        """Whether the call in progress asks the user's retry strategy."""
        self._config, self._key_text, self._tree = config, key_text, tree
        self._orders = RecordOrders(start.orders, record_id)
        self._parked = None if policy.parking is None else ParkedKeys(policy, self.shard_id, record_id, tree)
        self._progress = start.progress or NO_PROGRESS
        self._dealt_with = self._progress
        self._pending = start.pending
        self._offered: PendingCheckpoint | None = None
        self._processors = 0
        self._has_processor = False
        self._delivery: PageInWork | None = None
        self._cut: PendingCut | None = None
        self._accepts_loss = False
        self._is_position_lost = False
        """Whether the records after the stored position are lost, so that reading continues at the oldest record."""
        self._follows_loss = False
        self._last_processed: SequenceInfo | None = None
        self._pause = 0.0
        self._raised: Raised | None = None
        self._now = 0.0
        self._commands: list[ConsumerCommand] = []
        self._tell = self._commands.append
        """The function that adds a command to the list that ``handle`` returns for the present event."""

    @property
    def is_lost(self) -> bool:
        """Whether the lease is lost, and this consumer exists only because user code still runs."""
        return self.stop_reason is ShutdownReason.ZOMBIE

    @property
    def is_finished(self) -> bool:
        """Whether the stored checkpoint is SHARD_END, so that nothing is left to read."""
        return self.stored == CheckpointPosition.SHARD_END

    @property
    def is_final(self) -> bool:
        """Whether the present processor is the last one of this consumer."""
        return self.is_finished or self.stop_reason in ENDING_REASONS

    @property
    def waits_for_end(self) -> bool:
        """Whether the service reports the shard's end, and no listing of shards has confirmed it yet."""
        return self.reason is not None and self.reason.cause is Cause.END_NOT_SHOWN

    def __repr__(self) -> str:
        stop = self.stop_reason and self.stop_reason.value
        return f"<consumer of {self.shard_id}, {self.phase.value}, stop={stop}>"

    # --- operations of all phases --------------------------------------------------------------------------------

    def _call(self, command: ConsumerCommand) -> None:
        self.is_calling = True
        self._commands.append(command)

    def _follow(self, outcome: Outcome) -> None:
        """Enter the phase that ``TRANSITIONS`` gives for ``outcome``, and begin the work of that phase."""
        self.phase = next_phase(self.phase, outcome)
        self.visit += 1
        self.resume_at = None
        if self.phase not in POLLED:
            self.backoff.pace.rest()
        self._beginnings[self.phase](self)

    def _close(self, outcome: Outcome, reason: ShutdownReason) -> None:
        """Let the processor's ``shutdown`` be called, in the phase that follows ``outcome``.

        If the consumer was asked to stop, there are two reasons for the call: ``reason``, and the reason of that
        request. The processor gets the stronger one, by the order of the function ``stronger``.
        """
        self.closing = stronger(self.stop_reason, reason)
        self._follow(outcome)

    def _halt(self, outcome: Outcome, reason: Reason) -> None:
        """Close the processor, and start no other processor before an operator or the program decides how to go on."""
        self.halt_reason = self.reason = reason
        self._close(outcome, ShutdownReason.PROCESS_RESTART)

    def _begin_pause(self, seconds: float, *, is_idle: bool = False) -> None:
        self.resume_at = self._now + seconds
        self._tell(consumer_events.Wait(self.visit, seconds, is_idle))

    def _log(self, severity: Severity, text: str, error: Raised | None = None) -> None:
        self._tell(consumer_events.LogLine(severity, f"shard {self.shard_id}: {text}", error))

    def _tell_nothing_follows(self, *, is_up: bool) -> None:
        """Report that a read found nothing more. If the shard is caught up, store what was set aside at its end.

        The position stays if an earlier processor prepared a checkpoint that is not completed, because its batch must
        end as it was prepared. It also stays after a loss until the processor itself stores a position, so that the
        next processor is told of the loss, too.
        """
        self._tell(consumer_events.Tell(Told.CAUGHT_UP if is_up else Told.MAY_FOLLOW))
        is_after = self._dealt_with.records > self._progress.records
        if is_up and is_after and self._pending is None and not self._accepts_loss and not self.open_requests:
            self._tell(consumer_events.StoreSetAside())

    def _tell_ended_orders(self) -> None:
        """Report each operator's order that is obeyed by now."""
        if not self._orders.are_any:
            return
        for order, taken in self._orders.ended(self._progress.records, is_finished=self.is_finished):
            self._tell(consumer_events.OrderEnded(order, taken))

    def _tell_withdrawn_orders(self) -> None:
        """Report each operator's order that was withdrawn, but not while records are being parked by order."""
        delivery = self._delivery
        if not self._orders.are_any:
            return
        if self.is_calling and delivery is not None and delivery.must_store and delivery.order is not None:
            return
        for order, taken in self._orders.withdrawn():
            self._tell(consumer_events.OrderEnded(order, taken, is_withdrawn=True))

    def _log_orders(self) -> None:
        """Log each operator's order once, as soon as a record was taken out because of it."""
        if not self._orders.are_any:
            return
        for order in self._orders.logged():
            verb, number = "skips" if order.is_skip else "parks", counted(order.record_ids)
            why = f": {order.reason}" if order.reason else ""
            self._log(Severity.WARNING, f"{verb} {number} by order of {order.by}{why}: {', '.join(order.record_ids)}")

    def _report_failure(self, what: str, error: Raised, severity: Severity = Severity.ERROR) -> None:
        """Name a failure of user code in the status and in the log.

        After the lease is lost, such a failure is expected, so it is logged as INFO.
        """
        count = self.backoff.failures
        when = times(count) if count else "at its end"  # a failure of ``shutdown`` is not counted
        self.reason = Reason(Cause.PROCESSOR_FAILED, what, f"{when}: {what}: {error.text}")
        severity = Severity.INFO if self.is_lost else severity
        trace = error if severity is Severity.ERROR else None
        in_a_row = f" (failure {count} in a row)" if count else ""
        self._log(severity, f"{what}{in_a_row}: {error.text}", trace)
