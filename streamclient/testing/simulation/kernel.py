"""The kernel of all simulations: dice, simulated time, the network, the trace, processes, and the history they make.

Simulations of fleets, of clients of tunnels and of user code all use it. The seed decides everything: a plan gives the
same history on every machine and on every version of Python.
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
"""Share of delays that are much longer than usual, as in real networks."""

LONGEST_FACTOR = 6.0
"""The longest delay, as a multiple of the usual delay."""


class Dice(Random):
    """The dice of one purpose, for example the network of one worker. They stay the same if another worker is removed.

    Law: nothing here calls the platform's mathematics library, whose logarithms differ in their last digit. Seeds are
    texts, which ``Random`` digests by SHA-512 everywhere.
    """

    @classmethod
    def of(cls, *purpose: object) -> Dice:
        """Return the dice for a purpose, which should begin with the seed."""
        return cls("/".join(str(part) for part in purpose))

    def chance(self, probability: float) -> bool:
        """Return whether an event of that probability happens."""
        return probability > 0.0 and self.random() < probability

    def delay(self, usual_seconds: float) -> float:
        """Return a delay: mostly about ``usual_seconds``, one in ten up to six times as long."""
        if self.random() < LONG_SHARE:
            return usual_seconds * (1.0 + (LONGEST_FACTOR - 1.0) * self.random())
        return usual_seconds * (0.2 + 1.2 * self.random())


# --- time --------------------------------------------------------------------------------------------------------


@define(eq=False)
class Agenda:
    """A heap of calls by time. Two calls of the same moment happen in the order in which they were added."""

    now: float = 0.0
    """The seconds since the history began. This is true time, which no worker's clock shows."""
    _heap: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = field(factory=list)
    _asked: int = 0

    def after(self, seconds: float, call: Callable[..., object], *arguments: Any) -> None:
        """Call ``call`` after ``seconds``; with 0, after everything that is already due now."""
        self._asked += 1
        heapq.heappush(self._heap, (self.now + seconds, self._asked, call, arguments))

    def at(self, moment: float, call: Callable[..., object], *arguments: Any) -> None:
        """Call ``call`` at ``moment``. If that moment has passed, call it now."""
        self._asked += 1
        heapq.heappush(self._heap, (max(moment, self.now), self._asked, call, arguments))

    @property
    def next_moment(self) -> float:
        """The time of the next call; infinite without one."""
        return self._heap[0][0] if self._heap else float("inf")

    def run_until(self, moment: float) -> None:
        """Run everything on the agenda up to a moment. Time never goes back: a call that is overdue happens now."""
        heap, pop = self._heap, heapq.heappop
        while heap and heap[0][0] <= moment:
            due, _, call, arguments = pop(heap)
            self.now = max(self.now, due)
            call(*arguments)
        self.now = max(self.now, moment)

    def wait(self, missing: Callable[[], Left], seconds: float, interval: float) -> Left:
        """Let time pass until ``missing`` returns nothing, at most ``seconds``; return its last answer."""
        limit = self.now + seconds
        while (left := missing()) and self.now < limit:
            self.run_until(self.now + interval)
        return left


# --- the trace ---------------------------------------------------------------------------------------------------

Entry = tuple[float, str, str, str, object]
"""The time, the actor, the event, the lease (or an empty text), and a further detail."""


class Observer(Protocol):
    """An observer of a running history."""

    def noted(self, entry: Entry) -> None:
        """Handle an entry that does not come from the cores."""

    def handled(self, now: float, label: str, event: object, commands: Iterable[object]) -> None:
        """Observe an event that the core of the process ``label`` handled, and the commands that it returned."""


@define(eq=False)
class Trace:
    """Every change of a row, start and end of a consumer, answer, report and fault, in order."""

    listener: Callable[[Entry], None] | None = None
    """A function that is called with every entry as the entry is made."""
    entries: list[Entry] = field(factory=list)

    def note(self, now: float, actor: str, what: str, lease_key: str = "", detail: object = "") -> None:
        """Add an entry. ``detail`` is made into text only on demand."""
        entry = (now, actor, what, lease_key, detail)
        self.entries.append(entry)
        if self.listener is not None:
            self.listener(entry)

    def about(self, lease_key: str, last: int) -> list[str]:
        """Return the last ``last`` lines that are about a lease or about no lease at all."""
        found = [entry for entry in self.entries if entry[3] in ("", lease_key)]
        return [line_of(entry) for entry in found[-last:]]

    def digest(self) -> str:
        """Return a short text that two traces share only if the same things happened at the same times."""
        return sha256("\n".join(map(line_of, self.entries)).encode()).hexdigest()[:16]


def line_of(entry: Entry) -> str:
    """Return an entry as a line."""
    now, actor, what, lease_key, detail = entry
    text = " -> ".join(str(part or "absent") for part in detail) if isinstance(detail, tuple) else str(detail)
    return " ".join(part for part in (f"{now:10.3f}", f"{actor:8}", what, lease_key, text) if part)


# --- the network -------------------------------------------------------------------------------------------------

EVERYBODY = ""
"""The name that stands for all workers as the target of a fault."""

NO_ANSWER = DependencyException("no answer came in time", kind=ErrorKind.AMBIGUOUS)
ERRORS: Mapping[Fate, DependencyException] = {
    Fate.THROTTLED: DependencyException("the service is too busy", kind=ErrorKind.THROTTLED, code="OTSServerBusy"),
    Fate.CUT: DependencyException("the service is unreachable", kind=ErrorKind.AMBIGUOUS),
}
"""The errors of calls without an answer, for outcomes whose error is not ``NO_ANSWER``."""

DISTURBANCES = (Do.CUT, Do.DEAFEN, Do.SLOW, Do.THROTTLE)
"""Faults of the network that last for a while."""

UNREADABLE = (Fate.LOST_REQUEST, Fate.LOST_ANSWER, Fate.LATE_REQUEST, Fate.CUT, Fate.DEAF, Fate.THROTTLED)
"""Outcomes after which a read has failed. A read cannot be refused."""

TIMEOUT_SHARE = 0.15
"""The time after which a caller stops waiting, as a share of the lease duration. It is the same for the lease calls of
the real client."""

LATEST_SHARE = 1.5
"""The largest number of lease durations after which late requests are carried out and late answers come."""

CALM_DELAY_SECONDS = 0.01
"""The usual time of a message once the storm is over."""


@define(eq=False)
class Network:
    """Decides the outcome of every call, with dice of its own for each worker."""

    agenda: Agenda
    plan: HistoryPlan
    injected: Counter[str]
    """The number of deliberate faults, by kind."""
    delay_seconds: float = field(init=False)
    _until: dict[tuple[Do, str], tuple[float, float]] = field(factory=dict)
    """The end of each fault and its amount, by fault and worker."""
    _ladder: list[tuple[float, Fate]] = field(factory=list)
    """The upper ends of the ranges of a number between 0 and 1, each with the outcome that the range selects."""

    def __attrs_post_init__(self) -> None:
        self.delay_seconds = self.plan.delay_seconds
        end = 0.0
        for fate in Fate:
            rate: float = getattr(self.plan.rates, fate.name.lower(), 0.0)
            end += rate
            if rate:
                self._ladder.append((end, fate))

    def calm(self) -> None:
        """Let everything arrive from now on."""
        self._until.clear()
        self._ladder.clear()
        self.delay_seconds = CALM_DELAY_SECONDS

    def disturb(self, do: Do, who: str, seconds: float, amount: float) -> None:
        """Begin one of the ``DISTURBANCES``."""
        self._until[do, who] = (self.agenda.now + seconds, amount)

    def fate(self, who: str, dice: Dice) -> Fate:
        """Return the outcome of the next call of a worker."""
        fate = self._lasting(who, dice) if self._until else None
        if fate is None:
            fate = self._single(dice)
        if fate is not Fate.FINE:
            self.injected[fate.value] += 1
        return fate

    def delay(self, who: str, dice: Dice) -> float:
        """Return the time that one message takes, one way."""
        seconds = dice.delay(self.delay_seconds)
        if self._until:
            seconds *= self._amount(Do.SLOW, who) or 1.0
        return seconds

    def timeout(self, dice: Dice) -> float:
        """Return the time after which a caller without an answer gives up."""
        return self.plan.duration_seconds * TIMEOUT_SHARE * (0.5 + dice.random())

    def lateness(self, dice: Dice) -> float:
        """Return the delay of a late message."""
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
    """A history of any kind: its time, network and trace, and the counts of its events."""

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
        """The number of events that the cores handled."""
        self.recovery_seconds: float | None = None
        """Time from the end of the storm to the recovery; ``None`` if the recovery was not reached."""

    @property
    def now(self) -> float:
        """The true time, which no worker's clock shows."""
        return self.agenda.now

    def note(self, actor: str, what: str, lease_key: str = "", detail: object = "") -> None:
        """Add an entry to the trace."""
        self.trace.note(self.agenda.now, actor, what, lease_key, detail)

    def act(self, do: Mapping[Do, Callable[[Any, Action], bool]], actor: object, action: Action) -> None:
        """Carry out an action of the plan, and count it if it had an effect. ``do`` holds the actions of the actor."""
        self.note("outside", str(action))
        if action.do in DISTURBANCES:
            self.network.disturb(action.do, action.who or EVERYBODY, action.seconds, action.amount)
        elif not do[action.do](actor, action):
            return
        self.injected[action.do.value] += 1


class SimulatedProcess:
    """A process: its life, clock and network. No part of it runs while it is frozen, or after it has died."""

    def __init__(self, history: PlayedHistory, name: str, label: str, dice: Dice) -> None:
        self.name, self.label, self.dice = name, label, dice
        self.agenda, self.network = history.agenda, history.network
        self.is_alive = True
        self.ended: tuple[float, str] | None = None
        """The time and the manner of the end: ``killed``, ``stopped`` or ``died``; ``None`` while the process lives."""
        self.freezes: list[tuple[float, float]] = []
        """The beginning and the planned end of each freeze. The process may die before the planned end."""
        self.frozen_until = 0.0
        self.clock_offset, self.clock_rate = 0.0, 1.0

    def set_clock(self, drift: float) -> None:
        """Draw a clock that differs from all others, and whose rate is wrong by at most the share ``drift``."""
        self.clock_offset = 1_000.0 * self.dice.random()
        self.clock_rate = 1.0 + drift * (2.0 * self.dice.random() - 1.0)

    def local(self) -> float:
        """Return the time of the process's monotonic clock."""
        return self.clock_offset + self.agenda.now * self.clock_rate

    def end(self, manner: str) -> None:
        """End the process now; ``manner`` is a manner that ``ended`` may have."""
        self.is_alive = False
        self.ended = self.ended or (self.agenda.now, manner)

    def crash(self) -> None:
        """End at once."""
        self.end("killed")

    def freeze(self, seconds: float) -> None:
        """Freeze the process for ``seconds``."""
        self.freezes.append((self.agenda.now, self.agenda.now + seconds))
        self.frozen_until = max(self.frozen_until, self.agenda.now + seconds)

    @property
    def is_frozen(self) -> bool:
        """Whether the process is frozen."""
        return self.frozen_until > self.agenda.now

    def later(self, seconds: float, call: Callable[..., object], *arguments: Any) -> None:
        """Call ``call`` after ``seconds``, in the way of ``when_awake``."""
        self.agenda.after(seconds, self.when_awake, call, *arguments)

    def when_awake(self, call: Callable[..., object], *arguments: Any) -> None:
        """Call ``call`` at once, or when the process continues after a freeze, or never if the process has died."""
        if not self.is_alive:
            return
        if self.frozen_until > self.agenda.now:
            self.agenda.at(self.frozen_until, self.when_awake, call, *arguments)
        else:
            call(*arguments)
