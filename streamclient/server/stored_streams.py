"""Streams: shards of one table's changes, in commit order.

Laws:

- A shard owns a range of keys while it is open. The ranges of a stream's open shards contain each key exactly once.
- Positions in a shard count up by one and are never used twice; an iterator is a position.
- Sequence timestamps rise with every request, across all shards of the stream. Only rows of one batch share a
  timestamp.
- A shard that closes never grows again, and its children start later: with a greater epoch and later timestamps.
- Records are deleted only by retention, by an explicit trim, or with the stream itself.
- The cost of a request does not grow with old data: ``wake_micros`` says when a shard must be checked, and only shards
  whose time has come are checked.
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
"""The parts at the end of a shard id: the shard's number, and a checksum over the stream and the rest of the id."""


@frozen
class StreamDefinition:
    """The fixed properties of a stream, and the present generation of its iterators."""

    stream_id: str
    number: int
    table_number: int
    table_name: str
    created_micros: int
    expiration_hours: int
    origin_columns: tuple[str, ...] = ()
    """The attribute columns whose previous values each record includes."""
    generation: int = 0
    """The number of times that all iterators were invalidated."""

    def to_json(self) -> str:
        """Return the form that the storage keeps."""
        return json.dumps(attrs.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> StreamDefinition:
        """Return the definition that ``to_json`` wrote."""
        document = json.loads(text)
        document["origin_columns"] = tuple(document["origin_columns"])
        return cls(**document)


@frozen
class StoredRecord:
    """One change, ready to be sent."""

    timestamp_micros: int
    size_bytes: int
    """The row's size in bytes, from which capacity units are computed."""
    element: bytes
    """The record as one repeated element of GetStreamRecordResponse."""


@frozen
class RecordRun:
    """Consecutive records of a shard."""

    elements: list[bytes]
    timestamps: Sequence[int]
    size_bytes: int
    """The size of the rows in bytes, from which capacity units are computed."""

    def before(self, count: int) -> list[bytes]:
        """Return the first ``count`` records, each as an element of an answer."""
        return self.elements if count >= len(self.elements) else self.elements[:count]


@frozen
class ShardDefinition:
    """Identity and lineage of a shard."""

    shard_id: str
    number: int
    epoch: int
    begin: bytes
    """The encoded first key of the range, inclusive; empty for the lowest range."""
    end: bytes | None
    """The encoded end of the range, exclusive; ``None`` for the highest range."""
    parent_id: str | None = None
    parent_sibling_id: str | None = None


_FORGOTTEN = b""
"""The placeholder of a deleted record until the list is shortened."""


def shard_id_for(stream: StreamDefinition, number: int) -> str:
    """Return a shard id in the service's form: a UUID and the stream's creation time.

    The UUID is random except for its end, which contains the shard's number. So without remembering a deleted shard,
    the server can distinguish it from a shard that never existed, and knows its order.
    """
    head = uuid.UUID(bytes=os.urandom(16), version=4).bytes[: -_NUMBER_BYTES - _CHECK_BYTES]
    head += number.to_bytes(_NUMBER_BYTES, "big")
    return f"{uuid.UUID(bytes=head + _check(stream, head))}_{stream.created_micros}"


def number_of(stream: StreamDefinition, shard_id: str) -> int | None:
    """Return the number in an id that ``shard_id_for`` made for this stream; ``None`` for any other text."""
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
        self.first_position: int = 0
        self.last_timestamp_micros: int = 0
        self.is_shown = True
        """Whether the stream's listing contains the shard at present."""
        self.is_awaited = False
        """Whether the stream's heap of later checks contains the shard at present."""
        # Use parallel lists. Objects would often take more memory than their records.
        self._elements: list[bytes] = []
        self._timestamps = array("q")
        self._sizes = array("q")
        self._forgotten = 0
        """The number of deleted entries at the beginning of the lists."""

    @property
    def shard_id(self) -> str:
        """The shard's id."""
        return self.definition.shard_id

    @property
    def is_open(self) -> bool:
        """Whether the shard still accepts records."""
        return self.closed_micros is None

    @property
    def record_count(self) -> int:
        """The number of retained records."""
        return len(self._elements) - self._forgotten

    @property
    def next_position(self) -> int:
        """The position of the next record."""
        return self.first_position + self.record_count

    @property
    def oldest(self) -> StoredRecord | None:
        """The oldest retained record."""
        return self._record(self._forgotten) if self.record_count else None

    @property
    def newest(self) -> StoredRecord | None:
        """The newest retained record."""
        return self._record(-1) if self.record_count else None

    def _record(self, place: int) -> StoredRecord:
        return StoredRecord(self._timestamps[place], self._sizes[place], self._elements[place])

    def append(self, timestamp_micros: int, size_bytes: int, element: bytes) -> int:
        """Append a record, given by the parts of ``StoredRecord``; return its position."""
        position = self.first_position + len(self._elements) - self._forgotten
        self._elements.append(element)
        self._timestamps.append(timestamp_micros)
        self._sizes.append(size_bytes)
        self.last_timestamp_micros = timestamp_micros
        return position

    def position_at(self, timestamp_micros: int) -> int:
        """Return the position of the first retained record at or after a time.

        Without such a record, return the next position.
        """
        place = bisect_left(self._timestamps, timestamp_micros, lo=self._forgotten)
        return self.first_position + place - self._forgotten

    def page(self, position: int, limit: int, limit_bytes: int) -> RecordRun:
        """Return at most ``limit`` records from ``position`` on, in at most ``limit_bytes``.

        The first record may be larger.
        """
        start = position - self.first_position + self._forgotten
        elements = self._elements[start : start + limit]
        if sum(map(len, elements)) > limit_bytes:
            total = accumulate(map(len, elements))
            elements = elements[: max(1, sum(1 for _ in takewhile(lambda size: size <= limit_bytes, total)))]
        end = start + len(elements)
        return RecordRun(elements, self._timestamps[start:end], sum(self._sizes[start:end]))

    def forget_before(self, position: int) -> int:
        """Drop the records before ``position``; return their number.

        The lists are shortened when half of their entries are deleted, so dropping one record of many is cheap.
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
        """Return whether DescribeStream shows the shard. A closed shard disappears with its last record.

        A shard without any record is shown until its closing is past retention.
        """
        if self.closed_micros is None or self.record_count:
            return True
        return self.next_position == 0 and self.closed_micros >= cutoff_micros

    def wake_micros(self, retention_micros: int) -> int | None:
        """Return a time: once it is past retention, this shard must be checked.

        Return ``None`` while nothing can expire. A closed shard first leaves the listing, and is forgotten one
        retention later. Until then, a reader at the shard's end can still learn that the shard ended.
        """
        if self.record_count:
            return self._timestamps[self._forgotten]
        if self.closed_micros is None:
            return None
        return self.closed_micros if self.is_shown and not self.next_position else self.closed_micros + retention_micros

    def to_json(self) -> str:
        """Return the form that the storage keeps, without the records, which are stored separately."""
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
        """Return the shard that ``to_json`` wrote, without its records."""
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
    """All shards of one stream, in order of creation: parents come before their children."""

    def __init__(self, definition: StreamDefinition) -> None:
        self.definition = definition
        self.shards: dict[str, ShardLog] = {}
        self.open_shards: list[ShardLog] = []
        """The shards that take records, by key range from the lowest."""
        self.last_timestamp_micros: int = 0
        """The latest sequence timestamp of all shards, including deleted shards."""
        self._listed: list[ShardLog] = []
        """The shards that DescribeStream shows, by number."""
        self._awaited: list[tuple[int, int, ShardLog]] = []
        """A heap of shards, ordered by the time when they must be checked, then by number."""

    @property
    def stream_id(self) -> str:
        """The stream's id."""
        return self.definition.stream_id

    @property
    def retention_micros(self) -> int:
        """The retention of records."""
        return self.definition.expiration_hours * MICROS_PER_HOUR

    def cutoff_micros(self, now_micros: int) -> int:
        """Return the time before which records are past retention."""
        return now_micros - self.retention_micros

    def had(self, shard_id: str) -> bool:
        """Return whether the stream has or had this shard."""
        return shard_id in self.shards or number_of(self.definition, shard_id) is not None

    def add(self, shard: ShardLog) -> None:
        """Add a shard, new or restored with its records. Shards must be added in the order of their numbers."""
        self.shards[shard.shard_id] = shard
        self._listed.append(shard)
        self.last_timestamp_micros = max(self.last_timestamp_micros, shard.last_timestamp_micros)
        if shard.is_open:
            insort(self.open_shards, shard, key=_begin)
        self._closed_or_restored(shard)

    def close(self, shard: ShardLog, now_micros: int) -> None:
        """Close an open shard, which then accepts no more records."""
        shard.closed_micros = self.next_timestamp(now_micros)
        del self.open_shards[bisect_left(self.open_shards, _begin(shard), key=_begin)]
        self._closed_or_restored(shard)

    def _closed_or_restored(self, shard: ShardLog) -> None:
        self.unlist(shard, cutoff_micros=0)  # If all of its records are gone, only its expiry is awaited.
        self.await_expiry(shard)

    def forget(self, shard: ShardLog) -> None:
        """Forget a shard that closed long ago."""
        del self.shards[shard.shard_id]

    def unlist(self, shard: ShardLog, cutoff_micros: int) -> None:
        """Remove a shard from the listing if its time has come, so that pages of the listing need not skip it."""
        if shard.is_shown and not shard.is_listed(cutoff_micros):
            shard.is_shown = False
            del self._listed[bisect_left(self._listed, shard.definition.number, key=_number)]

    def await_expiry(self, shard: ShardLog) -> None:
        """Schedule a check of the shard for the time when its data may expire. Until then, further calls do nothing."""
        wake_micros = shard.wake_micros(self.retention_micros)
        if wake_micros is not None and not shard.is_awaited:
            shard.is_awaited = True
            heappush(self._awaited, (wake_micros, shard.definition.number, shard))

    def next_due(self, cutoff_micros: int) -> ShardLog | None:
        """Return a shard that must be checked now, another shard at each call; ``None`` if there is no more."""
        if not self._awaited or self._awaited[0][0] >= cutoff_micros:
            return None
        shard = heappop(self._awaited)[2]
        shard.is_awaited = False
        return shard

    def next_timestamp(self, now_micros: int) -> int:
        """Return the next request's sequence timestamp.

        It is the clock's time, or later if earlier timestamps require that.
        """
        return max(now_micros, self.last_timestamp_micros + 1)

    def append(self, shard: ShardLog, timestamp_micros: int, size_bytes: int, element: bytes) -> int:
        """Append a record to an open shard; return its position."""
        self.last_timestamp_micros = timestamp_micros
        position = shard.append(timestamp_micros, size_bytes, element)
        if not shard.is_awaited:
            self.await_expiry(shard)
        return position

    def listed(self) -> list[ShardLog]:
        """Return the listed shards, parents before children. The stream must have no expired records."""
        return self.created_since(0)

    def page(self, start_shard_id: str | None, limit: int) -> list[ShardLog]:
        """Return at most ``limit`` listed shards from ``start_shard_id`` on, even if that shard is no longer listed."""
        number = 0 if start_shard_id is None else number_of(self.definition, start_shard_id) or 0
        first = bisect_left(self._listed, number, key=_number)
        return self._listed[first : first + limit]

    def created_since(self, number: int) -> list[ShardLog]:
        """Return the listed shards with a higher number, parents before their children."""
        return self._listed[bisect_right(self._listed, number, key=_number) :]


def _begin(shard: ShardLog) -> bytes:
    return shard.definition.begin


def _number(shard: ShardLog) -> int:
    return shard.definition.number
