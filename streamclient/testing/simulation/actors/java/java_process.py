"""A process with a Java worker, which repeats failed calls without checking whether an earlier try was applied."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from streamclient.testing.simulation.kernel import Dice, SimulatedProcess
from streamclient.testing.simulation.simulated_faults import Fate
from streamclient.testing.simulation.world import SimulatedWorld

Answer = TypeVar("Answer")

RETRIES = 10
"""The number of retries of every operation on leases. The pauses grow by 100 ms with each retry, up to 1 s."""


class JavaProcess(SimulatedProcess):
    """The process of one Java worker, with its clock and its network calls."""

    kind = "java"
    is_python = False

    def __init__(self, world: SimulatedWorld, name: str, life: int) -> None:
        label = f"{name}#{life}"
        super().__init__(world, name, label, Dice.of(world.plan.seed, "java", label))
        self.world, self.duration_seconds = world, world.plan.duration_seconds

    def die(self, reason: str) -> None:
        """End the process because of the error ``reason``. The process releases no lease."""
        if self.is_alive:
            self.end("died")
            self.world.counts["java worker died"] += 1
            self.world.note(self.label, "dies", "", reason)

    def call(
        self,
        operate: Callable[[], Answer],
        then: Callable[[Answer], None],
        failed: Callable[[], None],
        *,
        retries: int = RETRIES,
        tries: int = 0,
    ) -> None:
        """Let the service carry out ``operate``, and call ``then`` with the result of ``operate``.

        If ``retries`` retries fail, call ``failed`` instead. ``tries`` is the number of failed tries so far.
        """
        name, network = self.name, self.network
        fate = network.fate(name, self.dice)
        delay = network.delay(name, self.dice)
        if fate in (Fate.FINE, Fate.LATE_ANSWER, Fate.FALSE_REFUSAL):
            self.agenda.after(delay, self.land, operate, then, fate)
            return
        if fate in (Fate.LOST_ANSWER, Fate.DEAF):
            self.agenda.after(delay, operate)
        elif fate is Fate.LATE_REQUEST:
            self.agenda.after(network.timeout(self.dice) + network.lateness(self.dice), operate)
        seconds = delay if fate is Fate.THROTTLED else network.timeout(self.dice)
        if tries >= retries:
            self.later(seconds, failed)
        else:
            again = partial(self.call, operate, then, failed, retries=retries, tries=tries + 1)
            self.later(seconds + min(0.1 * (tries + 1), 1.0), again)

    def land(self, operate: Callable[[], Answer], then: Callable[[Answer], None], fate: Fate) -> None:
        """Carry out ``operate`` at the service, and send the result back to the process, which calls ``then``.

        The drawn outcome ``fate`` may let the service carry ``operate`` out twice, or send the result late.
        """
        answer = operate()
        if fate is Fate.FALSE_REFUSAL:
            answer = operate()
        seconds = self.network.delay(self.name, self.dice)
        if fate is Fate.LATE_ANSWER:
            seconds += self.network.lateness(self.dice)
        self.later(seconds, then, answer)
