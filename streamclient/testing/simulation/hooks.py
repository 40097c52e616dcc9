"""The events of a history that laws may observe."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any

from streamclient.core.events import AnswerCheckpoint, Report
from streamclient.core.membership import WorkerRow, WorkerWrite
from streamclient.model import ParkedRecord
from streamclient.testing.simulation.roles import ConsumerRole, ProcessRole, Request
from streamclient.testing.simulation.simulated_table import Actor, LeaseChange


class Hooks:
    """One method for each event. These methods do nothing; an event costs nothing if no law overrides its method."""

    def row_changed(self, change: LeaseChange) -> None:
        """Handle a change of a lease row. ``write`` in it is ``None`` unless the production core made the change."""

    def worker_row_changed(
        self, actor: Actor, write: WorkerWrite, before: WorkerRow | None, after: WorkerRow | None
    ) -> None:
        """Handle a change of a worker row, except a wake."""

    def consumer_started(self, consumer: ConsumerRole) -> None:
        """Handle the start of a consumer of this package."""

    def event_handled(self, process: ProcessRole) -> None:
        """Handle the news that a process has handled an event, while some shard has consumers in several processes."""

    def consumer_ended(self, consumer: ConsumerRole) -> None:
        """Handle the end of a consumer. No part of it runs any more."""

    def records_came(self, consumer: ConsumerRole) -> None:
        """Handle the news that a consumer read records which it delivers next."""

    def idle_wait_began(self, consumer: ConsumerRole) -> None:
        """Handle the beginning of a consumer's pause because nothing is left to read."""

    def read_began(self, consumer: ConsumerRole) -> None:
        """Handle a consumer's request for a page."""

    def processor_started(self, consumer: ConsumerRole) -> None:
        """Handle the news that a consumer is about to make a processor."""

    def call_began(self, consumer: ConsumerRole, name: str) -> None:
        """Handle the beginning of a call into user code, or into the parking store."""

    def call_ended(self, consumer: ConsumerRole) -> None:
        """Handle the end of the present call, which has returned or raised."""

    def batch_refused(self, consumer: ConsumerRole, places: Sequence[int]) -> None:
        """Handle a processor's error; ``places`` are the numbers of the records of its batch in the shard."""

    def records_ordered(self, lease_key: str, places: Sequence[int]) -> None:
        """Handle an operator's order to take records out of a shard, given by their numbers.

        The row already has the order.
        """

    def records_parked(self, consumer: ConsumerRole, records: Sequence[ParkedRecord]) -> None:
        """Handle the news that records are now in the parking store."""

    def records_replayed(self, changes: Iterable[tuple[str, int, int]]) -> None:
        """Handle parked records that reach the sink after all, in this order: shard, key and number of each."""

    def records_written(self, consumer: ConsumerRole, start: int, end: int) -> None:
        """Handle the news that the sink accepted records of a shard, from ``start`` to before ``end``."""

    def java_wrote(self, lease_key: str, start: int, end: int) -> None:
        """Handle the news that a Java worker processed records, which are not judged."""

    def write_refused(self, consumer: ConsumerRole) -> None:
        """Handle the sink's refusal of a writer's epoch."""

    def checkpoint_answered(self, process: ProcessRole, request: Request, answer: AnswerCheckpoint) -> None:
        """Handle the answer that waiting user code got."""

    def reported(self, process: ProcessRole, report: Report) -> None:
        """Handle a worker's report."""

    def recovered(self, unread: Container[str]) -> None:
        """Handle the news that all faults have ended and the fleet rests; shards in ``unread`` may be unread."""


HOOKS = tuple(name for name in vars(Hooks) if not name.startswith("_"))


class Laws(Hooks):
    """Passes each event on to the laws that override it."""

    def __init__(self, laws: Sequence[Hooks]) -> None:
        for name in HOOKS:
            wanted = [getattr(law, name) for law in laws if getattr(type(law), name) is not getattr(Hooks, name)]
            setattr(self, name, _all_of(wanted))


def _all_of(functions: list[Callable[..., None]]) -> Callable[..., None]:
    if len(functions) == 1:
        return functions[0]

    def call(*arguments: Any) -> None:
        for function in functions:
            function(*arguments)

    return call
