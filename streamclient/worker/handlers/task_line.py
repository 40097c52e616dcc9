"""Calls into user code as tasks of one event loop: in line, and at most a given number at a time.

The owners of shards put calls in; all else happens in the event loop, so nothing is locked. A call leaves the line when
it is claimed, so that until then its owner can take it back.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from functools import partial
from typing import Any

from attrs import define

from streamclient.base import logs
from streamclient.base.reasons import described
from streamclient.errors import ApplicationException
from streamclient.worker.handlers.async_user_code import MakeCoroutine
from streamclient.worker.handlers.event_loop import LoopBridge, Task
from streamclient.worker.usercode import HandedCall

_log = logs.logger(__name__)


def unasked_cancellation(what: str) -> ApplicationException:
    """Return the failure of user code that ended with ``CancelledError`` although this package had not cancelled it."""
    return ApplicationException(
        f"{what} ended with CancelledError, and neither the worker nor the caller had cancelled it, so its work may "
        "not be done; a task or a future that it awaits was cancelled"
    )


class TaskSet:
    """The tasks of one run in an event loop. Only inside the event loop."""

    def __init__(self, context: Context, idle: Callable[[], object] = lambda: None) -> None:
        """Start tasks in copies of ``context``; call ``idle`` each time the last task has ended."""
        self._context = context
        self._idle = idle
        self._count = 0

    @property
    def is_idle(self) -> bool:
        """Whether every task has ended."""
        return not self._count

    def start(
        self, bridge: LoopBridge, coroutine: Coroutine[Any, Any, None], ended: Callable[[BaseException | None], None]
    ) -> Task:
        """Start a task; ``ended`` is called with its error."""

        def over(error: BaseException | None) -> None:
            ended(error)
            self._count -= 1
            if not self._count:
                self._idle()

        self._count += 1
        return self._context.run(bridge.start, coroutine, over)


@define(eq=False)
class TaskCall:
    """One call that is put in line."""

    call: HandedCall
    work: MakeCoroutine
    finish: Callable[[BaseException | None], None]
    """Ends the call with the error of its task. Called in the event loop."""
    is_last: bool = False
    """Whether this is a shard's last call, which waits for no other call and runs until the line is closed."""
    task: Task | None = None
    is_cancelled: bool = False

    def leave(self) -> None:
        """End the call as neither finished nor failed. Usable from any thread."""
        if self.call.name == "process_records":
            self.call.give_back()
        else:
            self.call.finish()  # so that ``shutdown`` follows an initialisation that was cancelled


class TaskLine:
    """Runs calls as tasks of one event loop, first come, first served."""

    def __init__(
        self, bridge: Callable[[], LoopBridge], most_tasks: int | None = None, tasks: TaskSet | None = None
    ) -> None:
        """Run at most ``most_tasks`` calls at a time, or any number; ``tasks`` may hold other tasks of the same run."""
        self.bridge = bridge
        """Returns the bridge into the event loop. The first call may start its thread, and raises if it cannot."""
        self._most_tasks = most_tasks
        self._tasks = TaskSet(Context()) if tasks is None else tasks
        self._calls: dict[TaskCall, TaskLine | None] = {}
        """All calls that have not ended. The thread that ends a call removes it."""
        self._waiting: deque[TaskCall] = deque()
        self._running = 0
        self._is_draining = self._is_closed = False
        self._taken_at = 0.0

    # --- the owners' threads -------------------------------------------------------------------------------------

    def put(self, call: TaskCall) -> None:
        """Put a call in line. Usable from any thread.

        Raises:
            NoThreadError, OSError: there is no event loop yet, and the system refused what it needs.
        """
        bridge = self.bridge()
        call.call.last_taken_at = lambda: self._taken_at
        self._calls[call] = None
        if not bridge.post(partial(self._arrived, call)):
            self._leave(call)

    def cancel(self, call: TaskCall) -> None:
        """Cancel the task of a call, because its lease is lost. Usable from any thread."""
        self.bridge().post(partial(self._cancel, call))

    def abandon(self) -> None:
        """Leave all calls of an event loop that is closed, so that nothing waits for it. Usable from any thread."""
        for call in list(self._calls):
            self._leave(call)

    # --- the event loop ------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Cancel all tasks, and leave the calls in line except last calls. Later, only last calls are run."""
        self._is_draining = True
        for call in list(self._calls):
            if not call.is_last:
                self._cancel(call)
        self._begin()

    def close(self) -> None:
        """Cancel all tasks, and leave all calls, also those to come."""
        self._is_closed = True
        for call in list(self._calls):
            if call.is_last:
                self._cancel(call)
        self.drain()

    def _arrived(self, call: TaskCall) -> None:
        if call.is_last:
            self._start(call)
        else:
            self._waiting.append(call)
            self._begin()

    def _begin(self) -> None:
        """Start the calls in line for which there is room."""
        while self._waiting and (self._is_draining or self._most_tasks is None or self._running < self._most_tasks):
            self._start(self._waiting.popleft())

    def _start(self, call: TaskCall) -> None:
        if call.is_cancelled or self._is_closed or (self._is_draining and not call.is_last):
            self._leave(call)
        elif not call.call.claim():
            self._take(call)  # its owner has taken it back
        else:
            self._taken_at = call.call.started_at or 0.0
            self._running += not call.is_last
            call.task = self._tasks.start(self.bridge(), call.work(), partial(self._ended, call))

    def _cancel(self, call: TaskCall) -> None:
        """Cancel a call, once: a second cancellation would interrupt what user code cleans up after the first."""
        if not call.is_cancelled and call.task is not None:
            call.task.cancel()
        call.is_cancelled = True

    def _ended(self, call: TaskCall, error: BaseException | None) -> None:
        self._running -= not call.is_last
        is_cancellation = isinstance(error, asyncio.CancelledError)
        if call.is_cancelled:
            if error is not None and not is_cancellation:
                text = "shard %s: %s was cancelled, and ended with %s"
                _log.warning(text, call.call.shard_id, call.call.name, described(error))
            self._leave(call)
        elif self._take(call):
            call.finish(unasked_cancellation(call.call.name) if is_cancellation else error)
        self._begin()

    def _leave(self, call: TaskCall) -> None:
        if self._take(call):
            call.leave()

    def _take(self, call: TaskCall) -> bool:
        """Return whether the caller is the one who ends the call. Usable from any thread."""
        return self._calls.pop(call, self) is not self
