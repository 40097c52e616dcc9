"""A process with a Java worker in it. It repeats calls without checking whether the first try was applied."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from streamclient.model import Lease, Shard
from streamclient.testing.simulation.dice import Dice
from streamclient.testing.simulation.simulated_faults import Fate
from streamclient.testing.simulation.world import SimulatedWorld

Answer = TypeVar("Answer")

RETRIES = 10
"""Retries of every operation on leases, with pauses that grow by 100 ms each time, up to 1 s."""


class JavaProcess:
    """Life, time and network of one Java worker. Nothing runs while its process is frozen, or after it has died."""

    kind = "java"
    is_python = False

    def __init__(self, world: SimulatedWorld, name: str, life: int) -> None:
        self.world, self.name, self.label = world, name, f"{name}#{life}"
        self.is_alive = True
        self.frozen_until = 0.0
        self._agenda, self._network = world.agenda, world.network
        self.duration_seconds = world.plan.duration_seconds
        self.dice = Dice.of(world.plan.seed, "java", self.label)
        self.requests = 0
        """Executed calls to the status table, retries included; for measurements."""
        self.rows_read = 0

    def crash(self) -> None:
        """End at once."""
        self.is_alive = False

    def die(self, reason: str) -> None:
        """End by an error of its own, without releasing anything."""
        if self.is_alive:
            self.is_alive = False
            self.world.counts["java worker died"] += 1
            self.world.trace.note(self.world.now, self.label, "dies", "", reason)

    def freeze(self, seconds: float) -> None:
        """Freeze the process for some seconds."""
        self.frozen_until = max(self.frozen_until, self.world.now + seconds)

    @property
    def now(self) -> float:
        """The time of the machine's clock."""
        return self._agenda.now

    def later(self, seconds: float, function: Callable[..., None], *arguments: Any) -> None:
        """Run a part of the worker after a while."""
        self._agenda.after(seconds, self._run, function, arguments)

    def _run(self, function: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        if not self.is_alive:
            return
        if self.frozen_until > self._agenda.now:
            self._agenda.at(self.frozen_until, self._run, function, arguments)
            return
        function(*arguments)

    def call(
        self,
        operate: Callable[[], Answer],
        then: Callable[[Answer], None],
        failed: Callable[[], None],
        *,
        retries: int = RETRIES,
    ) -> None:
        """Let the service do something; call ``failed`` once the retries are used up."""
        self._attempt(operate, then, failed, 0, retries)

    def _attempt(
        self,
        operate: Callable[[], Answer],
        then: Callable[[Answer], None],
        failed: Callable[[], None],
        tries: int,
        retries: int,
    ) -> None:
        name, network = self.name, self._network
        fate = network.fate(name, self.dice)
        delay = network.delay(name, self.dice)
        if fate in (Fate.FINE, Fate.LATE_ANSWER, Fate.FALSE_REFUSAL):
            self._agenda.after(delay, self._land, operate, then, fate)
            return
        if fate in (Fate.LOST_ANSWER, Fate.DEAF):
            self._agenda.after(delay, operate)
        elif fate is Fate.LATE_REQUEST:
            self._agenda.after(network.timeout(self.dice) + network.lateness(self.dice), operate)
        seconds = delay if fate is Fate.THROTTLED else network.timeout(self.dice)
        if tries >= retries:
            self.later(seconds, failed)
        else:
            pause = min(0.1 * (tries + 1), 1.0)
            self.later(seconds + pause, self._attempt, operate, then, failed, tries + 1, retries)

    def _land(self, operate: Callable[[], Answer], then: Callable[[Answer], None], fate: Fate) -> None:
        answer = operate()
        if fate is Fate.FALSE_REFUSAL:
            answer = operate()
        self._count(answer)
        seconds = self._network.delay(self.name, self.dice)
        if fate is Fate.LATE_ANSWER:
            seconds += self._network.lateness(self.dice)
        self.later(seconds, then, answer)

    def _count(self, answer: object) -> None:
        """Count the call for the status table, unless it lists shards, which the stream does."""
        if isinstance(answer, tuple) and answer and isinstance(answer[0], Shard):
            return
        self.requests += 1
        if isinstance(answer, dict | list | set | tuple):
            self.rows_read += len(answer)
        elif isinstance(answer, Lease):
            self.rows_read += 1
