"""The parts that all simulations share: dice, simulated time, network, trace, processes and histories.

Simulations of fleets, of tunnel clients and of user code use these parts. A plan gives the same history on every
machine and on every version of Python, because the plan's seed decides everything.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from hashlib import sha256
from random import Random
from typing import Any, Protocol, TypeVar

from attrs import define, field

from streamclient.errors import DependencyException, ErrorKind
from streamclient.testing.simulation.plan import Action, HistoryPlan
from streamclient.testing.simulation.simulated_faults import Do, Excused, Fate

Left = TypeVar("Left")

# --- dice --------------------------------------------------------------------------------------------------------

LONG_SHARE = 0.1
"""The share of delays that are much longer than usual, as in real networks."""

LONGEST_FACTOR = 6.0
"""The longest delay, as a multiple of the usual delay."""


class Dice(Random):
    """Random numbers for one purpose, for example the network of one worker.

    The numbers stay the same if another worker is removed from the plan. No method may call the platform's mathematics
    library, because the last digit of its logarithms differs between platforms. Seeds are texts, which ``Random``
    digests by SHA-512 on every platform.
    """

    @classmethod
    def of(cls, *purpose: object) -> Dice:
        """Return the dice for ``purpose``. The first part of the purpose should be the seed."""
        return cls("/".join(str(part) for part in purpose))

    def chance(self, probability: float) -> bool:
        """Return whether an event with this ``probability`` happens."""
        return probability > 0.0 and self.random() < probability

    def delay(self, usual_seconds: float) -> float:
        """Return a random delay: usually about ``usual_seconds``, but in one of ten cases up to six times as long."""
        if self.random() < LONG_SHARE:
            return usual_seconds * (1.0 + (LONGEST_FACTOR - 1.0) * self.random())
        return usual_seconds * (0.2 + 1.2 * self.random())


# --- time --------------------------------------------------------------------------------------------------------


@define(eq=False)
class Agenda:
    """The simulated time, and the scheduled calls. Calls of the same time run in the order of their scheduling."""

    now: float = 0.0
    """The seconds since the history began. This is true time, which no worker's clock shows."""
    _heap: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = field(factory=list)
    _asked: int = 0

    def after(self, seconds: float, call: Callable[..., object], *arguments: Any) -> None:
        """Schedule ``call`` after ``seconds``. With 0 seconds it runs after all calls that are already due."""
        self._asked += 1
        heapq.heappush(self._heap, (self.now + seconds, self._asked, call, arguments))

    def at(self, moment: float, call: Callable[..., object], *arguments: Any) -> None:
        """Schedule ``call`` at the time ``moment``, or at the present time if ``moment`` has passed."""
        self._asked += 1
        heapq.heappush(self._heap, (max(moment, self.now), self._asked, call, arguments))

    @property
    def next_moment(self) -> float:
        """The time of the next call; infinite if the agenda is empty."""
        return self._heap[0][0] if self._heap else float("inf")

    def run_until(self, moment: float) -> None:
        """Run all calls up to ``moment``. Time never goes back: an overdue call happens at the present time."""
        heap, pop = self._heap, heapq.heappop
        while heap and heap[0][0] <= moment:
            due, _, call, arguments = pop(heap)
            self.now = max(self.now, due)
            call(*arguments)
        self.now = max(self.now, moment)

    def wait(self, missing: Callable[[], Left], seconds: float, interval: float) -> Left:
        """Let at most ``seconds`` pass until ``missing`` returns an empty result; return the last result.

        ``interval`` is the time, in seconds, between two calls of ``missing``.
        """
        limit = self.now + seconds
        while (left := missing()) and self.now < limit:
            self.run_until(self.now + interval)
        return left


# --- the trace ---------------------------------------------------------------------------------------------------

Entry = tuple[float, str, str, str, object]
"""One entry of a trace: its time, actor, event, lease key and detail. The lease key is empty if the entry concerns no
lease."""


class Observer(Protocol):
    """The interface of an object that observes a running history."""

    def noted(self, entry: Entry) -> None:
        """Observe an entry that was added to the trace."""

    def handled(self, now: float, label: str, event: object, commands: Iterable[object]) -> None:
        """Observe an event that the core of the process ``label`` handled, and the commands that the core returned."""


@define(eq=False)
class Trace:
    """All entries of a history, in order: changes of rows, starts and ends of consumers, answers, reports, faults."""

    listener: Callable[[Entry], None] | None = None
    """A function that the trace calls with each new entry."""
    entries: list[Entry] = field(factory=list)

    def note(self, now: float, actor: str, what: str, lease_key: str = "", detail: object = "") -> None:
        """Add an entry. ``detail`` is stored as it is, and becomes text only when the entry is shown."""
        entry = (now, actor, what, lease_key, detail)
        self.entries.append(entry)
        if self.listener is not None:
            self.listener(entry)

    def about(self, lease_key: str, last: int) -> list[str]:
        """Return the texts of the last ``last`` entries that concern ``lease_key`` or no particular lease."""
        found = [entry for entry in self.entries if entry[3] in ("", lease_key)]
        return [line_of(entry) for entry in found[-last:]]

    def digest(self) -> str:
        """Return a digest of all entries, which is equal for traces with the same events at the same times."""
        return sha256("\n".join(map(line_of, self.entries)).encode()).hexdigest()[:16]


def line_of(entry: Entry) -> str:
    """Return an entry of a trace as a line of text."""
    now, actor, what, lease_key, detail = entry
    text = " -> ".join(str(part or "absent") for part in detail) if isinstance(detail, tuple) else str(detail)
    return " ".join(part for part in (f"{now:10.3f}", f"{actor:8}", what, lease_key, text) if part)


# --- the network -------------------------------------------------------------------------------------------------

EVERYBODY = ""
"""The worker name of a fault that concerns all workers."""

NO_ANSWER = DependencyException("no answer came in time", kind=ErrorKind.AMBIGUOUS)
ERRORS: Mapping[Fate, DependencyException] = {
    Fate.THROTTLED: DependencyException("the service is too busy", kind=ErrorKind.THROTTLED, code="OTSServerBusy"),
    Fate.CUT: DependencyException("the service is unreachable", kind=ErrorKind.AMBIGUOUS),
}
"""The errors that callers get for failed calls, by outcome. With any other outcome the error is ``NO_ANSWER``."""

DISTURBANCES = (Do.CUT, Do.DEAFEN, Do.SLOW, Do.THROTTLE)
"""The faults of the network that last for a while."""

UNREADABLE = (Fate.LOST_REQUEST, Fate.LOST_ANSWER, Fate.LATE_REQUEST, Fate.CUT, Fate.DEAF, Fate.THROTTLED)
"""The outcomes of calls without a result. A read with one of these outcomes fails."""

TIMEOUT_SHARE = 0.15
"""The usual time after which a caller stops waiting for an answer, as a share of the lease duration. The real client
uses the same share for its lease calls."""

LATEST_SHARE = 1.5
"""The longest delay of late requests and late answers, in lease durations."""

CALM_DELAY_SECONDS = 0.01
"""The usual one-way time of a message after the end of all faults, in seconds."""


@define(eq=False)
class Network:
    """The simulated network, which draws the outcome and the delay of every call."""

    agenda: Agenda
    plan: HistoryPlan
    injected: Counter[str]
    """The number of deliberate faults, by kind."""
    delay_seconds: float = field(init=False)
    _until: dict[tuple[Do, str], tuple[float, float]] = field(factory=dict)
    """The end time and the amount of each lasting fault, by fault and worker."""
    _ladder: list[tuple[float, Fate]] = field(factory=list)
    """The faults of single calls, each with the upper end of its range between 0 and 1. The range that holds a random
    number selects the outcome of a call."""

    def __attrs_post_init__(self) -> None:
        self.delay_seconds = self.plan.delay_seconds
        end = 0.0
        for fate in Fate:
            rate: float = getattr(self.plan.rates, fate.name.lower(), 0.0)
            end += rate
            if rate:
                self._ladder.append((end, fate))

    def calm(self) -> None:
        """End all faults of the network, so that every message arrives soon from now on."""
        self._until.clear()
        self._ladder.clear()
        self.delay_seconds = CALM_DELAY_SECONDS

    def disturb(self, do: Do, who: str, seconds: float, amount: float) -> None:
        """Begin the fault ``do``, one of ``DISTURBANCES``, for the worker ``who``; it lasts for ``seconds``.

        ``amount`` is the factor of ``SLOW`` or the share of ``THROTTLE``; the other faults do not use it.
        """
        self._until[do, who] = (self.agenda.now + seconds, amount)

    def fate(self, who: str, dice: Dice) -> Fate:
        """Draw the outcome of a call of the worker ``who``. If the outcome is a fault, count the fault."""
        fate = self._lasting(who, dice) if self._until else None
        if fate is None:
            fate = self._single(dice)
        if fate is not Fate.FINE:
            self.injected[fate.value] += 1
        return fate

    def delay(self, who: str, dice: Dice) -> float:
        """Draw the time, in seconds, that one message to or from the worker ``who`` takes."""
        seconds = dice.delay(self.delay_seconds)
        if self._until:
            seconds *= self._amount(Do.SLOW, who) or 1.0
        return seconds

    def timeout(self, dice: Dice) -> float:
        """Draw the time, in seconds, after which a caller without an answer gives up."""
        return self.plan.duration_seconds * TIMEOUT_SHARE * (0.5 + dice.random())

    def lateness(self, dice: Dice) -> float:
        """Draw the additional delay of a late request or a late answer, in seconds."""
        return self.plan.duration_seconds * LATEST_SHARE * dice.random()

    def _single(self, dice: Dice) -> Fate:
        if not self._ladder:
            return Fate.FINE
        number = dice.random()
        for end, fate in self._ladder:
            if number < end:
                return fate
        return Fate.FINE

    def _lasting(self, who: str, dice: Dice) -> Fate | None:
        if self._amount(Do.CUT, who) is not None:
            return Fate.CUT
        if self._amount(Do.DEAFEN, who) is not None:
            return Fate.DEAF
        share = self._amount(Do.THROTTLE, who)
        return Fate.THROTTLED if share is not None and dice.chance(share) else None

    def _amount(self, do: Do, who: str) -> float | None:
        for name in (who, EVERYBODY):
            lasting = self._until.get((do, name))
            if lasting is not None and self.agenda.now < lasting[0]:
                return lasting[1]
        return None


# --- histories ---------------------------------------------------------------------------------------------------


class PlayedHistory:
    """The base of all histories. A history is one simulated run, with its time, network, trace and counts of events."""

    def __init__(self, plan: HistoryPlan, observer: Observer | None = None) -> None:
        self.plan, self.observer = plan, observer
        self.agenda = Agenda()
        self.trace = Trace(None if observer is None else observer.noted)
        self.injected: Counter[str] = Counter()
        """The number of deliberate faults, by kind."""
        self.counts: Counter[str] = Counter()
        """The number of other events, by kind."""
        self.excused = Excused()
        self.dice = Dice.of(plan.seed, "world")
        self.network = Network(self.agenda, plan, self.injected)
        self.events = 0
        """The number of events that the decision cores of the workers handled."""
        self.recovery_seconds: float | None = None
        """The time from the end of all faults to the recovery, in seconds; ``None`` without a recovery."""

    @property
    def now(self) -> float:
        """The true time, in seconds since the history began. No worker's clock shows this time."""
        return self.agenda.now

    def note(self, actor: str, what: str, lease_key: str = "", detail: object = "") -> None:
        """Add an entry to the trace."""
        self.trace.note(self.agenda.now, actor, what, lease_key, detail)

    def act(self, do: Mapping[Do, Callable[[Any, Action], bool]], actor: object, action: Action) -> None:
        """Carry out an action of the plan, and count it if it had an effect.

        ``do`` maps each kind of action, except ``DISTURBANCES``, to a function. The function gets ``actor`` and
        ``action``, and returns whether the action had an effect.
        """
        self.note("outside", str(action))
        if action.do in DISTURBANCES:
            self.network.disturb(action.do, action.who or EVERYBODY, action.seconds, action.amount)
        elif not do[action.do](actor, action):
            return
        self.injected[action.do.value] += 1


class SimulatedProcess:
    """A simulated process with its own clock. No part of a process runs while it is frozen, or after its end."""

    def __init__(self, history: PlayedHistory, name: str, label: str, dice: Dice) -> None:
        self.name, self.label, self.dice = name, label, dice
        self.agenda, self.network = history.agenda, history.network
        self.is_alive = True
        self.ended: tuple[float, str] | None = None
        """The time of the end, and ``killed``, ``stopped`` or ``died``; ``None`` while the process is alive."""
        self.freezes: list[tuple[float, float]] = []
        """The times of the beginning and of the planned end of each freeze. The process may die before this end."""
        self.frozen_until = 0.0
        self.clock_offset, self.clock_rate = 0.0, 1.0

    def set_clock(self, drift: float) -> None:
        """Draw the offset and the rate of the process's clock. The rate is wrong by at most the share ``drift``."""
        self.clock_offset = 1_000.0 * self.dice.random()
        self.clock_rate = 1.0 + drift * (2.0 * self.dice.random() - 1.0)

    def local(self) -> float:
        """Return the time that the process's monotonic clock shows, in seconds."""
        return self.clock_offset + self.agenda.now * self.clock_rate

    def end(self, manner: str) -> None:
        """End the process now; ``manner`` is ``killed``, ``stopped`` or ``died``."""
        self.is_alive = False
        self.ended = self.ended or (self.agenda.now, manner)

    def crash(self) -> None:
        """End the process immediately, as ``kill -9`` does."""
        self.end("killed")

    def freeze(self, seconds: float) -> None:
        """Freeze the process for ``seconds``. Its calls wait until the end of the freeze."""
        self.freezes.append((self.agenda.now, self.agenda.now + seconds))
        self.frozen_until = max(self.frozen_until, self.agenda.now + seconds)

    @property
    def is_frozen(self) -> bool:
        """Whether the process is frozen at the present simulated time."""
        return self.frozen_until > self.agenda.now

    def later(self, seconds: float, call: Callable[..., object], *arguments: Any) -> None:
        """Schedule ``call`` after ``seconds``, or after a freeze that ends later. A dead process never calls it."""
        self.agenda.after(seconds, self.when_awake, call, *arguments)

    def when_awake(self, call: Callable[..., object], *arguments: Any) -> None:
        """Call ``call`` immediately, or after the freeze of a frozen process. A dead process never calls it."""
        if not self.is_alive:
            return
        if self.frozen_until > self.agenda.now:
            self.agenda.at(self.frozen_until, self.when_awake, call, *arguments)
        else:
            call(*arguments)
