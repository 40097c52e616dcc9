"""What a law is, and how laws learn what happens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from streamclient.core.events import AnswerCheckpoint, Report
from streamclient.core.leases import LeaseWrite
from streamclient.core.membership import WorkerRow, WorkerWrite
from streamclient.model import Lease, ParkedRecord

if TYPE_CHECKING:
    from streamclient.testing.simulation.actors.consumer import Consumer
    from streamclient.testing.simulation.actors.process import PythonProcess
    from streamclient.testing.simulation.actors.processor import Request
    from streamclient.testing.simulation.table import Actor
    from streamclient.testing.simulation.world import SimulatedWorld


class LawBroken(Exception):
    """A law does not hold in this history. Raised at the very event that breaks it."""

    def __init__(self, law: str, lease_key: str, text: str) -> None:
        super().__init__(f"{law}: {text}")
        self.law = law
        self.lease_key = lease_key
        self.text = text


class Law:
    """One thing that must be true of every history. It sees everything, and changes nothing.

    Subclasses override the methods for what they need; what they do not override costs nothing.
    """

    name = ""

    def __init__(self, world: SimulatedWorld) -> None:
        self.world = world

    def broken(self, lease_key: str, text: str) -> LawBroken:
        """The exception to raise."""
        return LawBroken(self.name, lease_key, text)

    def row_changed(
        self, actor: Actor, what: str, before: Lease | None, after: Lease | None, write: LeaseWrite | None
    ) -> None:
        """A row of the table changed; ``write`` is ``None`` if that was not the production core's doing."""

    def worker_row_changed(
        self, actor: Actor, write: WorkerWrite, before: WorkerRow | None, after: WorkerRow | None
    ) -> None:
        """The row of a worker changed, but for a wake."""

    def consumer_started(self, consumer: Consumer) -> None:
        """A worker of this package starts to read a shard."""

    def event_handled(self, process: PythonProcess) -> None:
        """A process handled an event while some shard has consumers in several processes."""

    def consumer_ended(self, consumer: Consumer) -> None:
        """A consumer says that nothing of it runs any more."""

    def processor_started(self, consumer: Consumer) -> None:
        """A consumer is about to make a processor."""

    def call_began(self, consumer: Consumer, name: str) -> None:
        """A call into user code, or of the parking store, has begun."""

    def call_ended(self, consumer: Consumer) -> None:
        """It has returned or raised."""

    def batch_refused(self, consumer: Consumer, places: Sequence[int]) -> None:
        """A processor raises; these records of the shard are in its batch."""

    def records_parked(self, consumer: Consumer, records: Sequence[ParkedRecord]) -> None:
        """The parking store has these records."""

    def records_written(self, consumer: Consumer, start: int, end: int) -> None:
        """The sink accepted records of a shard."""

    def write_refused(self, consumer: Consumer) -> None:
        """The sink refused a writer for its epoch."""

    def checkpoint_answered(self, process: PythonProcess, request: Request, answer: AnswerCheckpoint) -> None:
        """Waiting user code got its answer."""

    def reported(self, process: PythonProcess, report: Report) -> None:
        """A worker reported something."""


HOOKS = tuple(name for name in vars(Law) if not name.startswith("_") and name not in ("name", "broken"))


class Laws:
    """Passes everything on to the laws that want to know."""

    row_changed: Callable[..., None]
    worker_row_changed: Callable[..., None]
    consumer_started: Callable[..., None]
    event_handled: Callable[..., None]
    consumer_ended: Callable[..., None]
    processor_started: Callable[..., None]
    call_began: Callable[..., None]
    call_ended: Callable[..., None]
    batch_refused: Callable[..., None]
    records_parked: Callable[..., None]
    records_written: Callable[..., None]
    write_refused: Callable[..., None]
    checkpoint_answered: Callable[..., None]
    reported: Callable[..., None]

    def __init__(self, laws: list[Law]) -> None:
        for name in HOOKS:
            wanted = [getattr(law, name) for law in laws if getattr(type(law), name) is not getattr(Law, name)]
            setattr(self, name, _all_of(wanted))


def _all_of(functions: list[Callable[..., None]]) -> Callable[..., None]:
    if len(functions) == 1:
        return functions[0]

    def call(*arguments: Any) -> None:
        for function in functions:
            function(*arguments)

    return call
