"""Offsets of a streaming query: the query's position in each shard. Spark stores them in the query's checkpoint.

Three rules make a repeated batch equal to its first attempt.

* An offset names iterators. It never says "oldest" or "latest", whose meaning changes with time.
* Spark stores the end of each batch, but not the beginning of the first batch. After a crash in the first batch, Spark
  requests the beginning once more. So the offset of the beginning is always the same: an empty one. The positions at
  which a batch really begins are stored with the batch's end, unless the previous batch ended there. So they are stored
  in the first batch, for a new shard, and for a shard whose records were lost.
* An offset also holds the number of records that the query has read from each shard, and the last of these records. A
  task that repeats a batch reads the same number of records and compares the last record. So the task delivers the same
  rows, or raises an error.

The tasks of one batch run at the same time. So a query reads a shard only after it has read all parents of the shard to
their ends in earlier batches.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from attrs import evolve, field, frozen

from streamclient.base.kept_formats import FORMAT_MEMBER, KeptFormat
from streamclient.base.reasons import counted
from streamclient.base.times import MICROS_PER_HOUR
from streamclient.core.shard_tree import ShardTree, is_kept
from streamclient.errors import StreamClientException
from streamclient.model import Shard
from streamclient.records import SequenceInfo
from streamclient.tablestore.stream_api import StreamDescription, StreamSummary

OFFSET_FORMAT = KeptFormat("the offset of the streaming source")
"""The version of the JSON format of stored offsets, for queries of streams and of tunnels."""


@frozen
class ShardOffset:
    """The position of a query in one shard."""

    at: str | None
    """The iterator of the next record; ``None`` after the last record of a closed shard."""
    count: int = 0
    """The number of records that the query has read from the shard since the query began."""
    last: SequenceInfo | None = None
    """The sequence of the last record that the query has read from the shard; ``None`` before the first record."""
    parents: frozenset[str] = frozenset()
    """The ids of the parent shards, which the query must read to their ends before this shard."""
    ended_micros: int | None = None
    """The time when the query reached the end of the shard, by the planner's clock; ``None`` until then."""

    @property
    def is_ended(self) -> bool:
        """Whether the query has read the shard to its end."""
        return self.at is None

    def to_json(self) -> dict[str, Any]:
        """Return the offset as a JSON object, which Spark stores."""
        return {
            "at": self.at,
            "count": self.count,
            "last": None if self.last is None else [self.last.epoch, self.last.timestamp_micros, self.last.row_index],
            "parents": sorted(self.parents),
            "ended": self.ended_micros,
        }

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> ShardOffset:
        """Return the shard's offset from its JSON object, which ``to_json`` has made."""
        last = None if given["last"] is None else SequenceInfo(*given["last"])
        return cls(given["at"], given["count"], last, frozenset(given["parents"]), given["ended"])


@frozen
class StreamOffset:
    """The position of a query in all shards. With an empty ``stream_id``, the offset is the beginning of the query."""

    stream_id: str = ""
    shards: Mapping[str, ShardOffset] = field(factory=dict)
    begins: Mapping[str, str] = field(factory=dict)
    """The iterators at which the batch that ends at this offset begins, by shard. A shard is absent if the batch begins
    at the end of the previous batch."""
    listed_micros: int | None = None
    """The time, by the planner's clock, of the last listing of the shards. Every shard that is not in this offset was
    opened later. ``None`` in offsets of earlier versions of the format."""

    @property
    def is_beginning(self) -> bool:
        """Whether this offset is the beginning of the query, where no batch has been planned."""
        return not self.stream_id

    def to_json(self) -> dict[str, Any]:
        """Return the offset as a JSON object, which Spark stores. Equal offsets give equal JSON texts."""
        shards = {shard: self.shards[shard].to_json() for shard in sorted(self.shards)}
        begins = {shard: self.begins[shard] for shard in sorted(self.begins)}
        stored = {FORMAT_MEMBER: OFFSET_FORMAT.version, "stream": self.stream_id, "shards": shards, "begins": begins}
        return stored if self.listed_micros is None else {**stored, "listed": self.listed_micros}

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> StreamOffset:
        """Return the offset from its JSON object, which ``to_json`` has made.

        Raises:
            StreamClientException: ``given`` is not an offset of this source, or its version is unknown.
        """
        try:
            problem = OFFSET_FORMAT.problem(given[FORMAT_MEMBER])
            if problem:
                raise StreamClientException(f"the checkpoint cannot be read: {problem}")
            shards = {shard: ShardOffset.from_json(offset) for shard, offset in given["shards"].items()}
            return cls(given["stream"], shards, dict(given["begins"]), given.get("listed"))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise StreamClientException(
                f"the checkpoint holds an offset not written by this source ({error}): {json.dumps(given)[:200]}"
            ) from error

    def is_where(self, other: StreamOffset) -> bool:
        """Return whether this offset has the stream, the shards and the positions of the offset ``other``."""
        return self.stream_id == other.stream_id and self.shards == other.shards

    def readable(self) -> list[str]:
        """Return the shards that a batch may read if it begins at this offset."""
        tree = ShardTree({shard: offset.parents for shard, offset in self.shards.items()})
        ended = {shard for shard, offset in self.shards.items() if offset.is_ended}
        return [shard for shard in self.shards if shard not in ended and tree.may_begin(shard, ended)]

    def with_shard(self, shard: str, offset: ShardOffset, begin: str | None = None) -> StreamOffset:
        """Return a copy in which ``shard`` has the position ``offset``.

        ``begin`` is the iterator at which the batch begins in this shard; ``None`` if the previous batch ended there.
        """
        begins = self.begins if begin is None else {**self.begins, shard: begin}
        return evolve(self, shards={**self.shards, shard: offset}, begins=begins)


class ShardListing(Protocol):
    """The operations of ``StreamApi`` that list a stream's shards and give their first iterators."""

    def list_stream(self, table_name: str | None = None, /) -> Sequence[StreamSummary]:
        """Return the streams of a table. A table has at most one."""

    def describe_stream(self, stream_id: str, /) -> StreamDescription:
        """Return the description of a stream, with its shards."""

    def get_shard_iterator(self, stream_id: str, shard_id: str, timestamp_micros: int | None = None, /) -> str:
        """Return the iterator of the shard's oldest record, or of its first record from ``timestamp_micros`` on."""


@frozen
class ShardSlice:
    """The part of a batch that one task reads: ``count`` records from the iterator ``at`` on."""

    stream_id: str
    shard_id: str
    at: str
    count: int
    last: SequenceInfo
    """The sequence of the range's last record."""
    until: str | None = None
    """The iterator after the last record of the range; ``None`` if the range ends with the shard."""
    after: SequenceInfo | None = None
    """The sequence of the last record that the query has read before the range; ``None`` without such a record."""


def ranges_between(
    start: StreamOffset, end: StreamOffset, between: Mapping[str, Mapping[int, ShardOffset]] | None = None
) -> list[ShardSlice]:
    """Return the ranges of records in the batch from ``start`` to ``end``; the ranges of one shard are in order.

    Args:
        start: the beginning of the batch.
        end: the end of the batch.
        between: the positions at which one range ends and the next begins. The keys are shard ids, and then the
            ``count`` of each position, in ascending order. Positions outside the batch are ignored.

    Raises:
        StreamClientException: ``end`` is not after ``start``.
    """
    slices = []
    for shard, reached in end.shards.items():
        before = start.shards.get(shard)
        first = 0 if before is None else before.count
        if reached.count == first:
            continue
        at = end.begins.get(shard) or (None if before is None else before.at)
        after = None if before is None else before.last
        if reached.count < first or at is None or reached.last is None:
            records = counted(reached.count, "record")
            raise StreamClientException(
                f"shard {shard} has {records} at the end of the batch, but {first} at its start: the checkpoint is "
                "damaged, or two queries have written it"
            )
        within = [border for count, border in (between or {}).get(shard, {}).items() if first < count < reached.count]
        for border in (*within, reached):
            assert at is not None, "only the last border may be at the end of the shard"
            assert border.last is not None, "a border has records before it"
            slices.append(ShardSlice(end.stream_id, shard, at, border.count - first, border.last, border.at, after))
            at, first, after = border.at, border.count, border.last
    return slices


def new_shards(offset: StreamOffset, listing: Iterable[Shard]) -> list[Shard]:
    """Return the shards of ``listing`` that ``offset`` lacks."""
    return [shard for shard in listing if shard.shard_id not in offset.shards]


def may_have_lost(
    shard: Shard, offset: StreamOffset, described: StreamDescription, now_micros: int, not_listed_micros: int
) -> str:
    """Return in words why records of a new shard may be lost already; an empty text if none can be lost.

    ``core.shard_tree`` explains the rules of this check. The check also uses the last record of each parent in the
    offset, and the time when the query reached the parent's end.

    Args:
        shard: a shard that is not in ``offset``.
        offset: the position of the query.
        described: the stream with all shards that it lists now.
        now_micros: the current time.
        not_listed_micros: the time of this process's last listing that lacks the shard; 0 if every listing has it.
    """
    hours = described.expiration_time_hours
    unknown = shard.parent_shard_ids - offset.shards.keys() - {listed.shard_id for listed in described.shards}
    if unknown:
        return f"its parent {min(unknown)} was never seen and is gone"
    for parent in shard.parent_shard_ids & offset.shards.keys():
        ended = offset.shards[parent].ended_micros
        if ended is not None and not is_kept(ended, now_micros, hours):
            return f"its parent {parent} was read to the end over {hours} hours ago, and records are kept no longer"
    lasts = [offset.shards[parent].last for parent in shard.parent_shard_ids & offset.shards.keys()]
    # The shard was opened after each of these times, and after the last record of each parent.
    opened = max([offset.listed_micros or 0, not_listed_micros, *(last.timestamp_micros for last in lasts if last)])
    if shard.parent_shard_ids and offset.listed_micros is not None and not is_kept(opened, now_micros, hours):
        return (
            f"it was opened at some time in the last {(now_micros - opened) / MICROS_PER_HOUR:.1f} hours, and records "
            f"are kept for {hours} hours: the query was stopped for too long"
        )
    return ""


def without_forgotten(offset: StreamOffset, listing: Iterable[Shard], hours: int, now_micros: int) -> StreamOffset:
    """Return ``offset`` without ended shards that ``listing`` lacks and that the service cannot list any more.

    A listing is not a snapshot and may lack a shard for a moment. If the offset lost such a shard too early, the query
    would read the shard a second time. So an ended shard is kept for twice the stream's retention of ``hours``.
    """
    listed = {shard.shard_id for shard in listing}
    awaited = {parent for position in offset.shards.values() if not position.is_ended for parent in position.parents}
    kept = {
        shard: position
        for shard, position in offset.shards.items()
        if shard in listed
        or shard in awaited
        or position.ended_micros is None
        or is_kept(position.ended_micros, now_micros, 2 * hours)
    }
    return offset if len(kept) == len(offset.shards) else evolve(offset, shards=kept)


def data_loss(loss: str) -> str:
    """Return the error message for ``loss`` in a query that does not accept losses."""
    return (
        f"{loss}. The query would go on with a hole in its data: set the option failOnDataLoss to false to accept "
        "that, or begin with a new checkpoint"
    )


def not_as_planned(part: ShardSlice, count: int, last: SequenceInfo | None) -> StreamClientException:
    """Return the error of a task that found ``count`` records up to ``last`` in its range, contrary to the plan."""
    return StreamClientException(
        f"shard {part.shard_id} gave {counted(count, 'record')} up to {last}, and {part.count} up to {part.last} were "
        "planned: a batch cannot be repeated as it was, so none of its records is delivered"
    )
