"""The simulated network: the delays and the outcomes of messages."""

from __future__ import annotations

from collections import Counter

from attrs import define, field

from streamclient.errors import DependencyException, ErrorKind
from streamclient.testing.simulation.agenda import Agenda
from streamclient.testing.simulation.dice import Dice
from streamclient.testing.simulation.plan import HistoryPlan, Rates
from streamclient.testing.simulation.simulated_faults import Do, Fate

EVERYBODY = ""
"""Stands for all workers in the target of a fault."""

NO_ANSWER = DependencyException("no answer came in time", kind=ErrorKind.AMBIGUOUS)
NO_ROUTE = DependencyException("the service is unreachable", kind=ErrorKind.AMBIGUOUS)
TOO_BUSY = DependencyException("the service is too busy", kind=ErrorKind.THROTTLED, code="OTSServerBusy")

TIMEOUT_SHARE = 0.15
"""Share of the lease duration after which a caller gives up waiting, as the lease calls of the real client do."""

LATEST_SHARE = 1.5
"""Late requests are carried out, and late answers come, after up to this many lease durations."""

CALM_DELAY_SECONDS = 0.01
"""Usual time of a message once the storm is over."""


UNREADABLE = (Fate.LOST_REQUEST, Fate.LOST_ANSWER, Fate.LATE_REQUEST, Fate.CUT, Fate.DEAF, Fate.THROTTLED)
"""Outcomes after which a read has failed. A read cannot be refused."""


@define(eq=False)
class Network:
    """Decides the outcome of every call, with dice of its own for each worker."""

    agenda: Agenda
    plan: HistoryPlan
    injected: Counter[str]
    """Number of deliberate faults, by kind."""
    rates: Rates = field(init=False)
    delay_seconds: float = field(init=False)
    _until: dict[tuple[Do, str], tuple[float, float]] = field(factory=dict)
    """The end of a fault and its amount, by fault and worker."""
    _ladder: tuple[tuple[float, Fate], ...] = ()
    """Upper ends of the ranges of a number between 0 and 1 that select each outcome."""

    def __attrs_post_init__(self) -> None:
        self.delay_seconds = self.plan.delay_seconds
        self._set_rates(self.plan.rates)

    def calm(self) -> None:
        """Let everything arrive from now on."""
        self._until.clear()
        self._set_rates(Rates())
        self.delay_seconds = CALM_DELAY_SECONDS

    def disturb(self, do: Do, who: str, seconds: float, amount: float) -> None:
        """Begin a fault that lasts for a while: ``CUT``, ``DEAFEN``, ``SLOW`` or ``THROTTLE``."""
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
        """Return the time of one message, one way."""
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

    # --- inside ------------------------------------------------------------------------------------------------

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

    def _set_rates(self, rates: Rates) -> None:
        self.rates = rates
        ladder = []
        end = 0.0
        for fate in (
            Fate.LOST_REQUEST,
            Fate.LOST_ANSWER,
            Fate.LATE_REQUEST,
            Fate.LATE_ANSWER,
            Fate.FALSE_REFUSAL,
            Fate.THROTTLED,
        ):
            rate: float = getattr(rates, fate.name.lower())
            end += rate
            if rate:
                ladder.append((end, fate))
        self._ladder = tuple(ladder)
