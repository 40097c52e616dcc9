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
from array import array
from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import accumulate, takewhile

import attrs
from attrs import frozen

from streamclient.base.times import MICROS_PER_HOUR

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
class RecordRun:
    """Some records of a shard, one after the other."""

    elements: list[bytes]
    timestamps: Sequence[int]
    size_bytes: int
    """Of the rows, by the capacity rule."""

    def before(self, count: int) -> list[bytes]:
        """The first of the elements."""
        return self.elements if count >= len(self.elements) else self.elements[:count]


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


_FORGOTTEN = b""
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


class ShardLog:
    """Records of one key range. Only the state changes it, under the engine's lock."""

    def __init__(self, definition: ShardDefinition) -> None:
        self.definition = definition
        self.closed_micros: int | None = None
        self.first_position = 0
        self.last_timestamp_micros = 0
        self.is_shown = True
        """Whether its stream has it in the listing."""
        self.is_awaited = False
        """Whether its stream has it among those to be looked at later."""
        # Not a list of records: an object for each would take more memory than many a record.
        self._elements: list[bytes] = []
        self._timestamps = array("q")
        self._sizes = array("q")
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
        return len(self._elements) - self._forgotten

    @property
    def next_position(self) -> int:
        """The position that the next record will have."""
        return self.first_position + self.record_count

    @property
    def oldest(self) -> StoredRecord | None:
        """The first record that is retained."""
        return self._record(self._forgotten) if self.record_count else None

    @property
    def newest(self) -> StoredRecord | None:
        """The last record that is retained."""
        return self._record(-1) if self.record_count else None

    def _record(self, place: int) -> StoredRecord:
        return StoredRecord(self._timestamps[place], self._sizes[place], self._elements[place])

    def append(self, timestamp_micros: int, size_bytes: int, element: bytes) -> int:
        """Take one more record, by the parts of ``StoredRecord``; the position it got."""
        position = self.first_position + len(self._elements) - self._forgotten
        self._elements.append(element)
        self._timestamps.append(timestamp_micros)
        self._sizes.append(size_bytes)
        self.last_timestamp_micros = timestamp_micros
        return position

    def position_at(self, timestamp_micros: int) -> int:
        """Position of the first retained record at or after a time; the next position if there is none."""
        place = bisect_left(self._timestamps, timestamp_micros, lo=self._forgotten)
        return self.first_position + place - self._forgotten

    def page(self, position: int, limit: int, limit_bytes: int) -> RecordRun:
        """Records from a position on: at most ``limit``, and ``limit_bytes`` unless the first is larger."""
        start = position - self.first_position + self._forgotten
        elements = self._elements[start : start + limit]
        if sum(map(len, elements)) > limit_bytes:
            total = accumulate(map(len, elements))
            elements = elements[: max(1, sum(1 for _ in takewhile(lambda size: size <= limit_bytes, total)))]
        end = start + len(elements)
        return RecordRun(elements, self._timestamps[start:end], sum(self._sizes[start:end]))

    def forget_before(self, position: int) -> int:
        """Drop the records before a position; how many.

        The lists are made shorter when half of them is forgotten, so that dropping one record of many costs little.
        """
        count = max(0, min(position, self.next_position) - self.first_position)
        if count:
            end = self._forgotten + count
            self._elements[self._forgotten : end] = [_FORGOTTEN] * count
            self._forgotten = end
            self.first_position += count
            if 2 * end >= len(self._elements):
                del self._elements[:end]
                del self._timestamps[:end]
                del self._sizes[:end]
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

        A closed shard leaves the listing first, and is forgotten one retention later: until then, a reader that had
        read all of it learns that it ended.
        """
        if self.record_count:
            return self._timestamps[self._forgotten]
        if self.closed_micros is None:
            return None
        return self.closed_micros if self.is_shown and not self.next_position else self.closed_micros + retention_micros

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
    def from_json(cls, text: str) -> ShardLog:
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
        self.shards: dict[str, ShardLog] = {}
        self.open_shards: list[ShardLog] = []
        """The shards that take records, by key range from the lowest."""
        self.last_timestamp_micros = 0
        """The latest sequence timestamp that any shard has, or had."""
        self._listed: list[ShardLog] = []
        """Those that DescribeStream shows, by number."""
        self._awaited: list[tuple[int, int, ShardLog]] = []
        """A heap of shards by the time that makes them due; the number decides between equal times."""

    @property
    def stream_id(self) -> str:
        """Its id."""
        return self.definition.stream_id

    @property
    def retention_micros(self) -> int:
        """How long records stay."""
        return self.definition.expiration_hours * MICROS_PER_HOUR

    def cutoff_micros(self, now_micros: int) -> int:
        """Records older than this are past retention."""
        return now_micros - self.retention_micros

    def had(self, shard_id: str) -> bool:
        """Whether there is such a shard, or was one that is forgotten."""
        return shard_id in self.shards or number_of(self.definition, shard_id) is not None

    def add(self, shard: ShardLog) -> None:
        """Take a shard, new or restored with its records. Shards come in order of their numbers."""
        self.shards[shard.shard_id] = shard
        self._listed.append(shard)
        self.last_timestamp_micros = max(self.last_timestamp_micros, shard.last_timestamp_micros)
        if shard.is_open:
            insort(self.open_shards, shard, key=_begin)
        self._closed_or_restored(shard)

    def close(self, shard: ShardLog, now_micros: int) -> None:
        """Let an open shard take no more records."""
        shard.closed_micros = self.next_timestamp(now_micros)
        del self.open_shards[bisect_left(self.open_shards, _begin(shard), key=_begin)]
        self._closed_or_restored(shard)

    def _closed_or_restored(self, shard: ShardLog) -> None:
        self.unlist(shard, cutoff_micros=0)  # whose records are all gone; what time does to it is awaited
        self.await_expiry(shard)

    def forget(self, shard: ShardLog) -> None:
        """Let go of a shard whose closing is long past."""
        del self.shards[shard.shard_id]

    def unlist(self, shard: ShardLog, cutoff_micros: int) -> None:
        """Show a shard no longer, if that is due: pages of the listing shall not have to step over it."""
        if shard.is_shown and not shard.is_listed(cutoff_micros):
            shard.is_shown = False
            del self._listed[bisect_left(self._listed, shard.definition.number, key=_number)]

    def await_expiry(self, shard: ShardLog) -> None:
        """Look at a shard when something of it may be past retention. Once is enough until it was looked at."""
        wake_micros = shard.wake_micros(self.retention_micros)
        if wake_micros is not None and not shard.is_awaited:
            shard.is_awaited = True
            heappush(self._awaited, (wake_micros, shard.definition.number, shard))

    def next_due(self, cutoff_micros: int) -> ShardLog | None:
        """A shard to look at now, each time another one; ``None`` if no more is due."""
        if not self._awaited or self._awaited[0][0] >= cutoff_micros:
            return None
        shard = heappop(self._awaited)[2]
        shard.is_awaited = False
        return shard

    def next_timestamp(self, now_micros: int) -> int:
        """The sequence timestamp of the next request's records: the clock, but later than everything before."""
        return max(now_micros, self.last_timestamp_micros + 1)

    def append(self, shard: ShardLog, timestamp_micros: int, size_bytes: int, element: bytes) -> int:
        """Add a record to one of the open shards; its position."""
        self.last_timestamp_micros = timestamp_micros
        position = shard.append(timestamp_micros, size_bytes, element)
        if not shard.is_awaited:
            self.await_expiry(shard)
        return position

    def listed(self) -> list[ShardLog]:
        """The shards that DescribeStream shows, of a stream without expired records; parents before their children."""
        return self.created_since(0)

    def page(self, start_shard_id: str | None, limit: int) -> list[ShardLog]:
        """Listed shards from one on, at most ``limit``. That one may have left the listing since a page named it."""
        number = 0 if start_shard_id is None else number_of(self.definition, start_shard_id) or 0
        first = bisect_left(self._listed, number, key=_number)
        return self._listed[first : first + limit]

    def created_since(self, number: int) -> list[ShardLog]:
        """The listed shards with a higher number, parents before their children."""
        return self._listed[bisect_right(self._listed, number, key=_number) :]


def _begin(shard: ShardLog) -> bytes:
    return shard.definition.begin


def _number(shard: ShardLog) -> int:
    return shard.definition.number
