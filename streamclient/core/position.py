"""Positions in a shard: the oldest record, an iterator, or the end.

A position points at the next record to read. Its text is what column ``Checkpoint`` of the status table holds, so a
position survives restarts and is understood by Java workers.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import ClassVar

from attrs import frozen

from streamclient.model import CheckpointPosition
from streamclient.records import SequenceInfo


@frozen
class Position:
    """Where reading continues."""

    text: str

    TRIM_HORIZON: ClassVar[Position]
    SHARD_END: ClassVar[Position]

    def __attrs_post_init__(self) -> None:
        if not self.text:
            raise ValueError("a position needs a non-empty text; the end of a shard is Position.SHARD_END")

    @property
    def is_shard_end(self) -> bool:
        """Whether the shard is closed and nothing is left to read."""
        return self.text == CheckpointPosition.SHARD_END

    @property
    def is_iterator(self) -> bool:
        """Whether the text is a shard iterator that can be passed to GetStreamRecord as it is."""
        return self.text not in (CheckpointPosition.SHARD_END, CheckpointPosition.TRIM_HORIZON)

    def __str__(self) -> str:
        return self.text


def no_progress(
    asked: str,
    following: str | None,
    first: SequenceInfo | None,
    last: SequenceInfo | None,
    before: SequenceInfo | None,
) -> str:
    """Why a page brings no progress although it has records, which is the service's fault; empty if it brings some.

    Records of a shard rise strictly, and the next iterator stands after them. That records rise inside of a page is
    checked where they are decoded.

    Args:
        asked: the position that was read.
        following: the next one; ``None`` at the end of the shard.
        first: where the first record stands that is known of the page, or ``None`` if it has no records.
        last: where its last one stands.
        before: the last record that the same reader took of the shard before, if it took one since it began.
    """
    if first is None or last is None:
        return ""
    if following == asked:
        return f"the page has records up to {last}, and the next position is the one that was asked for"
    if not is_after(first, before):
        return f"the page begins with record {first}, and everything up to {before} was read before"
    return ""


def is_after(place: SequenceInfo, before: SequenceInfo | None) -> bool:
    """Whether a record may follow the last one that was taken of its shard, if one was.

    A record without a time tells nothing: rows of a tunnel's full data have none.
    """
    return before is None or place > before or not (place.timestamp_micros and before.timestamp_micros)


def count_before(places: Callable[[int], SequenceInfo], count: int, before: SequenceInfo | None) -> int:
    """How many of the first records of a page were taken before, given how to find the place of each of `count`."""
    if not count or is_after(places(0), before):
        return 0
    return bisect_left(range(count), True, key=lambda index: is_after(places(index), before))


Position.TRIM_HORIZON = Position(CheckpointPosition.TRIM_HORIZON)
Position.SHARD_END = Position(CheckpointPosition.SHARD_END)
