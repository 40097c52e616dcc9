"""The witness of loops, which observes the batches of programs and their loop bodies, and judges the laws of loops.

Each call to a shard's processor waits for the program. Either the program claims the call, which is then *given out*,
or the worker's owner thread *takes it back*. The witness observes two things: the receiver of each shard, which gets
the calls, and the loop bodies of programs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from enum import Enum
from typing import NoReturn

from attrs import define, field

from streamclient.base.reasons import Raised, counted
from streamclient.interfaces import InitializationInput, IRecordProcessor, ProcessRecordsInput, ShutdownInput
from streamclient.model import CheckpointPosition, ShutdownReason
from streamclient.testing.history import INITIALIZE, SHUTDOWN, Called, KeysInOrder, LawBroken, ReaderOver, Returned
from streamclient.testing.simulation.trials.trial_settings import Change
from streamclient.testing.simulation.trials.witness import Life, Witness, WitnessedReader, delivered
from streamclient.worker.checkpointer import RecordProcessorCheckpointer
from streamclient.worker.handing_over import Receiver, ReceiverFactory
from streamclient.worker.handlers.batches import AsyncBatch
from streamclient.worker.usercode import Done, HandedCall

STORED, SETTLED, ONE_OUT = "stored is finished", "settled once", "one batch at a time"
LEFT, CANCELLED, NOTHING_FALLS = "left is not failed", "cancelled is left", "nothing falls out"
REASONS, LEASES, NO_LEAK = "loops end for a reason", "leases do not wait for loops", "no leak"
ANSWERS, RAISES = "answers are true", "nothing is raised"

PROCESS = "process_records"


class Body(Enum):
    """The state of the loop body, or the handler, that has a batch."""

    NONE = "not begun"
    RUNS = "running"
    ENDED = "ended"
    COMMITTED = "committed"
    FAILED = "failed"
    LEFT = "left"
    CANCELLED = "cancelled"


FINISHED = (Body.ENDED, Body.COMMITTED)
"""The states of a body in which the worker may count the batch as processed."""


class WitnessedCall(HandedCall):
    """One call that the worker's owner thread hands over to a program, observed by the witness."""

    reader: LoopReader
    changes: list[Change]
    position = ""
    """The position after the batch; empty until the program gets the batch."""
    body = Body.NONE
    is_claimed = is_over = False
    ends = 0

    @classmethod
    def watch(cls, call: HandedCall, reader: LoopReader, changes: Sequence[Change] = ()) -> WitnessedCall:
        """Turn ``call`` into a call that the witness observes."""
        call.__class__ = cls
        assert isinstance(call, WitnessedCall)
        call.reader, call.changes = reader, list(changes)
        return call

    @property
    def is_open(self) -> bool:
        """Whether a program has the call."""
        return self.is_claimed and not self.ends

    def claim(self) -> bool:
        """Claim the call for the program, and report the claim to the witness; return whether the claim succeeded."""
        was_free = not self.is_claimed and not self.is_taken_back
        is_claimed = super().claim()
        if is_claimed:
            self.reader.claimed(self, was_free=was_free)
        return is_claimed

    def cancel(self) -> bool:
        """Take the call back for the owner thread, and tell the witness; return whether the call was taken back."""
        was_free = not self.is_claimed and not self.ends
        is_taken_back = super().cancel()
        if is_taken_back:
            self.reader.taken_back(self, was_free=was_free)
        return is_taken_back

    def _end(self, raised: Raised | None, done: Done) -> None:
        super()._end(raised, done)
        if not self.is_taken_back:
            self.reader.ended(self, raised, is_given_back=done is not self._done)


@define(eq=False)
class LoopLife(Life):
    """One process whose user code is a loop."""

    out: dict[str, WitnessedCall] = field(factory=dict)
    """By shard id, the call that the program claimed last. This call may have ended."""
    left: WitnessedCall | None = None
    """The call whose batch the program had when it left its last loop; ``None`` once another batch has followed."""
    failed: set[str] = field(factory=set)
    """The ids of shards with a failed batch."""

    @property
    def claimed(self) -> list[WitnessedCall]:
        """The calls that the program has now."""
        return [call for call in self.out.values() if call.is_open]


@define(eq=False)
class LoopWitness(Witness):
    """A ``Witness`` that also knows the state of each batch's loop body, and judges the laws of loops."""

    is_quiet: bool = field(default=False, kw_only=True)
    """Whether the plan has no freezes, no cuts and no faults of calls. If so, no living process is allowed to lose a
    lease."""
    stores_turns: bool = field(default=True, kw_only=True)
    """Whether the batch of a body is committed by the next turn of the loop. If not, the body itself commits it."""
    tells_ends: bool = field(default=False, kw_only=True)
    """Whether the program has to commit the end of a shard."""
    counts: Counter[str] = field(factory=Counter, kw_only=True)
    _accepted_order: KeysInOrder = field(factory=KeysInOrder, init=False)

    def break_law(self, law: str, shard_id: str, text: str) -> NoReturn:
        """Remember the first violation of a law in ``failed``, and raise the violation."""
        broken = LawBroken(law, shard_id, text)
        self.failed = self.failed or broken
        raise broken

    def accepted_in_order(self, reader: LoopReader, changes: list[Change]) -> None:
        """Check that accepted ``changes`` of each key come in order, without a gap."""
        for broken in self._accepted_order.see(delivered(reader, changes)):
            self.failed = self.failed or broken
            raise broken

    def number_of(self, shard_id: str, checkpoint: str) -> int:
        """Return the number of a shard's changes that are before ``checkpoint``."""
        if checkpoint == CheckpointPosition.SHARD_END:
            return sum(shard == shard_id for shard, _ in self.places.values())
        shard, _, read = checkpoint.rpartition("@")
        return int(read) if shard == shard_id else 0

    def stored(self, shard_id: str, checkpoint: str) -> None:
        """Judge a stored checkpoint. The bodies of all batches before it must have ended or called ``commit``."""
        reader, number = self.current.get(shard_id), self.number_of(shard_id, checkpoint)
        self.counts["stored"] += 1
        self.note("table", f"stores {shard_id}", checkpoint)
        if isinstance(reader, LoopReader):
            if number > reader.safe:
                are = "is" if reader.safe == 1 else "are"
                text = (
                    f"{checkpoint} was stored, but of its {counted(number, 'change')} only {reader.safe} {are} finished"
                )
                self.break_law(STORED, shard_id, text)
            if checkpoint == CheckpointPosition.SHARD_END and self.tells_ends and not reader.may_end:
                self.break_law(STORED, shard_id, f"the end was stored, and {reader} has not asked for it")
            reader.stored = max(reader.stored, number)
        super().stored(shard_id, checkpoint)

    # --- reports of programs -------------------------------------------------------------------------------------

    def received(self, life: LoopLife, batch: AsyncBatch) -> WitnessedCall:
        """Judge a batch that a program gets. The batch must be claimed.

        A new loop over the same object must first get the batch that the former loop left.
        """
        shard_id, left = batch.shard.shard_id, life.left
        call = life.out.get(shard_id)
        if call is None or not call.is_open or call.body not in (Body.NONE, Body.LEFT):
            self.break_law(
                SETTLED, shard_id, f"{life.name} got a batch that it has not claimed, or that it already has"
            )
        changes = [self.change_of(record) for record in batch]
        if changes != call.changes:
            self.break_law(NOTHING_FALLS, shard_id, f"{life.name} got other changes than it claimed")
        if left is not None and left is not call and left.is_open and left.body is Body.LEFT:
            self.break_law(NOTHING_FALLS, left.shard_id, f"a new loop of {life.name} skips the batch that was left")
        life.left, call.body, call.position = None, Body.RUNS, batch.position
        self.counts["bodies"] += 1
        self.note(life.name, f"body {shard_id}", _names(changes) or "end")
        return call

    def became(self, call: WitnessedCall, body: Body) -> None:
        """Record that the loop body with the batch of ``call`` is now in the state ``body``."""
        self.note(call.reader.life.name, f"{body.value} {call.shard_id}", "")
        self.counts[f"body {body.value}"] += 1
        if call.body is Body.RUNS or (call.body is Body.LEFT and body is Body.COMMITTED):
            call.body = body
        if call.body in FINISHED and body is Body.ENDED:
            call.reader.finished(call, stores=self.stores_turns)

    def asks_to_commit(self, call: WitnessedCall) -> None:
        """Record that a program calls ``commit``. From now on the position after the batch may be stored."""
        call.reader.finished(call, stores=True)

    def committed(self, call: WitnessedCall) -> None:
        """Judge the return of ``commit``. The position after the batch must be stored."""
        if call.changes and call.reader.stored <= self.places[call.changes[-1]][1]:
            self.break_law(ANSWERS, call.shard_id, f"commit returned to {call.reader}, but nothing is stored")
        self.became(call, Body.COMMITTED)

    def nothing_taken(self, life: LoopLife) -> None:
        """Judge a wait for a batch that timed out or was cancelled. The wait must not have claimed a batch."""
        for call in life.claimed:
            if call.body is Body.NONE:
                self.break_law(
                    NOTHING_FALLS, call.shard_id, f"a wait of {life.name} ended without a batch, but claimed one"
                )


class LoopReader(WitnessedReader, Receiver):
    """The receiver of one shard's calls, which reports the calls to the witness and wraps the real receiver."""

    witness: LoopWitness
    life: LoopLife

    def __init__(self, witness: LoopWitness, life: LoopLife, own: Receiver) -> None:
        super().__init__(witness, life)
        self._own = own
        self.done = self.safe = self.stored = 0
        """Three counts of the shard's changes: the changes that programs have finished, the changes that may be before
        a stored checkpoint, and the changes that are before the stored checkpoint."""
        self.may_end = False
        """Whether the program has asked for the end of the shard to be stored."""
        self.out: WitnessedCall | None = None
        """The call that the program has; ``None`` if it has no call of this shard."""

    # --- the owner's calls ---------------------------------------------------------------------------------------

    def initialize(self, given: InitializationInput, call: HandedCall) -> None:
        """Begin a new reader for the witness, and pass the call on to the wrapped receiver."""
        self.witness.note(self.life.name, f"{INITIALIZE} {given.shard_info.shard_id}", self.begins(given))
        self.done = self.safe = self.stored = self.witness.number_of(self.shard_id, self.begin)
        self.witness.current[self.shard_id] = self
        self._own.initialize(given, WitnessedCall.watch(call, self))

    def process(self, given: ProcessRecordsInput, call: HandedCall) -> None:
        """Check that a batch is delivered again only after a failure, and pass the call on to the wrapped receiver."""
        if given.attempt and self.shard_id not in self.life.failed:
            self.witness.break_law(LEFT, self.shard_id, f"{self} is given a batch once more, but no batch has failed")
        changes = [self.witness.change_of(record) for record in given.records]
        self._own.process(given, WitnessedCall.watch(call, self, changes))

    def shutdown(self, given: ShutdownInput, call: HandedCall) -> None:
        """Judge the reason for the shutdown, and pass the call on to the wrapped receiver."""
        reason = given.shutdown_reason
        self.witness.note(self.life.name, f"{SHUTDOWN} {self.shard_id}", reason.value)
        if reason is ShutdownReason.ZOMBIE and self.witness.is_quiet:
            self.witness.break_law(LEASES, self.shard_id, f"{self} lost its lease, although only its loop was slow")
        self._own.shutdown(given, WitnessedCall.watch(call, self))

    def closed(self) -> None:
        """Tell the wrapped receiver that no further call follows."""
        self._own.closed()

    # --- the fate of a call --------------------------------------------------------------------------------------

    def claimed(self, call: WitnessedCall, *, was_free: bool) -> None:
        """Judge a program's claim of ``call``. The program must not have another call of this shard.

        ``was_free`` says whether, before the claim, the call was neither claimed nor taken back. It must be true.
        """
        witness = self.witness
        if not was_free:
            witness.break_law(SETTLED, self.shard_id, f"{self} gives out {call.name}, which was claimed or taken back")
        if self.out is not None:
            witness.break_law(ONE_OUT, self.shard_id, f"{self} gives out {call.name}, and {self.out.name} is out")
        call.is_claimed, self.out, self.life.out[self.shard_id] = True, call, call
        witness.tell(Called(self, self.shard_id, call.name))
        if call.name == PROCESS:
            witness.counts["given out"] += 1
            witness.handed_out(self, call.changes)

    def taken_back(self, call: WitnessedCall, *, was_free: bool) -> None:
        """Judge a call that the owner thread takes back.

        ``was_free`` says whether no program had claimed the call until then. It must be true.
        """
        self.witness.counts["taken back"] += 1
        self.witness.note(self.life.name, f"takes back {self.shard_id}", _names(call.changes))
        if not was_free:
            self.witness.break_law(SETTLED, self.shard_id, f"{self} takes back {call.name}, which was given out")
        if call.name == INITIALIZE:
            self.witness.tell(ReaderOver(self, self.shard_id))  # no processor was made, so no shutdown follows

    def ended(self, call: WitnessedCall, raised: Raised | None, *, is_given_back: bool) -> None:
        """Judge the end of a call. A call must be claimed, end once, and have the same result as its body."""
        witness, call.ends = self.witness, call.ends + 1
        if not call.is_claimed or call.ends > 1:
            text = f"{call.name} of {self} ends, and was not claimed or has ended before"
            witness.break_law(SETTLED, self.shard_id, text)
        self.out = None
        how = "given back" if is_given_back else "finished" if raised is None else f"failed: {raised.text}"
        witness.note(self.life.name, f"{call.name} {self.shard_id}", how)
        if call.name == PROCESS:
            witness.counts["given back" if is_given_back else "finished" if raised is None else "failed"] += 1
            self._judge_end(call, raised, is_given_back=is_given_back)
        witness.tell(Returned(self, self.shard_id))
        if call.name == SHUTDOWN:
            witness.tell(ReaderOver(self, self.shard_id))

    def _judge_end(self, call: WitnessedCall, raised: Raised | None, *, is_given_back: bool) -> None:
        if is_given_back:
            return
        body, is_finished = call.body, raised is None
        if body not in (FINISHED if is_finished else (Body.FAILED,)):
            law = STORED if body in (Body.NONE, Body.RUNS) else CANCELLED if body is Body.CANCELLED else LEFT
            how = "accepted" if raised is None else f"failed ({raised.text})"
            self.witness.break_law(law, self.shard_id, f"a batch of {self} is {how}, and its body is {body.value}")
        if is_finished:
            self.accepts(call.changes)
        else:
            self.life.failed.add(self.shard_id)

    def finished(self, call: WitnessedCall, *, stores: bool) -> None:
        """Record that a batch and all changes before it are finished.

        With ``stores``, the position after the batch may be stored from now on.
        """
        self.done = max([self.done, *(self.witness.places[change][1] + 1 for change in call.changes)])
        if stores:
            is_end = not call.changes or call.position == CheckpointPosition.SHARD_END
            self.safe, self.may_end = self.done, self.may_end or is_end

    def accepts(self, changes: list[Change]) -> None:
        """Record that user code has accepted ``changes``. A batch that is accepted twice counts once."""
        self.witness.accepted_in_order(self, [change for change in changes if change in self.in_hand])
        super().accepts(changes)
        self.last = changes[-1] if changes else self.last


class WitnessedReceivers(ReceiverFactory):
    """The factory of one process's receivers. It lets the real factory make each receiver, and wraps the receiver."""

    def __init__(self, witness: LoopWitness, life: LoopLife, own: ReceiverFactory) -> None:
        self._witness, self._life, self._own = witness, life, own

    def make_receiver(self, checkpointer: RecordProcessorCheckpointer) -> Receiver:
        """Make a receiver whose calls the witness observes."""
        return LoopReader(self._witness, self._life, self._own.make_receiver(checkpointer))

    def create_processor(self) -> IRecordProcessor:
        """Return a processor that the wrapped factory makes."""
        return self._own.create_processor()


def _names(changes: list[Change]) -> str:
    return " ".join(str(change) for change in changes)
