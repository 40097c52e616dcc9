"""The receiver of one shard, which puts batches into the line of a loop, and the settlement of each batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from streamclient.errors import ShutdownException, StreamClientException
from streamclient.interfaces import InitializationInput, IRecordProcessor, ProcessRecordsInput, ShutdownInput
from streamclient.loops.line import Line
from streamclient.model import ShutdownReason
from streamclient.records import StreamRecord
from streamclient.worker.checkpointer import RecordProcessorCheckpointer
from streamclient.worker.handing_over import Receiver, ReceiverFactory
from streamclient.worker.handlers.batches import AsyncBatch, Batch, Commit, Settlement
from streamclient.worker.handlers.event_loop import LoopBridge, store_through
from streamclient.worker.handlers.turn_commits import is_commit_due, is_left_unstored
from streamclient.worker.usercode import HandedCall

_BatchT = TypeVar("_BatchT", Batch, AsyncBatch)


class HandedBatch:
    """One batch, up to its settlement. Used in the consumer's thread, except where a method says otherwise."""

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
        """Whether this delivery is the end of the shard. The call for the end is always finished; it is not given
        back."""
        self._shard = shard
        self._number = shard.next_number()
        self._records = records
        self._attempt = attempt
        self._position = shard.checkpointer.largest_permitted_checkpoint_value
        self._lost_after = shard.lost_after
        self._settlement = Settlement(shard.commits_by_itself)
        self._batch: Batch | AsyncBatch | None = None

    def claim(self) -> bool:
        """Return whether the consumer has the delivery from now on. Its owner may have taken it back."""
        if not self.call.claim():
            return False
        self._shard.in_line = None
        return True

    @property
    def taken_at(self) -> float:
        """The time of the claim, in monotonic seconds."""
        return self.call.started_at or 0.0

    @property
    def is_worth_repeating(self) -> bool:
        """Whether a new loop should begin with this batch, because it is not settled and can still be stored."""
        settlement = self._settlement
        return settlement.error is None and not settlement.is_committed and not self._shard.checkpointer.is_closed

    def batch(self) -> Batch:
        """Return the batch for a plain loop: the same object at each call."""
        if not isinstance(self._batch, Batch):
            checkpointer = self._shard.checkpointer

            def store(position: str) -> None:
                if not self._shard.has_stored(self._number):
                    checkpointer.checkpoint(position)
                    self._shard.stored(self._number)

            self._batch = self._made(Batch, store)
        return self._batch

    def async_batch(self, bridge: LoopBridge) -> AsyncBatch:
        """Return the batch for an ``async for`` loop: the same object at each call."""
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
        """Settle the batch, because its body has ended. Commit it unless it is settled; do not wait for the answer."""
        self._settlement.end()
        if self._settlement.error is not None:
            self.call.finish(self._settlement.error)
        elif self._settlement.is_committed or not self._shard.commits_by_itself:
            self._accept()
        else:
            self._shard.checkpointer.begin_checkpoint(self._position, self._answered)

    def leave(self) -> None:
        """Give the batch back, because its body did not end; do nothing if the batch is settled."""
        if self._settlement.error is not None:
            self.call.finish(self._settlement.error)
        elif self._settlement.is_committed or self.is_end:
            self._accept()
        else:
            self.call.give_back()

    def refuse_end(self) -> None:
        """End the call for the shard's end, which no loop will take. Usable from any thread."""
        if self.is_end and self.call.claim():
            self.call.finish()

    def _answered(self, error: Exception | None) -> None:
        """Take the answer to the commit of a batch, in the owner thread. The loop goes on, whatever the answer is."""
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
    """Puts the batches of one shard in line, one at a time, and stores the positions of accepted batches."""

    def __init__(self, around: LineReceivers, checkpointer: RecordProcessorCheckpointer) -> None:
        self.checkpointer = checkpointer
        self.commits_by_itself: bool = around.commits_by_itself
        self.lost_after: str | None = None
        """The value of ``BatchBase.lost_after`` until a batch is accepted."""
        self._around = around
        self._given: InitializationInput | None = None
        self.in_line: HandedBatch | None = None
        """The delivery that waits to be claimed."""
        self.unstored: str | None = None
        """The position of an accepted batch whose commit was sent, but perhaps not stored. A later stored position
        clears it."""
        self._number = self._stored_number = 0
        """The number of batches that were put in line, which is also the number of the last one. Beside it, the number
        of the last stored batch."""

    # --- the owner's calls ---------------------------------------------------------------------------------------

    def initialize(self, given: InitializationInput, call: HandedCall) -> None:
        """Keep the input; no user code runs yet."""
        self._given, self.lost_after = given, given.lost_behind
        call.finish()

    def process(self, given: ProcessRecordsInput, call: HandedCall) -> None:
        """Put one batch in line."""
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
        """Drop the delivery that waits in line, because its position could not be stored."""
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
        """Return whether the delivery with this number is stored. A later stored delivery includes it."""
        return number <= self._stored_number

    def stored(self, number: int) -> None:
        """Record that a delivery is stored, and with it all earlier deliveries. Usable from any thread."""
        self._stored_number = max(self._stored_number, number)
        self.unstored = None

    def _put(self, delivery: HandedBatch) -> None:
        delivery.call.last_taken_at = lambda: self._around.line.last_taken_at
        self.in_line = delivery
        self._around.line.put(delivery)

    def _leave_line(self) -> None:
        """Drop the delivery that waits in line. Its owner has taken it back, or does so next."""
        delivery, self.in_line = self.in_line, None
        if delivery is not None and self._around.line.drop(delivery):
            delivery.refuse_end()


def _finish(call: HandedCall, error: Exception | None) -> None:
    """Finish the last call. The loss of a lease is not a failure of the loop."""
    call.finish(None if isinstance(error, ShutdownException) else error)


class LineReceivers(ReceiverFactory):
    """Makes the receivers of all shards that share a line."""

    def __init__(self, line: Line[HandedBatch], commit: Commit) -> None:
        self.line = line
        self.commits_by_itself: bool = commit == "turn"
        self.is_stopped = False
        """Whether no further batch is taken out of the line."""

    def make_receiver(self, checkpointer: RecordProcessorCheckpointer) -> Receiver:
        """Make the receiver of one shard."""
        return LineReceiver(self, checkpointer)

    def create_processor(self) -> IRecordProcessor:
        """Refuse: a loop takes its batches itself, so it makes no processors."""
        raise StreamClientException("a loop over changes takes its batches by itself, so it makes no processors")
