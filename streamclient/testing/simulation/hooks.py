"""The events of a fleet's history that laws can observe, one method for each event."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any

from streamclient.core.events import AnswerCheckpoint, Report
from streamclient.core.membership import WorkerRow, WorkerWrite
from streamclient.model import ParkedRecord
from streamclient.testing.simulation.roles import ConsumerRole, ProcessRole, Request
from streamclient.testing.simulation.simulated_table import Actor, LeaseChange


class Hooks:
    """The base of all laws, with one method for each event. A law overrides the methods of the events that it judges.

    An event costs almost nothing if no law overrides its method.
    """

    def row_changed(self, change: LeaseChange) -> None:
        """Handle a change of a lease row by a write with or without a condition."""

    def worker_row_changed(
        self, actor: Actor, write: WorkerWrite, before: WorkerRow | None, after: WorkerRow | None
    ) -> None:
        """Handle a change of a worker row. A wake-up signal does not count as a change."""

    def consumer_started(self, consumer: ConsumerRole) -> None:
        """Handle the start of a consumer in a Python worker; Java workers do not call this method."""

    def event_handled(self, process: ProcessRole) -> None:
        """Check the state of a process after it has handled an event.

        The world calls this method only while a shard has consumers in several processes.
        """

    def consumer_ended(self, consumer: ConsumerRole) -> None:
        """Handle the end of a consumer, whose user code does not run any more."""

    def records_came(self, consumer: ConsumerRole) -> None:
        """Note that a consumer has read records, which it delivers next."""

    def idle_wait_began(self, consumer: ConsumerRole) -> None:
        """Handle the beginning of a pause that a consumer makes because its shard has no new records."""

    def read_began(self, consumer: ConsumerRole) -> None:
        """Handle a consumer's request for a page."""

    def processor_started(self, consumer: ConsumerRole) -> None:
        """Note that a consumer is about to make a processor."""

    def call_began(self, consumer: ConsumerRole, name: str) -> None:
        """Handle the beginning of a call into user code, or into the parking store."""

    def call_ended(self, consumer: ConsumerRole) -> None:
        """Handle the end of the consumer's present call, which has returned or raised."""

    def batch_refused(self, consumer: ConsumerRole, places: Sequence[int]) -> None:
        """Handle a processor's error for a batch; ``places`` are the numbers of the batch's records in the shard."""

    def records_ordered(self, lease_key: str, places: Sequence[int]) -> None:
        """Handle an operator's order to take the records with the numbers ``places`` out of a shard.

        The lease row already holds the order.
        """

    def records_parked(self, consumer: ConsumerRole, records: Sequence[ParkedRecord]) -> None:
        """Note that records are now in the parking store."""

    def records_replayed(self, changes: Iterable[tuple[str, int, int]]) -> None:
        """Handle the replay of parked records into the sink: the shard, key and number of each record, in order."""

    def records_written(self, consumer: ConsumerRole, start: int, end: int) -> None:
        """Note that the sink accepted the records of a shard from ``start`` to before ``end``."""

    def java_wrote(self, lease_key: str, start: int, end: int) -> None:
        """Note that a Java worker processed the records from ``start`` to before ``end``."""

    def write_refused(self, consumer: ConsumerRole) -> None:
        """Note that the sink refused a write because of the consumer's epoch."""

    def checkpoint_answered(self, process: ProcessRole, request: Request, answer: AnswerCheckpoint) -> None:
        """Handle the answer to a checkpoint request of user code."""

    def reported(self, process: ProcessRole, report: Report) -> None:
        """Handle a message that a worker's core reports."""

    def recovered(self, unread: Container[str]) -> None:
        """Note that the fleet has recovered from all faults. Only the shards in ``unread`` may be unread now."""


HOOKS = tuple(name for name in vars(Hooks) if not name.startswith("_"))


class Laws(Hooks):
    """All laws of a history as one object, which passes each event on to the laws that override its method."""

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
