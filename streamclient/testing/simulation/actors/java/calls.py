"""How a Java worker calls the service: with retries that do not look whether the first try was applied."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from streamclient.model import Lease, Shard
from streamclient.testing.simulation.dice import Dice
from streamclient.testing.simulation.network import Fate

if TYPE_CHECKING:
    from streamclient.testing.simulation.actors.java.worker import JavaWorker

Answer = TypeVar("Answer")

RETRIES = 10
"""Of every operation on leases, with pauses of 100 ms more each time, at most 1 s."""


class Calls:
    """Time and network of one Java worker. Nothing runs while its process is frozen, or after it has died."""

    def __init__(self, worker: JavaWorker) -> None:
        world = worker.world
        self._worker, self._agenda, self._network = worker, world.agenda, world.network
        self.dice = Dice.of(world.plan.seed, "java", worker.label)
        self.requests = 0
        """Calls of the status table that were carried out, retries included; for whoever measures."""
        self.rows_read = 0

    @property
    def now(self) -> float:
        """What the machine's clock shows."""
        return self._agenda.now

    def later(self, seconds: float, function: Callable[..., None], *arguments: Any) -> None:
        """Run a piece of the worker after a while."""
        self._agenda.after(seconds, self._run, function, arguments)

    def _run(self, function: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        worker = self._worker
        if not worker.is_alive:
            return
        if worker.frozen_until > self._agenda.now:
            self._agenda.at(worker.frozen_until, self._run, function, arguments)
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
        """Have the service do something; ``failed`` once the retries are used up."""
        self._attempt(operate, then, failed, 0, retries)

    def _attempt(
        self,
        operate: Callable[[], Answer],
        then: Callable[[Answer], None],
        failed: Callable[[], None],
        tries: int,
        retries: int,
    ) -> None:
        name, network = self._worker.name, self._network
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
        seconds = self._network.delay(self._worker.name, self.dice)
        if fate is Fate.LATE_ANSWER:
            seconds += self._network.lateness(self.dice)
        self.later(seconds, then, answer)

    def _count(self, answer: object) -> None:
        """A list of shards is the stream's, everything else the status table's."""
        if isinstance(answer, tuple) and answer and isinstance(answer[0], Shard):
            return
        self.requests += 1
        if isinstance(answer, dict | list | set | tuple):
            self.rows_read += len(answer)
        elif isinstance(answer, Lease):
            self.rows_read += 1
