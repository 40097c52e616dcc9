"""Which positions a processor may store: those that it was given, none before one that it already stored."""

from __future__ import annotations

from collections import OrderedDict

from streamclient.errors import ConfigurationError
from streamclient.model import CheckpointPosition

MOST_POSITIONS = 10_000
"""Positions remembered per processor. One that stores progress forgets everything before it, so only a processor that
runs ten thousand batches ahead of its checkpoints meets this bound; its oldest positions are then refused by name."""

END_NUMBER = 2**63
"""Number of SHARD_END, whether the end was reached or not: behind every batch."""


class HandedOutPositions:
    """Numbers the positions of one processor in the order in which they were handed out.

    Iterators are opaque, so their order is known only by these numbers. Not thread-safe; the checkpointer locks.
    """

    def __init__(self, shard_id: str, initial: str) -> None:
        self._shard_id = shard_id
        self._numbers: OrderedDict[str, int] = OrderedDict({initial: 0})
        self._last = 0
        self._oldest_allowed = 0
        self._retracted = False
        self.permitted = initial
        self._permitted_before: tuple[str, int] = (initial, 0)

    def permit(self, position: str) -> None:
        """Hand out the position behind one more batch."""
        self._permitted_before = (self.permitted, self._numbers.get(self.permitted, self._last))
        self._retracted = False
        if position == self.permitted:
            return
        self._last += 1
        self._numbers.pop(position, None)
        self._numbers[position] = END_NUMBER if position == CheckpointPosition.SHARD_END else self._last
        self.permitted = position
        while len(self._numbers) > MOST_POSITIONS:
            self._numbers.popitem(last=False)

    def retract(self) -> None:
        """The batch before the permitted position failed: permit only what came before it.

        A position that was already requested stays: whoever asked for it said that everything before it is safe.
        """
        before, number = self._permitted_before
        if self._numbers.get(self.permitted, 0) <= self._oldest_allowed and self._oldest_allowed > number:
            return
        if before != self.permitted:
            self._numbers.pop(self.permitted, None)
            self._numbers[before] = number
            self.permitted = before
        self._retracted = True

    def resolve(self, value: str | None) -> tuple[str, int]:
        """The text to store and its number.

        Raises:
            ConfigurationError: the value was not handed out, or lies before one that was already stored.
        """
        text = self.permitted if value is None else value
        number = self._number(text)
        if number < self._oldest_allowed:
            raise ConfigurationError(
                f"checkpoint {text!r} of shard {self._shard_id} lies before a checkpoint that was already requested; "
                "progress never goes back"
            )
        return text, number

    def requested(self, number: int) -> None:
        """A checkpoint is on its way: earlier ones are refused from now on, whatever becomes of it."""
        self._oldest_allowed = max(self._oldest_allowed, number)
        outdated = [text for text, place in self._numbers.items() if place < number and text != self.permitted]
        for text in outdated:
            del self._numbers[text]

    def _number(self, text: str) -> int:
        number = self._numbers.get(text)
        if number is not None:
            return number
        if text != CheckpointPosition.SHARD_END:
            raise ConfigurationError(
                f"checkpoint {text!r} was not handed out for shard {self._shard_id}, or more than {MOST_POSITIONS} "
                f"positions ago; use a value of largest_permitted_checkpoint_value, or SHARD_END"
            )
        if self._retracted:
            raise ConfigurationError(
                f"SHARD_END of shard {self._shard_id} is refused: the batch behind {self.permitted!r} failed and must "
                "be processed first"
            )
        return END_NUMBER
