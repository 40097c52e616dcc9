"""The simulated stream: shards with ranges of keys, records with numbers, splits, merges, expiry, old lists.

Every record has a key and a number, which counts the changes of that key. A split gives one half of the keys to each
child, and a merge joins the ranges of two neighbours. So the changes of a key are in a chain of shards.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import count, pairwise
from typing import overload

from attrs import define, field, frozen

from streamclient.base.position import Position
from streamclient.base.times import MICROS_PER_SECOND
from streamclient.model import CheckpointPosition, Shard
from streamclient.records import RecordType, SequenceInfo, StreamRecord
from streamclient.testing.history import ancestors
from streamclient.testing.simulation.kernel import Dice

STREAM_ID = "stream"

KEY_SPACE = 1 << 30
"""The upper bound of keys, which are whole numbers. It allows thirty splits, one within the other."""

KEYS_PER_SHARD = 4
"""The number of different keys written to one open shard. They are few, so that each has many changes whose order can
be wrong."""


@define(eq=False)
class SimulatedShard:
    """One shard. Its records are stored as columns: the key, the number and the time of writing of each record."""

    shard: Shard
    low: int
    high: int
    """The upper end of the shard's keys: they run from ``low`` up to, not including, ``high``."""
    keys: list[int] = field(factory=list)
    numbers: list[int] = field(factory=list)
    times: list[float] = field(factory=list)
    is_open: bool = True
    trimmed: int = 0
    """Number of the oldest record that the stream still has."""
    is_given_up: bool = False
    """Whether retention removed unread records, which was reported, and the loss was accepted."""
    poisoned: set[int] = field(factory=set)
    """Numbers of poison records."""
    is_listed: bool = True
    """Whether the stream still lists the shard. The records of a shard disappear when it leaves the list."""

    @property
    def shard_id(self) -> str:
        """The id of the shard."""
        return self.shard.shard_id

    @property
    def size(self) -> int:
        """The number of records that were written to the shard."""
        return len(self.keys)


class PartOfShard(Sequence[StreamRecord]):
    """Consecutive records of a shard. Each record is made when it is accessed."""

    def __init__(self, shard: SimulatedShard, start: int, end: int) -> None:
        self._shard = shard
        self.places = range(start, end)
        """The numbers of the records in their shard."""

    def __len__(self) -> int:
        return len(self.places)

    @overload
    def __getitem__(self, index: int) -> StreamRecord: ...

    @overload
    def __getitem__(self, index: slice) -> PartOfShard: ...

    def __getitem__(self, index: int | slice) -> StreamRecord | PartOfShard:
        if isinstance(index, slice):
            part = self.places[index]
            return PartOfShard(self._shard, part.start, part.stop)
        key = (("key", self._shard.keys[self.places[index]]),)
        return StreamRecord(RecordType.PUT, key, sequence_info=self.sequence_info(index))

    def sequence_info(self, index: int) -> SequenceInfo:
        """Return the sequence of a record."""
        place = self.places[index]
        return SequenceInfo(1, int(self._shard.times[place] * MICROS_PER_SECOND), place)


@frozen
class SimulatedPage:
    """The result of one read."""

    records: PartOfShard
    next_position: Position
    may_more_record: bool | None
    body_bytes: int


def places_of(records: Sequence[StreamRecord]) -> Sequence[int]:
    """Return the numbers of records in their shard."""
    return records.places if isinstance(records, PartOfShard) else [each.sequence_info.row_index for each in records]


@define(eq=False)
class SimulatedStream:
    """Shards by id, in the order in which they appeared."""

    dice: Dice
    shards: dict[str, SimulatedShard] = field(factory=dict)
    parents: dict[str, tuple[str, ...]] = field(factory=dict)
    open_ids: list[str] = field(factory=list)
    """The sorted ids of open shards."""
    written: dict[int, int] = field(factory=dict)
    """Number of changes of each key."""
    _listings: list[tuple[float, tuple[Shard, ...]]] = field(factory=list)
    """The lists of shards, each with the time from which on it holds."""
    _names: count[int] = field(factory=lambda: count(1))

    def open_first(self, shards: int) -> None:
        """Open the first ``shards`` shards, which share the keys evenly."""
        edges = [KEY_SPACE * number // shards for number in range(shards + 1)]
        for low, high in pairwise(edges):
            self._open(low, high, ())
        self._list(0.0)

    # --- changes -----------------------------------------------------------------------------------------------

    def write(self, shard_id: str, records: int, now: float) -> None:
        """Write records with a shard's keys. The shard must be open."""
        entry, written = self.shards[shard_id], self.written
        for _ in range(records):
            key = entry.low + (entry.high - entry.low) * self.dice.randrange(KEYS_PER_SHARD) // KEYS_PER_SHARD
            number = written[key] = written.get(key, 0) + 1
            entry.keys.append(key)
            entry.numbers.append(number)
            entry.times.append(now)

    def split(self, shard_id: str, now: float) -> tuple[str, ...]:
        """Close a shard and open two children; do nothing if it holds a single key."""
        entry = self.shards[shard_id]
        middle = (entry.low + entry.high) // 2
        if not entry.is_open or middle == entry.low:
            return ()
        self._close(entry)
        children = tuple(self._open(*ends, (shard_id,)) for ends in ((entry.low, middle), (middle, entry.high)))
        self._list(now)
        return children

    def merge(self, shard_id: str, now: float) -> tuple[str, ...]:
        """Close a shard and its right neighbour and open one child; do nothing without an open neighbour."""
        entry = self.shards[shard_id]
        neighbour = next((self.shards[name] for name in self.open_ids if self.shards[name].low == entry.high), None)
        if not entry.is_open or neighbour is None:
            return ()
        for closing in (entry, neighbour):
            self._close(closing)
        children = (self._open(entry.low, neighbour.high, (shard_id, neighbour.shard_id)),)
        self._list(now)
        return children

    def expire(self, shard_id: str, now: float) -> None:
        """Remove a closed shard with all its records."""
        self.shards[shard_id].is_listed = False
        self._list(now)

    def trim(self, shard_id: str, share: float) -> bool:
        """Let retention remove a share of a shard's remaining records; return whether there were any."""
        entry = self.shards[shard_id]
        taken = int((entry.size - entry.trimmed) * share)
        entry.trimmed += taken
        return taken > 0

    # --- reading -----------------------------------------------------------------------------------------------

    def listing(self, moment: float) -> tuple[Shard, ...]:
        """Return the list of shards at a moment; for an earlier moment, the first list."""
        since = [at for at, _ in self._listings]
        place = bisect_left(since, moment + 1e-9)
        return self._listings[max(place - 1, 0)][1]

    def listed_times(self) -> tuple[dict[str, float], dict[str, float]]:
        """Return, by id, the times when shards were first listed, and the times when they were no longer listed."""
        opened: dict[str, float] = {}
        left: dict[str, float] = {}
        for at, listed in self._listings:
            names = {each.shard_id for each in listed}
            opened.update((name, at) for name in names if name not in opened)
            left.update((name, at) for name in opened if name not in names and name not in left)
        return opened, left

    def place_at(self, shard_id: str, moment: float) -> int:
        """Return the number of the shard's first record that was written at or after a moment."""
        return bisect_left(self.shards[shard_id].times, moment)

    def ancestors(self, shard_id: str) -> set[str]:
        """Return all shards before a shard, up to the first ones."""
        return ancestors(shard_id, self.parents)

    def expirable_ids(self) -> list[str]:
        """Return the sorted ids of closed shards without listed ancestors: records expire in the order of their age."""
        closed = [name for name, entry in self.shards.items() if entry.is_listed and not entry.is_open]
        return sorted(name for name in closed if not any(self.shards[old].is_listed for old in self.ancestors(name)))

    # --- inside ------------------------------------------------------------------------------------------------

    def _open(self, low: int, high: int, parents: tuple[str, ...]) -> str:
        name = f"s{next(self._names):03d}"
        first, second = (*parents, None, None)[:2]
        self.parents[name] = parents
        self.shards[name] = SimulatedShard(Shard(name, first, second), low, high)
        self.open_ids = sorted([*self.open_ids, name])
        return name

    def _close(self, entry: SimulatedShard) -> None:
        entry.is_open = False
        self.open_ids.remove(entry.shard_id)

    def _list(self, now: float) -> None:
        listed = tuple(entry.shard for entry in self.shards.values() if entry.is_listed)
        self._listings.append((now, listed))


def place_of(checkpoint: str) -> int:
    """Return the number of the next record for a position other than the end."""
    return 0 if checkpoint == CheckpointPosition.TRIM_HORIZON else int(checkpoint.split(":", 1)[0])
