"""The batches in the line of a loop, and the receivers, which put the batches of their shards into this line."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from streamclient.errors import ShutdownException, StreamClientException
from streamclient.interfaces import InitializationInput, IRecordProcessor, ProcessRecordsInput, ShutdownInput
from streamclient.loops.line import Line
from streamclient.model import ShutdownReason
from streamclient.records import StreamRecord
from streamclient.worker.checkpointer import RecordProcessorCheckpointer, handed_position
from streamclient.worker.handing_over import Receiver, ReceiverFactory
from streamclient.worker.handlers.batches import AsyncBatch, Batch, Commit, Settlement
from streamclient.worker.handlers.event_loop import LoopBridge, store_through
from streamclient.worker.handlers.turn_commits import is_commit_due, is_left_unstored
from streamclient.worker.usercode import HandedCall

_BatchT = TypeVar("_BatchT", Batch, AsyncBatch)


class HandedBatch:
    """A batch, or the end of a shard, from its entry into the line until the loop has settled it.

    Only for use in the loop's thread, except where a method says otherwise.
    """

    def __init__(
        self,
        shard: LineReceiver,
        call: HandedCall,
        records: Sequence[StreamRecord],
        *,
        attempt: int = 0,
        is_end: bool = False,
    ) -> None:
        self.call = call
        self.is_end = is_end
        """Whether this delivery is the end of the shard. The loop finishes such a delivery even if the loop's body did
        not end, and never gives it back."""
        self._shard = shard
        self._number = shard.next_number()
        self._records = records
        self._attempt = attempt
        self._position = handed_position(shard.checkpointer)
        self._lost_after = shard.lost_after
        self._settlement = Settlement(shard.commits_by_itself)
        self._batch: Batch | AsyncBatch | None = None

    def claim(self) -> bool:
        """Claim the delivery for the loop; return ``False`` if the owner thread has taken the delivery back."""
        if not self.call.claim():
            return False
        self._shard.in_line = None
        return True

    @property
    def taken_at(self) -> float:
        """The time at which the loop claimed the delivery, in seconds of the monotonic clock."""
        return self.call.started_at or 0.0

    @property
    def is_worth_repeating(self) -> bool:
        """Whether a new loop should begin with this batch, because it is not settled and can still be stored."""
        settlement = self._settlement
        is_settled = settlement.error is not None or settlement.is_committed or settlement.is_over
        return not is_settled and not self._shard.checkpointer.is_closed

    def batch(self) -> Batch:
        """Return the ``Batch`` for a ``for`` loop. Each call returns the same object."""
        if not isinstance(self._batch, Batch):
            checkpointer = self._shard.checkpointer

            def store(position: str) -> None:
                if not self._shard.has_stored(self._number):
                    checkpointer.checkpoint(position)
                    self._shard.stored(self._number)

            self._batch = self._made(Batch, store)
        return self._batch

    def async_batch(self, bridge: LoopBridge) -> AsyncBatch:
        """Return the ``AsyncBatch`` for an ``async for`` loop. Each call returns the same object."""
        if not isinstance(self._batch, AsyncBatch):
            begin = store_through(bridge, self._shard.checkpointer.begin_checkpoint)

            async def store(position: str) -> None:
                if not self._shard.has_stored(self._number):
                    await begin(position)
                    self._shard.stored(self._number)

            self._batch = self._made(AsyncBatch, store)
        return self._batch

    def _made(self, kind: type[_BatchT], store: Callable[[str], Any]) -> _BatchT:
        return kind(
            self._records,
            self._shard.given,
            self._settlement,
            store,
            position=self._position,
            attempt=self._attempt,
            is_end=self.is_end,
            lost_after=self._lost_after,
        )

    def end_turn(self) -> None:
        """Settle the batch, because the loop's body has ended.

        If the loop commits batches and this batch is not committed yet, send the commit without waiting for the answer.
        """
        self._settlement.end()
        if self._settlement.error is not None:
            self.call.finish(self._settlement.error)
        elif self._settlement.is_committed or not self._shard.commits_by_itself:
            self._accept()
        else:
            self._shard.checkpointer.begin_checkpoint(self._position, self._answered)

    def leave(self) -> None:
        """Give the batch back to the worker, because the loop's body did not end.

        A batch that is already committed or has failed is not given back, and neither is the end of a shard. Instead,
        finish the worker's call that delivered it.
        """
        if self._settlement.error is not None:
            self.call.finish(self._settlement.error)
        elif self._settlement.is_committed or self.is_end:
            self._accept()
        else:
            self.call.give_back()

    def refuse_end(self) -> None:
        """Finish the worker's ``shutdown`` call if this delivery is the shard's end, because no loop will take the end.

        Usable from any thread. If the call is already claimed or taken back, do nothing.
        """
        if self.is_end and self.call.claim():
            self.call.finish()

    def _answered(self, error: Exception | None) -> None:
        """Process the answer to the batch's commit, in the owner thread. The loop does not wait for the answer."""
        try:
            is_left = is_left_unstored(self.call.shard_id, error)
        except Exception as failure:  # the position will never be stored
            self.call.finish(failure)
            return
        if is_left:
            self._shard.unstored = self._position
        elif error is None:
            self._shard.stored(self._number)
        self._accept()

    def _accept(self) -> None:
        self._shard.lost_after = None
        self.call.finish()


class LineReceiver(Receiver):
    """The receiver of one shard. It puts batches in line, one at a time, and stores the positions of accepted batches.

    A batch is accepted once the loop has finished it without an error.
    """

    def __init__(self, around: LineReceivers, checkpointer: RecordProcessorCheckpointer) -> None:
        self.checkpointer = checkpointer
        self.commits_by_itself: bool = around.commits_by_itself
        self.lost_after: str | None = None
        """The value of ``BatchBase.lost_after`` for the shard's batches; ``None`` after the first accepted batch."""
        self._around = around
        self._given: InitializationInput | None = None
        self.in_line: HandedBatch | None = None
        """The delivery of this shard that waits in line for the loop, if any."""
        self.unstored: str | None = None
        """The position of an accepted batch whose commit was sent, but is not known to be stored. A later commit stores
        this position, too. ``None`` without such a batch."""
        self._number = self._stored_number = 0
        """The numbers of the last batch that was put in line and of the last stored batch. Batches are numbered from
        1."""

    # --- calls by the owner thread ------------------------------------------------------------------------------------

    def initialize(self, given: InitializationInput, call: HandedCall) -> None:
        """Keep ``given`` for later batches; no user code runs yet."""
        self._given, self.lost_after = given, given.lost_after
        call.finish()

    def process(self, given: ProcessRecordsInput, call: HandedCall) -> None:
        """Put a batch with the records of ``given`` in line."""
        self._put(HandedBatch(self, call, given.records, attempt=given.attempt))

    def shutdown(self, given: ShutdownInput, call: HandedCall) -> None:
        """Store the last accepted position, or the shard's end. With explicit commits, put the end in line instead."""
        self._leave_line()
        reason = given.shutdown_reason
        if reason is ShutdownReason.TERMINATE and not self.commits_by_itself:
            self._put(HandedBatch(self, call, (), is_end=True))
            if self._around.is_stopped:
                self._leave_line()
        elif is_commit_due(reason, has_unstored=self.unstored is not None):
            value = None if reason is ShutdownReason.TERMINATE else self.unstored
            self.checkpointer.begin_checkpoint(value, partial(_finish, call))
        else:
            call.finish()

    def closed(self) -> None:
        """Drop the delivery that waits in line, because its position can no longer be stored."""
        self._leave_line()

    # --- deliveries ----------------------------------------------------------------------------------------------

    @property
    def given(self) -> InitializationInput:
        """The input of ``initialize``, which must have been called."""
        if self._given is None:
            raise ValueError("the shard is not initialized")
        return self._given

    def next_number(self) -> int:
        """Return the number of the next delivery."""
        self._number += 1
        return self._number

    def has_stored(self, number: int) -> bool:
        """Return whether the delivery ``number``, or a later delivery, is stored."""
        return number <= self._stored_number

    def stored(self, number: int) -> None:
        """Record that the delivery ``number`` and all earlier deliveries are stored. Usable from any thread."""
        self._stored_number = max(self._stored_number, number)
        self.unstored = None

    def _put(self, delivery: HandedBatch) -> None:
        delivery.call.last_taken_at = lambda: self._around.line.last_taken_at
        self.in_line = delivery
        self._around.line.put(delivery)

    def _leave_line(self) -> None:
        """Drop the delivery that waits in line. The owner thread has taken it back, or takes it back next."""
        delivery, self.in_line = self.in_line, None
        if delivery is not None and self._around.line.drop(delivery):
            delivery.refuse_end()


def _finish(call: HandedCall, error: Exception | None) -> None:
    """Finish the ``shutdown`` call of a shard. A lost lease is not a failure of the call."""
    call.finish(None if isinstance(error, ShutdownException) else error)


class LineReceivers(ReceiverFactory):
    """A factory of receivers for the shards whose batches wait in one line."""

    def __init__(self, line: Line[HandedBatch], commit: Commit) -> None:
        self.line = line
        self.commits_by_itself: bool = commit == "turn"
        self.is_stopped = False
        """Whether the loop takes no further batch out of the line."""
        self.inside: set[int] = set()
        """The ids of the threads that are in a turn of a plain loop, or in its ``close``. Such a thread may hold a lock
        that the worker needs. A signal handler in that thread must not wait for the worker, nor for such a lock."""

    def make_receiver(self, checkpointer: RecordProcessorCheckpointer) -> Receiver:
        """Make the receiver that puts the batches of one shard in line."""
        return LineReceiver(self, checkpointer)

    def is_own_thread(self) -> bool:
        """Return whether the calling thread is in a turn of the loop. ``Worker.shutdown`` then does not wait."""
        return threading.get_ident() in self.inside

    def create_processor(self) -> IRecordProcessor:
        """Raise an error, because a loop takes its batches itself and uses no processors."""
        raise StreamClientException("a loop over changes makes no processors, because its body gets the batches")
