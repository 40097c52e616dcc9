"""Positions in a shard: the oldest record, an iterator, or the end.

A position points at the next record to read. Its text is what column ``Checkpoint`` of the status table holds, so a
position survives restarts and is understood by Java workers.
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


@frozen
class Judged:
    """What a reader may do with a page."""

    why: str = ""
    """Why the page cannot be true; empty if it can. Nothing of a page in doubt is used, its next position least."""
    taken: int = 0
    """Records at its beginning that were taken before, as the way to the last one is read once more."""
    is_way: bool = False
    """Whether all of its records lie before the last one that was taken, so that its next position does, too."""


NEW = Judged()
"""A page that goes on after the last record."""


@define
class ReadTrail:
    """The last record that a reader took of its shard, and the place from which that was read.

    A page in doubt says nothing of its own place, nor of what follows: it may be another shard's, or its place may be
    wrong, as the page before led there. So the reader goes back to the place of the last record, which was right, and
    reads the way from there once more. It believes that way when it comes past the last record itself: no other shard
    has that one. What comes after is new, and is given once. If the way is in doubt, too, the reader goes on where it
    was, and so on in turns: what is right of the two lets it pass.
    """

    last: SequenceInfo | None = None
    _place: str = ""
    """Where the page was read that has the last record; empty if nothing may be read there again."""
    _doubted: str = ""
    """While the way is read once more, where the reader was."""

    @property
    def goes_back(self) -> bool:
        """Whether the way to the last record is read once more."""
        return bool(self._doubted)

    def judge(self, asked: str, following: str | None, count: int, place: Callable[[int], SequenceInfo]) -> Judged:
        """Judge the page that was read at `asked`; nothing is remembered of it.

        Args:
            asked: the position that was read.
            following: the next one; ``None`` or the text of ``SHARD_END`` at the end of the shard.
            count: records of the page.
            place: where each of them stands, by its number.
        """
        if not count:
            return NEW if not self._doubted else Judged(f"the page has no records, and up to {self.last} it had some")
        first = place(0)
        if following == asked:
            return Judged(no_progress(asked, following, first, place(count - 1), None))
        if not self._doubted:
            return NEW if is_after(first, self.last) else Judged(no_progress("", "-", first, first, self.last))
        taken = bisect_left(range(count), True, key=lambda index: is_after(place(index), self.last))
        if taken and place(taken - 1) == self.last:
            return Judged(taken=taken)
        if taken < count or following in (None, CheckpointPosition.SHARD_END):
            return Judged(f"the page at the place of record {self.last} lacks it")
        return Judged(taken=taken, is_way=True)

    def take(self, asked: str, last: SequenceInfo) -> None:
        """Remember the last record of a page that was read at `asked`. Full data has no places, so no way back."""
        self.last, self._place, self._doubted = last, asked if last.timestamp_micros else "", ""

    def arrive(self) -> None:
        """The last record was met again, and reading goes on after it."""
        self._doubted = ""

    def turn(self, asked: str) -> str:
        """The position to read next, after a page at `asked` that is in doubt."""
        if self._doubted or not self._place:
            there, self._doubted = self._doubted or asked, ""
            return there
        self._doubted = asked
        return self._place

    def forget_way(self) -> str:
        """The records at the place of the last one have left the stream: the position where the reader was."""
        there, self._doubted, self._place = self._doubted, "", ""
        return there


Position.TRIM_HORIZON = Position(CheckpointPosition.TRIM_HORIZON)
Position.SHARD_END = Position(CheckpointPosition.SHARD_END)
