"""The simulated stream: shards with ranges of keys, numbered records, splits, merges, expiry, and outdated lists.

Every record has a key and a number, which counts the changes of this key. A split gives half of the keys to each child.
A merge joins the key ranges of two neighbours. So the changes of a key are in a chain of shards, from parent to child.
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
"""The upper bound of keys, which are whole numbers. This bound allows thirty successive splits of a shard."""

KEYS_PER_SHARD = 4
"""The number of different keys that are written to one open shard. The number is small, so that each key has many
changes whose order can be wrong."""


@define(eq=False)
class SimulatedShard:
    """One shard. The lists ``keys``, ``numbers`` and ``times`` hold key, number and write time of each record."""

    shard: Shard
    low: int
    high: int
    """The end of the shard's key range, which has the keys from ``low`` to before ``high``."""
    keys: list[int] = field(factory=list)
    numbers: list[int] = field(factory=list)
    times: list[float] = field(factory=list)
    is_open: bool = True
    trimmed: int = 0
    """The number of the oldest record that the stream still has of this shard."""
    is_given_up: bool = False
    """Whether a reader has reported that retention removed unread records, and has gone on after these records."""
    poisoned: set[int] = field(factory=set)
    """The numbers of the shard's poison records, for which processors raise."""
    is_listed: bool = True
    """Whether the stream still lists the shard. A shard that leaves the list also loses its records."""

    @property
    def shard_id(self) -> str:
        """The id of the shard, which is also the key of its lease."""
        return self.shard.shard_id

    @property
    def size(self) -> int:
        """The number of records that were ever written to the shard."""
        return len(self.keys)


class PartOfShard(Sequence[StreamRecord]):
    """Consecutive records of a shard, as a sequence that makes each record when it is accessed."""

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
        """Return the ``sequence_info`` of the record at ``index``."""
        place = self.places[index]
        return SequenceInfo(1, int(self._shard.times[place] * MICROS_PER_SECOND), place)


@frozen
class SimulatedPage:
    """The response to one read of a shard: records and the next position."""

    records: PartOfShard
    next_position: Position
    may_more_record: bool | None
    body_bytes: int


def places_of(records: Sequence[StreamRecord]) -> Sequence[int]:
    """Return the number of each record in its shard."""
    return records.places if isinstance(records, PartOfShard) else [each.sequence_info.row_index for each in records]


@define(eq=False)
class SimulatedStream:
    """The simulated stream. ``shards`` and ``parents`` have the order in which the shards were opened."""

    dice: Dice
    shards: dict[str, SimulatedShard] = field(factory=dict)
    parents: dict[str, tuple[str, ...]] = field(factory=dict)
    open_ids: list[str] = field(factory=list)
    """The ids of open shards, in sorted order."""
    written: dict[int, int] = field(factory=dict)
    """The number of changes written to each key."""
    _listings: list[tuple[float, tuple[Shard, ...]]] = field(factory=list)
    """All lists of shards so far, each with the time from which it is valid."""
    _names: count[int] = field(factory=lambda: count(1))

    def open_first(self, shards: int) -> None:
        """Open the stream's first shards, ``shards`` in number, which divide the keys evenly."""
        edges = [KEY_SPACE * number // shards for number in range(shards + 1)]
        for low, high in pairwise(edges):
            self._open(low, high, ())
        self._list(0.0)

    # --- changes -----------------------------------------------------------------------------------------------

    def write(self, shard_id: str, records: int, now: float) -> None:
        """Write ``records`` new records to an open shard. Their keys are random keys of the shard's key range."""
        entry, written = self.shards[shard_id], self.written
        for _ in range(records):
            key = entry.low + (entry.high - entry.low) * self.dice.randrange(KEYS_PER_SHARD) // KEYS_PER_SHARD
            number = written[key] = written.get(key, 0) + 1
            entry.keys.append(key)
            entry.numbers.append(number)
            entry.times.append(now)

    def split(self, shard_id: str, now: float) -> tuple[str, ...]:
        """Close an open shard and open two children; return the children's ids.

        A shard with a single key is not split, and the result is empty.
        """
        entry = self.shards[shard_id]
        middle = (entry.low + entry.high) // 2
        if not entry.is_open or middle == entry.low:
            return ()
        self._close(entry)
        children = tuple(self._open(*ends, (shard_id,)) for ends in ((entry.low, middle), (middle, entry.high)))
        self._list(now)
        return children

    def merge(self, shard_id: str, now: float) -> tuple[str, ...]:
        """Close an open shard and its right neighbour, and open one child; return the child's id.

        Without an open right neighbour, the shard stays open and the result is empty.
        """
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
        """Remove a closed shard, with all its records, from the stream's list."""
        self.shards[shard_id].is_listed = False
        self._list(now)

    def trim(self, shard_id: str, share: float) -> bool:
        """Trim the oldest ``share`` of a shard's remaining records; return whether any record was trimmed."""
        entry = self.shards[shard_id]
        taken = int((entry.size - entry.trimmed) * share)
        entry.trimmed += taken
        return taken > 0

    # --- reading -----------------------------------------------------------------------------------------------

    def listing(self, moment: float) -> tuple[Shard, ...]:
        """Return the list of shards that was valid at ``moment``. A time before the first list gives the first list."""
        since = [at for at, _ in self._listings]
        place = bisect_left(since, moment + 1e-9)
        return self._listings[max(place - 1, 0)][1]

    def listed_times(self) -> tuple[dict[str, float], dict[str, float]]:
        """Return the times when shards were first listed, and when they left the list, each by shard id."""
        opened: dict[str, float] = {}
        left: dict[str, float] = {}
        for at, listed in self._listings:
            names = {each.shard_id for each in listed}
            opened.update((name, at) for name in names if name not in opened)
            left.update((name, at) for name in opened if name not in names and name not in left)
        return opened, left

    def place_at(self, shard_id: str, moment: float) -> int:
        """Return the number of the shard's first record that was written at or after ``moment``."""
        return bisect_left(self.shards[shard_id].times, moment)

    def ancestors(self, shard_id: str) -> set[str]:
        """Return the ids of all ancestors of a shard."""
        return ancestors(shard_id, self.parents)

    def expirable_ids(self) -> list[str]:
        """Return the sorted ids of closed shards that may leave the stream: all their ancestors have already left."""
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
    """Return the number of the next record at ``checkpoint``, which must not be the end of a shard."""
    return 0 if checkpoint == CheckpointPosition.TRIM_HORIZON else int(checkpoint.split(":", 1)[0])
