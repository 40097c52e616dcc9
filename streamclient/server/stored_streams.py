"""Streams: the changes of one table, in commit order, divided into shards.

Laws:

- A shard owns a range of keys while it is open. The ranges of a stream's open shards contain each key exactly once.
- Positions in a shard count up by one. A position is never used twice. An iterator contains a position.
- Sequence timestamps rise with every request, across all shards of the stream. Only rows of one batch share a
  timestamp.
- A closed shard never grows. Its children have a greater epoch and later timestamps.
- Records are deleted only by retention, by an explicit trim, or with the stream itself.
- The cost of a request does not grow with old data. ``wake_micros`` determines when a shard is next checked for expired
  data, and the server checks only shards whose time has come.
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

from streamclient.base.kept_formats import parse_json
from streamclient.base.times import MICROS_PER_HOUR

_NUMBER_BYTES, _CHECK_BYTES = 4, 2
"""The sizes of the last two parts of a shard id's UUID: the shard's number, and a checksum. The checksum is over the
stream's id and the other bytes of the UUID."""


@frozen
class StreamDefinition:
    """The fixed properties of a stream, and the generation of its valid iterators."""

    stream_id: str
    number: int
    table_number: int
    table_name: str
    created_micros: int
    expiration_hours: int
    origin_columns: tuple[str, ...] = ()
    """The attribute columns whose previous values each record includes."""
    generation: int = 0
    """The number of times that ``expire_iterators`` invalidated all iterators of the stream."""

    def to_json(self) -> str:
        """Return the stream's definition as the JSON text that the storage keeps."""
        return json.dumps(attrs.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> StreamDefinition:
        """Return the stream's definition from the text that ``to_json`` wrote."""
        document = parse_json(text)
        document["origin_columns"] = tuple(document["origin_columns"])
        return cls(**document)


@frozen
class StoredRecord:
    """One record of a stream, in the form in which answers contain it."""

    timestamp_micros: int
    size_bytes: int
    """The row's size in bytes, from which capacity units are computed."""
    element: bytes
    """The record, serialized as one repeated element of GetStreamRecordResponse."""


@frozen
class RecordRun:
    """Consecutive records of a shard, each as a serialized element and a sequence timestamp."""

    elements: list[bytes]
    timestamps: Sequence[int]
    size_bytes: int
    """The total size of the rows in bytes, from which capacity units are computed."""

    def before(self, count: int) -> list[bytes]:
        """Return the first ``count`` records, each as a serialized element of an answer."""
        return self.elements if count >= len(self.elements) else self.elements[:count]


@frozen
class ShardDefinition:
    """The fixed properties of a shard: its id, its range of keys and its parents."""

    shard_id: str
    number: int
    epoch: int
    begin: bytes
    """The encoded first key of the shard's range; empty for the lowest range."""
    end: bytes | None
    """The encoded first key after the shard's range; ``None`` for the highest range."""
    parent_id: str | None = None
    parent_sibling_id: str | None = None


_FORGOTTEN = b""
"""The placeholder for a deleted record in a shard's list, until the list is shortened."""


def shard_id_for(stream: StreamDefinition, number: int) -> str:
    """Return a shard id in the service's form: a UUID and the stream's creation time.

    The UUID ends with the shard's number and a checksum; its other bytes are random. So the server need not remember
    deleted shards: the id alone shows whether the shard ever existed, and its number in the order of creation.
    """
    head = uuid.UUID(bytes=os.urandom(16), version=4).bytes[: -_NUMBER_BYTES - _CHECK_BYTES]
    head += number.to_bytes(_NUMBER_BYTES, "big")
    return f"{uuid.UUID(bytes=head + _check(stream, head))}_{stream.created_micros}"


def number_of(stream: StreamDefinition, shard_id: str) -> int | None:
    """Return the shard's number in an id that ``shard_id_for`` made for this stream; ``None`` for any other text."""
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
    """The records of one shard. Only ``ServerState`` changes them, under the engine's lock."""

    def __init__(self, definition: ShardDefinition) -> None:
        self.definition = definition
        self.closed_micros: int | None = None
        self.first_position: int = 0
        self.last_timestamp_micros: int = 0
        self.is_shown = True
        """Whether the stream's list of shards contains this shard."""
        self.is_awaited = False
        """Whether the stream's heap of scheduled checks for expired data contains this shard."""
        # Parallel lists save memory: an object for each record would often be larger than the record.
        self._elements: list[bytes] = []
        self._timestamps = array("q")
        self._sizes = array("q")
        self._forgotten = 0
        """The number of deleted entries at the beginning of the lists of records."""

    @property
    def shard_id(self) -> str:
        """The shard's id in the service's form; see ``shard_id_for``."""
        return self.definition.shard_id

    @property
    def is_open(self) -> bool:
        """Whether the shard still accepts records."""
        return self.closed_micros is None

    @property
    def record_count(self) -> int:
        """The number of retained records of the shard."""
        return len(self._elements) - self._forgotten

    @property
    def next_position(self) -> int:
        """The position that the next appended record will have."""
        return self.first_position + self.record_count

    @property
    def oldest(self) -> StoredRecord | None:
        """The oldest retained record; ``None`` without records."""
        return self._record(self._forgotten) if self.record_count else None

    @property
    def newest(self) -> StoredRecord | None:
        """The newest retained record; ``None`` without records."""
        return self._record(-1) if self.record_count else None

    def _record(self, place: int) -> StoredRecord:
        return StoredRecord(self._timestamps[place], self._sizes[place], self._elements[place])

    def append(self, timestamp_micros: int, size_bytes: int, element: bytes) -> int:
        """Append a record, given by the values of a ``StoredRecord``; return its position."""
        position = self.first_position + len(self._elements) - self._forgotten
        self._elements.append(element)
        self._timestamps.append(timestamp_micros)
        self._sizes.append(size_bytes)
        self.last_timestamp_micros = timestamp_micros
        return position

    def position_at(self, timestamp_micros: int) -> int:
        """Return the position of the first retained record at or after a time.

        If there is no such record, return the position of the next record to be appended.
        """
        place = bisect_left(self._timestamps, timestamp_micros, lo=self._forgotten)
        return self.first_position + place - self._forgotten

    def page(self, position: int, limit: int, limit_bytes: int) -> RecordRun:
        """Return at most ``limit`` records from ``position`` on, with at most ``limit_bytes`` in total.

        Always return the first record, even if it is larger than ``limit_bytes``.
        """
        start = position - self.first_position + self._forgotten
        elements = self._elements[start : start + limit]
        if sum(map(len, elements)) > limit_bytes:
            total = accumulate(map(len, elements))
            elements = elements[: max(1, sum(1 for _ in takewhile(lambda size: size <= limit_bytes, total)))]
        end = start + len(elements)
        return RecordRun(elements, self._timestamps[start:end], sum(self._sizes[start:end]))

    def forget_before(self, position: int) -> int:
        """Delete the records before ``position``; return the number of deleted records.

        The lists of records shrink only when half of their entries are deleted. So it is cheap to delete one of many
        records.
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
        """Return whether DescribeStream lists the shard. An open shard is always listed.

        A closed shard is listed until its last record is deleted. A closed shard that never had a record is listed
        until the time of its closing is before ``cutoff_micros``, the time before which data are past retention.
        """
        if self.closed_micros is None or self.record_count:
            return True
        return self.next_position == 0 and self.closed_micros >= cutoff_micros

    def wake_micros(self, retention_micros: int) -> int | None:
        """Return the time one retention before the shard's next check for expired data, in microseconds.

        Return ``None`` for an open shard without records, because nothing of it can expire. A closed shard leaves the
        list of shards at the latest one retention after its closing. The server forgets the shard two retentions after
        its closing. Until then, a client with an iterator at the end of the shard can still learn that the shard has
        ended.
        """
        if self.record_count:
            return self._timestamps[self._forgotten]
        if self.closed_micros is None:
            return None
        return self.closed_micros if self.is_shown and not self.next_position else self.closed_micros + retention_micros

    def to_json(self) -> str:
        """Return the shard as the JSON text that the storage keeps. The records are stored separately."""
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
        """Return the shard, without its records, from the text that ``to_json`` wrote."""
        document = parse_json(text)
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
    """The shards of one stream, in order of creation: parents come before their children."""

    def __init__(self, definition: StreamDefinition) -> None:
        self.definition = definition
        self.shards: dict[str, ShardLog] = {}
        self.open_shards: list[ShardLog] = []
        """The open shards, ordered by their key ranges."""
        self.last_timestamp_micros: int = 0
        """The latest sequence timestamp of all shards, including deleted shards."""
        self._listed: list[ShardLog] = []
        """The shards that DescribeStream lists, ordered by number."""
        self._awaited: list[tuple[int, int, ShardLog]] = []
        """A heap of scheduled checks for expired data: the result of ``ShardLog.wake_micros``, the shard's number, and
        the shard."""

    @property
    def stream_id(self) -> str:
        """The stream's id: the table's name and the creation time."""
        return self.definition.stream_id

    @property
    def retention_micros(self) -> int:
        """The retention of the stream's records, in microseconds."""
        return self.definition.expiration_hours * MICROS_PER_HOUR

    def cutoff_micros(self, now_micros: int) -> int:
        """Return the time before which records are past retention."""
        return now_micros - self.retention_micros

    def had(self, shard_id: str) -> bool:
        """Return whether the stream has or had this shard."""
        return shard_id in self.shards or number_of(self.definition, shard_id) is not None

    def add(self, shard: ShardLog) -> None:
        """Add a new shard, or a restored shard with its records. Add shards in the order of their numbers."""
        self.shards[shard.shard_id] = shard
        self._listed.append(shard)
        self.last_timestamp_micros = max(self.last_timestamp_micros, shard.last_timestamp_micros)
        if shard.is_open:
            insort(self.open_shards, shard, key=_begin)
        self._closed_or_restored(shard)

    def close(self, shard: ShardLog, now_micros: int) -> None:
        """Close an open shard, so that it accepts no more records."""
        shard.closed_micros = self.next_timestamp(now_micros)
        del self.open_shards[bisect_left(self.open_shards, _begin(shard), key=_begin)]
        self._closed_or_restored(shard)

    def _closed_or_restored(self, shard: ShardLog) -> None:
        self.unlist(shard, cutoff_micros=0)  # a restored shard may have lost all its records already
        self.await_expiry(shard)

    def forget(self, shard: ShardLog) -> None:
        """Remove a closed shard, which has already left the list of shards, from ``shards``."""
        del self.shards[shard.shard_id]

    def unlist(self, shard: ShardLog, cutoff_micros: int) -> None:
        """Remove a shard from the list of shards if its ``is_listed`` returns false for ``cutoff_micros``."""
        if shard.is_shown and not shard.is_listed(cutoff_micros):
            shard.is_shown = False
            del self._listed[bisect_left(self._listed, shard.definition.number, key=_number)]

    def await_expiry(self, shard: ShardLog) -> None:
        """Schedule a check of the shard for the time when its data may expire.

        Do nothing if a check is scheduled already.
        """
        wake_micros = shard.wake_micros(self.retention_micros)
        if wake_micros is not None and not shard.is_awaited:
            shard.is_awaited = True
            heappush(self._awaited, (wake_micros, shard.definition.number, shard))

    def next_due(self, cutoff_micros: int) -> ShardLog | None:
        """Return a shard whose check is due, and remove the shard from the schedule; ``None`` if no check is due.

        A check is due if its time in the schedule, a result of ``ShardLog.wake_micros``, is before ``cutoff_micros``.
        """
        if not self._awaited or self._awaited[0][0] >= cutoff_micros:
            return None
        shard = heappop(self._awaited)[2]
        shard.is_awaited = False
        return shard

    def next_timestamp(self, now_micros: int) -> int:
        """Return the sequence timestamp of the next request.

        The timestamp is the clock's time or one microsecond after the last timestamp, whichever is later.
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
        """Return the shards that DescribeStream lists, parents before children.

        The caller must have deleted the stream's expired records already.
        """
        return self.created_since(0)

    def page(self, start_shard_id: str | None, limit: int) -> list[ShardLog]:
        """Return at most ``limit`` of the shards that DescribeStream lists, from ``start_shard_id`` on.

        The shard ``start_shard_id`` itself need not be listed any more.
        """
        number = 0 if start_shard_id is None else number_of(self.definition, start_shard_id) or 0
        first = bisect_left(self._listed, number, key=_number)
        return self._listed[first : first + limit]

    def created_since(self, number: int) -> list[ShardLog]:
        """Return the listed shards with a number above ``number``, parents before their children."""
        return self._listed[bisect_right(self._listed, number, key=_number) :]


def _begin(shard: ShardLog) -> bytes:
    return shard.definition.begin


def _number(shard: ShardLog) -> int:
    return shard.definition.number
