"""The events that laws are told during a history."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any

from streamclient.core.events import AnswerCheckpoint, Report
from streamclient.core.membership import WorkerRow, WorkerWrite
from streamclient.model import ParkedRecord
from streamclient.testing.simulation.roles import ConsumerRole, ProcessRole, Request
from streamclient.testing.simulation.simulated_table import Actor, LeaseChange


class Hooks:
    """One method for each event. They do nothing; an event that a law does not override costs nothing."""

    def row_changed(self, change: LeaseChange) -> None:
        """Take a change of a lease row."""

    def worker_row_changed(
        self, actor: Actor, write: WorkerWrite, before: WorkerRow | None, after: WorkerRow | None
    ) -> None:
        """Take a change of a worker row, except a wake."""

    def consumer_started(self, consumer: ConsumerRole) -> None:
        """Take the start of a consumer of this package."""

    def event_handled(self, process: ProcessRole) -> None:
        """Take a handled event, while some shard has consumers in several processes."""

    def consumer_ended(self, consumer: ConsumerRole) -> None:
        """Take the end of a consumer, of which nothing runs any more."""

    def processor_started(self, consumer: ConsumerRole) -> None:
        """Take the news that a consumer is about to make a processor."""

    def call_began(self, consumer: ConsumerRole, name: str) -> None:
        """Take the beginning of a call into user code, or into the parking store."""

    def call_ended(self, consumer: ConsumerRole) -> None:
        """Take the end of the call, which has returned or raised."""

    def batch_refused(self, consumer: ConsumerRole, places: Sequence[int]) -> None:
        """Take a processor's error; ``places`` are the records of its batch in the shard."""

    def records_parked(self, consumer: ConsumerRole, records: Sequence[ParkedRecord]) -> None:
        """Take records that are now in the parking store."""

    def records_replayed(self, changes: Iterable[tuple[str, int, int]]) -> None:
        """Take parked records that reach the sink after all, in this order: shard, key and number."""

    def records_written(self, consumer: ConsumerRole, start: int, end: int) -> None:
        """Take records of a shard that the sink accepted."""

    def java_wrote(self, lease_key: str, start: int, end: int) -> None:
        """Take records that a Java worker processed, which are not judged."""

    def write_refused(self, consumer: ConsumerRole) -> None:
        """Take the sink's refusal of a writer's epoch."""

    def checkpoint_answered(self, process: ProcessRole, request: Request, answer: AnswerCheckpoint) -> None:
        """Take the answer that waiting user code got."""

    def reported(self, process: ProcessRole, report: Report) -> None:
        """Take a worker's report."""

    def recovered(self, unread: Container[str]) -> None:
        """Take the news that all faults have ended and the fleet rests; shards in ``unread`` may be unread."""


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
