"""The checkpointer: the object with which user code records progress.

A checkpoint request passes through the owner thread to the status table, while the calling thread waits. No step needs
a thread of the user's executor. So user code may request a checkpoint in ``process_records`` even if that executor has
only one thread.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from streamclient.base.reasons import counted
from streamclient.core.consumer.consumer_positions import HandedOutPositions, Place
from streamclient.core.events import AnswerCheckpoint, CheckpointOutcome
from streamclient.errors import (
    ConfigurationError,
    DependencyException,
    ErrorKind,
    ShutdownException,
    StreamClientError,
)
from streamclient.interfaces import IPreparedCheckpoint, IRecordProcessorCheckpointer
from streamclient.model import CheckpointPosition, PendingCheckpoint, Progress
from streamclient.records import SequenceInfo

MOST_STATE_BYTES = 64 * 1024
"""The largest size, in bytes, of the state that user code may store with a prepared checkpoint. The limit is small,
because every scan of the status table reads the state."""

Then = Callable[[Exception | None], None]
"""A callback for the end of a checkpoint request. Its argument is the error, or ``None`` after success."""


class CheckpointTicket:
    """One request for a checkpoint, which the owner thread answers once."""

    def __init__(
        self,
        value: str,
        is_open: Callable[[], bool],
        progress: Progress | None = None,
        pending: PendingCheckpoint | None = None,
    ) -> None:
        self.value = value
        self.progress = progress
        """The numbers of records and bytes that were processed up to ``value``; ``None`` if they are unknown."""
        self.pending = pending
        """The checkpoint to prepare in the first phase of a two-phase checkpoint; ``None`` if ``value`` is to be stored
        as the checkpoint."""
        self.is_open = is_open
        """A function that returns whether the checkpointer that sent the request still accepts checkpoints."""
        self.answered: threading.Event = threading.Event()
        self.then: Callable[[], object] = self.answered.set
        """The function that ``answer`` calls. By default, it wakes the thread that waits for the answer."""
        self.outcome: CheckpointOutcome | None = None
        self.error: Exception | None = None

    def answer(self, answer: AnswerCheckpoint) -> None:
        """Store the outcome and error of ``answer`` in this ticket, and call ``then``."""
        self.outcome, self.error = answer.outcome, answer.error
        self.then()

    def refuse(self) -> None:
        """Answer that the worker no longer holds the shard's lease, so nothing was stored. Usable from any thread."""
        self.answer(AnswerCheckpoint(0, CheckpointOutcome.LEASE_LOST))


SendCheckpoint = Callable[[CheckpointTicket, float], bool]
"""A function that posts a ticket to the owner's inbox. It returns ``False`` if the inbox is closed, or stays full for
the given seconds."""


class HandedPosition(str):
    """The text of a position, with the number of the last batch that the processor had when it was given this text.

    While a page is delivered in parts, several batches get the same text. The number shows which of them is meant by
    this package's own code when it stores the position later. Programs get the text alone, because the number means
    nothing to another checkpointer.
    """

    batch: int

    @classmethod
    def of(cls, text: str, batch: int) -> HandedPosition:
        """Return the position ``text``, given together with the batch number ``batch``."""
        position = cls(text)
        position.batch = batch
        return position


def handed_position(checkpointer: IRecordProcessorCheckpointer) -> str:
    """Return the largest permitted value, with the number of its batch if ``checkpointer`` counts batches."""
    if isinstance(checkpointer, RecordProcessorCheckpointer):
        return checkpointer.handed_position
    return checkpointer.largest_permitted_checkpoint_value


class PreparedCheckpoint(IPreparedCheckpoint):
    """The result of the first phase of a two-phase checkpoint. Thread-safe."""

    def __init__(self, checkpointer: IRecordProcessorCheckpointer, pending: PendingCheckpoint) -> None:
        self._checkpointer = checkpointer
        self._pending = pending

    @property
    def pending(self) -> PendingCheckpoint:
        """The prepared checkpoint: its position, the state of user code, and the epoch."""
        return self._pending

    def checkpoint(self) -> None:
        """Store the prepared position as the checkpoint. This is the second phase."""
        self._checkpointer.checkpoint(self._pending.value)


class RecordProcessorCheckpointer(IRecordProcessorCheckpointer):
    """The checkpointer of one processor. Thread-safe; calls from several threads take turns.

    The checkpointer is closed when the processor's ``shutdown`` has returned, because a leftover thread of an old
    processor must not store positions while its successor works.
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
        self._batch = self._stored_batch = 0
        """The number of the last batch with records that was given to the processor, and the number of the last batch
        that a stored checkpoint covers. Batches are numbered from 1."""
        self._kept_batch = self._kept_before = 0
        """The number of the last batch that did not fail, and the value to which ``take_back`` sets that number."""
        self._newest_number = 0
        """The rank of the position with which the last batch was given."""
        self._has_moved = True
        """Whether the last batch was given with another position than the batches before it."""
        self._stores_only_requests = False
        self._own_request: threading.Event | None = None
        """An event that is set when the request of ``store_set_aside`` has ended; ``None`` without such a request."""
        self._closed_because = ""
        self._lock = threading.Lock()
        self._turn = threading.Lock()
        self._in_line: deque[tuple[str | None, Then]] = deque()
        """The requests of ``begin_checkpoint`` that wait until no other request is under way."""

    @property
    def largest_permitted_checkpoint_value(self) -> str:
        """The position after the last batch that the processor was given.

        After a failed batch, it is the position before that batch.
        """
        with self._lock:
            return self._positions.permitted

    @property
    def handed_position(self) -> HandedPosition:
        """The position ``largest_permitted_checkpoint_value``, with the number of the last batch."""
        with self._lock:
            return HandedPosition.of(self._positions.permitted, self._batch)

    @property
    def is_closed(self) -> bool:
        """Whether this checkpointer refuses all further checkpoints, for example because the lease is lost."""
        return bool(self._closed_because)

    @property
    def progress(self) -> Progress:
        """The numbers of records and bytes that were processed up to ``largest_permitted_checkpoint_value``."""
        with self._lock:
            return self._positions.progress

    def checkpoint(self, checkpoint_value: str | None = None) -> None:
        """Store a position as the checkpoint of the lease, and return once the status table has stored it."""
        self._take_turn()
        try:
            place, batch = self._requested(checkpoint_value)
            if place.text != self._stored:
                self._have_stored(self._ticket(place, None))
            self._has_stored(place, batch)
        finally:
            self._end_turn()

    def begin_checkpoint(self, checkpoint_value: str | None, then: Then) -> None:
        """Store a position as ``checkpoint`` does, but do not wait: call ``then`` with the error or ``None``.

        ``then`` is called once: in this thread if no request is sent, otherwise usually in the owner thread. If another
        checkpoint of this processor is under way, the request waits in line for its end, and ``then`` may also be
        called in the thread of that checkpoint. So ``then`` must return soon, and must be usable from any thread.

        The request has no time-out of its own, because the owner answers each request, at the latest when the lease
        expires.
        """
        self._in_line.append((checkpoint_value, then))
        self._begin_next()

    def _begin_next(self) -> None:
        """Begin the requests in line, until one waits for its answer or another checkpoint is under way.

        A request joins the line before it looks for a free turn, and each end of a turn looks into the line. So no
        request stays in line.
        """
        while self._in_line and self._turn.acquire(blocking=False):
            if not self._in_line:  # another thread has begun the last request meanwhile
                self._turn.release()
                continue
            value, then = self._in_line.popleft()
            error: Exception | None = None
            try:
                if self._is_sent(value, then):
                    return
            except Exception as refusal:
                error = refusal
            self._turn.release()
            then(error)

    def _is_sent(self, value: str | None, then: Then) -> bool:
        """Send a request, whose answer ends the turn; return ``False`` if the position is already stored."""
        place, batch = self._requested(value)
        if place.text == self._stored:
            self._has_stored(place, batch)
            return False
        ticket = self._ticket(place, None)

        def answered() -> None:
            error: Exception | None = None
            try:
                self._conclude(ticket)
                self._has_stored(place, batch)
            except Exception as refusal:
                error = refusal
            self._turn.release()
            then(error)
            self._begin_next()

        ticket.then = answered
        self._post(ticket)
        return True

    def _end_turn(self) -> None:
        self._turn.release()
        self._begin_next()

    def give(self, records: int = 1) -> None:
        """Count a batch of ``records`` records that is given to the processor. An empty batch does not count."""
        with self._lock:
            self._kept_before = self._kept_batch
            if records:
                self._batch += 1
                self._kept_batch = self._batch
                before, self._newest_number = self._newest_number, self._positions.permitted_number
                self._has_moved = self._newest_number > before

    def take_back(self) -> None:
        """Expect no checkpoint for the last batch any more, because its processing failed. Only for the owner thread.

        The records of the batch come again in other batches, or are parked or skipped.
        """
        with self._lock:
            self._kept_batch = self._kept_before

    @property
    def has_stored_all(self) -> bool:
        """Whether stored checkpoints cover every batch that the processor was given, apart from a failed batch."""
        with self._lock:
            return self._covers_all

    @property
    def has_set_aside(self) -> bool:
        """Whether records came after the last requested checkpoint, and all of them were parked or skipped.

        User code never accepted these records, so it requests no checkpoint after them until it gets a later record.
        """
        with self._lock:
            is_after = self._positions.progress.records > self._positions.requested_records
            return is_after and self._covers_all

    @property
    def _covers_all(self) -> bool:
        return self._stored_batch >= self._kept_batch

    def store_only_requests(self) -> None:
        """Let ``store_set_aside`` do nothing from now on. Usable from any thread."""
        self._stores_only_requests = True

    def store_set_aside(self) -> None:
        """Begin to store the permitted position, if no batch of the processor waits for a checkpoint.

        Only for the owner thread, while the processor has no batch and the shard is caught up. If another checkpoint is
        under way, or the request fails, a later call tries again.
        """
        if self._stores_only_requests or not self._turn.acquire(blocking=False):
            return
        with self._lock:
            may_store = self._covers_all and not self._closed_because
            place = self._positions.pass_set_aside() if may_store else None
        if place is None or place.text == self._stored:
            self._end_turn()
            return
        ticket, ended = self._ticket(place, None), threading.Event()

        def answered() -> None:
            if ticket.outcome is CheckpointOutcome.STORED:
                self._stored = place.text
            self._own_request = None
            self._end_turn()
            ended.set()

        ticket.then, self._own_request = answered, ended
        try:
            self._post(ticket)
        except StreamClientError:
            answered()

    def _requested(self, value: str | None) -> tuple[Place, int]:
        """Return the position to store for ``value``, and the number of the last batch that is stored with it.

        Without a value, the processor says that every batch is done. A text without a number counts for every batch if
        it is the last position and only the last batch was given with it. Otherwise it counts for no batch: several
        batches have this text, and the processor may mean an earlier one.
        """
        with self._lock:
            place = self._resolve(value)
            if place.text != self._stored:
                self._positions.requested(place)
            if isinstance(value, HandedPosition):
                return place, value.batch
            is_last = place.number >= self._positions.permitted_number
            is_whole = self._has_moved or value == CheckpointPosition.SHARD_END
            return place, self._batch if value is None or (is_last and is_whole) else 0

    def _has_stored(self, place: Place, batch: int) -> None:
        self._stored = place.text
        with self._lock:
            self._stored_batch = max(self._stored_batch, batch)

    def prepare_checkpoint(self, checkpoint_value: str | None, state: bytes) -> IPreparedCheckpoint:
        """Store a position and ``state`` as a prepared checkpoint: the first phase of a two-phase checkpoint."""
        if not isinstance(state, bytes) or len(state) > MOST_STATE_BYTES:
            given = counted(len(state), "byte") if isinstance(state, bytes) else repr(state)
            raise ConfigurationError(f"state must be bytes, at most {MOST_STATE_BYTES} of them, not {given}")
        self._take_turn()
        try:
            with self._lock:
                place = self._resolve(checkpoint_value)
                self._positions.prepared(place)
                self._stores_only_requests = True
                records = self._positions.records_since_request(place)
            pending = PendingCheckpoint(place.text, state, records, self._epoch, place.last)
            # Forget the last stored value, so that the second phase always writes to the table: the write removes the
            # prepared checkpoint.
            self._stored = None
            self._have_stored(self._ticket(place, pending))
        finally:
            self._end_turn()
        return PreparedCheckpoint(self, pending)

    def _take_turn(self) -> None:
        """Wait until no other request of this checkpointer is under way; raise if that lasts too long."""
        own_request, seconds = self._own_request, self._timeout_millis / 1_000
        is_over = own_request is None or self._wait(own_request, seconds)
        if not is_over or not self._turn.acquire(timeout=seconds):
            raise self._no_answer("another checkpoint of this processor is still waiting")

    def _resolve(self, value: str | None) -> Place:
        if self._closed_because:
            raise ShutdownException(f"nothing more is stored for shard {self._shard_id}: {self._closed_because}")
        return self._positions.resolve(value)

    def _ticket(self, place: Place, pending: PendingCheckpoint | None) -> CheckpointTicket:
        return CheckpointTicket(place.text, lambda: not self._closed_because, place.progress, pending)

    def _have_stored(self, ticket: CheckpointTicket) -> None:
        self._post(ticket)
        if not self._wait(ticket.answered, self._timeout_millis / 1_000):
            raise self._no_answer("the service did not answer")
        self._conclude(ticket)

    def _post(self, ticket: CheckpointTicket) -> None:
        if not self._send(ticket, self._timeout_millis / 1_000):
            raise ShutdownException(
                f"checkpoint {ticket.value!r} of shard {self._shard_id} was not stored: the worker ended"
            )

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
            f"checkpoint of shard {self._shard_id} may or may not be stored: {why} (after {self._timeout_millis} ms)",
            kind=ErrorKind.AMBIGUOUS,
        )

    def permit(self, position: str, progress: Progress | None = None, last: SequenceInfo | None = None) -> None:
        """Allow user code to store ``position``, the end of one more batch. Only for the owner thread."""
        with self._lock:
            self._positions.permit(position, progress, last)

    def offer(self, position: str, progress: Progress, last: SequenceInfo | None = None) -> None:
        """Allow user code to store ``position``, which an earlier processor prepared. Only for the owner thread."""
        with self._lock:
            self._positions.offer(position, progress, last)

    def withdraw(self, position: str) -> None:
        """Undo ``offer``. Only for the owner thread.

        If user code has already requested ``position`` or a later position, change nothing.
        """
        with self._lock:
            self._positions.withdraw(position)

    def retract(self) -> None:
        """Undo the last ``permit``, because its batch failed. Only for the owner thread."""
        with self._lock:
            self._positions.retract()

    def close(self, because: str) -> None:
        """Refuse all further checkpoints, for the reason ``because``. Only for the owner thread.

        A second call keeps the reason of the first call.
        """
        with self._lock:
            self._closed_because = self._closed_because or because
