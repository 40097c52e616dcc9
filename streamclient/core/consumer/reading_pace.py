"""The pace at which shards without new records are read. The pace follows the traffic, and each worker has a ceiling.

The service cannot call a worker, so the worker must ask each shard. A *poll* is a read that may find no record. A read
right after a page that promises more records is not a poll: it is not counted, and never delayed.

Laws:

* **A table with traffic is read eagerly.** A shard is polled every ``worker_idle_time_millis``, counted from the
  beginning of its last read, while two conditions hold: the shard had a record within ``LONELY_SECONDS``, and any shard
  of its table in this worker had a record within ``ALIVE_SECONDS``.
* **Silence makes polls rare in proportion.** When these times are over, the interval grows with the silence, up to
  ``max_idle_poll_interval_millis``. So a record that ends a silence waits for one or two thousandths of the length of
  that silence.
* **Quiet shards share a budget.** All shards that are not read eagerly are together polled at most
  ``QUIET_READS_PER_SECOND`` times a second, and at most half as often as the ceiling allows. If that is too little,
  one factor stretches all of their intervals.
* **A worker has a ceiling.** All polls together stay below ``max_reads_per_second``. Eager shards may use the budget
  that quiet shards leave. If that is too little, one factor stretches the intervals of all eager shards, and no quiet
  shard is then read more often than an eager shard. So neither kind starves the other.

Times are monotonic seconds. This module reads no clock, starts no thread and makes no call.
"""

from __future__ import annotations

from streamclient.config import ClientConfig

ALIVE_SECONDS = 10.0
"""The time for which a table counts as having traffic after its last record. If one record a second comes at random,
one silence in twenty thousand is longer than this time. If four workers share such a table, each of them gets a record
every four seconds on average. Then one silence in twelve is longer than this time, but the interval hardly grows."""

LONELY_SECONDS = 60.0
"""The time for which a shard of a table with traffic is read eagerly after its own last record. In one of many shards,
gaps of twenty seconds are ordinary. A shard that is silent for an hour has the longest interval."""

QUIET_READS_PER_SECOND = 200
"""The largest number of polls of quiet shards a second. A thousand quiet shards are read every five seconds."""

EARLIEST_SHARE = 0.9
"""A shard is polled at the earliest after this share of its interval. To spread polls, consumers poll up to a twentieth
of the interval early. Timers that are due at about the same time run together, so a poll may be early by another
twentieth. The sums of polls assume that every poll comes that early."""

_MICRO = 1_000_000
"""The period of a rate in seconds: a rate is the number of polls in this period. So rates are whole numbers, and their
sums are exact."""


class WorkerPace:
    """The rates of polls of all tables of one worker, and the factors that lengthen the intervals between polls.

    Each table belongs to one thread. The thread also reads the sums of the polls of other tables, which are plain
    numbers. A sum that is slightly out of date changes one interval a little.

    Example:
        >>> from streamclient import ClientConfig
        >>> shard = WorkerPace(ClientConfig()).table().shard()
        >>> shard.nothing_came(0.0)
        >>> [round(shard.interval(silence), 3) for silence in (1.0, 10.0, 60.0, 300.0, 600.0, 3_600.0)]
        [0.015, 0.015, 0.09, 0.45, 0.9, 0.9]
    """

    def __init__(self, config: ClientConfig) -> None:
        self.shortest = config.worker_idle_time_millis / 1_000
        self.longest = max(config.max_idle_poll_interval_millis / 1_000, self.shortest)
        self.ceiling = config.reads_ceiling
        self.quiet_ceiling = min(QUIET_READS_PER_SECOND, self.ceiling / 2)
        self._tables: list[TablePace] = []

    def table(self) -> TablePace:
        """Make and return the ``TablePace`` of one more table that the worker reads."""
        table = TablePace(self)
        self._tables.append(table)
        return table

    def drop(self, table: TablePace) -> None:
        """Forget ``table``, because this worker no longer reads it."""
        self._tables.remove(table)

    @property
    def quiet_stretch(self) -> float:
        """The factor by which the intervals of quiet shards are longer than their silence requires."""
        return max(1.0, self._quiet_wanted / self.quiet_ceiling)

    @property
    def eager_stretch(self) -> float:
        """The factor by which the intervals of eager shards are longer than the shortest interval."""
        wanted = sum(table.eager_rate for table in self._tables) / _MICRO
        return max(1.0, wanted / (self.ceiling - min(self._quiet_wanted, self.quiet_ceiling)))

    @property
    def _quiet_wanted(self) -> float:
        return sum(table.quiet_rate for table in self._tables) / _MICRO

    def stretched(self, interval: float) -> float:
        """Return ``interval``, the seconds between polls of a shard, lengthened as the worker's limits require."""
        eager = self.shortest * self.eager_stretch
        return eager if interval <= self.shortest else max(interval * self.quiet_stretch, eager)

    def report(self) -> str:
        """Return in words by how much polls are held back; empty if polls are not held back.

        Numbers have two digits, so that a published text seldom changes.
        """
        told = []
        if (eager := self.eager_stretch) > 1.0:
            millis = _rough(1_000 * self.shortest * eager)
            told.append(
                f"reads are at their ceiling of {self.ceiling} a second: each shard with traffic is read every "
                f"{millis} ms instead of {_rough(1_000 * self.shortest)} ms"
            )
        if (quiet := self.quiet_stretch) > 1.0:
            told.append(
                f"quiet shards share {_rough(self.quiet_ceiling)} reads a second: their pauses are {_rough(quiet)} "
                f"times as long, up to {_rough(self.longest * quiet)} s"
            )
        return "; ".join(told)


class TablePace:
    """The silence (time without records) and the polls of one table, over the shards that this worker reads."""

    def __init__(self, worker: WorkerPace) -> None:
        self.worker = worker
        self.eager_rate = 0
        self.quiet_rate = 0
        self._alive_at: float | None = None

    def shard(self) -> ShardPace:
        """Make and return the ``ShardPace`` of one more shard of the table."""
        return ShardPace(self)

    def stir(self, now: float) -> None:
        """Record that a shard of the table has traffic."""
        self._alive_at = now

    @property
    def is_new(self) -> bool:
        """Whether no shard of the table has been read yet."""
        return self._alive_at is None

    def silence(self, now: float) -> float:
        """Return the seconds for which no shard has had a record.

        A table counts as having traffic when it is first read.
        """
        return 0.0 if self._alive_at is None else now - self._alive_at

    def close(self) -> None:
        """End the polls of this table, so that the other tables of the worker can use its share."""
        self.worker.drop(self)


class ShardPace:
    """The silence (time without records) of one shard, and the interval between its polls.

    A silence starts when a read first finds no record, so slow processing is not a silence. The time before the shard's
    first read counts as traffic, because that time is unknown.
    """

    def __init__(self, table: TablePace) -> None:
        self._table = table
        self._silent_since: float | None = None
        self._has_stirred = False
        self._eager_rate = 0
        self._quiet_rate = 0

    def records_came(self, now: float) -> None:
        """Record that a read of the shard returned records."""
        self._silent_since = None
        self._has_stirred = True
        self._table.stir(now)
        self.rest()

    def nothing_came(self, now: float) -> None:
        """Record that a read of the shard returned no records."""
        if self._silent_since is None:
            self._silent_since = now
            if self._has_stirred or self._table.is_new:
                self._table.stir(now)

    def interval(self, now: float) -> float:
        """Return the time from the beginning of one poll to the beginning of the next, and count the shard's polls."""
        table, worker = self._table, self._table.worker
        own = 0.0 if self._silent_since is None else now - self._silent_since
        silence = max(1.0, table.silence(now) / ALIVE_SECONDS, own / LONELY_SECONDS)
        wanted = min(worker.longest, worker.shortest * silence)
        self._count(wanted, is_eager=wanted <= worker.shortest)
        return worker.stretched(wanted)

    def rest(self) -> None:
        """Count no polls of this shard until its next interval, because the shard has work, fails, or is not read."""
        table = self._table
        table.eager_rate -= self._eager_rate
        table.quiet_rate -= self._quiet_rate
        self._eager_rate = self._quiet_rate = 0

    def _count(self, wanted: float, *, is_eager: bool) -> None:
        self.rest()
        rate = round(_MICRO / (EARLIEST_SHARE * wanted))
        self._eager_rate, self._quiet_rate = (rate, 0) if is_eager else (0, rate)
        self._table.eager_rate += self._eager_rate
        self._table.quiet_rate += self._quiet_rate


def _rough(value: float) -> str:
    return f"{float(f'{value:.2g}'):g}"
