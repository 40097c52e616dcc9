"""An hour of mixed traffic in simulated time: the requests that a reading law sends, and the time that records wait.

The same arrivals meet every law. Time is simulated and the seed decides the arrivals, so a figure is the same on every
machine.
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
"""The time of one read, about that of a local server. A read returns the records that arrived before it began."""

PAGE_RECORDS = 1_000
"""The most records of one read."""

HOUR_SECONDS = 3_600.0
SILENCE_SECONDS = 600.0

TRIALS = 40
"""The silences after which the first record is timed, each of a length of its own."""

_MINUTE = 60.0


class ReadingLaw(Protocol):
    """Decides when each shard of one worker is read next. Times are seconds of one clock."""

    def pause_after(self, shard: int, records: int, began: float, now: float) -> float:
        """Return the pause from ``now``, after a read of ``shard`` that began at ``began`` and ended at ``now``.

        The read returned ``records`` records, which may be none.
        """


@frozen
class FixedPause:
    """The Java client's law: a loop looks at every shard once in ``seconds``, and reads it if its last read is over."""

    seconds: float

    def pause_after(self, shard: int, records: int, began: float, now: float) -> float:
        """Return the time until the next turn of the loop."""
        return began + ceil((now - began) / self.seconds) * self.seconds - now


_POSITION = Position("position")
_EMPTY = RecordPage((), _POSITION, may_more_record=False)
_FILLED = RecordPage((put("key"),), _POSITION, may_more_record=True)


class WorkerPauses:
    """The law of this package's workers: the one that ``ConsumerMachine`` asks, over the shards of one table."""

    def __init__(self, config: ClientConfig, shards: int = SHARDS) -> None:
        table = WorkerPace(config).table()
        self._shards = [ConsumerBackoff(config, random.Random(shard), table.shard()) for shard in range(shards)]

    def pause_after(self, shard: int, records: int, began: float, now: float) -> float:
        """Return the pause as the machine takes it."""
        backoff, page = self._shards[shard], _FILLED if records else _EMPTY
        backoff.read_begins(began)
        backoff.read_succeeded(page, now)
        return 0.0 if records and backoff.follow_ups.is_due(page) else backoff.caught_up_pause(page, _POSITION, now)


@frozen
class Part:
    """A part of the hour, with arrivals of one kind."""

    name: str
    minutes: int
    each_minute: int
    """The records of one minute; none in a silence."""
    within_seconds: float = _MINUTE
    """The time within which a minute's records arrive: a whole minute for a steady part, less for bursts."""

    def moments(self, begin: float, dice: random.Random) -> Iterator[float]:
        """Return the moments of arrival, each at random within its own slot, if the part begins at ``begin``."""
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
    """The moments at which records arrive, ascending, and the shard of each."""

    moments: Sequence[float]
    shards: Sequence[int]
    end: float = HOUR_SECONDS
    """The time up to which requests count. Records that arrived by then are read even if that is later."""

    def of_shards(self) -> list[list[int]]:
        """Return the numbers of the records of each shard, in order."""
        found: list[list[int]] = [[] for _ in range(SHARDS)]
        for number, shard in enumerate(self.shards):
            found[shard].append(number)
        return found


def arrivals_of_the_hour(seed: int = SEED) -> Arrivals:
    """Return the arrivals of ``PARTS``, one after the other."""
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
    """Return a record a second for a minute, then one record after ten minutes, and up to ten seconds, of silence."""
    dice = random.Random(seed)
    moments = list(Part("trickle", 1, 60).moments(0.0, dice))
    moments.append(_MINUTE + SILENCE_SECONDS + 10.0 * dice.random())
    return Arrivals(moments, [dice.randrange(SHARDS) for _ in moments], end=moments[-1])


@frozen
class Course:
    """The course of a simulation."""

    arrivals: Arrivals
    requests: int
    waits: Sequence[float] = field(repr=False)
    """The seconds from each record's arrival to the end of the read that returned it, in order of arrival."""

    def waits_by_part(self) -> dict[str, list[float]]:
        """Return the waits of each part of the hour that has records."""
        found: dict[str, list[float]] = {}
        for part, begin in _beginnings():
            end = begin + part.minutes * _MINUTE
            own = [w for w, at in zip(self.waits, self.arrivals.moments, strict=True) if begin <= at < end]
            if own:
                found.setdefault(part.name, []).extend(own)
        return found


def play(law: ReadingLaw, arrivals: Arrivals) -> Course:
    """Read all shards by ``law`` until every record is read, and at least to the end."""
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
    """Return how long the first record after each of ``trials`` silences of ten minutes waits, in seconds."""
    return [play(make_law(), arrivals_around_a_silence(seed)).waits[-1] for seed in range(trials)]
