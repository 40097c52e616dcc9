"""Runs user code in the user's executor: the calls of a shard's processor, and all others."""

from __future__ import annotations

import logging
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
"""Called in the owner thread with the error of the call, or ``None``."""


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
        """The time from which the wait for the call's end counts."""
        return self._queued_at

    def cancel(self) -> bool:
        """Cancel the call if no thread has begun it; return whether it will never run."""
        self.is_taken_back = True
        self.is_taken_back = self.future is None or self.future.cancel()
        return self.is_taken_back

    def running_seconds(self, now: float) -> float:
        """Return how long user code has been running; 0.0 while the call waits for a thread."""
        return 0.0 if self.started_at is None else max(0.0, now - self.started_at)


class HandedCall(UserCall):
    """One call that user code takes out of a line, in another thread than the worker's, and ends at any later time.

    The token decides who has the call: user code takes it with ``claim``, the owner takes it back with ``cancel``. So a
    call is given out or taken back, never both. ``claim``, ``finish`` and ``give_back`` may be called in any thread.
    The first end counts: a signal may raise where a loop has just ended its batch, and then leaves it as well.
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
        """Returns when a call was last taken out of the same line. A receiver sets it."""

    @property
    def queued_at(self) -> float:
        """The time of the claim.

        Before the claim, it is the last time at which the line moved, or at which the call joined it.
        """
        return max(self._queued_at, self.last_taken_at()) if self.started_at is None else self.started_at

    def claim(self) -> bool:
        """Take the call, once; return ``False`` if the owner has taken it back."""
        if not self._token.acquire(blocking=False):
            return False
        self.thread_id: int | None = threading.get_ident()
        self.started_at: float | None = self._around.now()
        self._around.entered(self.thread_id)
        return True

    def cancel(self) -> bool:
        """Take the call back if it is not claimed; return whether it will never be claimed. Owner thread only."""
        self.is_taken_back: bool = self._token.acquire(blocking=False)
        return self.is_taken_back

    def finish(self, error: BaseException | None = None) -> None:
        """End the call, with the error that user code raised.

        If the owner took the call back, the call is already over.
        """
        self._end(None if error is None else Raised.of(error), self._done)

    def give_back(self) -> None:
        """End the call as if it had never been claimed: it has neither finished nor failed."""
        self._end(None, lambda raised: self._given_back())

    def _end(self, raised: Raised | None, done: Done) -> None:
        # A call that ends without a claim, because its line is gone, must not be taken back as well.
        if self.started_at is None and not self.claim():
            return
        if not self._end_token.acquire(blocking=False):
            return
        self._around.left(self.thread_id)
        self._around.tell(self, done, raised)


class UserCode:
    """Submits calls, and reports their end to the owner.

    Owner thread, except ``is_inside``. No call waits for another call, so an executor with a single thread is slow but
    never stuck.
    """

    def __init__(self, executor: Executor, loop: OwnerLoop) -> None:
        self._executor = once(executor)
        self._loop = loop
        self._threads: set[int] = set()
        self._outside: Counter[int] = Counter()
        """Calls that each thread outside the executor has claimed and not ended."""
        self._outside_lock = threading.Lock()
        self.now: Callable[[], float] = loop.now
        self._outages = OutageLog(_log)

    def run(self, name: str, shard_id: str, function: Callable[[], None], done: Done) -> UserCall:
        """Run a function in the executor; ``done`` always follows in the owner thread, unless the call is cancelled."""
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
        """Begin a call that ends elsewhere: ``start`` puts it in line, in the owner thread, and returns soon.

        Unless the call is cancelled, ``done`` follows in the owner thread, or ``given_back`` if the call is given back.
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
        """Return whether the calling thread is running user code of this worker."""
        me = threading.get_ident()
        return me in self._threads or self._outside.get(me, 0) > 0

    def entered(self, thread_id: int) -> None:
        """Record that a thread outside the executor has claimed a call. Usable from any thread."""
        with self._outside_lock:
            self._outside[thread_id] += 1

    def left(self, thread_id: int | None) -> None:
        """Record that a call which ``thread_id`` claimed is over. Usable from any thread."""
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
        """Submit the call. Raise only if the system refuses a thread; the call has then not failed, and is retried."""
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
            raise StreamClientException("it runs calls in the thread that submits them, but needs threads of its own")
        me = threading.get_ident()
        self._threads.add(me)
        call.thread_id, call.started_at = me, self._loop.now()
        raised: Raised | None = None
        try:
            function()
        except BaseException as error:
            # Also SystemExit and KeyboardInterrupt: in a pool's thread they stop only this call.
            raised = Raised.of(error)  # in this thread, because making its text runs user code too
        finally:
            self._threads.discard(me)
        self.tell(call, done, raised)

    def _tell(self, call: UserCall, done: Done, raised: Raised | None) -> None:
        """Report the end of a call once, in the owner thread. A repeated report of an executor is ignored."""
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
        """Report a call that the executor gave up: cancelled, or lost with a broken pool. Usable from any thread."""
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
    """Passes on the processor's first request to end or to be replaced."""

    def __init__(self, mark: Callable[[ShutdownReason], object]) -> None:
        self._mark = mark
        self._first = threading.Lock()

    def mark_for_process_done(self) -> None:
        """Stop reading this shard here and release its lease."""
        self._mark_once(ShutdownReason.PROCESS_DONE)

    def mark_for_process_restart(self) -> None:
        """Stop this processor; a new one starts from the stored checkpoint."""
        self._mark_once(ShutdownReason.PROCESS_RESTART)

    def _mark_once(self, reason: ShutdownReason) -> None:
        if self._first.acquire(blocking=False):
            self._mark(reason)


def log_with(logger: logging.Logger, level: int, text: str, raised: Raised | None) -> None:
    """Log a line, with the traceback from the place where the error was raised."""
    if raised is None or not logger.isEnabledFor(level):
        logger.log(level, "%s", text)
        return
    (path, line, function, _), error = logger.findCaller(stacklevel=2), raised.error
    trace = (type(error), error, error.__traceback__)
    record = logger.makeRecord(logger.name, level, path, line, "%s", (text,), trace, function)
    record.exc_text = raised.traceback  # formatters use it, and do not format the error again
    logger.handle(record)


def checked_keys(answer: Iterable[object]) -> list[ParkedKey]:
    """Return the answer of a parking store, if keys can be looked up in it.

    Raises:
        ConfigurationError: keys cannot be looked up in it.
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
    """Return the object that the factory made, if it can be called as a processor."""
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
