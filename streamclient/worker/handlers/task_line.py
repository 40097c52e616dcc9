"""A line of calls into user code, which run as tasks of one event loop. At most a given number runs at a time.

The owners of shards add calls to the line. All other work is done in the event loop, so no lock is needed. A call
leaves the line when it is claimed. Until then its owner can take the call back.
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
    """Return the error for user code that ended with ``CancelledError`` although this package had not cancelled it."""
    return ApplicationException(
        f"{what} ended with CancelledError, and neither the worker nor the caller had cancelled it, so its work may "
        "not be done; a task or a future that it awaits was cancelled"
    )


class TaskSet:
    """A set of tasks in one event loop, which counts the tasks that run. Used only inside the event loop."""

    def __init__(self, context: Context, idle: Callable[[], object] = lambda: None) -> None:
        """Make an empty set. Each task will get a copy of ``context``; ``idle`` is called each time no task is left."""
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
        """Start a task; ``ended`` is called with its error, or with ``None``."""

        def over(error: BaseException | None) -> None:
            ended(error)
            self._count -= 1
            if not self._count:
                self._idle()

        self._count += 1
        return self._context.run(bridge.start, coroutine, over)


@define(eq=False)
class TaskCall:
    """One call of user code in a ``TaskLine``, with the coroutine that does the work of the call."""

    call: HandedCall
    work: MakeCoroutine
    finish: Callable[[BaseException | None], None]
    """A function that ends the call with the error of its task, or with ``None``. Called in the event loop."""
    is_last: bool = False
    """Whether this is a shard's last call. A last call does not wait for other calls, and may run until the line is
    closed."""
    task: Task | None = None
    is_cancelled: bool = False

    def leave(self) -> None:
        """End the call without success or failure. Usable from any thread."""
        if self.call.name == "process_records":
            self.call.give_back()
        else:
            self.call.finish()  # so that ``shutdown`` follows a cancelled ``initialize``


class TaskLine:
    """A line of calls, which run as tasks of one event loop in the order of arrival."""

    def __init__(
        self, bridge: Callable[[], LoopBridge], most_tasks: int | None = None, tasks: TaskSet | None = None
    ) -> None:
        """Run at most ``most_tasks`` calls at a time; ``None`` means no limit.

        ``tasks`` is the group to which the tasks belong; by default a new group.
        """
        self.bridge = bridge
        """A function that returns the bridge into the event loop. The first call may start the thread of the loop, and
        raises if that fails."""
        self._most_tasks = most_tasks
        self._tasks = TaskSet(Context()) if tasks is None else tasks
        self._calls: dict[TaskCall, TaskLine | None] = {}
        """All calls that have not ended. Several threads may try to end a call. The thread that removes the call
        from this dictionary ends it."""
        self._waiting: deque[TaskCall] = deque()
        self._running = 0
        self._is_draining = self._is_closed = False
        self._taken_at = 0.0

    # --- methods for the owners ----------------------------------------------------------------------------------

    def put(self, call: TaskCall) -> None:
        """Add a call to the line. Usable from any thread.

        Raises:
            NoThreadError, OSError: the event loop had to be started, and the system refused a resource for it.
        """
        bridge = self.bridge()
        call.call.last_taken_at = lambda: self._taken_at
        self._calls[call] = None
        if not bridge.post(partial(self._arrived, call)):
            self._leave(call)

    def cancel(self, call: TaskCall) -> None:
        """Cancel the task of a call, because the shard's lease is lost. Usable from any thread."""
        self.bridge().post(partial(self._cancel, call))

    def abandon(self) -> None:
        """End all calls as not done, because the closed event loop would never end them. Usable from any thread."""
        for call in list(self._calls):
            self._leave(call)

    # --- inside the event loop -----------------------------------------------------------------------------------

    def drain(self) -> None:
        """Cancel running calls and drop waiting calls, except last calls. From now on, run only last calls."""
        self._is_draining = True
        for call in list(self._calls):
            if not call.is_last:
                self._cancel(call)
        self._begin()

    def close(self) -> None:
        """Cancel all running calls, and drop all waiting calls and all later calls."""
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
        """Start the waiting calls in order of arrival, until ``most_tasks`` calls run."""
        while self._waiting and (self._is_draining or self._most_tasks is None or self._running < self._most_tasks):
            self._start(self._waiting.popleft())

    def _start(self, call: TaskCall) -> None:
        if call.is_cancelled or self._is_closed or (self._is_draining and not call.is_last):
            self._leave(call)
        elif not call.call.claim():
            self._take(call)  # the owner has taken the call back
        else:
            self._taken_at = call.call.started_at or 0.0
            self._running += not call.is_last
            call.task = self._tasks.start(self.bridge(), call.work(), partial(self._ended, call))

    def _cancel(self, call: TaskCall) -> None:
        """Cancel a call once. A second cancellation would interrupt user code that cleans up after the first."""
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
        """Remove the call from ``_calls``; return whether this was the first removal, so that the caller ends the call.

        Usable from any thread.
        """
        return self._calls.pop(call, self) is not self
