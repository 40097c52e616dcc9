"""The checkpointer: the object with which user code records progress.

A request travels through the owner thread to the status table and back, while the calling thread waits. No step needs a
thread of the user's executor, so a checkpoint inside ``process_records`` works with an executor of one thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from streamclient.base.reasons import counted
from streamclient.core.consumer.consumer_positions import HandedOutPositions, Place
from streamclient.core.events import AnswerCheckpoint, CheckpointOutcome
from streamclient.errors import (
    ConfigurationError,
    DependencyException,
    ErrorKind,
    ShutdownException,
)
from streamclient.interfaces import IPreparedCheckpoint, IRecordProcessorCheckpointer
from streamclient.model import PendingCheckpoint, Progress
from streamclient.records import SequenceInfo

MOST_STATE_BYTES = 64 * 1024
"""The largest number of bytes that a sink may store with a prepared checkpoint: enough for a name, not for the data.
Every scan of the table reads them."""

Then = Callable[[Exception | None], None]
"""Called once with the error of a checkpoint, or with ``None`` once it is stored."""


class CheckpointTicket:
    """One request under way: the owner answers it once, the caller waits for the answer."""

    def __init__(
        self,
        value: str,
        is_open: Callable[[], bool],
        progress: Progress | None = None,
        pending: PendingCheckpoint | None = None,
    ) -> None:
        self.value = value
        self.progress = progress
        """Progress up to ``value``."""
        self.pending = pending
        """The checkpoint to prepare, if the request is a first phase; then ``value`` is not stored."""
        self.is_open = is_open
        """Returns whether the checkpointer that sent the request is still in use."""
        self.answered: threading.Event = threading.Event()
        self.then: Callable[[], object] = self.answered.set
        """Called when the request is answered."""
        self.outcome: CheckpointOutcome | None = None
        self.error: Exception | None = None

    def answer(self, answer: AnswerCheckpoint) -> None:
        """Let the caller go on. Only for the owner thread."""
        self.outcome, self.error = answer.outcome, answer.error
        self.then()

    def refuse(self) -> None:
        """Let the caller go on without a write, because the shard is no longer held. Usable from any thread."""
        self.answer(AnswerCheckpoint(0, CheckpointOutcome.LEASE_LOST))


SendCheckpoint = Callable[[CheckpointTicket, float], bool]
"""Hands a ticket to the owner within the given seconds; returns ``False`` if the worker has ended."""


class PreparedCheckpoint(IPreparedCheckpoint):
    """The result of the first phase of a two-phase checkpoint. Thread-safe."""

    def __init__(self, checkpointer: IRecordProcessorCheckpointer, pending: PendingCheckpoint) -> None:
        self._checkpointer = checkpointer
        self._pending = pending

    @property
    def pending(self) -> PendingCheckpoint:
        """The checkpoint that was prepared."""
        return self._pending

    def checkpoint(self) -> None:
        """Do the second phase. See the interface."""
        self._checkpointer.checkpoint(self._pending.value)


class RecordProcessorCheckpointer(IRecordProcessorCheckpointer):
    """Checkpoints of one processor. Thread-safe; calls from several threads take turns.

    The checkpointer is closed when the processor's ``shutdown`` has returned: a leftover thread of an old processor
    must not store anything beside its successor.
    """

    def __init__(
        self,
        shard_id: str,
        positions: HandedOutPositions,
        send: SendCheckpoint,
        wait: Callable[[threading.Event, float], bool],
        timeout_millis: int,
        *,
        epoch: int = 0,
    ) -> None:
        self._shard_id = shard_id
        self._send = send
        self._wait = wait
        self._timeout_millis = timeout_millis
        self._epoch = epoch
        self._positions = positions
        self._stored: str | None = None
        self._batches = self._stored_batches = 0
        """The batches that were given to the processor, and how many of them a stored checkpoint covers."""
        self._latest = 0
        """By how much the latest batch has raised the number of batches."""
        self._closed_because = ""
        self._lock = threading.Lock()
        self._turn = threading.Lock()

    @property
    def largest_permitted_checkpoint_value(self) -> str:
        """The position after the last batch that was handed out.

        If that batch failed, it is the position before the batch.
        """
        with self._lock:
            return self._positions.permitted

    @property
    def is_closed(self) -> bool:
        """Whether checkpoints are refused for good. See the interface."""
        return bool(self._closed_because)

    @property
    def progress(self) -> Progress:
        """Progress up to the permitted position."""
        with self._lock:
            return self._positions.progress

    def checkpoint(self, checkpoint_value: str | None = None) -> None:
        """Store a position in the lease, and return once the status table has it. See the interface."""
        self._take_turn()
        try:
            place, batches = self._requested(checkpoint_value)
            if place.text != self._stored:
                self._have_stored(self._ticket(place, None))
            self._has_stored(place, batches)
        finally:
            self._turn.release()

    def begin_checkpoint(self, checkpoint_value: str | None, then: Then) -> None:
        """Store a position as ``checkpoint`` does, but do not wait: call ``then`` with the error or ``None``.

        ``then`` is called once, in this thread if nothing is sent, else in the owner thread, so it must return soon.
        The wait has no time-out of its own: the owner answers each request, at the latest when the lease has run out.
        """
        if not self._turn.acquire(blocking=False):
            then(self._no_answer("another checkpoint of this processor is still waiting"))
            return
        try:
            place, batches = self._requested(checkpoint_value)
        except Exception as error:
            self._turn.release()
            then(error)
            return

        def answered() -> None:
            error: Exception | None = None
            try:
                if ticket.outcome is not None:
                    self._conclude(ticket)
                self._has_stored(place, batches)
            except Exception as refusal:
                error = refusal
            self._turn.release()
            then(error)

        ticket = self._ticket(place, None)
        ticket.then = answered
        if place.text == self._stored:
            answered()
        elif not self._send(ticket, self._timeout_millis / 1_000):
            ticket.refuse()

    def give(self, records: int = 1) -> None:
        """Record that one more batch of ``records`` records is given to the processor; an empty one does not count."""
        with self._lock:
            self._latest = int(records > 0)
            self._batches += self._latest

    def take_back(self) -> None:
        """Record that the last batch failed: it is given again, parked or skipped. Only for the owner thread."""
        with self._lock:
            self._batches, self._latest = self._batches - self._latest, 0
            self._stored_batches = min(self._stored_batches, self._batches)

    @property
    def has_stored_all(self) -> bool:
        """Whether the position after the last batch that the processor was given and that did not fail is stored."""
        with self._lock:
            return self._stored_batches >= self._batches

    @property
    def has_set_aside(self) -> bool:
        """Whether all records after the last requested position were parked or skipped, and there are such records.

        No processor is told of them, so no checkpoint is requested before the next record that it is given.
        """
        with self._lock:
            is_after = self._positions.progress.records > self._positions.requested_records
            return is_after and self._stored_batches >= self._batches

    def _requested(self, value: str | None) -> tuple[Place, int]:
        """Return the position to store, and the number of batches that are dealt with when it is stored."""
        with self._lock:
            place = self._resolve(value)
            if place.text != self._stored:
                self._positions.requested(place)
            is_last = place.number >= self._positions.permitted_number
            return place, self._batches if is_last else 0

    def _has_stored(self, place: Place, batches: int) -> None:
        self._stored = place.text
        with self._lock:
            self._stored_batches = max(self._stored_batches, batches)

    def prepare_checkpoint(self, checkpoint_value: str | None, state: bytes) -> IPreparedCheckpoint:
        """Do the first phase of a two-phase checkpoint. See the interface."""
        if not isinstance(state, bytes) or len(state) > MOST_STATE_BYTES:
            given = counted(len(state), "byte") if isinstance(state, bytes) else repr(state)
            raise ConfigurationError(f"state must be bytes, at most {MOST_STATE_BYTES} of them, not {given}")
        self._take_turn()
        try:
            with self._lock:
                place = self._resolve(checkpoint_value)
                self._positions.prepared(place)
                records = self._positions.records_since_request(place)
            pending = PendingCheckpoint(place.text, state, records, self._epoch, place.last)
            # Forget the last stored value: completing this checkpoint must reach the table, to remove it there.
            self._stored = None
            self._have_stored(self._ticket(place, pending))
        finally:
            self._turn.release()
        return PreparedCheckpoint(self, pending)

    def _take_turn(self) -> None:
        """Wait until no other request runs. The caller gives the turn back."""
        if not self._turn.acquire(timeout=self._timeout_millis / 1_000):
            raise self._no_answer("another checkpoint of this processor is still waiting")

    def _resolve(self, value: str | None) -> Place:
        if self._closed_because:
            raise ShutdownException(f"nothing more is stored for shard {self._shard_id}: {self._closed_because}")
        return self._positions.resolve(value)

    def _ticket(self, place: Place, pending: PendingCheckpoint | None) -> CheckpointTicket:
        return CheckpointTicket(place.text, lambda: not self._closed_because, place.progress, pending)

    def _have_stored(self, ticket: CheckpointTicket) -> None:
        seconds = self._timeout_millis / 1_000
        if not self._send(ticket, seconds):
            raise ShutdownException(
                f"checkpoint {ticket.value!r} of shard {self._shard_id} was not stored: the worker ended"
            )
        if not self._wait(ticket.answered, seconds):
            raise self._no_answer("the status table did not answer")
        self._conclude(ticket)

    def _conclude(self, ticket: CheckpointTicket) -> None:
        if ticket.outcome is CheckpointOutcome.STORED:
            return
        if ticket.outcome is CheckpointOutcome.LEASE_LOST:
            raise ShutdownException(
                f"checkpoint {ticket.value!r} of shard {self._shard_id} was refused: this worker no longer holds the "
                "lease; stop working on the shard, its next owner continues at the last stored checkpoint"
            ) from ticket.error
        if ticket.outcome is CheckpointOutcome.REJECTED:
            raise ConfigurationError(
                f"checkpoint {ticket.value!r} of shard {self._shard_id} was not stored: {ticket.error}"
            ) from ticket.error
        raise self._no_answer("the status table could not be reached before the lease ran out") from ticket.error

    def _no_answer(self, why: str) -> DependencyException:
        return DependencyException(
            f"checkpoint of shard {self._shard_id} may or may not be stored: {why} within {self._timeout_millis} ms",
            kind=ErrorKind.AMBIGUOUS,
        )

    def permit(self, position: str, progress: Progress | None = None, last: SequenceInfo | None = None) -> None:
        """Hand out the position after a batch, with the progress after it. Only for the owner thread."""
        with self._lock:
            self._positions.permit(position, progress, last)

    def offer(self, position: str, progress: Progress, last: SequenceInfo | None = None) -> None:
        """Allow an earlier processor's prepared position to be stored. Only for the owner thread."""
        with self._lock:
            self._positions.offer(position, progress, last)

    def withdraw(self, position: str) -> None:
        """Withdraw an offered position that was not stored. Only for the owner thread."""
        with self._lock:
            self._positions.withdraw(position)

    def retract(self) -> None:
        """Withdraw the position after a failed batch. Only for the owner thread."""
        with self._lock:
            self._positions.retract()

    def close(self, because: str) -> None:
        """Refuse all checkpoints from now on. The first reason stays. Only for the owner thread."""
        with self._lock:
            self._closed_because = self._closed_because or because
