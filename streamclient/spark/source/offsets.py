"""Offsets of a streaming query: how far each shard is, as Spark stores it in its checkpoint. Pure.

Three things make a repeated batch equal to the first one.

* An offset names iterators, never "oldest" or "latest", whose meaning moves with time.
* Spark stores where a batch ends, not where the first one began, and asks for the beginning again after a crash. So the
  beginning is a mark without content, and the end of a batch says itself where it began whenever it did not begin where
  the batch before ended: the first batch, a shard that is new, and one whose records were lost.
* The end says how many records each shard has delivered, and which one was the last. Whoever reads a batch again reads
  so many and compares the last: the same rows, or an error.

A shard is read once all of its parents were read to their ends in *earlier* batches, as the partitions of one batch run
side by side.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from attrs import evolve, field, frozen

from streamclient.base.times import MICROS_PER_HOUR
from streamclient.core.shard_tree import ShardTree, is_kept
from streamclient.errors import StreamClientException
from streamclient.model import Shard
from streamclient.records import SequenceInfo
from streamclient.tablestore.stream_api import StreamDescription, StreamSummary

FORMAT = 1


@frozen
class ShardOffset:
    """How far one shard is."""

    at: str | None
    """Iterator of the next record; ``None`` behind the last record of a closed shard."""
    count: int = 0
    """Records that the query has read of it."""
    last: SequenceInfo | None = None
    """The last one of them."""
    parents: frozenset[str] = frozenset()
    """Those that are to be read first."""
    ended_micros: int | None = None
    """When its end was found, by the planner's clock."""

    @property
    def is_ended(self) -> bool:
        """Whether nothing is left of it."""
        return self.at is None

    def to_json(self) -> dict[str, Any]:
        """As Spark stores it."""
        return {
            "at": self.at,
            "count": self.count,
            "last": None if self.last is None else [self.last.epoch, self.last.timestamp_micros, self.last.row_index],
            "parents": sorted(self.parents),
            "ended": self.ended_micros,
        }

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> ShardOffset:
        """What ``to_json`` wrote."""
        last = None if given["last"] is None else SequenceInfo(*given["last"])
        return cls(given["at"], given["count"], last, frozenset(given["parents"]), given["ended"])


@frozen
class StreamOffset:
    """How far a query is: the mark of the beginning if ``stream_id`` is empty."""

    stream_id: str = ""
    shards: Mapping[str, ShardOffset] = field(factory=dict)
    begins: Mapping[str, str] = field(factory=dict)
    """Where the batch that ends here began, by shard, if not where the batch before it ended."""
    listed_micros: int | None = None
    """Since when, by the planner's clock, a shard was opened that is not among these. ``None`` in offsets of versions
    that did not store it."""

    @property
    def is_beginning(self) -> bool:
        """Whether nothing is settled yet."""
        return not self.stream_id

    def to_json(self) -> dict[str, Any]:
        """As Spark stores it; equal offsets are equal text."""
        shards = {shard: self.shards[shard].to_json() for shard in sorted(self.shards)}
        begins = {shard: self.begins[shard] for shard in sorted(self.begins)}
        stored = {"format": FORMAT, "stream": self.stream_id, "shards": shards, "begins": begins}
        return stored if self.listed_micros is None else {**stored, "listed": self.listed_micros}

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> StreamOffset:
        """What ``to_json`` wrote.

        Raises:
            StreamClientException: it is something else, such as the checkpoint of another source.
        """
        try:
            if given["format"] != FORMAT:
                raise ValueError(f"format {given['format']!r}, expected {FORMAT}")
            shards = {shard: ShardOffset.from_json(one) for shard, one in given["shards"].items()}
            return cls(given["stream"], shards, dict(given["begins"]), given.get("listed"))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise StreamClientException(
                f"the checkpoint holds an offset that is none of this source ({error}): {json.dumps(given)[:200]}"
            ) from error

    def is_where(self, other: StreamOffset) -> bool:
        """Whether a query there has read the same records of the same shards."""
        return self.stream_id == other.stream_id and self.shards == other.shards

    def readable(self) -> list[str]:
        """Shards that a batch which begins here may read."""
        tree = ShardTree({shard: one.parents for shard, one in self.shards.items()})
        ended = {shard for shard, one in self.shards.items() if one.is_ended}
        return [shard for shard in self.shards if shard not in ended and tree.may_begin(shard, ended)]

    def with_shard(self, shard: str, offset: ShardOffset, begin: str | None = None) -> StreamOffset:
        """The same with one shard elsewhere; ``begin`` is where its part of the batch begins, if not where it was."""
        begins = self.begins if begin is None else {**self.begins, shard: begin}
        return evolve(self, shards={**self.shards, shard: offset}, begins=begins)


class ShardListing(Protocol):
    """Which shards there are and where they begin: a part of ``StreamApi``."""

    def list_stream(self, table_name: str | None = None, /) -> Sequence[StreamSummary]:
        """Streams of a table: none or one."""

    def describe_stream(self, stream_id: str, /) -> StreamDescription:
        """A stream with its shards."""

    def get_shard_iterator(self, stream_id: str, shard_id: str, timestamp_micros: int | None = None, /) -> str:
        """Iterator at the oldest record, or at those from a time on."""


@frozen
class ShardSlice:
    """What one task reads: so many records from an iterator on."""

    stream_id: str
    shard_id: str
    at: str
    count: int
    last: SequenceInfo
    """The record that the range ends with."""
    until: str | None = None
    """Iterator behind that record; ``None`` at the end of the shard."""
    after: SequenceInfo | None = None
    """The record of the shard that was read last before the range; ``None`` if none was."""


def ranges_between(
    start: StreamOffset, end: StreamOffset, between: Mapping[str, Mapping[int, ShardOffset]] | None = None
) -> list[ShardSlice]:
    """The ranges of the batch from one offset to another, those of a shard one after the other.

    Args:
        start: where the batch begins.
        end: where it ends.
        between: places at which a range of a shard ends and another one begins, by shard and by their counts in
            ascending order; those that do not lie within the batch are left alone.

    Raises:
        StreamClientException: the end is not behind the start.
    """
    found = []
    for shard, one in end.shards.items():
        before = start.shards.get(shard)
        first = 0 if before is None else before.count
        if one.count == first:
            continue
        at = end.begins.get(shard) or (None if before is None else before.at)
        after = None if before is None else before.last
        if one.count < first or at is None or one.last is None:
            raise StreamClientException(
                f"shard {shard} has {one.count} records at the end of the batch and {first} at its start: the "
                "checkpoint is damaged, or of two queries"
            )
        within = [place for count, place in (between or {}).get(shard, {}).items() if first < count < one.count]
        for place in (*within, one):
            assert at is not None, "only the last place may lie at the end of the shard"
            assert place.last is not None, "records lie before it"
            found.append(ShardSlice(end.stream_id, shard, at, place.count - first, place.last, place.at, after))
            at, first, after = place.at, place.count, place.last
    return found


def new_shards(offset: StreamOffset, listing: Iterable[Shard]) -> list[Shard]:
    """Shards that the offset does not know."""
    return [shard for shard in listing if shard.shard_id not in offset.shards]


def may_have_lost(
    shard: Shard, offset: StreamOffset, described: StreamDescription, now_micros: int, not_listed_micros: int
) -> str:
    """Return why records before the first one left in a new shard may be gone; empty if they cannot be.

    This is the law of ``core.shard_tree``; an offset also knows the last records and the ends of the parents.

    Args:
        shard: it is not among those of the offset.
        offset: where the query is.
        described: the stream, with all shards that there are.
        now_micros: the present.
        not_listed_micros: when the shard was surely not there yet, as far as this process has seen; 0 if it has not.
    """
    hours = described.expiration_time_hours
    unknown = shard.parent_shard_ids - offset.shards.keys() - {one.shard_id for one in described.shards}
    if unknown:
        return f"its parent {min(unknown)} was never seen and is gone"
    for parent in shard.parent_shard_ids & offset.shards.keys():
        ended = offset.shards[parent].ended_micros
        if ended is not None and not is_kept(ended, now_micros, hours):
            return f"its parent {parent} was read to the end longer ago than the {hours} hours that records are kept"
    lasts = [offset.shards[parent].last for parent in shard.parent_shard_ids & offset.shards.keys()]
    # It was opened behind the last record of each parent, too.
    opened = max([offset.listed_micros or 0, not_listed_micros, *(one.timestamp_micros for one in lasts if one)])
    if shard.parent_shard_ids and offset.listed_micros is not None and not is_kept(opened, now_micros, hours):
        return (
            f"it was opened at some time in the last {(now_micros - opened) / MICROS_PER_HOUR:.1f} hours, and records "
            f"are kept for {hours} hours: the query was stopped for too long"
        )
    return ""


def without_forgotten(offset: StreamOffset, listing: Iterable[Shard], hours: int, now_micros: int) -> StreamOffset:
    """The offset without ended shards that are no longer listed, once nothing of them can come back.

    A listing is no snapshot and may lack a shard for a moment; one that was forgotten then would be read anew.
    """
    listed = {shard.shard_id for shard in listing}
    awaited = {parent for one in offset.shards.values() if not one.is_ended for parent in one.parents}
    kept = {
        shard: one
        for shard, one in offset.shards.items()
        if shard in listed
        or shard in awaited
        or one.ended_micros is None
        or is_kept(one.ended_micros, now_micros, 2 * hours)
    }
    return offset if len(kept) == len(offset.shards) else evolve(offset, shards=kept)


def data_loss(what: str) -> str:
    """What a query says that would go on with a hole in its data."""
    return (
        f"{what}. The query would go on with a hole in its data: set the option failOnDataLoss to false to accept "
        "that, or begin with a new checkpoint"
    )


def not_as_planned(part: ShardSlice, found: int, last: SequenceInfo | None) -> StreamClientException:
    """What a task says whose range holds something else than was counted."""
    return StreamClientException(
        f"shard {part.shard_id} gave {found} records up to {last}, and {part.count} up to {part.last} were planned: a "
        "batch cannot be repeated as it was, so nothing of it is given out"
    )
