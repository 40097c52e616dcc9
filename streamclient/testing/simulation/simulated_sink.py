"""The sink that all simulated processors write to. It refuses a writer whose epoch is older than one it has seen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from attrs import define, field

from streamclient.testing.simulation.hooks import Laws
from streamclient.testing.simulation.roles import ConsumerRole


@define(eq=False)
class Sink:
    """The processed records of every shard."""

    laws: Laws
    counts: Counter[str]
    newest: dict[str, int] = field(factory=dict)
    """Greatest epoch that wrote, by shard."""
    processed: dict[str, int] = field(factory=dict)
    """Number of the first unprocessed record, by shard."""
    committed: dict[str, str] = field(factory=dict)
    """The last transaction of each shard, by its end position."""
    aside: dict[str, set[int]] = field(factory=dict)
    """Numbers of parked records, by shard."""

    def fence(self, consumer: ConsumerRole) -> bool:
        """Refuse all older epochs from now on; return whether the writer's own epoch was accepted."""
        key = consumer.lease_key
        if consumer.epoch < self.newest.get(key, 0):
            return False
        self.newest[key] = consumer.epoch
        return True

    def commit(self, consumer: ConsumerRole, rows: Sequence[tuple[int, int]], value: str) -> bool:
        """Write records as one transaction, identified by its end position; a repeat changes nothing."""
        if self.committed.get(consumer.lease_key) == value and consumer.epoch >= self.newest[consumer.lease_key]:
            return True
        if not all(self.write(consumer, start, end) for start, end in rows):
            return False
        self.committed[consumer.lease_key] = value
        return True

    def write(self, consumer: ConsumerRole, start: int, end: int) -> bool:
        """Write the records of a shard from ``start`` to before ``end``; return whether the epoch was accepted."""
        key = consumer.lease_key
        if consumer.epoch < self.newest.get(key, 0):
            self.counts["refused by the sink"] += 1
            self.laws.write_refused(consumer)
            return False
        self.newest[key] = consumer.epoch
        self.laws.records_written(consumer, start, end)
        self.advance(key, start, end)
        return True

    def advance(self, lease_key: str, start: int, end: int) -> None:
        """Note that records were processed, or need not be."""
        if start <= self.processed.get(lease_key, 0) < end:
            self.processed[lease_key] = end
            self._pass_over(lease_key)

    def set_aside(self, lease_key: str, places: Iterable[int]) -> None:
        """Note that records were parked."""
        self.aside.setdefault(lease_key, set()).update(places)
        self._pass_over(lease_key)

    def _pass_over(self, lease_key: str) -> None:
        place, aside = self.processed.get(lease_key, 0), self.aside.get(lease_key, set())
        while place in aside:
            place += 1
        self.processed[lease_key] = place
