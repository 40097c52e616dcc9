"""An hour of mixed traffic in simulated time: the requests that a law of pauses causes, and the time that records wait.

A *law* decides how long a reader pauses between reads of a shard. All laws get the same arrivals. Time is simulated and
a seed decides the arrivals, so a figure is the same on every machine.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterator, Sequence
from math import ceil
from typing import Protocol

from attrs import field, frozen

from streamclient import ClientConfig
from streamclient.base.position import Position
from streamclient.core.consumer.pauses import ConsumerBackoff
from streamclient.core.consumer.reading_pace import WorkerPace
from streamclient.tablestore.stream_api import RecordPage
from streamclient.testing.builders import put

SHARDS = 4
SEED = 1

READ_SECONDS = 0.002
"""The seconds of one read, about as long as of a local server. A read returns the records that arrived before it."""

PAGE_RECORDS = 1_000
"""The largest number of records that one read returns."""

HOUR_SECONDS = 3_600.0
SILENCE_SECONDS = 600.0

TRIALS = 40
"""The number of silences after which the wait of the first record is measured. Each silence has another length."""

_MINUTE = 60.0


class ReadingLaw(Protocol):
    """A law that decides when each shard of one worker is read next. Times are seconds of one clock."""

    def pause_after(self, shard: int, records: int, began: float, now: float) -> float:
        """Return the pause from ``now``, after a read of ``shard`` that began at ``began`` and ended at ``now``.

        The read returned ``records`` records; 0 for an empty page.
        """


@frozen
class FixedPause:
    """The Java client's law: every ``seconds`` a loop visits each shard, and reads it if its last read has ended."""

    seconds: float

    def pause_after(self, shard: int, records: int, began: float, now: float) -> float:
        """Return the seconds until the loop visits the shard next."""
        return began + ceil((now - began) / self.seconds) * self.seconds - now


_POSITION = Position("position")
_EMPTY = RecordPage((), _POSITION, may_more_record=False)
_FILLED = RecordPage((put("key"),), _POSITION, may_more_record=True)


class WorkerPauses:
    """The law of this package's workers, by which ``ConsumerMachine`` pauses, for all shards of one table."""

    def __init__(self, config: ClientConfig, shards: int = SHARDS) -> None:
        table = WorkerPace(config).table()
        self._shards = [ConsumerBackoff(config, random.Random(shard), table.shard()) for shard in range(shards)]

    def pause_after(self, shard: int, records: int, began: float, now: float) -> float:
        """Return the pause that ``ConsumerMachine`` would make."""
        backoff, page = self._shards[shard], _FILLED if records else _EMPTY
        backoff.read_begins(began)
        backoff.read_succeeded(page, now)
        return 0.0 if records and backoff.follow_ups.is_due(page) else backoff.caught_up_pause(page, _POSITION, now)


@frozen
class Part:
    """A part of the hour in which records arrive at one rhythm."""

    name: str
    minutes: int
    each_minute: int
    """The number of records in each minute; 0 in a silence."""
    within_seconds: float = _MINUTE
    """The seconds of each minute within which its records arrive: all 60 in a steady part, fewer for bursts."""

    def moments(self, begin: float, dice: random.Random) -> Iterator[float]:
        """Return the moments of arrival in the part, which begins at ``begin``. Each is random within its own slot."""
        for minute in range(self.minutes):
            first = begin + minute * _MINUTE + dice.random() * (_MINUTE - self.within_seconds)
            slot = self.within_seconds / max(self.each_minute, 1)
            for number in range(self.each_minute):
                yield first + (number + dice.random()) * slot


PARTS = (
    Part("trickle", 20, 60),
    Part("silence", 10, 0),
    Part("bursts", 15, 600, within_seconds=3.0),
    Part("silence", 10, 0),
    Part("steady", 5, 3_000),
)


@frozen
class Arrivals:
    """The moments at which records arrive, in order, and the shard of each record."""

    moments: Sequence[float]
    shards: Sequence[int]
    end: float = HOUR_SECONDS
    """The moment after which requests do not count. Records that have arrived before it are still read afterwards."""

    def of_shards(self) -> list[list[int]]:
        """Return, for each shard, the numbers of its records in the order of their arrival."""
        found: list[list[int]] = [[] for _ in range(SHARDS)]
        for number, shard in enumerate(self.shards):
            found[shard].append(number)
        return found


def arrivals_of_the_hour(seed: int = SEED) -> Arrivals:
    """Return the arrivals of an hour, with the parts in ``PARTS`` one after the other."""
    dice = random.Random(seed)
    moments: list[float] = []
    for part, begin in _beginnings():
        moments += part.moments(begin, dice)
    return Arrivals(moments, [dice.randrange(SHARDS) for _ in moments])


def _beginnings() -> Iterator[tuple[Part, float]]:
    begin = 0.0
    for part in PARTS:
        yield part, begin
        begin += part.minutes * _MINUTE


def arrivals_around_a_silence(seed: int) -> Arrivals:
    """Return one record a second for a minute, and one more record after a silence of ten minutes or a bit longer."""
    dice = random.Random(seed)
    moments = list(Part("trickle", 1, 60).moments(0.0, dice))
    moments.append(_MINUTE + SILENCE_SECONDS + 10.0 * dice.random())
    return Arrivals(moments, [dice.randrange(SHARDS) for _ in moments], end=moments[-1])


@frozen
class Course:
    """The result of a simulation: the requests, and the waits of the records."""

    arrivals: Arrivals
    requests: int
    waits: Sequence[float] = field(repr=False)
    """The seconds from each record's arrival to the end of the read that returned it, in order of arrival."""

    def waits_by_part(self) -> dict[str, list[float]]:
        """Return the waits by part of the hour, for all parts that have records."""
        found: dict[str, list[float]] = {}
        for part, begin in _beginnings():
            end = begin + part.minutes * _MINUTE
            own = [w for w, at in zip(self.waits, self.arrivals.moments, strict=True) if begin <= at < end]
            if own:
                found.setdefault(part.name, []).extend(own)
        return found


def play(law: ReadingLaw, arrivals: Arrivals) -> Course:
    """Simulate the reads of all shards by ``law``, at least to the end of the hour, until every record is read."""
    moments, end, pause_after = arrivals.moments, arrivals.end, law.pause_after
    waits = [0.0] * len(moments)
    unread = [iter(numbers) for numbers in arrivals.of_shards()]
    nexts = [next(numbers, None) for numbers in unread]
    turns = [(0.0, shard) for shard in range(SHARDS)]
    requests = 0
    while True:
        began, shard = turns[0]
        if began < end:
            requests += 1
        elif nexts == [None] * SHARDS:
            return Course(arrivals, requests, waits)
        now, records, number = began + READ_SECONDS, 0, nexts[shard]
        while number is not None and moments[number] <= began and records < PAGE_RECORDS:
            waits[number] = now - moments[number]
            records += 1
            number = nexts[shard] = next(unread[shard], None)
        heapq.heapreplace(turns, (now + pause_after(shard, records, began, now), shard))


def first_waits(make_law: Callable[[], ReadingLaw], trials: int = TRIALS) -> list[float]:
    """Return the seconds that the first record waits, for each of ``trials`` silences of ten minutes."""
    return [play(make_law(), arrivals_around_a_silence(seed)).waits[-1] for seed in range(trials)]
