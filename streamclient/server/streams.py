"""Streams: shards of one table's changes, in commit order.

Laws:

- A shard owns a range of keys while it is open; the ranges of a stream's open shards cover all keys once.
- Positions in a shard count up by one and are never used twice; an iterator is a position.
- Sequence timestamps rise with every request, across all shards of the stream; only rows of one batch share one.
- A shard that closes never grows again, and its children start later: with a greater epoch and later timestamps.
- Nothing is forgotten but by retention, by an explicit trim, or with the stream itself.
"""

from __future__ import annotations

import json
import uuid
from bisect import bisect_left

import attrs
from attrs import frozen

_MICROS_PER_HOUR = 3_600_000_000


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


class Shard:
    """Records of one key range. Only the state changes it, under the engine's lock."""

    def __init__(self, definition: ShardDefinition) -> None:
        self.definition = definition
        self.closed_micros: int | None = None
        self.first_position = 0
        self.last_timestamp_micros = 0
        self.records: list[StoredRecord] = []
        self._timestamps: list[int] = []

    @property
    def shard_id(self) -> str:
        """Its id."""
        return self.definition.shard_id

    @property
    def is_open(self) -> bool:
        """Whether it still takes records."""
        return self.closed_micros is None

    @property
    def next_position(self) -> int:
        """The position that the next record will have."""
        return self.first_position + len(self.records)

    def append(self, record: StoredRecord) -> int:
        """Take one more record; the position it got."""
        position = self.next_position
        self.records.append(record)
        self._timestamps.append(record.timestamp_micros)
        self.last_timestamp_micros = record.timestamp_micros
        return position

    def position_at(self, timestamp_micros: int) -> int:
        """Position of the first retained record at or after a time; the next position if there is none."""
        return self.first_position + bisect_left(self._timestamps, timestamp_micros)

    def page(self, position: int, limit: int, limit_bytes: int) -> list[StoredRecord]:
        """Records from a position on: at most ``limit``, and ``limit_bytes`` unless the first is larger."""
        taken: list[StoredRecord] = []
        total = 0
        start = position - self.first_position
        for record in self.records[start : start + limit]:
            total += len(record.element)
            if taken and total > limit_bytes:
                break
            taken.append(record)
        return taken

    def forget_before(self, position: int) -> int:
        """Drop the records before a position; how many."""
        count = max(0, min(position, self.next_position) - self.first_position)
        if count:
            del self.records[:count]
            del self._timestamps[:count]
            self.first_position += count
        return count

    def is_listed(self, cutoff_micros: int) -> bool:
        """Whether DescribeStream shows it: a closed shard disappears with the last of its records.

        A shard that never had any is shown until its closing is past retention.
        """
        if self.closed_micros is None or self.records:
            return True
        return self.next_position == 0 and self.closed_micros >= cutoff_micros

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

    @property
    def stream_id(self) -> str:
        """Its id."""
        return self.definition.stream_id

    def cutoff_micros(self, now_micros: int) -> int:
        """Records older than this are past retention."""
        return now_micros - self.definition.expiration_hours * _MICROS_PER_HOUR

    def new_shard_id(self) -> str:
        """A shard id in the service's form: a random UUID and the stream's creation time."""
        return f"{uuid.uuid4()}_{self.definition.created_micros}"

    def add(self, shard: Shard) -> None:
        """Take a shard, new or restored with its records."""
        self.shards[shard.shard_id] = shard
        self.last_timestamp_micros = max(self.last_timestamp_micros, shard.last_timestamp_micros)
        self.refresh()

    def refresh(self) -> None:
        """Look again at which shards are open; to be called after one closed."""
        shards = (shard for shard in self.shards.values() if shard.is_open)
        self.open_shards = sorted(shards, key=lambda shard: shard.definition.begin)

    def next_timestamp(self, now_micros: int) -> int:
        """The sequence timestamp of the next request's records: the clock, but later than everything before."""
        return max(now_micros, self.last_timestamp_micros + 1)

    def append(self, shard: Shard, record: StoredRecord) -> int:
        """Add a record to one of the open shards; its position."""
        self.last_timestamp_micros = record.timestamp_micros
        return shard.append(record)

    def listed(self, now_micros: int) -> list[Shard]:
        """The shards that DescribeStream shows."""
        cutoff = self.cutoff_micros(now_micros)
        return [shard for shard in self.shards.values() if shard.is_listed(cutoff)]
