"""The interfaces of simulated processes and consumers, as the world, the laws and other actors use them."""

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
    """The interface of a simulated process with a Python worker of this package."""

    dice: Dice
    frozen_until: float
    pace: TablePace
    holdings: Holdings
    is_selective: bool
    """Whether a processor of the worker has marked itself as done. The worker never takes the shard of such a processor
    again."""
    held_by_program: dict[str | None, None]
    """The shards that the worker's own program paused; ``None`` stands for the whole worker."""
    decided: dict[str, LeaseWrite]
    """By lease key, the last write that the core decided. Older writes of the process may reach the table late."""

    def local(self) -> float:
        """Return the time that the process's monotonic clock shows, in seconds."""

    def believes(self, consumer: ConsumerRole) -> bool:
        """Return whether the worker relies on its session, and on the lease under which ``consumer`` reads."""

    def deliver(self, event: Event) -> None:
        """Let the process handle ``event`` immediately, or after a freeze. A dead process ignores the event."""

    def handle(self, event: Event) -> None:
        """Let the core handle ``event`` immediately, even in a frozen process, and carry out its commands."""

    def forget(self, consumer: ConsumerRole) -> None:
        """Remove ``consumer``, which has ended, from the process."""


class ConsumerRole(Protocol):
    """The interface of the reader of one shard in a process with a Python worker of this package."""

    lease_key: str
    identifier: str
    epoch: int
    checkpoint: str
    """The checkpoint at which the consumer began."""
    pending: PendingCheckpoint | None
    orders: tuple[RecordOrder, ...]
    """The orders about records that an operator had given before the consumer started."""
    shard: SimulatedShard
    is_made: bool
    """Whether the consumer has a processor object; false if the user's factory raised."""
    is_given_up: bool
    """Whether the consumer waits for the decision of an operator, for example after a loss of records."""

    @property
    def process(self) -> ProcessRole:
        """The process in which the consumer runs."""

    @property
    def place(self) -> int:
        """The number, within the shard, of the next record that the consumer reads."""

    def mark(self, reason: ShutdownReason) -> None:
        """Make the consumer's processor ask for its own shutdown with ``reason``; do nothing without a processor."""

    def handle(self, event: ConsumerEvent) -> None:
        """Let the consumer's state machine handle an event."""

    def work(self, seconds: float, call: Callable[..., None], *arguments: Any) -> None:
        """Let user code work for ``seconds``, and longer if it hangs; then continue with ``call``."""

    def returns(self, error: BaseException | None = None, value: object = None) -> None:
        """Let the running call into user code return ``value``, or raise ``error``."""

    def checkpoint_answered(self, request: Request, outcome: CheckpointOutcome) -> None:
        """Handle the core's answer to one of the consumer's checkpoint requests."""


@frozen(eq=False)
class Request:
    """One checkpoint request that waits for its answer. It may be the first phase of a two-phase checkpoint."""

    consumer: ConsumerRole
    value: str
    progress: Progress
    pending: PendingCheckpoint | None
    answered: Callable[[CheckpointOutcome], None]
    """A function that lets the waiting user code continue with the outcome."""

    @property
    def asked(self) -> tuple[str, str, bool]:
        """The lease key, the position to store, and whether the request is the first of two phases."""
        return self.consumer.lease_key, self.value, self.pending is not None
