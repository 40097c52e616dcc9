"""The actors of a history, as the world, the laws and each other see them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from attrs import frozen

from streamclient.core.consumer.consumer_events import ConsumerEvent
from streamclient.core.consumer.reading_pace import TablePace
from streamclient.core.events import CheckpointOutcome, Event
from streamclient.core.holdings import Holdings
from streamclient.core.leases import LeaseWrite
from streamclient.model import PendingCheckpoint, Progress, RecordOrder, ShutdownReason
from streamclient.testing.simulation.kernel import Dice
from streamclient.testing.simulation.simulated_stream import SimulatedShard
from streamclient.testing.simulation.simulated_table import Actor


class ProcessRole(Actor, Protocol):
    """A process with a worker of this package in it."""

    dice: Dice
    frozen_until: float
    pace: TablePace
    holdings: Holdings
    is_selective: bool
    """Whether one of its processors marked itself done, so that this worker does not take the lease again."""
    held_by_program: dict[str | None, None]
    """The shards that the worker's own program paused; ``None`` stands for the whole worker."""
    decided: dict[str, LeaseWrite]
    """The last write of each lease. Other writes that arrive under this process's name are late."""

    def local(self) -> float:
        """Return the time of the process's monotonic clock."""

    def believes(self, consumer: ConsumerRole) -> bool:
        """Return whether the worker relies on the lease under which a consumer reads, and on the worker's session."""

    def deliver(self, event: Event) -> None:
        """Let an event reach the process: at once, or when the process continues, or never."""

    def handle(self, event: Event) -> None:
        """Let the core handle an event at once."""

    def forget(self, consumer: ConsumerRole) -> None:
        """Drop a consumer that has ended."""


class ConsumerRole(Protocol):
    """The reader of one shard in a process with a worker of this package."""

    lease_key: str
    identifier: str
    epoch: int
    checkpoint: str
    """The checkpoint at which the consumer began."""
    pending: PendingCheckpoint | None
    orders: tuple[RecordOrder, ...]
    """The operator's orders about records that the consumer had from the start."""
    shard: SimulatedShard
    is_made: bool
    """Whether the consumer's processor was made."""
    is_given_up: bool
    """Whether the consumer has reported that an operator must decide, and no operator has decided yet."""

    @property
    def process(self) -> ProcessRole:
        """The process in which the consumer runs."""

    @property
    def place(self) -> int:
        """The number of the next record that the consumer reads."""

    def mark(self, reason: ShutdownReason) -> None:
        """Let the consumer's processor request its own end."""

    def handle(self, event: ConsumerEvent) -> None:
        """Let the machine handle an event."""

    def work(self, seconds: float, call: Callable[..., None], *arguments: Any) -> None:
        """Let user code work for ``seconds``, and longer if it hangs; then continue with ``call``."""

    def returns(self, error: BaseException | None = None, value: object = None) -> None:
        """Let the present call of user code return, or raise."""

    def checkpoint_answered(self, request: Request, outcome: CheckpointOutcome) -> None:
        """Hand over the core's answer to one of the consumer's requests."""


@frozen(eq=False)
class Request:
    """One request of a checkpoint that waits for its answer. It may be the first phase of two."""

    consumer: ConsumerRole
    value: str
    progress: Progress
    pending: PendingCheckpoint | None
    answered: Callable[[CheckpointOutcome], None]
    """A function that continues the user code."""

    @property
    def asked(self) -> tuple[str, str, bool]:
        """The request: lease key, value, and whether it is the first phase of two."""
        return self.consumer.lease_key, self.value, self.pending is not None
