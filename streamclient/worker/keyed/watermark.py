"""The position before which all records are done, when records finish in any order. Pure: no thread, no clock."""

from __future__ import annotations

from collections import deque

from attrs import define


@define
class _Batch:
    position: str
    left: int


class Watermark:
    """The last position before which every record is finished.

    Batches begin in the order of the shard; their records finish in any order. A position is at the end of its batch,
    so it counts once that batch and all before it are finished.

    Example:
        >>> mark = Watermark()
        >>> first, second = mark.begin("p1", 2), mark.begin("p2", 1)
        >>> mark.finish(second); mark.position is None
        True
        >>> mark.finish(first); mark.finish(first); mark.position
        'p2'
    """

    def __init__(self) -> None:
        self.position: str | None = None
        """``None`` before any batch is finished."""
        self._batches: deque[_Batch] = deque()
        self._first_number = 0

    @property
    def unfinished(self) -> int:
        """Number of records that have begun and are not finished."""
        return sum(batch.left for batch in self._batches)

    def begin(self, position: str, records: int) -> int:
        """Begin a batch of ``records`` records that ends at ``position``; return the number by which to finish them."""
        self._batches.append(_Batch(position, records))
        number = self._first_number + len(self._batches) - 1
        self._advance()
        return number

    def finish(self, number: int) -> None:
        """Finish one more record of batch ``number``."""
        batch = self._batches[number - self._first_number] if number >= self._first_number else None
        if batch is None or not batch.left:
            raise ValueError(f"all records of batch {number} are finished already")
        batch.left -= 1
        self._advance()

    def withdraw(self, number: int) -> None:
        """Forget the last batch that began: it will begin again, as a whole or in parts."""
        if not self._batches or number != self._first_number + len(self._batches) - 1:
            raise ValueError(f"batch {number} is not the last unfinished one")
        self._batches.pop()

    def _advance(self) -> None:
        while self._batches and not self._batches[0].left:
            self.position = self._batches.popleft().position
            self._first_number += 1
