"""Offsets of a streaming query: the position of each shard, as Spark stores it in its checkpoint. Pure.

Three rules make a repeated batch equal to the first one.

* An offset names iterators, never "oldest" or "latest", whose meaning moves with time.
* Spark stores the end of a batch, not the beginning of the first one, and asks for the beginning again after a crash.
  So the beginning is a mark without content. The end of a batch also holds the batch's beginning, if that differs from
  the end of the batch before: in the first batch, for a new shard, and for a shard whose records were lost.
* The end holds the number of records that each shard has delivered, and the last of these records. A task that repeats
  a batch reads the same number and compares the last record: it gives the same rows, or an error.

A shard is read once all of its parents were read to their ends in *earlier* batches, because the partitions of one
batch run side by side.
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
"""The format of offsets over streams and over tunnels."""


@frozen
class ShardOffset:
    """The position of one shard."""

    at: str | None
    """The iterator of the next record; ``None`` after the last record of a closed shard."""
    count: int = 0
    """The number of records that the query has read from the shard."""
    last: SequenceInfo | None = None
    """The last of these records."""
    parents: frozenset[str] = frozenset()
    """The parents of the shard, which must be read first."""
    ended_micros: int | None = None
    """The time when the end of the shard was reached, by the planner's clock."""

    @property
    def is_ended(self) -> bool:
        """Whether the shard was read to its end."""
        return self.at is None

    def to_json(self) -> dict[str, Any]:
        """Return the form that Spark stores."""
        return {
            "at": self.at,
            "count": self.count,
            "last": None if self.last is None else [self.last.epoch, self.last.timestamp_micros, self.last.row_index],
            "parents": sorted(self.parents),
            "ended": self.ended_micros,
        }

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> ShardOffset:
        """Read the form of ``to_json``."""
        last = None if given["last"] is None else SequenceInfo(*given["last"])
        return cls(given["at"], given["count"], last, frozenset(given["parents"]), given["ended"])


@frozen
class StreamOffset:
    """The position of a query. It is the mark of the beginning if ``stream_id`` is empty."""

    stream_id: str = ""
    shards: Mapping[str, ShardOffset] = field(factory=dict)
    begins: Mapping[str, str] = field(factory=dict)
    """The beginning of each shard's part of the batch that ends here, if it differs from the end of the batch
    before."""
    listed_micros: int | None = None
    """The time, by the planner's clock, after which every shard that is not in this offset was opened. ``None`` in
    offsets of versions that did not store it."""

    @property
    def is_beginning(self) -> bool:
        """Whether this is the mark of the beginning."""
        return not self.stream_id

    def to_json(self) -> dict[str, Any]:
        """Return the form that Spark stores; equal offsets give equal text."""
        shards = {shard: self.shards[shard].to_json() for shard in sorted(self.shards)}
        begins = {shard: self.begins[shard] for shard in sorted(self.begins)}
        stored = {FORMAT_MEMBER: OFFSET_FORMAT.version, "stream": self.stream_id, "shards": shards, "begins": begins}
        return stored if self.listed_micros is None else {**stored, "listed": self.listed_micros}

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> StreamOffset:
        """Read the form of ``to_json``.

        Raises:
            StreamClientException: ``given`` has another form, for example from another source's checkpoint, or is of a
                version that is not known.
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
        """Return whether a query at either offset has read the same records of the same shards."""
        return self.stream_id == other.stream_id and self.shards == other.shards

    def readable(self) -> list[str]:
        """Return the shards that a batch which begins here may read."""
        tree = ShardTree({shard: offset.parents for shard, offset in self.shards.items()})
        ended = {shard for shard, offset in self.shards.items() if offset.is_ended}
        return [shard for shard in self.shards if shard not in ended and tree.may_begin(shard, ended)]

    def with_shard(self, shard: str, offset: ShardOffset, begin: str | None = None) -> StreamOffset:
        """Return a copy with ``shard`` at ``offset``.

        ``begin`` is the beginning of the shard's part of the batch, if it differs from the end of the batch before.
        """
        begins = self.begins if begin is None else {**self.begins, shard: begin}
        return evolve(self, shards={**self.shards, shard: offset}, begins=begins)


class ShardListing(Protocol):
    """The shards and their beginnings: a part of ``StreamApi``."""

    def list_stream(self, table_name: str | None = None, /) -> Sequence[StreamSummary]:
        """Return the streams of a table: none or one."""

    def describe_stream(self, stream_id: str, /) -> StreamDescription:
        """Return a stream with its shards."""

    def get_shard_iterator(self, stream_id: str, shard_id: str, timestamp_micros: int | None = None, /) -> str:
        """Return the iterator of the oldest record, or of the records from a time on."""


@frozen
class ShardSlice:
    """The part of a batch that one task reads: ``count`` records from the iterator ``at`` on."""

    stream_id: str
    shard_id: str
    at: str
    count: int
    last: SequenceInfo
    """The last record of the range."""
    until: str | None = None
    """The iterator after the last record of the range; ``None`` at the end of the shard."""
    after: SequenceInfo | None = None
    """The last record of the shard that was read before the range; ``None`` if none was read."""


def ranges_between(
    start: StreamOffset, end: StreamOffset, between: Mapping[str, Mapping[int, ShardOffset]] | None = None
) -> list[ShardSlice]:
    """Return the ranges of the batch from ``start`` to ``end``. Ranges of one shard follow each other.

    Args:
        start: the beginning of the batch.
        end: the end of the batch.
        between: positions at which one range of a shard ends and the next begins, by shard and by count in ascending
            order; positions outside the batch are ignored.

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
                f"shard {shard} has {records} at the end of the batch and {first} at its start: the checkpoint is "
                "damaged, or of two queries"
            )
        within = [border for count, border in (between or {}).get(shard, {}).items() if first < count < reached.count]
        for border in (*within, reached):
            assert at is not None, "only the last border may be at the end of the shard"
            assert border.last is not None, "records are before it"
            slices.append(ShardSlice(end.stream_id, shard, at, border.count - first, border.last, border.at, after))
            at, first, after = border.at, border.count, border.last
    return slices


def new_shards(offset: StreamOffset, listing: Iterable[Shard]) -> list[Shard]:
    """Return the shards of ``listing`` that the offset does not know."""
    return [shard for shard in listing if shard.shard_id not in offset.shards]


def may_have_lost(
    shard: Shard, offset: StreamOffset, described: StreamDescription, now_micros: int, not_listed_micros: int
) -> str:
    """Return why records before the oldest one left in a new shard may be gone; empty if they cannot be gone.

    This is the law of ``core.shard_tree``; an offset also knows the last records and the ends of the parents.

    Args:
        shard: a shard that the offset does not know.
        offset: the position of the query.
        described: the stream with all its present shards.
        now_micros: the present time.
        not_listed_micros: the last time when this process surely did not find the shard in a listing; 0 if it never
            looked.
    """
    hours = described.expiration_time_hours
    unknown = shard.parent_shard_ids - offset.shards.keys() - {listed.shard_id for listed in described.shards}
    if unknown:
        return f"its parent {min(unknown)} was never seen and is gone"
    for parent in shard.parent_shard_ids & offset.shards.keys():
        ended = offset.shards[parent].ended_micros
        if ended is not None and not is_kept(ended, now_micros, hours):
            return f"its parent {parent} was read to the end longer ago than the {hours} hours that records are kept"
    lasts = [offset.shards[parent].last for parent in shard.parent_shard_ids & offset.shards.keys()]
    # The shard was also opened after the last record of each parent.
    opened = max([offset.listed_micros or 0, not_listed_micros, *(last.timestamp_micros for last in lasts if last)])
    if shard.parent_shard_ids and offset.listed_micros is not None and not is_kept(opened, now_micros, hours):
        return (
            f"it was opened at some time in the last {(now_micros - opened) / MICROS_PER_HOUR:.1f} hours, and records "
            f"are kept for {hours} hours: the query was stopped for too long"
        )
    return ""


def without_forgotten(offset: StreamOffset, listing: Iterable[Shard], hours: int, now_micros: int) -> StreamOffset:
    """Return the offset without ended shards that are no longer listed, once they cannot come back.

    A listing is not a snapshot and may lack a shard for a moment. A shard that was forgotten then would be read anew.
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
    """Return the message of a query that would continue with a hole in its data."""
    return (
        f"{loss}. The query would go on with a hole in its data: set the option failOnDataLoss to false to accept "
        "that, or begin with a new checkpoint"
    )


def not_as_planned(part: ShardSlice, count: int, last: SequenceInfo | None) -> StreamClientException:
    """Return the error of a task whose range holds ``count`` records up to ``last``, unlike the plan."""
    return StreamClientException(
        f"shard {part.shard_id} gave {counted(count, 'record')} up to {last}, and {part.count} up to {part.last} were "
        "planned: a batch cannot be repeated as it was, so no record of it is delivered"
    )
