"""What laws are told while a history happens."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any

from streamclient.core.events import AnswerCheckpoint, Report
from streamclient.core.leases import LeaseWrite
from streamclient.core.membership import WorkerRow, WorkerWrite
from streamclient.model import Lease, ParkedRecord
from streamclient.testing.simulation.roles import ConsumerRole, ProcessRole, Request
from streamclient.testing.simulation.simulated_table import Actor


class Hooks:
    """One method for each thing that is told. They do nothing; what a law does not override costs nothing."""

    def row_changed(
        self, actor: Actor, what: str, before: Lease | None, after: Lease | None, write: LeaseWrite | None
    ) -> None:
        """A row of the table changed; ``write`` is ``None`` if that was not the production core's doing."""

    def worker_row_changed(
        self, actor: Actor, write: WorkerWrite, before: WorkerRow | None, after: WorkerRow | None
    ) -> None:
        """The row of a worker changed, but for a wake."""

    def consumer_started(self, consumer: ConsumerRole) -> None:
        """A worker of this package starts to read a shard."""

    def event_handled(self, process: ProcessRole) -> None:
        """A process handled an event while some shard has consumers in several processes."""

    def consumer_ended(self, consumer: ConsumerRole) -> None:
        """A consumer says that nothing of it runs any more."""

    def processor_started(self, consumer: ConsumerRole) -> None:
        """A consumer is about to make a processor."""

    def call_began(self, consumer: ConsumerRole, name: str) -> None:
        """A call into user code, or of the parking store, has begun."""

    def call_ended(self, consumer: ConsumerRole) -> None:
        """It has returned or raised."""

    def batch_refused(self, consumer: ConsumerRole, places: Sequence[int]) -> None:
        """A processor raises; these records of the shard are in its batch."""

    def records_parked(self, consumer: ConsumerRole, records: Sequence[ParkedRecord]) -> None:
        """The parking store has these records."""

    def records_replayed(self, changes: Iterable[tuple[str, int, int]]) -> None:
        """What was parked reaches the sink after all, in this order: shard, key and number."""

    def records_written(self, consumer: ConsumerRole, start: int, end: int) -> None:
        """The sink accepted records of a shard."""

    def java_wrote(self, lease_key: str, start: int, end: int) -> None:
        """A Java worker processed records of a shard; what it does is not judged."""

    def write_refused(self, consumer: ConsumerRole) -> None:
        """The sink refused a writer for its epoch."""

    def checkpoint_answered(self, process: ProcessRole, request: Request, answer: AnswerCheckpoint) -> None:
        """Waiting user code got its answer."""

    def reported(self, process: ProcessRole, report: Report) -> None:
        """A worker reported something."""

    def recovered(self, unread: Container[str]) -> None:
        """Nothing goes wrong any more, and the fleet rests; of these shards nobody needs to have read all."""


HOOKS = tuple(name for name in vars(Hooks) if not name.startswith("_"))


class Laws(Hooks):
    """Passes everything on to the laws that want to know."""

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
