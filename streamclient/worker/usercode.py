"""The calls of user code: of processors, of parking stores and of retry strategies.

A call runs in the user's executor, or a thread outside the executor takes it.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future
from functools import partial

from streamclient.base import checks, logs
from streamclient.base.outages import OutageLog
from streamclient.base.pools import once
from streamclient.base.reasons import Cause, Raised, described
from streamclient.errors import ConfigurationError, StreamClientException, is_refused_thread
from streamclient.interfaces import IRecordProcessor, IShutdownMarker
from streamclient.model import ParkedKey, ShutdownReason
from streamclient.worker.owner_loop import OwnerLoop

_log = logs.logger(__name__)

Done = Callable[[Raised | None], None]
"""A function that the owner thread calls at the end of a call of user code, with the error of that call or ``None``."""


class UserCall:
    """One call into user code: queued, then running, then finished."""

    queued_cause: Cause = Cause.CALL_QUEUED
    runs_cause: Cause = Cause.CALL_RUNS

    def __init__(self, name: str, shard_id: str, queued_at: float) -> None:
        self.name = name
        self.shard_id = shard_id
        self._queued_at = queued_at
        self.started_at: float | None = None
        self.thread_id: int | None = None
        self.future: Future[None] | None = None
        self.is_taken_back: bool = False
        self.is_over = False
        """Whether the end of the call was reported. Only for the owner thread."""

    @property
    def queued_at(self) -> float:
        """The time since which the shard has been waiting for the end of the call."""
        return self._queued_at

    def cancel(self) -> bool:
        """Cancel the call if no thread has begun it; return whether the call will never run."""
        self.is_taken_back = True
        self.is_taken_back = self.future is None or self.future.cancel()
        return self.is_taken_back

    def running_seconds(self, now: float) -> float:
        """Return the seconds for which user code has been running; 0.0 while the call waits for a thread."""
        return 0.0 if self.started_at is None else max(0.0, now - self.started_at)


class HandedCall(UserCall):
    """A call that waits in a line until user code takes it. User code ends the call later.

    User code takes and ends the call in threads outside the executor.

    A token decides who has the call: user code takes the token with ``claim``, the owner takes it with ``cancel``. So a
    call is given out or taken back, never both. ``claim``, ``finish`` and ``give_back`` may be called in any thread.
    Only the first end of a call counts. A second end is possible if a signal raises an error just after a loop has
    ended its batch, because the loop then also leaves that batch.
    """

    queued_cause: Cause = Cause.BATCH_WAITS
    runs_cause: Cause = Cause.BATCH_OUT

    def __init__(self, name: str, shard_id: str, around: UserCode, done: Done, given_back: Callable[[], None]) -> None:
        super().__init__(name, shard_id, around.now())
        self._token, self._end_token = threading.Lock(), threading.Lock()
        self._around = around
        self._done = done
        self._given_back = given_back
        self.last_taken_at: Callable[[], float] = lambda: 0.0
        """A function that returns the time at which any call was last taken out of the line of this call. The line or
        the receiver sets this function."""

    @property
    def queued_at(self) -> float:
        """The time at which user code claimed the call.

        Before the claim, it is the later of two times: when the call joined the line, and when a call was last taken
        out of the line.
        """
        return max(self._queued_at, self.last_taken_at()) if self.started_at is None else self.started_at

    def claim(self) -> bool:
        """Take the call; return ``False`` if it is already claimed, or if the owner has taken it back."""
        if not self._token.acquire(blocking=False):
            return False
        self.thread_id: int | None = threading.get_ident()
        self.started_at: float | None = self._around.now()
        self._around.entered(self.thread_id)
        return True

    def cancel(self) -> bool:
        """Take the call back if it is not claimed; return whether it was taken back. Owner thread only."""
        self.is_taken_back: bool = self._token.acquire(blocking=False)
        return self.is_taken_back

    def finish(self, error: BaseException | None = None) -> None:
        """End the call, with the error that user code raised. If the owner has taken the call back, do nothing."""
        self._end(None if error is None else Raised.of(error), self._done)

    def give_back(self) -> None:
        """End the call as if user code had never claimed it, because the work was interrupted."""
        self._end(None, lambda raised: self._given_back())

    def _end(self, raised: Raised | None, done: Done) -> None:
        # A call whose line is gone ends without a claim. Claim the call now, so that the owner cannot take it back.
        if self.started_at is None and not self.claim():
            return
        if not self._end_token.acquire(blocking=False):
            return
        self._around.left(self.thread_id)
        self._around.tell(self, done, raised)


class UserCode:
    """The runner of user code, which reports the end of each call to the owner.

    Only for the owner thread, except where a method says otherwise. No call waits for another call, so an executor with
    a single thread is slow but never stuck.
    """

    def __init__(self, executor: Executor, loop: OwnerLoop) -> None:
        self._executor = once(executor)
        self._loop = loop
        self._threads: set[int] = set()
        self._outside: Counter[int] = Counter()
        """For each thread outside the executor, the number of calls that it has claimed and not ended. The keys are
        thread ids."""
        self._outside_lock = threading.Lock()
        self.now: Callable[[], float] = loop.now
        self._outages = OutageLog(_log)

    def run(self, name: str, shard_id: str, function: Callable[[], None], done: Done) -> UserCall:
        """Run ``function`` in the executor, and then ``done`` in the owner thread. A cancelled call runs neither."""
        call = UserCall(name, shard_id, self._loop.now())
        self._loop.at_end(partial(self._submit, call, function, done))
        return call

    def hand_over(
        self,
        name: str,
        shard_id: str,
        start: Callable[[HandedCall], None],
        done: Done,
        given_back: Callable[[], None],
    ) -> HandedCall:
        """Begin a call that user code takes and ends outside the executor.

        ``start`` adds the call to a line, in the owner thread, and returns soon. Later ``done`` is called in the owner
        thread, or ``given_back`` if the call is given back. If the call is cancelled, neither function is called.
        """
        call = HandedCall(name, shard_id, self, done, given_back)

        def begin() -> None:
            if not call.is_taken_back:
                try:
                    start(call)
                except Exception as error:
                    call.finish(error)

        self._loop.at_end(begin)
        return call

    def is_inside(self) -> bool:
        """Return whether the calling thread is running user code of this worker. Usable from any thread."""
        me = threading.get_ident()
        return me in self._threads or self._outside.get(me, 0) > 0

    def entered(self, thread_id: int) -> None:
        """Record that a thread outside the executor has claimed a call. Usable from any thread."""
        with self._outside_lock:
            self._outside[thread_id] += 1

    def left(self, thread_id: int | None) -> None:
        """Record that a call claimed by the thread ``thread_id`` has ended. Usable from any thread."""
        with self._outside_lock:
            if thread_id is not None:
                self._outside[thread_id] -= 1
                if self._outside[thread_id] <= 0:
                    del self._outside[thread_id]

    def tell(self, call: UserCall, done: Done, raised: Raised | None) -> None:
        """Report the end of a call to the owner. Usable from any thread."""
        self._loop.post(partial(self._tell, call, done, raised))

    def _submit(self, call: UserCall, function: Callable[[], None], done: Done) -> None:
        self._loop.start(self._executor, partial(self._hand_over, call, function, done))

    def _hand_over(self, call: UserCall, function: Callable[[], None], done: Done) -> None:
        """Submit ``call`` to the executor.

        Raise only if the system refuses a thread, because the owner then submits the call again later.
        """
        if call.is_taken_back:
            return
        future: Future[None]
        try:
            future = self._executor.submit(self._execute, call, function, done)
        except Exception as error:
            if is_refused_thread(error):
                raise
            future = Future()
            future.set_exception(error)
        call.future = future
        future.add_done_callback(partial(self._check_that_it_ran, call, done))

    def _execute(self, call: UserCall, function: Callable[[], None], done: Done) -> None:
        if self._loop.is_inside:
            raise StreamClientException("the executor runs calls in the submitting thread; it needs threads of its own")
        me = threading.get_ident()
        self._threads.add(me)
        call.thread_id, call.started_at = me, self._loop.now()
        raised: Raised | None = None
        try:
            function()
        except BaseException as error:
            # This includes SystemExit and KeyboardInterrupt, which in a pool's thread end only this call.
            raised = Raised.of(error)  # made in this thread, because making the error's text runs user code
        finally:
            self._threads.discard(me)
        self.tell(call, done, raised)

    def _tell(self, call: UserCall, done: Done, raised: Raised | None) -> None:
        """Report the end of a call once, in the owner thread. Log and ignore a repeated report of an executor."""
        if call.is_over or call.is_taken_back:
            self._outages.log(
                logging.WARNING,
                (call.shard_id, call.name),
                "shard %s: the executor %r reports the end of %s again, which is ignored",
                call.shard_id,
                self._executor,
                call.name,
            )
            return
        call.is_over = True
        done(raised)

    def _check_that_it_ran(self, call: UserCall, done: Done, future: Future[None]) -> None:
        """Report a call that the executor has cancelled, or has lost with a broken pool. Usable from any thread."""
        if call.started_at is None and not call.is_taken_back:
            why = None if future.cancelled() else future.exception()
            self._loop.post(partial(self._tell, call, done, Raised.of(_never_ran(call, why))))


def _never_ran(call: UserCall, why: BaseException | None) -> StreamClientException:
    reason = "it cancelled the call" if why is None else described(why)
    error = StreamClientException(f"the executor did not run {call.name} for shard {call.shard_id}: {reason}")
    error.__cause__ = why
    return error


PROCESSOR_METHODS = ("initialize", "process_records", "shutdown")


class ShutdownMarker(IShutdownMarker):
    """The marker with which a processor requests its own end or replacement. Only the first request counts."""

    def __init__(self, mark: Callable[[ShutdownReason], object]) -> None:
        self._mark = mark
        self._first = threading.Lock()

    def mark_for_process_done(self) -> None:
        """Stop reading this shard on this worker, and release its lease."""
        self._mark_once(ShutdownReason.PROCESS_DONE)

    def mark_for_process_restart(self) -> None:
        """Stop this processor; a new processor starts from the stored checkpoint."""
        self._mark_once(ShutdownReason.PROCESS_RESTART)

    def _mark_once(self, reason: ShutdownReason) -> None:
        if self._first.acquire(blocking=False):
            self._mark(reason)


def log_with(logger: logging.Logger, level: int, text: str, raised: Raised | None) -> None:
    """Log ``text``, with the traceback of ``raised`` if there is an error."""
    if raised is None or not logger.isEnabledFor(level):
        logger.log(level, "%s", text)
        return
    # Look the caller up here, because Logger.findCaller counts frames differently in Python 3.10.
    caller, error = sys._getframe(1), raised.error
    path, line, function = caller.f_code.co_filename, caller.f_lineno, caller.f_code.co_name
    trace = (type(error), error, error.__traceback__)
    record = logger.makeRecord(logger.name, level, path, line, "%s", (text,), trace, function)
    record.exc_text = raised.traceback  # formatters use this text, and do not format the error again
    logger.handle(record)


def checked_keys(answer: Iterable[object]) -> list[ParkedKey]:
    """Return ``answer``, the keys that a parking store has returned, as a list.

    Raises:
        ConfigurationError: the answer is not a series of usable ``ParkedKey`` objects.
    """
    keys = checks.done("parked_keys", answer, may_yield=True)
    return [_parked_key.require("each of parked_keys", key) for key in keys]  # type: ignore[misc]  # checked


def _is_parked_key(value: object) -> bool:
    if not isinstance(value, ParkedKey) or not checks.is_whole(value.generation):
        return False
    try:
        hash(value.key)
    except Exception:
        return False
    return isinstance(value.shard_id, str) and isinstance(value.first_record_id, str)


_parked_key = checks.Check("a ParkedKey of a primary key, two ids and a generation", _is_parked_key)


def checked_processor(made: object) -> IRecordProcessor:
    """Return ``made``, the object that the factory made; raise ``ConfigurationError`` if it is not a processor."""
    checks.done("the processor factory", made)
    if not isinstance(made, IRecordProcessor) and checks.is_async(getattr(made, "process_records", None)):
        raise ConfigurationError(
            f"the processor factory made {checks.shown(made)}, an async processor: give the class itself, or "
            "functools.partial of the class and its arguments, so that it is made in the event loop"
        )
    missing = [name for name in PROCESSOR_METHODS if not callable(getattr(made, name, None))]
    if isinstance(made, type) or missing:
        raise ConfigurationError(
            f"the processor factory made {made!r}, which is not an IRecordProcessor: it needs an instance with the "
            f"methods {', '.join(PROCESSOR_METHODS)}"
        )
    why = checks.deferring_method(IRecordProcessor, made)
    if why:
        raise ConfigurationError(f"the processor factory made {checks.shown(made)}, which does no work: {why}")
    return made  # type: ignore[return-value]  # it has the three methods, which are all that is needed
