"""The user code of a simulated consumer, which writes to a sink that all workers share, and stores checkpoints.

The simulated processor raises while its shard is failing, or when a record of a batch is poisoned. Now and then it
omits a duty of a processor. Production code decides which checkpoints the processor may store.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

from streamclient.core import events
from streamclient.core.consumer import consumer_events as facts
from streamclient.core.consumer.consumer_positions import HandedOutPositions, Place
from streamclient.core.events import CheckpointOutcome
from streamclient.errors import DependencyException, ErrorKind, ShutdownException
from streamclient.model import PendingCheckpoint, ShutdownReason
from streamclient.testing.simulation.roles import ConsumerRole, Request
from streamclient.testing.simulation.world import SimulatedWorld

FORGETFUL_SHARE = 0.05
"""The share of shards whose processor omits the checkpoint at the end of the shard."""

NOT_MADE_SHARE = 0.5
"""The share of failed calls of ``initialize`` that count as failures of the factory, which makes no processor."""

RAISED = ValueError("cannot digest this")
REFUSED = ShutdownException("the destination knows a later owner")
LOST = ShutdownException("the lease is lost")
IN_DOUBT = DependencyException("the checkpoint may or may not be stored", kind=ErrorKind.AMBIGUOUS)

Then = Callable[[], None]


class SimulatedProcessor:
    """One simulated processor, from ``initialize`` to ``shutdown``."""

    def __init__(self, world: SimulatedWorld, consumer: ConsumerRole, made: facts.NewProcessor) -> None:
        self.world, self.consumer = world, consumer
        self.number = made.number
        self.positions = HandedOutPositions(consumer.lease_key, made.initial, made.progress)
        self.is_closed = False
        """Whether the consumer refuses further checkpoints of the processor."""
        self._pending = made.pending
        self._stored = ""
        self._kept: list[int] = []
        """The numbers of the records that the processor was given and has not written yet."""

    # --- calls ---------------------------------------------------------------------------------------------------

    def initialize(self) -> None:
        """Handle the first call: with two-phase checkpoints, fence the sink and complete a prepared checkpoint."""
        self.consumer.work(self.world.habits.prompt_seconds, self._initialize)

    def _initialize(self) -> None:
        consumer, world = self.consumer, self.world
        if world.plan.is_two_phase:
            world.sink.fence(consumer)
        if world.is_failing(consumer.lease_key):
            consumer.returns(RAISED, value=not consumer.process.dice.chance(NOT_MADE_SHARE))
        elif self._pending is not None and self._pending.value == world.sink.committed.get(consumer.lease_key):
            self._ask(self._pending.value, self._return)  # a former processor committed, and died before the checkpoint
        else:
            self._return()

    def process(self, places: Sequence[int]) -> None:
        """Process the batch of the records with the numbers ``places``."""
        consumer = self.consumer
        factor = 0.5 + consumer.process.dice.random()
        seconds = self.world.plan.round_seconds * factor * self.world.drag(consumer.lease_key)
        consumer.work(seconds, self._process, places)

    def _process(self, places: Sequence[int]) -> None:
        consumer, world = self.consumer, self.world
        if world.is_failing(consumer.lease_key) or world.is_poisoned(consumer.lease_key, places):
            world.laws.batch_refused(consumer, places)
            consumer.returns(RAISED, value=True)
        elif world.plan.is_two_phase:
            self._prepare(lambda: self._commit(places))
        elif consumer.process.dice.chance(world.habits.checkpointed_share) or not world.is_writing:
            self._write([*self._kept, *places], lambda: self._ask(None, self._return))
        else:
            self._kept += places
            self._return()

    def _write(self, places: Sequence[int], then: Then) -> None:
        consumer = self.consumer
        if all(self.world.sink.write(consumer, start, end) for start, end in runs(places)):
            self._kept = []
            then()
        else:
            consumer.returns(REFUSED, value=True)

    def _commit(self, places: Sequence[int]) -> None:
        """Commit the records to the sink, between the two phases of the checkpoint."""
        value = self.positions.permitted
        if self.world.sink.commit(self.consumer, runs(places), value):
            self._ask(value, self._return)
        else:
            self.consumer.returns(REFUSED)

    def shutdown(self, reason: ShutdownReason) -> None:
        """Handle the last call to the processor: write the kept records, and store a checkpoint."""
        self.consumer.work(self.world.habits.prompt_seconds, self._shut_down, reason)

    def _shut_down(self, reason: ShutdownReason) -> None:
        forgets = reason is ShutdownReason.TERMINATE and self.consumer.process.dice.chance(FORGETFUL_SHARE)
        if reason is ShutdownReason.ZOMBIE or forgets:
            self._return()
        else:
            self._write(self._kept, lambda: self._ask(None, self._return))

    def _return(self) -> None:
        self.consumer.returns(value=True)

    # --- checkpoints ---------------------------------------------------------------------------------------------

    def _prepare(self, then: Then) -> None:
        if self.is_closed:
            self.consumer.returns(LOST, value=True)
            return
        place = self.positions.resolve(None)
        self.positions.prepared(place)
        records = self.positions.records_since_request(place)
        self._stored = ""
        self._send(place, PendingCheckpoint(place.text, b"", records, self.consumer.epoch, place.last), then)

    def _ask(self, value: str | None, then: Then) -> None:
        if self.is_closed:
            self.consumer.returns(LOST, value=True)
            return
        place = self.positions.resolve(value)
        if place.text == self._stored:
            then()
            return
        self.positions.requested(place)
        self._send(place, None, then)

    def pass_set_aside(self) -> Place | None:
        """Return the position that the worker itself stores; ``None`` if the processor has records to store first."""
        if self._kept or self.world.plan.is_two_phase:
            return None
        place = self.positions.pass_set_aside()
        return None if place.text == self._stored else place

    def store_set_aside(self, place: Place) -> None:
        """Store ``place``, a result of ``pass_set_aside``, for the worker itself. No user code waits for the answer."""
        if not self.is_closed:
            self._request(place, None, partial(self._set_aside_answered, place.text))

    def _set_aside_answered(self, stored: str, outcome: CheckpointOutcome) -> None:
        if outcome is CheckpointOutcome.STORED:
            self._stored = stored

    def _send(self, place: Place, pending: PendingCheckpoint | None, then: Then) -> None:
        self._request(place, pending, partial(self._answered, place.text if pending is None else "", then))

    def _request(
        self, place: Place, pending: PendingCheckpoint | None, answered: Callable[[CheckpointOutcome], None]
    ) -> None:
        consumer, progress = self.consumer, place.progress
        number = self.world.register_request(Request(consumer, place.text, progress, pending, answered))
        consumer.handle(facts.CheckpointAsked())
        consumer.process.handle(
            events.CheckpointRequested(number, consumer.lease_key, consumer.identifier, place.text, progress, pending)
        )

    def _answered(self, stored: str, then: Then, outcome: CheckpointOutcome) -> None:
        """Let the call of ``checkpoint()`` return if the checkpoint is stored; otherwise let the call raise."""
        if outcome is not CheckpointOutcome.STORED:
            self.consumer.returns(IN_DOUBT if outcome is CheckpointOutcome.UNKNOWN else LOST, value=True)
            return
        self._stored = stored or self._stored
        then()


def runs(places: Sequence[int]) -> Sequence[tuple[int, int]]:
    """Return the ascending numbers ``places`` as ranges of consecutive numbers.

    A range is a pair: its first number, and the number after its last number.
    """
    breaks = [number for number, (one, other) in enumerate(pairwise(places), 1) if other != one + 1]
    edges = [0, *breaks, len(places)]
    return [(places[first], places[last - 1] + 1) for first, last in pairwise(edges) if last > first]
