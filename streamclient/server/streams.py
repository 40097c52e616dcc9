"""Streams: shards of one table's changes, in commit order.

Laws:

- A shard owns a range of keys while it is open; the ranges of a stream's open shards cover all keys once.
- Positions in a shard count up by one and are never used twice; an iterator is a position.
- Sequence timestamps rise with every request, across all shards of the stream; only rows of one batch share one.
- A shard that closes never grows again, and its children start later: with a greater epoch and later timestamps.
- Nothing is forgotten but by retention, by an explicit trim, or with the stream itself.
- What a request costs does not grow with what is past: ``wake_micros`` says when a shard has to be looked at, and only
  shards that are due are.
"""

from __future__ import annotations

import json
import os
import uuid
import zlib
from bisect import bisect_left, bisect_right, insort
from heapq import heappop, heappush
from itertools import islice

import attrs
from attrs import frozen

_MICROS_PER_HOUR = 3_600_000_000

_NUMBER_BYTES, _CHECK_BYTES = 4, 2
"""What a shard id ends in: the shard's number, and a checksum over the stream and the rest of the id."""


@frozen
class StreamDefinition:
    """What does not change in the life of a stream, and the iterators' generation."""

    stream_id: str
    number: int
    table_number: int
    table_name: str
    created_micros: int
    expiration_hours: int
    origin_columns: tuple[str, ...] = ()
    """Attribute columns whose previous values go with each record."""
    generation: int = 0
    """Counts how often outstanding iterators were made to expire."""

    def to_json(self) -> str:
        """The form in which it is stored."""
        return json.dumps(attrs.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> StreamDefinition:
        """The definition that ``to_json`` wrote."""
        document = json.loads(text)
        document["origin_columns"] = tuple(document["origin_columns"])
        return cls(**document)


@frozen
class StoredRecord:
    """One change, ready to be sent."""

    timestamp_micros: int
    size_bytes: int
    """The row's size by the capacity rule."""
    element: bytes
    """The record as one repeated element of GetStreamRecordResponse."""


@frozen
class ShardDefinition:
    """Identity and lineage of a shard."""

    shard_id: str
    number: int
    epoch: int
    begin: bytes
    """Encoded key where its range begins, inclusive; empty for the lowest."""
    end: bytes | None
    """Encoded key where its range ends, exclusive; ``None`` for the highest."""
    parent_id: str | None = None
    parent_sibling_id: str | None = None


_FORGOTTEN = StoredRecord(0, 0, b"")
"""Stands in the place of a record that was forgotten, until the list is made shorter."""


def shard_id_for(stream: StreamDefinition, number: int) -> str:
    """A shard id in the service's form: a UUID and the stream's creation time.

    The UUID is random but for its end, which holds the shard's number: so a shard that is forgotten can be told from
    one that never was, and has its place in the order of shards, without remembering it.
    """
    head = uuid.UUID(bytes=os.urandom(16), version=4).bytes[: -_NUMBER_BYTES - _CHECK_BYTES]
    head += number.to_bytes(_NUMBER_BYTES, "big")
    return f"{uuid.UUID(bytes=head + _check(stream, head))}_{stream.created_micros}"


def number_of(stream: StreamDefinition, shard_id: str) -> int | None:
    """The number in an id that ``shard_id_for`` made for this stream; ``None`` for any other text."""
    name, _, created = shard_id.partition("_")
    try:
        data = uuid.UUID(name).bytes
    except ValueError:
        return None
    head = data[:-_CHECK_BYTES]
    if created != str(stream.created_micros) or data[-_CHECK_BYTES:] != _check(stream, head):
        return None
    return int.from_bytes(head[-_NUMBER_BYTES:], "big")


def _check(stream: StreamDefinition, head: bytes) -> bytes:
    return zlib.crc32(head, zlib.crc32(stream.stream_id.encode())).to_bytes(4, "big")[:_CHECK_BYTES]


class Shard:
    """Records of one key range. Only the state changes it, under the engine's lock."""

    def __init__(self, definition: ShardDefinition) -> None:
        self.definition = definition
        self.closed_micros: int | None = None
        self.first_position = 0
        self.last_timestamp_micros = 0
        self.is_awaited = False
        """Whether its stream has it among those to be looked at later."""
        self._records: list[StoredRecord] = []
        self._timestamps: list[int] = []
        self._forgotten = 0
        """How many places at the beginning of the lists are forgotten."""

    @property
    def shard_id(self) -> str:
        """Its id."""
        return self.definition.shard_id

    @property
    def is_open(self) -> bool:
        """Whether it still takes records."""
        return self.closed_micros is None

    @property
    def record_count(self) -> int:
        """Records that are retained."""
        return len(self._records) - self._forgotten

    @property
    def next_position(self) -> int:
        """The position that the next record will have."""
        return self.first_position + self.record_count

    @property
    def oldest(self) -> StoredRecord | None:
        """The first record that is retained."""
        return self._records[self._forgotten] if self.record_count else None

    @property
    def newest(self) -> StoredRecord | None:
        """The last record that is retained."""
        return self._records[-1] if self.record_count else None

    def append(self, record: StoredRecord) -> int:
        """Take one more record; the position it got."""
        position = self.next_position
        self._records.append(record)
        self._timestamps.append(record.timestamp_micros)
        self.last_timestamp_micros = record.timestamp_micros
        return position

    def position_at(self, timestamp_micros: int) -> int:
        """Position of the first retained record at or after a time; the next position if there is none."""
        place = bisect_left(self._timestamps, timestamp_micros, lo=self._forgotten)
        return self.first_position + place - self._forgotten

    def page(self, position: int, limit: int, limit_bytes: int) -> list[StoredRecord]:
        """Records from a position on: at most ``limit``, and ``limit_bytes`` unless the first is larger."""
        taken: list[StoredRecord] = []
        total = 0
        start = position - self.first_position + self._forgotten
        for record in self._records[start : start + limit]:
            total += len(record.element)
            if taken and total > limit_bytes:
                break
            taken.append(record)
        return taken

    def forget_before(self, position: int) -> int:
        """Drop the records before a position; how many.

        The lists are made shorter when half of them is forgotten, so that dropping one record of many costs little.
        """
        count = max(0, min(position, self.next_position) - self.first_position)
        if count:
            end = self._forgotten + count
            self._records[self._forgotten : end] = [_FORGOTTEN] * count
            self._forgotten = end
            self.first_position += count
            if 2 * end >= len(self._records):
                del self._records[:end]
                del self._timestamps[:end]
                self._forgotten = 0
        return count

    def is_listed(self, cutoff_micros: int) -> bool:
        """Whether DescribeStream shows it: a closed shard disappears with the last of its records.

        A shard that never had any is shown until its closing is past retention.
        """
        if self.closed_micros is None or self.record_count:
            return True
        return self.next_position == 0 and self.closed_micros >= cutoff_micros

    def wake_micros(self, retention_micros: int) -> int | None:
        """The time that, once it is past retention, makes this shard due; ``None`` while nothing can expire.

        A closed shard is forgotten one retention after it left the listing for good: until then, a reader that had
        read all of it learns that it ended.
        """
        if self.record_count:
            return self._timestamps[self._forgotten]
        return None if self.closed_micros is None else self.closed_micros + retention_micros

    def to_json(self) -> str:
        """The form in which it is stored; records are stored on their own."""
        definition = self.definition
        document = attrs.asdict(definition)
        document["begin"] = definition.begin.hex()
        document["end"] = None if definition.end is None else definition.end.hex()
        document["closed_micros"] = self.closed_micros
        document["first_position"] = self.first_position
        document["last_timestamp_micros"] = self.last_timestamp_micros
        return json.dumps(document)

    @classmethod
    def from_json(cls, text: str) -> Shard:
        """The shard that ``to_json`` wrote, without its records."""
        document = json.loads(text)
        closed_micros = document.pop("closed_micros")
        first_position = document.pop("first_position")
        last_timestamp_micros = document.pop("last_timestamp_micros")
        document["begin"] = bytes.fromhex(document["begin"])
        document["end"] = None if document["end"] is None else bytes.fromhex(document["end"])
        shard = cls(ShardDefinition(**document))
        shard.closed_micros = closed_micros
        shard.first_position = first_position
        shard.last_timestamp_micros = last_timestamp_micros
        return shard


class Stream:
    """All shards of one stream, in order of creation: parents stand before their children."""

    def __init__(self, definition: StreamDefinition) -> None:
        self.definition = definition
        self.shards: dict[str, Shard] = {}
        self.open_shards: list[Shard] = []
        """The shards that take records, by key range from the lowest."""
        self.last_timestamp_micros = 0
        """The latest sequence timestamp that any shard has, or had."""
        self._ordered: list[Shard] = []
        self._awaited: list[tuple[int, int, Shard]] = []
        """A heap of shards by the time that makes them due; the number decides between equal times."""

    @property
    def stream_id(self) -> str:
        """Its id."""
        return self.definition.stream_id

    @property
    def retention_micros(self) -> int:
        """How long records stay."""
        return self.definition.expiration_hours * _MICROS_PER_HOUR

    def cutoff_micros(self, now_micros: int) -> int:
        """Records older than this are past retention."""
        return now_micros - self.retention_micros

    def had(self, shard_id: str) -> bool:
        """Whether there is such a shard, or was one that is forgotten."""
        return shard_id in self.shards or number_of(self.definition, shard_id) is not None

    def add(self, shard: Shard) -> None:
        """Take a shard, new or restored with its records. Shards come in order of their numbers."""
        self.shards[shard.shard_id] = shard
        self._ordered.append(shard)
        self.last_timestamp_micros = max(self.last_timestamp_micros, shard.last_timestamp_micros)
        if shard.is_open:
            insort(self.open_shards, shard, key=_begin)
        self.await_expiry(shard)

    def close(self, shard: Shard, now_micros: int) -> None:
        """Let an open shard take no more records."""
        shard.closed_micros = self.next_timestamp(now_micros)
        del self.open_shards[bisect_left(self.open_shards, _begin(shard), key=_begin)]
        self.await_expiry(shard)

    def forget(self, shard: Shard) -> None:
        """Let go of a shard whose closing is long past."""
        del self.shards[shard.shard_id]
        del self._ordered[bisect_left(self._ordered, shard.definition.number, key=_number)]

    def await_expiry(self, shard: Shard) -> None:
        """Look at a shard when something of it may be past retention. Once is enough until it was looked at."""
        wake_micros = shard.wake_micros(self.retention_micros)
        if wake_micros is not None and not shard.is_awaited:
            shard.is_awaited = True
            heappush(self._awaited, (wake_micros, shard.definition.number, shard))

    def next_due(self, cutoff_micros: int) -> Shard | None:
        """A shard to look at now, each time another one; ``None`` if no more is due."""
        if not self._awaited or self._awaited[0][0] >= cutoff_micros:
            return None
        shard = heappop(self._awaited)[2]
        shard.is_awaited = False
        return shard

    def next_timestamp(self, now_micros: int) -> int:
        """The sequence timestamp of the next request's records: the clock, but later than everything before."""
        return max(now_micros, self.last_timestamp_micros + 1)

    def append(self, shard: Shard, record: StoredRecord) -> int:
        """Add a record to one of the open shards; its position."""
        self.last_timestamp_micros = record.timestamp_micros
        position = shard.append(record)
        self.await_expiry(shard)
        return position

    def listed(self, now_micros: int) -> list[Shard]:
        """The shards that DescribeStream shows."""
        return self.page(None, len(self.shards), now_micros)

    def page(self, start_shard_id: str | None, limit: int, now_micros: int) -> list[Shard]:
        """Listed shards from one on, at most ``limit``. That one may have left the listing since a page named it."""
        cutoff = self.cutoff_micros(now_micros)
        first = 0 if start_shard_id is None else number_of(self.definition, start_shard_id) or 0
        places = range(bisect_left(self._ordered, first, key=_number), len(self._ordered))
        return list(islice((self._ordered[place] for place in places if self._ordered[place].is_listed(cutoff)), limit))

    def created_since(self, number: int) -> list[Shard]:
        """The shards with a higher number, parents before their children."""
        return self._ordered[bisect_right(self._ordered, number, key=_number) :]


def _begin(shard: Shard) -> bytes:
    return shard.definition.begin


def _number(shard: Shard) -> int:
    return shard.definition.number
