"""The inbox and timers of the owner thread, the one thread that changes a worker's state.

Other threads hand functions over with ``post``, and the owner thread runs them. Only the inbox is shared between
threads, so only the inbox is locked.
"""

from __future__ import annotations

import heapq
import itertools
import math
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Protocol

from streamclient.base.pools import DaemonPool
from streamclient.base.processes import Birthplace
from streamclient.errors import StreamClientException, is_refused_thread

INBOX_SIZE = 100_000
"""The largest number of messages that wait for the owner. Each lease has at most a read, a call of user code, a write
and a checkpoint under way, so this limit is reached only far beyond ten thousand leases. At the limit, a thread that
calls ``post`` waits for room."""

MESSAGES_PER_TURN = 256
"""The largest number of messages that the owner handles in one turn. It is large, so that one request can carry the
writes of many messages, and small enough for punctual timers."""

LEAST_SLACK_SECONDS = 0.001
"""The smallest slack for which a timer is moved. The slack is the time by which a timer may run early, in the same turn
as other timers."""

LONGEST_WAIT_SECONDS = 1.0
"""The longest time for which the owner waits for a message or a timer. After the wait, the owner also notices changes
that no message has announced."""


THREAD_PAUSE_SECONDS = 0.2
"""The pause before the owner requests a thread again, after the operating system has refused a thread. It is a small
part of any lease duration, and long enough to cost little."""


class Timer:
    """A timer, which makes the loop run ``function`` at the time ``deadline``. ``cancel`` prevents this."""

    def __init__(self, deadline: float, function: Callable[[], None]) -> None:
        self.deadline = deadline
        self.function: Callable[[], None] | None = function

    def cancel(self) -> None:
        """Prevent the function from running. Owner thread only."""
        self.function = None


class Question:
    """A message whose sender waits for an answer.

    If the message was posted, exactly one of the two functions runs. ``answer`` runs in a turn of the owner. If the
    loop is closed before that turn, ``refuse`` runs in the thread that closes the loop.
    """

    def __init__(self, answer: Callable[[], None], refuse: Callable[[], None]) -> None:
        self._answer, self.refuse = answer, refuse

    def __call__(self) -> None:
        """Answer the question. Only for the owner thread."""
        self._answer()


class OwnerLoop:
    """A bounded inbox of functions and a heap of timers. Exactly one thread runs them."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self.now = monotonic
        self._lock = threading.RLock()
        """Guards the inbox and the flags. The code takes this lock directly, because taking it through the condition
        costs three times as much."""
        self._changed = threading.Condition(self._lock)
        """The condition on which a posting thread waits for room in the inbox."""
        self._bell = threading.Lock()
        self._bell.acquire()
        self._is_asleep = False
        self._inbox: deque[Callable[[], None]] = deque()
        self._closed = False
        self._timers: list[tuple[float, int, Timer]] = []
        self._numbers = itertools.count()
        self._last: list[Callable[[], object]] = []
        self._inside: int | None = None
        self._unstarted: dict[Executor, deque[Callable[[], object]]] = {}
        """For each pool, the calls that wait for a thread, in order. A pool without waiting calls is included if it
        lacks threads."""
        self._refusal: tuple[float, str] | None = None
        self._birthplace = Birthplace()
        self._turned_at = monotonic()

    def post(
        self, message: Callable[[], None], timeout_seconds: float | None = None, *, is_urgent: bool = True
    ) -> bool:
        """Let the owner run ``message``, and wake the owner if ``is_urgent``. Usable from any thread.

        The call waits while the inbox is full. It returns ``False`` if the loop is closed or ``timeout_seconds`` have
        passed; in these cases the message will not run.

        Raises:
            ForkedError: this process is a forked child of the process whose thread runs the loop.
        """
        self._birthplace.require("a worker")
        with self._lock:
            if len(self._inbox) >= INBOX_SIZE:
                if self.is_inside:
                    raise StreamClientException(f"the owner's own inbox has no room: {len(self._inbox)} messages wait")
                if not self._changed.wait_for(lambda: self._closed or len(self._inbox) < INBOX_SIZE, timeout_seconds):
                    return False
            if self._closed:
                return False
            self._inbox.append(message)
            if is_urgent:
                self._ring()
            return True

    def wake(self) -> None:
        """Let the owner run the messages that were posted as not urgent. Usable from any thread."""
        with self._lock:
            self._ring()

    def call_later(self, seconds: float, function: Callable[[], None], *, slack_seconds: float = 0.0) -> Timer:
        """Run ``function`` after ``seconds``. Owner thread only.

        The function may run up to ``slack_seconds`` earlier, so that it runs in the same turn as other functions with
        slack.
        """
        timer = Timer(_with_others(self.now() + max(0.0, seconds), slack_seconds), function)
        self._plan(timer)
        return timer

    def start(self, pool: Executor, submit: Callable[[], object]) -> None:
        """Call ``submit``, which hands a call over to ``pool``. Owner thread only.

        If the pool has no thread and the system refuses one, the owner repeats ``submit`` until the pool has a thread.
        So a ``submit`` that raises must have no effect. If ``submit`` raises another error, this method raises that
        error.
        """
        waiting = self._unstarted.get(pool)
        if waiting:
            waiting.append(submit)  # so that calls begin in the order of arrival
        elif not self._begins(submit):
            self._try_later(pool).append(submit)
        elif isinstance(pool, DaemonPool) and pool.is_short:
            self._try_later(pool)

    @property
    def still_seconds(self) -> float:
        """The seconds since the owner last made a turn; 0.0 for a closed loop. Usable from any thread.

        An owner that has nothing to do makes a turn every ``LONGEST_WAIT_SECONDS``.
        """
        return 0.0 if self._closed else self.now() - self._turned_at

    @property
    def thread_trouble(self) -> str:
        """The error with which the system refuses threads, and the seconds since the first refusal.

        Empty if threads are available. Usable from any thread.
        """
        refusal = self._refusal
        return "" if refusal is None else f"{refusal[1]} (for {max(0.0, self.now() - refusal[0]):.0f} s)"

    def _begins(self, submit: Callable[[], object]) -> bool:
        try:
            submit()
        except Exception as error:
            if not is_refused_thread(error):
                raise
            self._refusal = (self.now() if self._refusal is None else self._refusal[0], str(error))
            return False
        return True

    def _try_later(self, pool: Executor) -> deque[Callable[[], object]]:
        if not self._unstarted:
            self.call_later(THREAD_PAUSE_SECONDS, self._try_again)
        return self._unstarted.setdefault(pool, deque())

    def _try_again(self) -> None:
        """Begin the waiting calls of each pool, up to the first refusal of a thread."""
        for pool, waiting in list(self._unstarted.items()):
            while waiting and self._begins(waiting[0]):
                waiting.popleft()
            if not waiting and (not isinstance(pool, DaemonPool) or pool.grow()):
                del self._unstarted[pool]
        if not any(self._unstarted.values()):
            self._refusal = None
        if self._unstarted:
            self.call_later(THREAD_PAUSE_SECONDS, self._try_again)

    def at_end(self, function: Callable[[], object]) -> None:
        """Run ``function`` at the end of this turn, or immediately if the loop is closed. Owner thread only.

        Use this method for a function that wakes another thread. A thread that is woken earlier contends with the rest
        of the turn for the interpreter. That costs several times as much as the wake-up itself.
        """
        if self._closed:
            function()
        else:
            self._last.append(function)

    def call_every(self, seconds: float, function: Callable[[], None]) -> None:
        """Run ``function`` now and at a fixed rate until the loop closes.

        Only for the owner thread, or before the owner thread exists. The rate does not drift, because each run is due a
        whole number of intervals after the first run. If several runs were missed, the function runs once for all.
        """
        first = self.now()

        def run() -> None:
            # The next run is planned first, so that an error in ``function`` does not end the series of runs.
            due = _next_multiple(first, seconds, self.now())
            self._plan(Timer(due, run))
            function()

        self._plan(Timer(first, run))

    def _plan(self, timer: Timer) -> None:
        heapq.heappush(self._timers, (timer.deadline, next(self._numbers), timer))

    @property
    def is_inside(self) -> bool:
        """Whether the calling thread is inside a turn of this loop."""
        return self._inside == threading.get_ident()

    @property
    def is_closed(self) -> bool:
        """Whether the loop was closed and runs no function any more."""
        return self._closed

    @property
    def next_timer(self) -> float | None:
        """The time at which the earliest timer is due; ``None`` without timers."""
        while self._timers and self._timers[0][2].function is None:
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    @property
    def has_messages(self) -> bool:
        """Whether a message, or a function given to ``at_end``, waits to be run."""
        return bool(self._inbox or self._last)

    def turn(self, longest_wait_seconds: float, look: Callable[[], object] = lambda: None) -> None:
        """Wait for a message or a timer, at most ``longest_wait_seconds``, and run all functions that are due.

        ``look`` is called once after messages and timers. The functions given to ``at_end`` run after ``look``. Owner
        thread only.
        """
        self._enter()
        try:
            if not self._last and not self._inbox:
                self._await_message(self._wait_seconds(longest_wait_seconds))
            self._run_messages()
            self._run_timers()
            look()
            self._run_last()
        finally:
            self._inside = None

    def close(self) -> None:
        """Close the loop: refuse all waiting questions, and let later calls of ``post`` return ``False``."""
        with self._lock:
            self._closed = True
            self._unstarted.clear()
            self._refusal = None
            left = list(self._inbox)
            self._inbox.clear()
            self._changed.notify_all()
            self._ring()
        for message in left:
            if isinstance(message, Question):
                message.refuse()
        self._run_last()

    def _wait_seconds(self, longest: float) -> float:
        due = self.next_timer
        until_timer = LONGEST_WAIT_SECONDS if due is None else due - self.now()
        return max(0.0, min(longest, until_timer, LONGEST_WAIT_SECONDS))

    def _await_message(self, wait_seconds: float) -> None:
        with self._lock:
            if self._inbox or wait_seconds <= 0:
                return
            self._is_asleep = True
        if not self._bell.acquire(timeout=wait_seconds):
            with self._lock:
                if not self._is_asleep:  # ``_ring`` ran just after the wait had timed out
                    self._bell.acquire()
                self._is_asleep = False

    def _ring(self) -> None:
        """Wake the owner if it sleeps. The caller holds ``_lock``.

        The owner sleeps until it can take ``_bell``, a second lock. A wait for a condition would cost far more.
        """
        if self._is_asleep:
            self._is_asleep = False
            self._bell.release()

    def _run_messages(self) -> None:
        """Run messages one at a time. If a message raises, the messages after it stay in the inbox."""
        inbox = self._inbox
        for _ in range(MESSAGES_PER_TURN):
            if not inbox:
                return
            if len(inbox) >= INBOX_SIZE:
                with self._lock:
                    self._changed.notify_all()
                    message = inbox.popleft()
            else:  # no thread waits for room, and taking from a deque needs no lock
                message = inbox.popleft()
            message()

    def _run_timers(self) -> None:
        self._turned_at = now = self.now()
        if not self._timers or self._timers[0][0] > now:
            return
        for _ in range(len(self._timers)):
            due = self.next_timer
            if due is None or due > now:
                return
            function = heapq.heappop(self._timers)[2].function
            if function is not None:
                function()

    def _run_last(self) -> None:
        """Run the functions given to ``at_end``, including functions that are added meanwhile.

        If a function raises, the remaining functions run in the next turn.
        """
        while self._last:
            self._last.pop(0)()

    def _enter(self) -> None:
        """Enter a turn; raise if another thread or an outer call is already in a turn."""
        me = threading.get_ident()
        if self._inside is not None:
            raise StreamClientException(f"thread {me} entered the owner loop while thread {self._inside} is inside")
        self._inside = me


def _next_multiple(first: float, seconds: float, now: float) -> float:
    """Return the first time after ``now`` that is a whole number of intervals of ``seconds`` after ``first``."""
    number = math.floor((now - first) / seconds) + 1
    due = first + number * seconds
    return due if due > now else first + (number + 1) * seconds  # the division may have been rounded down


def _with_others(deadline: float, slack_seconds: float) -> float:
    """Return ``deadline``, rounded down to a multiple of a step of at most ``slack_seconds``.

    All steps are powers of two, so a multiple of a large step is also a multiple of each smaller step. So timers with
    different slack often get the same time.
    """
    if slack_seconds < LEAST_SLACK_SECONDS:
        return deadline
    step = math.ldexp(0.5, math.frexp(slack_seconds)[1])
    return math.floor(deadline / step) * step


class Driven(Protocol):
    """An object that owns state, and makes steps until it is finished."""

    @property
    def is_finished(self) -> bool:
        """Whether this object has no work left, or no time left for its work."""

    def step(self) -> None:
        """Wait for an event, and handle it."""

    def fail(self, error: Exception) -> None:
        """End this object without relying on its state, because the state may be corrupt after ``error``."""


def drive(owner: Driven, failed: Callable[[Exception], None], look: Callable[[], None] = lambda: None) -> None:
    """Let ``owner`` make steps until it is finished, and call ``look`` before each step.

    If a step raises an error, call ``failed`` and ``owner.fail`` with the error, and go on until the owner is finished.
    If another step raises, raise its error.
    """
    has_failed = False
    while not owner.is_finished:
        look()
        try:
            owner.step()
        except Exception as error:
            if has_failed:
                raise
            has_failed = True
            failed(error)
            owner.fail(error)
