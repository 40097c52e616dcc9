"""Positions in a shard: the oldest record, an iterator, or the end.

A position points at the next record to read. The column ``Checkpoint`` of the status table contains its text. So a
position survives restarts, and Java workers understand it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import ClassVar

from attrs import define, frozen

from streamclient.model import CheckpointPosition
from streamclient.records import SequenceInfo


@frozen
class Position:
    """The position at which reading continues."""

    text: str

    TRIM_HORIZON: ClassVar[Position]
    SHARD_END: ClassVar[Position]

    def __attrs_post_init__(self) -> None:
        if not self.text:
            raise ValueError("a position needs a non-empty text; the end of a shard is Position.SHARD_END")

    @property
    def is_shard_end(self) -> bool:
        """Whether the shard is closed and completely read."""
        return self.text == CheckpointPosition.SHARD_END

    @property
    def is_iterator(self) -> bool:
        """Whether the text is a shard iterator that can be passed to GetStreamRecord unchanged."""
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
    """Return why a page with records makes no progress, which is a fault of the service; empty if it makes progress.

    The positions of a shard's records rise strictly, and the next iterator is after them. The order of the records
    within a page is not checked here, but by the decoder.

    Args:
        asked: the position that was read.
        following: the next position; ``None`` at the end of the shard.
        first: the position of the page's first known record; ``None`` without records.
        last: the position of the page's last record.
        before: the last record that this reader took from the shard; ``None`` if the reader took no record yet.
    """
    if first is None or last is None:
        return ""
    if following == asked:
        return f"the page has records up to {last}, and the next position is the one that was asked for"
    if not is_after(first, before):
        return f"the page begins with record {first}, and everything up to {before} was read before"
    return ""


def is_after(position: SequenceInfo, before: SequenceInfo | None) -> bool:
    """Return whether a record at ``position`` may follow ``before``, the last record taken from its shard, if any.

    A record without a time is accepted: rows of a tunnel's full data have no times.
    """
    return before is None or position > before or not (position.timestamp_micros and before.timestamp_micros)


@frozen
class Judged:
    """The verdict on a page."""

    why: str = ""
    """The reason why the page cannot be true; empty if it may be true. A reader uses no part of a doubtful page, least
    of all its next position."""
    taken: int = 0
    """The number of records at the beginning of the page that were already taken. It is above 0 when the reader has
    gone back, and reads up to the last taken record again."""
    is_way: bool = False
    """Whether all records of the page are before the last taken record. If so, the page's next position is before that
    record, too."""


NEW = Judged()
"""The verdict on a page that continues after the last record."""


@define
class ReadTrail:
    """The last record that a reader took from its shard, and the position of the page with that record.

    A doubtful page proves nothing about its own position or the next position: it may be the page of another shard, or
    the previous page may have led to a wrong position. So the reader goes back to the position from which the last
    record was read. That position was right. The reader reads again from there, and trusts these pages once they
    contain the last record itself, because no other shard has that record. The records after it are new, and are
    delivered once. If these pages are doubtful, too, the reader returns to its former position. From then on it tries
    both positions in turn, until one of them lets it continue.
    """

    last: SequenceInfo | None = None
    _position: str = ""
    """The position of the page with the last record; empty if that page must not be read again."""
    _doubted: str = ""
    """The reader's former position, while pages up to the last record are read again; otherwise empty."""

    @property
    def goes_back(self) -> bool:
        """Whether pages up to the last record are being read again."""
        return bool(self._doubted)

    def judge(
        self, asked: str, following: str | None, count: int, position_of: Callable[[int], SequenceInfo]
    ) -> Judged:
        """Judge the page that was read at ``asked``; remember nothing.

        Args:
            asked: the position that was read.
            following: the next position; ``None`` or the text of ``SHARD_END`` at the end of the shard.
            count: the number of records in the page.
            position_of: returns the position of a record by its index.
        """
        if not count:
            return NEW if not self._doubted else Judged(f"the page has no records, and up to {self.last} it had some")
        first = position_of(0)
        if following == asked:
            return Judged(no_progress(asked, following, first, position_of(count - 1), None))
        if not self._doubted:
            return NEW if is_after(first, self.last) else Judged(no_progress("", "-", first, first, self.last))
        taken = bisect_left(range(count), True, key=lambda index: is_after(position_of(index), self.last))
        if taken and position_of(taken - 1) == self.last:
            return Judged(taken=taken)
        if taken < count or following in (None, CheckpointPosition.SHARD_END):
            return Judged(f"the page at the position of record {self.last} lacks it")
        return Judged(taken=taken, is_way=True)

    def take(self, asked: str, last: SequenceInfo) -> None:
        """Remember the last record of a page that was read at ``asked``.

        Full data has no positions, so there is no way back.
        """
        self.last, self._position, self._doubted = last, asked if last.timestamp_micros else "", ""

    def arrive(self) -> None:
        """End the way back, because a page contained the last record again. Reading continues after that record."""
        self._doubted = ""

    def turn(self, asked: str) -> str:
        """Return the position to read next after a doubtful page at ``asked``."""
        if self._doubted or not self._position:
            there, self._doubted = self._doubted or asked, ""
            return there
        self._doubted = asked
        return self._position

    def forget_way(self) -> str:
        """Return the reader's former position, because the records before it have left the stream."""
        there, self._doubted, self._position = self._doubted, "", ""
        return there


Position.TRIM_HORIZON = Position(CheckpointPosition.TRIM_HORIZON)
Position.SHARD_END = Position(CheckpointPosition.SHARD_END)
