"""Positions in a shard: the oldest record, an iterator, or the end.

A position points at the next record to read. The status table stores the position's text in the column ``Checkpoint``.
So a position survives restarts, and Java workers understand it.
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
    """The position in a shard at which reading continues."""

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
    """Return why a page with records makes no progress; empty if it makes progress.

    A page without progress is a fault of the service. In a correct shard, the positions of records rise
    strictly, and the next position is after them. The decoder checks the order of the records within a page.

    Args:
        asked: the position at which the page was read.
        following: the next position; ``None`` at the end of the shard.
        first: the position of the page's first record with a known position; ``None`` without records.
        last: the position of the page's last record.
        before: the position of the last record that this reader took from the shard; ``None`` before the first record.
    """
    if first is None or last is None:
        return ""
    if following == asked:
        return f"the page has records up to {last}, and the next position is the one that was asked for"
    if not is_after(first, before):
        return f"the page begins with record {first}, and everything up to {before} was read before"
    return ""


def is_after(position: SequenceInfo, before: SequenceInfo | None) -> bool:
    """Return whether a record at ``position`` may follow the last record taken from the shard, which is at ``before``.

    If ``before`` is ``None``, any record may follow. Records of a tunnel's full data have no times, so they may follow
    any record, too.
    """
    return before is None or position > before or not (position.timestamp_micros and before.timestamp_micros)


@frozen
class Judged:
    """The verdict on a page: whether the reader may use it, and which of its records are new."""

    why: str = ""
    """The reason why the page must be wrong; empty if the page may be right. A page with a reason is doubtful: a reader
    uses nothing of it, not even its next position."""
    taken: int = 0
    """The number of records at the beginning of the page that are not new, because the reader took them earlier. It is
    above 0 only after the reader went back to read earlier pages again."""
    is_way: bool = False
    """Whether all records of the page are before the last record that the reader took. The page's next position then
    leads towards that record."""


NEW = Judged()
"""The verdict on a page whose records are all new."""


@define
class ReadTrail:
    """The last record that a reader took from its shard, and the position of the page with that record.

    A page is doubtful if its records cannot follow the last record. The page may belong to another shard, or the
    previous page may have led to a wrong position. So the reader goes back to the position of the page with the last
    record, and reads from there. When a page contains the last record again, the reader trusts the pages since then,
    because no other shard has that record. The records after the last record are new. If a page on this way is
    doubtful, too, the reader returns to the position of the first doubtful page. The reader then tries both positions
    in turn until it can continue from one of them.
    """

    last: SequenceInfo | None = None
    _position: str = ""
    """The position of the page with the last record; empty if that page cannot be read again."""
    _doubted: str = ""
    """The position of the doubtful page, while pages up to the last record are read again; otherwise empty."""

    @property
    def goes_back(self) -> bool:
        """Whether pages up to the last record are being read again."""
        return bool(self._doubted)

    def judge(
        self, asked: str, following: str | None, count: int, position_of: Callable[[int], SequenceInfo]
    ) -> Judged:
        """Return the verdict on the page that was read at ``asked``, without changing the trail.

        Args:
            asked: the position at which the page was read.
            following: the next position; ``None`` or the text of ``SHARD_END`` at the end of the shard.
            count: the number of records in the page.
            position_of: returns the position of a record by its index.
        """
        if not count:
            return NEW if not self._doubted else Judged(f"the page is empty, but earlier had records up to {self.last}")
        first = position_of(0)
        if following == asked:
            return Judged(no_progress(asked, following, first, position_of(count - 1), None))
        if not self._doubted:
            return NEW if is_after(first, self.last) else Judged(no_progress("", "-", first, first, self.last))
        taken = bisect_left(range(count), True, key=lambda index: is_after(position_of(index), self.last))
        if taken and position_of(taken - 1) == self.last:
            return Judged(taken=taken)
        if taken < count or following in (None, CheckpointPosition.SHARD_END):
            return Judged(f"the page at the position of record {self.last} lacks that record")
        return Judged(taken=taken, is_way=True)

    def take(self, asked: str, last: SequenceInfo) -> None:
        """Remember ``last``, the last record of a page that was read at ``asked``.

        The reader may go back to ``asked`` later. It cannot if ``last`` is a row of a tunnel's full data, because such
        rows have no position.
        """
        self.last, self._position, self._doubted = last, asked if last.timestamp_micros else "", ""

    def arrive(self) -> None:
        """Stop going back, because a page contained the last record again. Reading continues after that record."""
        self._doubted = ""

    def turn(self, asked: str) -> str:
        """Turn round after the page at ``asked`` was doubtful; return the position to read next.

        The first time, that is the position of the page with the last record. If the reader was already going back,
        it is the position of the first doubtful page. If there is no position to go back to, it is ``asked`` again.
        """
        if self._doubted or not self._position:
            there, self._doubted = self._doubted or asked, ""
            return there
        self._doubted = asked
        return self._position

    def forget_way(self) -> str:
        """Stop going back, because the last record has left the stream; return the position of the doubtful page."""
        there, self._doubted, self._position = self._doubted, "", ""
        return there


Position.TRIM_HORIZON = Position(CheckpointPosition.TRIM_HORIZON)
Position.SHARD_END = Position(CheckpointPosition.SHARD_END)
