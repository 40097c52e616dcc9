"""The receivers of shards whose user code runs in an event loop: each call is a task, and no shard needs a thread."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from streamclient.errors import ShutdownException
from streamclient.interfaces import InitializationInput, IRecordProcessor, ProcessRecordsInput, ShutdownInput
from streamclient.model import ShutdownReason
from streamclient.worker.checkpointer import RecordProcessorCheckpointer, handed_position
from streamclient.worker.handing_over import Receiver, ReceiverFactory
from streamclient.worker.handlers.async_user_code import AsyncUserCode, MakeCoroutine, Store, run_batch
from streamclient.worker.handlers.batches import AsyncBatch, Settlement
from streamclient.worker.handlers.blocking_twin import BlockingTwin, TwinLoops
from streamclient.worker.handlers.event_loop import EventLoopThread, store_through
from streamclient.worker.handlers.task_line import TaskCall, TaskLine
from streamclient.worker.handlers.turn_commits import is_left_unstored
from streamclient.worker.usercode import HandedCall

JOIN_SECONDS = 1.0
"""The longest time for which a worker that has ended waits for the thread of its event loop. A task that ignores its
cancellation may keep the thread busy for longer."""


class TaskReceiver(Receiver):
    """The receiver that runs the calls of one shard as tasks of an event loop.

    When a handler has ended, its batch is committed. The shard goes on when the result of the commit has come, and no
    thread waits meanwhile. If the commit gets no usable answer, the batch counts as accepted. The next commit, or the
    shutdown, then includes the batch's position.
    """

    def __init__(self, code: AsyncUserCode, checkpointer: RecordProcessorCheckpointer, line: TaskLine) -> None:
        self._code = code
        self._checkpointer = checkpointer
        self._line = line
        self._store: Store | None = None
        self._present: TaskCall | None = None
        self._has_unstored = False

    def initialize(self, given: InitializationInput, call: HandedCall) -> None:
        """Begin to make and initialise the processor, if user code has one. The first call starts the event loop.

        Raises:
            NoThreadError, OSError: the system refused a resource for the event loop. The call ends with this error.
        """
        self._given, self._lost_after = given, given.lost_after
        self._store = store_through(self._line.bridge(), self._checkpointer.begin_checkpoint)
        if self._code.needs_initialize:
            self._put(call, partial(self._code.initialize, given), call.finish)
        else:
            call.finish()

    def process(self, given: ProcessRecordsInput, call: HandedCall) -> None:
        """Add the call for one batch to the line of the event loop."""
        settlement = Settlement(self._code.commits_by_itself)
        position = handed_position(given.checkpointer)
        batch = AsyncBatch(
            given.records,
            self._given,
            settlement,
            self._storing,
            position=position,
            attempt=given.attempt,
            lost_after=self._lost_after,
        )
        work = partial(run_batch, self._code, batch, settlement)
        self._put(call, work, partial(self._processed, call, settlement, position))

    def shutdown(self, given: ShutdownInput, call: HandedCall) -> None:
        """Begin the last work of user code; if there is no such work, store the position that is due."""
        reason = given.shutdown_reason
        work = self._last_work(reason)
        if work is not None:
            self._put(call, work, call.finish, is_last=True)
        elif self._code.is_store_due(
            reason, has_stored_all=self._checkpointer.has_stored_all, has_unstored=self._has_unstored
        ):
            self._checkpointer.begin_checkpoint(None, partial(self._last_stored, call))
        else:
            call.finish()

    def closed(self) -> None:
        """Cancel the present task, because the lease is lost, or because the worker ends before the task does."""
        if self._present is not None and not self._present.is_last:
            self._line.cancel(self._present)

    @property
    def _storing(self) -> Store:
        if self._store is None:
            raise ValueError("the shard is not initialised")
        return self._store

    def _put(
        self,
        call: HandedCall,
        work: MakeCoroutine,
        finish: Callable[[BaseException | None], None],
        *,
        is_last: bool = False,
    ) -> None:
        self._present = TaskCall(call, work, finish, is_last)
        self._line.put(self._present)

    def _processed(self, call: HandedCall, settlement: Settlement, position: str, error: BaseException | None) -> None:
        """Settle a batch whose task has ended. Called in the event loop."""
        if error is not None:
            call.finish(error)
            return
        self._lost_after = None
        if settlement.commits_by_itself and not settlement.is_committed:
            self._checkpointer.begin_checkpoint(position, partial(self._stored, call))
        else:
            self._has_unstored = self._has_unstored and not settlement.is_committed
            call.finish()

    def _stored(self, call: HandedCall, error: Exception | None) -> None:
        """Let the shard go on after the commit of a batch. The batch fails only if its position can never be stored."""
        try:
            self._has_unstored = is_left_unstored(call.shard_id, error)
        except Exception as failure:
            call.finish(failure)
        else:
            call.finish()

    def _last_stored(self, call: HandedCall, error: Exception | None) -> None:
        """End the ``shutdown`` call of the shard. A lost lease is not a failure of user code."""
        call.finish(None if isinstance(error, ShutdownException) else error)

    def _last_work(self, reason: ShutdownReason) -> MakeCoroutine | None:
        if self._store is None:
            return None  # the event loop could not be started
        settlement = Settlement(commits_by_itself=False)
        position = handed_position(self._checkpointer)
        end = AsyncBatch((), self._given, settlement, self._store, position=position, is_end=True)
        return self._code.last_work(reason, (end, settlement), partial(self._store, None))


class TaskReceivers(ReceiverFactory):
    """The factory of the receivers of all shards whose user code runs in one event loop."""

    def __init__(
        self, make_code: Callable[[], AsyncUserCode], line: TaskLine, event_loop: EventLoopThread | None = None
    ) -> None:
        """Run user code in the event loop of ``line``.

        ``event_loop`` is the thread of that loop, which ends with this factory; ``None`` if the loop is the program's.
        """
        self._make_code = make_code
        self._line = line
        self._event_loop = event_loop
        self._twin_loops = TwinLoops()

    def make_receiver(self, checkpointer: RecordProcessorCheckpointer) -> Receiver:
        """Make a receiver, which runs the calls of one shard as tasks."""
        return TaskReceiver(self._make_code(), checkpointer, self._line)

    def create_processor(self) -> IRecordProcessor:
        """Make a processor that runs each coroutine to its end in the calling thread."""
        return BlockingTwin(self._make_code(), self._twin_loops)

    def is_own_thread(self) -> bool:
        """Return whether the calling thread runs the worker's event loop, in which tasks run even without a batch."""
        return self._event_loop is not None and self._event_loop.is_inside

    def close(self) -> None:
        """End the event loop, if the worker has started it."""
        if self._event_loop is not None:
            self._event_loop.close(JOIN_SECONDS)
