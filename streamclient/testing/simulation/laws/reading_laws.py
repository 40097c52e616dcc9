"""Laws about the times of reads after pauses: new records must be found in time, and reads must keep a ceiling.

The laws do not use the core's counts. They count the actions of consumers themselves.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Container

from attrs import define

from streamclient.core.consumer.reading_pace import (
    ALIVE_SECONDS,
    EARLIEST_SHARE,
    LONELY_SECONDS,
    QUIET_READS_PER_SECOND,
)
from streamclient.testing.simulation.roles import ConsumerRole, ProcessRole
from streamclient.testing.simulation.world import Law, SimulatedWorld

CLOCK_SHARE, CLOCK_SECONDS = 0.01, 0.05
"""The tolerance of the longest allowed wait: a share of the wait, plus a number of seconds. Clocks drift. The core and
the law also measure the time without records at slightly different moments."""

WINDOW_SECONDS = 60.0
"""The length, in seconds, of the sliding time range in which reads are counted."""

CEILING_SHARE = 0.1
"""The share by which the number of reads within ``WINDOW_SECONDS`` may exceed the ceiling. The law also allows a larger
excess of up to two reads for each shard, for two reasons. The core decides the interval of each shard at another time,
so some intervals are from a time with fewer shards. And after a freeze, all pauses of the process end together."""


@define
class _Reader:
    """The notes of ``ReadInTime`` about one consumer. ``allowed`` is the longest allowed pause, in seconds."""

    stirred_at: float
    """The time when the consumer last read records, or when it started."""
    began: float | None = None
    """The time when the consumer's present pause after a page without records began; ``None`` without a pause."""
    allowed: float = 0.0


class ReadInTime(Law):
    """A record that comes during a pause of its shard waits at most for the shard's polling interval.

    A shard pauses after a page without new records. The interval is shortest if the worker got records of the table in
    the last ten seconds, and records of the shard in the last minute. Otherwise the interval grows in proportion to the
    time without records, up to the longest interval. Shards without new records may use only a part of the worker's
    read ceiling. If all shards of the worker, each read at the shortest interval, would exceed this part, all intervals
    grow by the same factor.
    """

    name = "read in time"

    def __init__(self, world: SimulatedWorld) -> None:
        super().__init__(world)
        config = world.config
        self._shortest = config.worker_idle_time_millis / 1_000
        self._longest = max(config.max_idle_poll_interval_millis / 1_000, self._shortest)
        self._own_part = min(QUIET_READS_PER_SECOND, config.reads_ceiling / 2)
        self._readers: dict[ConsumerRole, _Reader] = {}
        self._stirred_at: dict[ProcessRole, float] = {}
        self._consumers: Counter[ProcessRole] = Counter()

    def consumer_started(self, consumer: ConsumerRole) -> None:
        self._readers[consumer] = _Reader(self.world.now)
        self._consumers[consumer.process] += 1

    def consumer_ended(self, consumer: ConsumerRole) -> None:
        del self._readers[consumer]
        self._consumers[consumer.process] -= 1

    def records_came(self, consumer: ConsumerRole) -> None:
        self._readers[consumer].stirred_at = self._stirred_at[consumer.process] = self.world.now

    def idle_wait_began(self, consumer: ConsumerRole) -> None:
        reader, now, process = self._readers[consumer], self.world.now, consumer.process
        own, of_table = now - reader.stirred_at, now - self._stirred_at[process]
        silence = max(1.0, of_table / ALIVE_SECONDS, own / LONELY_SECONDS)
        rate = self._consumers[process] / (EARLIEST_SHARE * self._shortest)
        stretch = max(1.0, rate / self._own_part)
        reader.began, reader.allowed = now, min(self._longest, self._shortest * silence) * stretch

    def call_began(self, consumer: ConsumerRole, name: str) -> None:
        self._readers[consumer].began = None  # a stop ended the pause

    def read_began(self, consumer: ConsumerRole) -> None:
        self._judge(consumer, self._readers[consumer])
        self._readers[consumer].began = None
        self._stirred_at.setdefault(consumer.process, self.world.now)

    def recovered(self, unread: Container[str]) -> None:
        for consumer, reader in self._readers.items():
            if consumer.process.is_alive:
                self._judge(consumer, reader)

    def _judge(self, consumer: ConsumerRole, reader: _Reader) -> None:
        began, shard = reader.began, consumer.shard
        if began is None or consumer.place >= shard.size or consumer.process.frozen_until > began:
            return
        waited = self.world.now - max(began, shard.times[consumer.place])
        if waited > reader.allowed * (1 + CLOCK_SHARE) + CLOCK_SECONDS:
            text = f"a record waited {waited:.2f} s in a pause of {consumer!r}, which may take {reader.allowed:.2f} s"
            raise self.broken(consumer.lease_key, text)


class ReadsKeepTheirCeiling(Law):
    """Reads that follow a pause keep to the worker's read ceiling, counted over all shards of the worker."""

    name = "reads keep their ceiling"

    def __init__(self, world: SimulatedWorld) -> None:
        super().__init__(world)
        self._most = (1 + CEILING_SHARE) * WINDOW_SECONDS * world.config.reads_ceiling
        self._waiting: set[ConsumerRole] = set()
        self._reads: dict[ProcessRole, deque[tuple[float, ConsumerRole]]] = {}

    def idle_wait_began(self, consumer: ConsumerRole) -> None:
        self._waiting.add(consumer)

    def call_began(self, consumer: ConsumerRole, name: str) -> None:
        self._waiting.discard(consumer)

    def consumer_ended(self, consumer: ConsumerRole) -> None:
        self._waiting.discard(consumer)

    def read_began(self, consumer: ConsumerRole) -> None:
        if consumer not in self._waiting:
            return
        self._waiting.remove(consumer)
        now, reads = self.world.now, self._reads.setdefault(consumer.process, deque())
        reads.append((now, consumer))
        while reads[0][0] < now - WINDOW_SECONDS:
            reads.popleft()
        if len(reads) > self._most and len(reads) > self._most + 2 * len({reader for _, reader in reads}):
            text = f"{len(reads)} reads in {WINDOW_SECONDS:.0f} s, at most {self.world.config.reads_ceiling} a second"
            raise self.broken(consumer.lease_key, text)
