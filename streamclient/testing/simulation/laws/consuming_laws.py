"""Laws about the calls of one consumer, and about the records that it parks."""

from __future__ import annotations

from collections.abc import Sequence

from streamclient.model import ParkedRecord
from streamclient.testing.history import CALLS, Called, CallsOneByOne, ReaderBegan, ReaderOver, Returned
from streamclient.testing.simulation.laws.base import Law
from streamclient.testing.simulation.laws.progress_laws import change_of
from streamclient.testing.simulation.roles import ConsumerRole
from streamclient.testing.simulation.world import SimulatedWorld


class CallsInOrder(Law):
    """One call at a time: ``initialize``, then others, then ``shutdown``, once for each processor that was made.

    A consumer ends, or starts another processor, only when the former processor was shut down or was never made.
    """

    name = CALLS

    def __init__(self, world: SimulatedWorld) -> None:
        super().__init__(world)
        self._judge = CallsOneByOne()

    def processor_started(self, consumer: ConsumerRole) -> None:
        self.tell(self._judge, ReaderBegan(consumer, consumer.process, consumer.lease_key))

    def call_began(self, consumer: ConsumerRole, name: str) -> None:
        self.tell(self._judge, Called(consumer, consumer.lease_key, name))

    def call_ended(self, consumer: ConsumerRole) -> None:
        self.tell(self._judge, Returned(consumer, consumer.lease_key, consumer.is_made))

    def consumer_ended(self, consumer: ConsumerRole) -> None:
        self.tell(self._judge, ReaderOver(consumer, consumer.lease_key))


class StoppedShardsWait(Law):
    """A shard that stopped at a failing record or at a loss gets no other processor before an operator decides."""

    name = "stopped shards wait"

    def processor_started(self, consumer: ConsumerRole) -> None:
        if consumer.is_given_up:
            raise self.broken(consumer.lease_key, f"{consumer!r} goes on, and nobody has decided that it may")


class OnlyFailuresAreParked(Law):
    """A record is parked only if a batch of it alone was refused, or if an earlier one of its key is parked."""

    name = "only failures are parked"

    def __init__(self, world: SimulatedWorld) -> None:
        super().__init__(world)
        self._refused: set[tuple[ConsumerRole, int]] = set()
        self._keys: set[int] = set()

    def batch_refused(self, consumer: ConsumerRole, places: Sequence[int]) -> None:
        if len(places) == 1:
            self._refused.add((consumer, places[0]))

    def records_parked(self, consumer: ConsumerRole, records: Sequence[ParkedRecord]) -> None:
        for each in records:
            place, (key, number) = each.record.sequence_info.row_index, change_of(consumer, each.record)
            is_excused = (consumer, place) in self._refused if each.attempts else key in self._keys
            if not is_excused:
                raise self.broken(consumer.lease_key, f"{consumer!r} parked change {number} of key {key}: {each.error}")
            self._keys.add(key)


class ParkedKeysWait(Law):
    """Once a change of a key is parked, no later change is written before the parked one was replayed.

    A worker that had lost its lease when it parked something is unknown to the shard's present reader.
    """

    name = "parked keys wait"

    def __init__(self, world: SimulatedWorld) -> None:
        super().__init__(world)
        self._first: dict[int, int] = {}
        """The first parked change of each key."""

    def records_parked(self, consumer: ConsumerRole, records: Sequence[ParkedRecord]) -> None:
        if consumer.process.believes(consumer):
            for each in records:
                key, number = change_of(consumer, each.record)
                self._first[key] = min(number, self._first.get(key, number))

    def records_written(self, consumer: ConsumerRole, start: int, end: int) -> None:
        if not self._first or not self.world.is_writing or not consumer.process.believes(consumer):
            return
        shard = consumer.shard
        for record, number in zip(shard.keys[start:end], shard.numbers[start:end], strict=True):
            if number > self._first.get(record, number):
                text = f"{consumer!r} wrote change {number} of key {record}, but change {self._first[record]} is parked"
                raise self.broken(consumer.lease_key, text)
