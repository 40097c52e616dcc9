"""What reads one shard in a simulated process: the user's processor and the worker's consumer around it, in one.

It takes a batch, processes it for a while, writes it to the sink that all workers share, and checkpoints. A batch under
way is finished whatever happens, also by a process that was frozen in the middle of it: that is what a zombie does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamclient.core import events
from streamclient.core.events import CheckpointOutcome, ConsumerEnd, StartConsumer
from streamclient.model import CheckpointPosition, PendingCheckpoint, Progress, ShutdownReason
from streamclient.testing.simulation.stream import place_of

if TYPE_CHECKING:
    from streamclient.testing.simulation.actors.process import PythonProcess

BATCH_RECORDS = 5
"""Most records in one batch of a shard that is not behind; small, so that hand-overs meet batches under way."""

RECORD_BYTES = 100

BACKLOG_PART = 4
"""A batch also takes this part of what waits, so that a shard that fell behind catches up in a few rounds."""

CHECKPOINTED_SHARE = 0.8
"""Share of batches after which the processor checkpoints."""

LONGEST_IDLE_ROUNDS = 4.0
"""An idle shard is looked at less and less often, down to once in so many rounds."""

RETRY_ROUNDS = 2.0
"""Pause after a failure, in rounds."""

PROMPT_SECONDS = 0.02
"""How long a consumer that does nothing takes to stop."""


class Request:
    """One checkpoint on its way, or the first phase of one."""

    __slots__ = ("consumer", "end", "pending", "place", "value")

    def __init__(self, consumer: Consumer, value: str, place: int, pending: PendingCheckpoint | None) -> None:
        self.consumer, self.value, self.place, self.pending = consumer, value, place, pending
        self.end: ConsumerEnd | None = None

    @property
    def asked(self) -> tuple[str, str, bool]:
        """What is asked for: lease key, value, and whether it is the first phase of two."""
        return self.consumer.lease_key, self.value, self.pending is not None


class Consumer:
    """One tenancy of one shard in one process."""

    def __init__(self, process: PythonProcess, start: StartConsumer) -> None:
        info = start.shard_info
        self.process, self.world = process, process.world
        self.lease_key, self.identifier, self.epoch = info.shard_id, start.identifier, info.epoch
        self.shard = self.world.stream.shards[info.shard_id]
        self.checkpoint = start.checkpoint
        self.pending = start.pending
        self.progress = start.progress or Progress(0, 0, 0)
        self.started_at = self._place(start.checkpoint)
        self.stored = self.position = self.batch_end = self.started_at
        self.stop: ShutdownReason | None = None
        self.has_ended = False
        self.is_done = False
        """Whether the processor marked itself done."""
        self.request: Request | None = None
        self._token = 0
        self._idle_rounds = 1.0

    def begin(self) -> None:
        """Start reading."""
        if self.world.plan.is_two_phase:
            self.world.sink.fence(self)
        self._schedule(PROMPT_SECONDS)

    def ask_to_stop(self, reason: ShutdownReason) -> None:
        """End after the batch under way, or at once if there is none."""
        if self.stop is not ShutdownReason.ZOMBIE:
            self.stop = reason
        if self.batch_end == self.position and self.request is None:
            self._schedule(PROMPT_SECONDS)

    def vanish(self) -> None:
        """End with the process, without a word."""
        self.has_ended = True
        self.world.consumer_ended(self)

    # --- rounds ------------------------------------------------------------------------------------------------

    def _schedule(self, seconds: float) -> None:
        self._token += 1
        self.process.agenda.after(seconds, self._round, self._token)

    def _round(self, token: int) -> None:
        """What was under way is finished, or there was nothing to do."""
        process = self.process
        if token != self._token or self.has_ended:
            return
        waits_until = max(process.frozen_until, self.world.hangs.get(self.lease_key, 0.0))
        if waits_until > process.agenda.now:
            process.agenda.at(waits_until, self._round, token)
        elif self.batch_end > self.position:
            self._finish_batch()
        else:
            self._go_on()

    def _go_on(self) -> None:
        """Between two batches."""
        if self.stop is ShutdownReason.ZOMBIE:
            self._end(ConsumerEnd.STOPPED)
        elif self.stop is not None or self.is_done:
            self._close(ConsumerEnd.STOPPED if self.stop is not None else ConsumerEnd.DONE)
        elif not self.shard.is_listed:
            self._schedule(self.world.plan.duration_seconds)
        elif self.pending is not None and self.pending.value == self.world.sink.committed.get(self.lease_key):
            self._complete(self.pending)
        elif self.position < self.shard.size:
            self._take_batch()
        elif not self.shard.is_open:
            self._ask(CheckpointPosition.SHARD_END, ConsumerEnd.SHARD_END)
        else:
            self._idle_rounds = min(2.0 * self._idle_rounds, LONGEST_IDLE_ROUNDS)
            self._schedule(self.world.plan.round_seconds * self._idle_rounds)

    def _complete(self, pending: PendingCheckpoint) -> None:
        """An earlier processor committed what it had prepared, but did not live to checkpoint it."""
        self.position = self.batch_end = place_of(pending.value)
        self._ask(pending.value, None)

    def _take_batch(self) -> None:
        dice, world = self.process.dice, self.world
        self._idle_rounds = 1.0
        size = 1 + dice.randrange(BATCH_RECORDS) + (self.shard.size - self.position) // BACKLOG_PART
        self.batch_end = min(self.position + size, self.shard.size)
        if self.pending is not None and self.position < place_of(self.pending.value):
            self.batch_end = min(self.batch_end, place_of(self.pending.value))
        seconds = world.plan.round_seconds * (0.5 + dice.random()) * world.drag(self.lease_key)
        self._schedule(seconds)

    def _finish_batch(self) -> None:
        if self.world.is_failing(self.lease_key):
            self._fail()
        elif self.world.plan.is_two_phase:
            self._prepare()
        elif not self.world.sink.write(self, self.position, self.batch_end):
            self._fail()
        else:
            self.position = self.batch_end
            if self.process.dice.chance(CHECKPOINTED_SHARE):
                self._ask(self._value(), None)
            else:
                self._go_on()

    def _prepare(self) -> None:
        """First phase: say what is about to be committed. What an earlier processor said so is said again."""
        known = self.pending
        value = known.value if known is not None and place_of(known.value) == self.batch_end else self._value()
        pending = PendingCheckpoint(value, b"", self.batch_end - self.stored, self.epoch)
        self._send(Request(self, value, self.batch_end, pending))

    def _prepared(self, pending: PendingCheckpoint) -> None:
        """Between the phases: commit; then the second phase."""
        self.pending = pending
        if not self.world.sink.commit(self, self.position, self.batch_end, pending.value):
            self._fail()
            return
        self.position = self.batch_end
        self._ask(pending.value, None)

    def _close(self, end: ConsumerEnd) -> None:
        """The processor's last call, in which it checkpoints what it has not yet."""
        if self.position > self.stored:
            self._ask(self._value(), end)
        else:
            self._end(end)

    def _fail(self) -> None:
        """User code raised: a new processor starts from the stored checkpoint, after a pause."""
        self.position = self.batch_end = self.stored
        self._schedule(self.world.plan.round_seconds * RETRY_ROUNDS)

    # --- checkpoints -------------------------------------------------------------------------------------------

    def _value(self) -> str:
        return self.world.new_value(self.batch_end)

    def _ask(self, value: str, end: ConsumerEnd | None) -> None:
        request = Request(self, value, self.position, None)
        request.end = end
        self._send(request)

    def _send(self, request: Request) -> None:
        self.request = request
        number = self.world.register_request(request)
        event = events.CheckpointRequested(
            number, self.lease_key, self.identifier, request.value, self._progress(), request.pending
        )
        self.process.handle(event)

    def answered(self, request: Request, outcome: CheckpointOutcome) -> None:
        """The call of ``checkpoint()`` returns, or raises."""
        process = self.process
        if self.has_ended or request is not self.request:
            return
        if process.is_frozen:
            process.agenda.at(process.frozen_until, self.answered, request, outcome)
            return
        self.request = None
        if outcome is not CheckpointOutcome.STORED:
            self._not_stored()
        elif request.pending is not None:
            self._prepared(request.pending)
        else:
            self._stored(request)

    def _stored(self, request: Request) -> None:
        self.stored = max(self.stored, request.place)
        self.pending = None
        if request.end is not None:
            self._end(request.end)
        else:
            self._go_on()

    def _not_stored(self) -> None:
        if self.stop is not None:
            self.batch_end = self.position
            self._end(ConsumerEnd.STOPPED)
        else:
            self._fail()

    def _end(self, end: ConsumerEnd) -> None:
        self.has_ended = True
        del self.process.consumers[self.identifier]
        self.world.consumer_ended(self)
        event = events.ConsumerStopped(self.lease_key, self.identifier, end)
        self.process.agenda.after(0.0, self.process.deliver, event)

    def _progress(self) -> Progress:
        """What was processed so far; every record counts as a hundred bytes."""
        before = self.progress
        records = before.records + self.position - self.started_at
        return Progress(self.world.wall_micros(), records, RECORD_BYTES * records)

    def _place(self, checkpoint: str) -> int:
        if checkpoint == CheckpointPosition.SHARD_END:
            return self.shard.size
        return place_of(checkpoint)

    def __repr__(self) -> str:
        return f"<consumer {self.identifier} of {self.lease_key} at {self.position}, epoch {self.epoch}>"
