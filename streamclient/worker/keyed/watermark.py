"""The position before which all records are done, while records finish in any order. Without threads or a clock."""

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
    so it counts once that batch and all earlier batches are finished.

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
        """The last position before which every record is finished; ``None`` before the first batch is finished."""
        self._batches: deque[_Batch] = deque()
        self._first_number = 0

    @property
    def unfinished(self) -> int:
        """The number of unfinished records in the batches that have begun."""
        return sum(batch.left for batch in self._batches)

    def begin(self, position: str, records: int) -> int:
        """Begin a batch of ``records`` records that ends at ``position``; return the number of the batch."""
        self._batches.append(_Batch(position, records))
        number = self._first_number + len(self._batches) - 1
        self._advance()
        return number

    def finish(self, number: int) -> None:
        """Record that one more record of batch ``number`` is finished."""
        batch = self._batches[number - self._first_number] if number >= self._first_number else None
        if batch is None or not batch.left:
            raise ValueError(f"all records of batch {number} are finished already")
        batch.left -= 1
        self._advance()

    def withdraw(self, number: int) -> None:
        """Forget batch ``number``, the last one that began, because it will come again, as a whole or in parts."""
        if not self._batches or number != self._first_number + len(self._batches) - 1:
            raise ValueError(f"batch {number} is not the last unfinished one")
        self._batches.pop()

    def _advance(self) -> None:
        while self._batches and not self._batches[0].left:
            self.position = self._batches.popleft().position
            self._first_number += 1
