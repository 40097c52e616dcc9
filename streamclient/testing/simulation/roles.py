"""Who acts in a history, as the world, the laws and each other see them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from attrs import frozen

from streamclient.core.consumer.consumer_events import ConsumerEvent
from streamclient.core.events import CheckpointOutcome, Event
from streamclient.core.holdings import Holdings
from streamclient.core.leases import LeaseWrite
from streamclient.model import PendingCheckpoint, Progress, ShutdownReason
from streamclient.testing.simulation.dice import Dice
from streamclient.testing.simulation.simulated_stream import SimulatedShard
from streamclient.testing.simulation.simulated_table import Actor


class ProcessRole(Actor, Protocol):
    """A process with a worker of this package in it."""

    dice: Dice
    frozen_until: float
    holdings: Holdings
    is_selective: bool
    """Whether one of its processors marked itself done, so that it does not take that lease again."""
    held_by_program: dict[str | None, None]
    """What its own program paused: shards, or ``None`` for the whole worker."""
    decided: dict[str, LeaseWrite]
    """The last write of each lease; whatever else arrives under its name is late."""

    def local(self) -> float:
        """What its monotonic clock shows."""

    def believes(self, consumer: ConsumerRole) -> bool:
        """Whether it relies on the lease under which a consumer reads, and on its session."""

    def deliver(self, event: Event) -> None:
        """Let an event reach the process: at once, when it goes on, or never."""

    def handle(self, event: Event) -> None:
        """Have the core handle an event at once."""

    def forget(self, consumer: ConsumerRole) -> None:
        """A consumer has ended."""


class ConsumerRole(Protocol):
    """What reads one shard in such a process."""

    lease_key: str
    identifier: str
    epoch: int
    checkpoint: str
    """Where it began."""
    pending: PendingCheckpoint | None
    shard: SimulatedShard
    is_made: bool
    """Whether its processor was made."""
    is_given_up: bool
    """Whether it said that somebody has to decide, and nobody has."""

    @property
    def process(self) -> ProcessRole:
        """Where it runs."""

    def mark(self, reason: ShutdownReason) -> None:
        """Have its processor ask for its own end."""

    def handle(self, event: ConsumerEvent) -> None:
        """Have the machine handle an event."""

    def work(self, seconds: float, call: Callable[..., None], *arguments: Any) -> None:
        """Let user code take its time; it may hang meanwhile."""

    def returns(self, error: BaseException | None = None, value: object = None) -> None:
        """The call of user code under way returns, or raises."""

    def checkpoint_answered(self, request: Request, outcome: CheckpointOutcome) -> None:
        """The core has answered one of its requests."""


@frozen(eq=False)
class Request:
    """One checkpoint on its way, or the first phase of one."""

    consumer: ConsumerRole
    value: str
    progress: Progress
    pending: PendingCheckpoint | None
    answered: Callable[[CheckpointOutcome], None]
    """Where user code goes on."""

    @property
    def asked(self) -> tuple[str, str, bool]:
        """What is asked for: lease key, value, and whether it is the first phase of two."""
        return self.consumer.lease_key, self.value, self.pending is not None
