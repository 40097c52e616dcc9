"""The owner thread's inbox and timers: every change of a worker's state happens here, one step at a time.

Other threads hand functions over with ``post``; the owner runs them. Nothing else is shared, so nothing else is locked.
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
"""The largest number of messages that wait for the owner. Each lease has at most a read, a user call, a write and a
checkpoint under way, so this limit is reached only far beyond ten thousand leases. Then posting threads wait, which
slows them down."""

MESSAGES_PER_TURN = 256
"""The largest number of messages in one turn. One request can carry the writes of a burst of that size, and timers stay
punctual."""

LEAST_SLACK_SECONDS = 0.001
"""The smallest slack for which a timer is moved so that it runs in one turn with others."""

LONGEST_WAIT_SECONDS = 1.0
"""The longest wait of the owner. It limits how long the owner misses a condition that was not announced."""


THREAD_PAUSE_SECONDS = 0.2
"""Pause before another thread is requested after the system refused one: a small part of any lease duration, and long
enough to cost little."""


class Timer:
    """One function to run later, unless it is cancelled."""

    def __init__(self, deadline: float, function: Callable[[], None]) -> None:
        self.deadline = deadline
        self.function: Callable[[], None] | None = function

    def cancel(self) -> None:
        """Cancel the timer. Owner thread only."""
        self.function = None


class Question:
    """A message whose sender waits for an answer.

    Exactly one of the two functions runs, if the message was posted at all. ``answer`` runs in a turn of the owner;
    ``refuse`` runs in the thread that closes the loop before that turn.
    """

    def __init__(self, answer: Callable[[], None], refuse: Callable[[], None]) -> None:
        self._answer, self.refuse = answer, refuse

    def __call__(self) -> None:
        """Answer the question. Only for the owner thread."""
        self._answer()


class OwnerLoop:
    """A bounded inbox and a heap of timers, emptied by exactly one thread."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self.now = monotonic
        self._lock = threading.RLock()
        """Guards the state. Code takes this lock itself, because through the condition it costs three times as much."""
        self._changed = threading.Condition(self._lock)
        """The condition of threads that wait for room."""
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
        """Calls that wait because their pools have no thread, and pools that lack threads."""
        self._refusal: tuple[float, str] | None = None
        self._birthplace = Birthplace()
        self._turned_at = monotonic()

    def post(
        self, message: Callable[[], None], timeout_seconds: float | None = None, *, is_urgent: bool = True
    ) -> bool:
        """Let the owner run ``message``, and wake the owner if that is urgent. Usable from any thread.

        Waits while the inbox is full. Returns ``False`` if the loop is closed or the time ran out; then the message
        will not run.

        Raises:
            ForkedError: this is a child of the process whose thread runs the loop.
        """
        self._birthplace.require("a worker")
        with self._lock:
            if len(self._inbox) >= INBOX_SIZE:
                if self.is_inside:
                    raise StreamClientException(f"the owner would wait for itself: {len(self._inbox)} messages wait")
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

        With slack the function may run earlier by up to ``slack_seconds``, in one turn with others that have slack and
        are due then.
        """
        timer = Timer(_with_others(self.now() + max(0.0, seconds), slack_seconds), function)
        self._plan(timer)
        return timer

    def start(self, pool: Executor, submit: Callable[[], object]) -> None:
        """Begin a call by ``submit``, which hands it to a pool. Owner thread only.

        If the system refuses a thread and the pool has none, ``submit`` is repeated until the pool has one, so it must
        not keep a part of a call that it refuses. Any other error of ``submit`` is raised.
        """
        waiting = self._unstarted.get(pool)
        if waiting:
            waiting.append(submit)  # in the order of arrival
        elif not self._begins(submit):
            self._try_later(pool).append(submit)
        elif isinstance(pool, DaemonPool) and pool.is_short:
            self._try_later(pool)

    @property
    def still_seconds(self) -> float:
        """Seconds since the owner last made a turn; 0.0 for a closed loop. Usable from any thread.

        An owner that has nothing to do makes a turn every ``LONGEST_WAIT_SECONDS``.
        """
        return 0.0 if self._closed else self.now() - self._turned_at

    @property
    def thread_trouble(self) -> str:
        """The reason why calls do not begin, if the system refuses threads for them; otherwise empty.

        Usable from any thread.
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
        """Try each pool up to its first refusal, because a system that refuses one thread refuses the next one too."""
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
        """Run ``function`` after all other work of this turn, or at once if the loop is closed. Owner thread only.

        This is for functions that wake another thread: woken earlier, that thread would contend with the rest of the
        turn for the interpreter, which costs several times what the waking does.
        """
        if self._closed:
            function()
        else:
            self._last.append(function)

    def call_every(self, seconds: float, function: Callable[[], None]) -> None:
        """Run ``function`` now and at a fixed rate until the loop closes.

        Owner thread only, or before that thread exists. The rate does not drift: each run is due whole intervals after
        the first. Only one of the missed runs is made up for.
        """
        first = self.now()

        def run() -> None:
            # Planned first, so that an error in the function does not end the rate.
            due = _next_multiple(first, seconds, self.now())
            self._plan(Timer(due, run))
            function()

        self._plan(Timer(first, run))

    def _plan(self, timer: Timer) -> None:
        heapq.heappush(self._timers, (timer.deadline, next(self._numbers), timer))

    @property
    def is_inside(self) -> bool:
        """Whether the calling thread is in a turn now."""
        return self._inside == threading.get_ident()

    @property
    def is_closed(self) -> bool:
        """Whether the loop runs nothing any more."""
        return self._closed

    @property
    def next_timer(self) -> float | None:
        """Time at which the earliest timer is due, if there is one."""
        while self._timers and self._timers[0][2].function is None:
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    @property
    def has_messages(self) -> bool:
        """Whether a turn would find something to run at once."""
        return bool(self._inbox or self._last)

    def turn(self, longest_wait_seconds: float, look: Callable[[], object] = lambda: None) -> None:
        """Wait for a message or a timer, at most ``longest_wait_seconds``, and run what is due. Owner thread only.

        ``look`` is called once after messages and timers; functions of ``at_end`` run after it.
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
        """Close the loop: later posts return ``False``, and questions that still wait are refused."""
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
                if not self._is_asleep:  # rung just after the time ran out
                    self._bell.acquire()
                self._is_asleep = False

    def _ring(self) -> None:
        """Wake the owner. The lock is held. The bell is a lock, because a condition costs far more."""
        if self._is_asleep:
            self._is_asleep = False
            self._bell.release()

    def _run_messages(self) -> None:
        """Run messages one at a time: if a message raises, those after it stay in the inbox."""
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
        """Run the functions of ``at_end``, also those added meanwhile. If one raises, the rest run in the next turn."""
        while self._last:
            self._last.pop(0)()

    def _enter(self) -> None:
        """Enter a turn; raise if a second thread or a nested call would corrupt the state."""
        me = threading.get_ident()
        if self._inside is not None:
            raise StreamClientException(f"thread {me} entered the owner loop while thread {self._inside} is inside")
        self._inside = me


def _next_multiple(first: float, seconds: float, now: float) -> float:
    """Return the first moment after ``now`` that is whole intervals after ``first``."""
    number = math.floor((now - first) / seconds) + 1
    due = first + number * seconds
    return due if due > now else first + (number + 1) * seconds  # the division may have been rounded down


def _with_others(deadline: float, slack_seconds: float) -> float:
    """Return the last moment, up to ``deadline``, on a grid that is not wider than the slack.

    All grids are powers of two, so that the moments of a wide grid are also on the narrow ones.
    """
    if slack_seconds < LEAST_SLACK_SECONDS:
        return deadline
    step = math.ldexp(0.5, math.frexp(slack_seconds)[1])
    return math.floor(deadline / step) * step


class Driven(Protocol):
    """An owner of state that is stepped until it is finished."""

    @property
    def is_finished(self) -> bool:
        """Whether nothing is left to do, or no time is left for it."""

    def step(self) -> None:
        """Wait for an event, and do what follows from it."""

    def fail(self, error: Exception) -> None:
        """End, without trusting the state any more."""


def drive(owner: Driven, failed: Callable[[Exception], None], look: Callable[[], None] = lambda: None) -> None:
    """Step ``owner`` until it is finished, calling ``look`` before each step.

    ``failed`` is called at once with the first error, after which the owner ends as well as it still can; a second
    error is raised.
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
