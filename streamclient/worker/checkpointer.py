"""What user code calls to record progress.

A request travels through the owner thread to the status table and back; the calling thread waits. Nothing of that
needs a thread of the user's executor, so a checkpoint inside ``process_records`` works with an executor of one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from streamclient.core.events import AnswerCheckpoint, CheckpointOutcome
from streamclient.errors import DependencyException, ErrorKind, ShutdownException, StreamClientException
from streamclient.interfaces import IPreparedCheckpoint, IRecordProcessorCheckpointer
from streamclient.worker.positions import HandedOutPositions


class CheckpointTicket:
    """One request under way: the owner answers it once, the caller waits for it."""

    def __init__(self, value: str, is_open: Callable[[], bool]) -> None:
        self.value = value
        self.is_open = is_open
        """Whether the checkpointer that sent it is still in use."""
        self.answered = threading.Event()
        self.outcome: CheckpointOutcome | None = None
        self.error: Exception | None = None

    def answer(self, answer: AnswerCheckpoint) -> None:
        """Release the waiting caller. Owner thread."""
        self.outcome, self.error = answer.outcome, answer.error
        self.answered.set()


SendCheckpoint = Callable[[CheckpointTicket, float], bool]
"""Hands a ticket to the owner within so many seconds; ``False`` if the worker has ended."""


class RecordProcessorCheckpointer(IRecordProcessorCheckpointer):
    """Checkpoints of one processor. Thread-safe; calls from several threads take turns.

    It is closed when the processor's ``shutdown`` has returned: a straggler of an old processor must not store
    anything beside its successor.
    """

    def __init__(
        self,
        shard_id: str,
        initial: str,
        send: SendCheckpoint,
        wait: Callable[[threading.Event, float], bool],
        timeout_millis: int,
    ) -> None:
        self._shard_id = shard_id
        self._send = send
        self._wait = wait
        self._timeout_millis = timeout_millis
        self._positions = HandedOutPositions(shard_id, initial)
        self._stored: str | None = None
        self._closed_because = ""
        self._lock = threading.Lock()
        self._turn = threading.Lock()

    @property
    def largest_permitted_checkpoint_value(self) -> str:
        """The position after the last batch that was handed out; after a failed batch, the one before it."""
        with self._lock:
            return self._positions.permitted

    def checkpoint(self, checkpoint_value: str | None = None) -> None:
        """Store a position in the lease, and return once the status table has it. See the interface."""
        seconds = self._timeout_millis / 1_000
        if not self._turn.acquire(timeout=seconds):
            raise self._no_answer("another checkpoint of this processor is still waiting")
        try:
            self._store(checkpoint_value, seconds)
        finally:
            self._turn.release()

    def prepare_checkpoint(self, checkpoint_value: str | None, state: bytes) -> IPreparedCheckpoint:
        """First phase of a checkpoint in two. See the interface."""
        raise StreamClientException(f"shard {self._shard_id}: two-phase checkpoints are being built")

    def _store(self, value: str | None, seconds: float) -> None:
        with self._lock:
            self._refuse_if_closed()
            text, number = self._positions.resolve(value)
            if text == self._stored:
                return
            self._positions.requested(number)
        ticket = CheckpointTicket(text, lambda: not self._closed_because)
        if not self._send(ticket, seconds):
            raise ShutdownException(f"checkpoint {text!r} of shard {self._shard_id} was not stored: the worker ended")
        if not self._wait(ticket.answered, seconds):
            raise self._no_answer("the status table did not answer")
        self._conclude(ticket)

    def _conclude(self, ticket: CheckpointTicket) -> None:
        if ticket.outcome is CheckpointOutcome.STORED:
            with self._lock:
                self._stored = ticket.value
            return
        if ticket.outcome is CheckpointOutcome.LEASE_LOST:
            raise ShutdownException(
                f"checkpoint {ticket.value!r} of shard {self._shard_id} was refused: this worker no longer holds the "
                "lease; stop working on the shard, its next owner continues at the last stored checkpoint"
            ) from ticket.error
        raise self._no_answer("the status table could not be reached before the lease ran out") from ticket.error

    def _no_answer(self, why: str) -> DependencyException:
        return DependencyException(
            f"checkpoint of shard {self._shard_id} may or may not be stored: {why} within {self._timeout_millis} ms",
            kind=ErrorKind.AMBIGUOUS,
        )

    def _refuse_if_closed(self) -> None:
        if self._closed_because:
            raise ShutdownException(f"nothing more is stored for shard {self._shard_id}: {self._closed_because}")

    def permit(self, position: str) -> None:
        """Hand out the position behind a batch. Owner thread."""
        with self._lock:
            self._positions.permit(position)

    def retract(self) -> None:
        """Take the position behind a failed batch back. Owner thread."""
        with self._lock:
            self._positions.retract()

    def close(self, because: str) -> None:
        """Refuse everything from now on; the first reason stays. Owner thread."""
        with self._lock:
            self._closed_because = self._closed_because or because
